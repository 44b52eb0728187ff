"""The kernel of an attention: softmax(score) values in one pass over the keys, whose scores are in registers.

    for blocks of rows of a head, and of a part of its keys:                                 blockIdx.x
        shared memory = queries of the block
        for tiles of these keys:
            shared memory = keys and values of the tile
            scores = score(queries keys)                    rows and keys of each thread     registers
            shared memory = the largest score of each row among those of a thread
            largest' = max(largest, these);  scores = exp(scores - largest')
            sums, outputs *= exp(largest - largest');  sums += scores
            shared memory = scores
            outputs += scores values                        rows and columns of each thread  registers
        outputs / sums, or what another launch adds up (see `split`)

This is the online softmax (M. Milakov and N. Gimelshein, arXiv:1805.02867, Algorithm 3) as FlashAttention has it (T.
Dao et al., arXiv:2205.14135, Algorithm 1), but that each block has one tile of rows. The threads of a row each sum up
their own scores; these sums are added at the end, because all are scaled alike.

A thread has every n-th row of a block and every m-th key of a tile, so that neighbours are in different banks. It reads
four elements at once, along the depth and along the keys. Numbers of 16 bits become float32 as they are brought, and
weights are rounded to 16 bits if the function does so.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm
from tvm.tirx import BufferStore, For, ForKind, IfThenElse, PrimFunc, SeqStmt

from ....ir.stages import Axis, assemble, intermediate, variable
from .parts import AttentionParts
from .sizes import QUAD, BlockSizes, padded, whole_quads
from .split import SumsOfParts
from .statements import Rows, Staged, bound, contiguous_elements, fetch, heads_of, loop, unrolled, vectorized

_TYPE = "float32"


def attention_kernel(parts: AttentionParts, sizes: BlockSizes) -> PrimFunc:
    """The scheduled function.

    Args:
        parts: The attention.
        sizes: How it is divided.
    """
    return _Kernel(parts, sizes).function()


class _Kernel:
    """The statements of the kernel. Those that all threads execute between two barriers are methods of a thread."""

    def __init__(self, parts: AttentionParts, sizes: BlockSizes) -> None:
        self._parts, self._sizes = parts, sizes
        self._vector = sizes.vector(parts.column.extent)
        self._columns = sizes.columns(parts.column.extent)
        rows, keys, threads = sizes.rows, sizes.keys, sizes.threads
        elements = sizes.shared_elements(parts.depth.extent, parts.column.extent)
        names = ("queries", "keys", "values", "partial")
        made = [intermediate(name, [size], _TYPE, "shared") for name, size in zip(names, elements, strict=True)]
        queries, keys_or_weights, values, partial = self._allocated = made
        row = padded(parts.depth.extent)
        self._queries, self._keys = Staged(queries, sizes.height, row), Staged(keys_or_weights, sizes.tile, row)
        self._weights = Staged(keys_or_weights, sizes.height, padded(sizes.tile))
        self._values = Staged(values, sizes.tile, self._columns * sizes.key_threads)
        self._partial = Staged(partial, sizes.height, sizes.key_threads)

        def registers(name: str, *shape: int) -> Any:
            # The thread is the first axis: TVM takes it away, and serial loops tell the threads apart by it.
            self._allocated.append(intermediate(name, (threads, *shape), _TYPE, "local"))
            return self._allocated[-1]

        self._scores, self._output = registers("scores", rows, keys), registers("output", rows, self._columns)
        self._largest, self._sums, self._scale = (registers(name, rows) for name in ("largest", "sums", "scale"))
        self._left, self._right = registers("left", rows, QUAD), registers("right", keys, QUAD)
        self._of_values, self._four = registers("of_values", self._columns), registers("four", QUAD)
        self._tile, block = variable("tile"), variable("block")
        self._block = block
        self._blocks = -(-parts.row.extent // sizes.height)
        self._tiles = sizes.tiles(parts.key.extent)
        self._head, self._part = block // sizes.parts // self._blocks, block % sizes.parts
        self._first_row = block // sizes.parts % self._blocks * sizes.height
        self._first_key = (self._part * self._tiles + self._tile) * sizes.tile
        self._reached = self._tiles * sizes.parts * sizes.tile
        self._heads = heads_of(parts, self._head)
        self._sums_of_parts = SumsOfParts(parts, sizes.parts) if sizes.parts > 1 else None

    def function(self) -> PrimFunc:
        """The scheduled function."""
        parts = self._parts
        steps = [self._fetch_tile, self._multiply_keys, self._weigh, self._multiply_values]
        walk = For(self._tile, 0, self._tiles, ForKind.SERIAL, SeqStmt([self._by_threads(step) for step in steps]))
        before, after = [self._begin], [self._share_sums, self._store]
        parts_of_block = [*map(self._by_threads, before), walk, *map(self._by_threads, after)]
        blocks = self._blocks * self._sizes.parts * math.prod(axis.extent for axis in parts.heads)
        body = [bound(self._block, blocks, "blockIdx.x", SeqStmt(parts_of_block))]
        if self._sums_of_parts is not None:
            body.append(self._sums_of_parts.added())
            self._allocated += self._sums_of_parts.buffers
        return assemble(parts.parameters, [], body, self._allocated)

    def _by_threads(self, step: Callable[[Any], Any]) -> Any:
        thread = variable("thread")
        return bound(thread, self._sizes.threads, "threadIdx.x", step(thread))

    def _begin(self, thread: Any) -> Any:
        parts, sizes = self._parts, self._sizes
        first = parts.row, self._first_row, self._blocks * sizes.height
        fetched = self._fetch(thread, self._queries, parts.query, first, parts.depth)

        def begin(row: Any) -> Any:
            lowest, zero = tirx.min_value(_TYPE), FloatImm(_TYPE, 0.0)
            outputs = unrolled(self._columns, lambda c: BufferStore(self._output, zero, [thread, row, c]))
            first = BufferStore(self._largest, lowest, [thread, row])
            return SeqStmt([first, BufferStore(self._sums, zero, [thread, row]), outputs])

        return SeqStmt([fetched, unrolled(sizes.rows, begin)])

    def _fetch_tile(self, thread: Any) -> Any:
        parts, key = self._parts, (self._parts.key, self._first_key, self._reached)
        keys = self._fetch(thread, self._keys, parts.keys, key, parts.depth)
        return SeqStmt([keys, self._fetch(thread, self._values, parts.values, key, parts.column)])

    def _fetch(self, thread: Any, to: Staged, load: Any, rows: tuple[Axis, Any, int], along: Axis) -> Any:
        """Brings rows of an input to shared memory."""
        width = to.stride if along is self._parts.column else whole_quads(along.extent)
        return fetch(Rows(load, *rows, along, self._heads), to, width, thread, self._sizes.threads)

    def _multiply_keys(self, thread: Any) -> Any:
        """Computes the scores, and hands on the largest of each row."""
        parts, sizes, scores = self._parts, self._sizes, self._scores
        row_thread, key_thread = self._places(thread)
        zero = FloatImm(_TYPE, 0.0)

        def step(quad: Any) -> Any:
            def add(i: Any, j: Any) -> Any:
                products = (self._left[thread, i, lane] * self._right[thread, j, lane] for lane in range(QUAD))
                added = [BufferStore(scores, scores[thread, i, j] + product, [thread, i, j]) for product in products]
                return SeqStmt(added)

            left = self._rows_of(thread, self._queries, quad)
            right = unrolled(
                sizes.keys,
                lambda j: self._quad(self._right, [thread, j], self._keys, [j * sizes.key_threads + key_thread, quad]),
            )
            return SeqStmt([left, right, unrolled(sizes.rows, lambda i: unrolled(sizes.keys, lambda j: add(i, j)))])

        def finish(i: Any) -> Any:
            def score(j: Any) -> Any:
                key = self._first_key + j * sizes.key_threads + key_thread
                row = self._first_row + i * sizes.row_threads + row_thread
                value = parts.scored(scores[thread, i, j], {parts.row.var: row, parts.key.var: key, **self._heads})
                there = [key < parts.key.extent] if parts.key.extent < self._reached else []
                there += [row < parts.row.extent] if parts.row.extent % sizes.height else []
                if there:
                    value = tirx.if_then_else(tirx.all(*there), value, -tirx.infinity(_TYPE))
                return BufferStore(scores, value, [thread, i, j])

            largest = functools.reduce(tirx.max, [scores[thread, i, j] for j in range(sizes.keys)])
            shared = self._partial.store(i * sizes.row_threads + row_thread, key_thread, largest)
            return SeqStmt([unrolled(sizes.keys, score), shared])

        first = unrolled(
            sizes.rows, lambda i: unrolled(sizes.keys, lambda j: BufferStore(scores, zero, [thread, i, j]))
        )
        quads = whole_quads(parts.depth.extent) // QUAD
        return SeqStmt([first, loop(quads, step, ForKind.SERIAL), unrolled(sizes.rows, finish)])

    def _weigh(self, thread: Any) -> Any:
        """Makes weights of the scores, and scales what was summed up with a smaller largest score."""
        sizes, scores, output = self._sizes, self._scores, self._output
        row_thread, key_thread = self._places(thread)

        def weigh(i: Any) -> Any:
            at, row = [thread, i], i * sizes.row_threads + row_thread
            largest, sums, scale = (buffer[thread, i] for buffer in (self._largest, self._sums, self._scale))

            def weight(j: Any) -> Any:
                score = scores[thread, i, j]
                return SeqStmt(
                    [
                        BufferStore(scores, tirx.exp(score - largest), [thread, i, j]),
                        BufferStore(self._sums, sums + score, at),
                        self._weights.store(row, j * sizes.key_threads + key_thread, self._rounded(score)),
                    ]
                )

            return SeqStmt(
                [
                    BufferStore(self._scale, largest, at),
                    self._of_row(thread, row, lambda each: BufferStore(self._largest, tirx.max(largest, each), at)),
                    BufferStore(self._scale, tirx.exp(scale - largest), at),
                    BufferStore(self._sums, sums * scale, at),
                    unrolled(
                        self._columns, lambda c: BufferStore(output, output[thread, i, c] * scale, [thread, i, c])
                    ),
                    unrolled(sizes.keys, weight),
                ]
            )

        return unrolled(sizes.rows, weigh)

    def _rounded(self, weight: Any) -> Any:
        dtype = self._parts.dtype
        return weight if dtype == _TYPE else prim.Cast(_TYPE, prim.Cast(dtype, weight))

    def _multiply_values(self, thread: Any) -> Any:
        sizes, output, vector = self._sizes, self._output, self._vector
        _, key_thread = self._places(thread)

        def step(quad: Any) -> Any:
            def add(lane: int) -> Any:
                def load(chunk: Any) -> Any:
                    first = (chunk * sizes.key_threads + key_thread) * vector

                    def element(e: Any) -> Any:
                        value = self._values.load(quad * QUAD + lane, first + e)
                        return BufferStore(self._of_values, value, [thread, chunk * vector + e])

                    return vectorized(vector, element)

                def product(i: Any, c: Any) -> Any:
                    value = self._left[thread, i, lane] * self._of_values[thread, c]
                    return BufferStore(output, output[thread, i, c] + value, [thread, i, c])

                products = unrolled(sizes.rows, lambda i: unrolled(self._columns, lambda c: product(i, c)))
                return SeqStmt([unrolled(self._columns // vector, load), products])

            return SeqStmt([self._rows_of(thread, self._weights, quad), *map(add, range(QUAD))])

        return loop(sizes.tile // QUAD, step, ForKind.SERIAL)

    def _share_sums(self, thread: Any) -> Any:
        row_thread, key_thread = self._places(thread)

        def share(i: Any) -> Any:
            row = i * self._sizes.row_threads + row_thread
            return self._partial.store(row, key_thread, self._sums[thread, i])

        return unrolled(self._sizes.rows, share)

    def _store(self, thread: Any) -> Any:
        parts, sizes, sums = self._parts, self._sizes, self._sums
        row_thread, key_thread = self._places(thread)
        handed_on, zero = self._sums_of_parts, FloatImm(_TYPE, 0.0)
        written = parts.store.buffer[parts.store.indices]
        contiguous = parts.column.extent if handed_on is not None else contiguous_elements(written, parts.column)
        vector = math.gcd(self._vector, contiguous)

        def store_row(i: Any) -> Any:
            in_block = i * sizes.row_threads + row_thread
            row = self._first_row + in_block

            def chunk(number: Any) -> Any:
                # Which columns they are: those of a chunk of the product are neighbours.
                own = number * vector
                first = (own // self._vector * sizes.key_threads + key_thread) * self._vector + own % self._vector

                def element(e: Any) -> Any:
                    output = self._output[thread, i, own + e]
                    if handed_on is not None:
                        return handed_on.store(self._part, self._head, row, first + e, output)
                    position = {parts.row.var: row, parts.column.var: first + e, **self._heads}
                    return parts.stored(parts.divided(output, sums[thread, i]), position)

                there = [row < parts.row.extent] if parts.row.extent % sizes.height else []
                there += [first < parts.column.extent] if parts.column.extent % self._width else []
                stores = vectorized(vector, element)
                return IfThenElse(tirx.all(*there), stores, None) if there else stores

            statements = [
                BufferStore(sums, zero, [thread, i]),
                self._of_row(thread, in_block, lambda e: BufferStore(sums, sums[thread, i] + e, [thread, i])),
                unrolled(self._columns // vector, chunk),
            ]
            if handed_on is not None:
                of_row = handed_on.store_row(self._part, self._head, row, self._largest[thread, i], sums[thread, i])
                statements.append(IfThenElse(tirx.all(key_thread == 0, row < parts.row.extent), of_row, None))
            return SeqStmt(statements)

        return unrolled(sizes.rows, store_row)

    @property
    def _width(self) -> int:
        """The columns of a block."""
        return self._columns * self._sizes.key_threads

    def _places(self, thread: Any) -> tuple[Any, Any]:
        """The place of a thread along the rows of a block, and along the keys of a tile."""
        return thread // self._sizes.key_threads, thread % self._sizes.key_threads

    def _rows_of(self, thread: Any, buffer: Staged, quad: Any) -> Any:
        """Loads a quad of each row of a thread."""
        row_thread, _ = self._places(thread)

        def load(i: Any) -> Any:
            return self._quad(self._left, [thread, i], buffer, [i * self._sizes.row_threads + row_thread, quad])

        return unrolled(self._sizes.rows, load)

    def _of_row(self, thread: Any, row: Any, use: Callable[[Any], Any]) -> Any:
        """Does something with what each thread of a row has handed on."""

        def step(quad: Any) -> Any:
            uses = [use(self._four[thread, lane]) for lane in range(QUAD)]
            return SeqStmt([self._quad(self._four, [thread], self._partial, [row, quad]), *uses])

        return unrolled(self._sizes.key_threads // QUAD, step)

    def _quad(self, to: Any, at: Sequence[Any], buffer: Staged, place: Sequence[Any]) -> Any:
        """Loads the quad of a row."""
        row, quad = place
        return vectorized(QUAD, lambda lane: BufferStore(to, buffer.load(row, quad * QUAD + lane), [*at, lane]))
