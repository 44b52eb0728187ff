"""The kernel of an attention of 16-bit numbers on tensor cores: scores, weights and outputs are fragments in registers.

    for blocks of rows of a head, and of a part of its keys:                        blockIdx.x
        for warps, each of which has some rows of the block:                        threadIdx.y
            shared memory = queries of the block, keys of the first tile            cp.async
            for tiles of these keys:
                shared memory = values of the tile                                  cp.async
                scores = score(queries keys)                                        ldmatrix, mma.sync
                shared memory = keys of the next tile                               cp.async
                largest' = max(largest, the largest score of each row)              shuffles of four lanes
                scores = exp(scores - largest')
                sums, outputs *= exp(largest - largest');  sums += scores
                weights = scores in 16 bits
                outputs += weights values                                           ldmatrix, mma.sync
            outputs / sums, or what another launch adds up (see `split`)

This is FlashAttention-2 (T. Dao, arXiv:2307.08691, Algorithm 1): a warp has whole rows, so that warps hand nothing on.
While keys are multiplied, the values are on their way; while values are multiplied, the next keys are. In two stages
both are on their way for a whole tile, into a second half of shared memory.

Lane l has rows l / 4 and l / 4 + 8 of each fragment (`pairs_by_lanes`), so that four lanes share a row. What a lane has
of the scores of 16 keys is what it needs of a first operand of 16 x 16. So weights stay where they are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.backend.cuda import op as cuda
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm, IntImm
from tvm.tirx import AttrStmt, BufferStore, Evaluate, For, ForKind, IfThenElse, PrimFunc, SeqStmt
from tvm.tirx.op import tvm_warp_shuffle_xor

from ....ir.attributes import DISJOINT_SHARED, ONLY_WAITS
from ....ir.dtypes import BFLOAT16, FLOAT16
from ....ir.expressions import is_selection, loads_in, variables, walk
from ....ir.stages import Axis, assemble, intermediate, shape_of, variable
from ....machine.gpu import WARP
from ..matrix_product import SIDE, within
from .parts import AttentionParts
from .sizes import FragmentSizes, with_unused
from .split import SumsOfParts
from .statements import Rows, Staged, bound, contiguous_elements, fetch, heads_of, unrolled, vectorized

_SHARED = "shared.dyn"
_HALF = SIDE // 2
_OF_LANE = 8  # elements of a fragment in the registers of a lane
_FLOAT = "float32"
_NAMES = {FLOAT16: "fp16", BFLOAT16: "bf16"}  # in mma
_BITS = {BFLOAT16: "uint16"}  # `ldmatrix` moves bits; TVM has no vectors of bfloat16
_ZERO = IntImm("int32", 0)
_LOG2_E = math.log2(math.e)
_EXP2 = """
__forceinline__ __device__ float stormdrop_exp2(float value) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
"""


def fragment_kernel(parts: AttentionParts, sizes: FragmentSizes) -> PrimFunc:
    """The scheduled function.

    Args:
        parts: The attention, in 16 bits.
        sizes: How it is divided.
    """
    return _Kernel(parts, sizes).function()


class _Kernel:
    """The statements of the kernel, as a lane executes them."""

    def __init__(self, parts: AttentionParts, sizes: FragmentSizes) -> None:
        self._parts, self._sizes, self._dtype = parts, sizes, parts.dtype
        depth, columns = parts.depth.extent, parts.column.extent
        self._steps, self._columns = depth // SIDE, columns // SIDE
        self._allocated: list[Any] = []
        names, elements = ("queries", "keys", "values"), sizes.shared_elements(depth, columns)
        strides = with_unused(depth), with_unused(depth), with_unused(columns)
        self._queries, self._keys, self._values = (
            Staged(self._new(name, count, self._dtype, _SHARED), count // stride, stride)
            for name, count, stride in zip(names, elements, strides, strict=True)
        )
        rows, loaded = sizes.rows, sizes.rows * (self._steps if sizes.holds_queries else 1)
        self._scores = self._new("scores", rows * sizes.keys * _OF_LANE)
        self._weights = self._new("weights", rows * sizes.keys * _OF_LANE, self._dtype)
        self._output = self._new("output", rows * self._columns * _OF_LANE)
        self._largest, self._sums, self._scale = (self._new(name, rows * 2) for name in ("largest", "sums", "scale"))
        self._left = self._new("left", loaded * _OF_LANE, self._dtype)
        self._right = self._new("right", _OF_LANE, self._dtype)
        self._tile, self._block, self._warp, self._lane = map(variable, ("tile", "block", "warp", "lane"))
        self._blocks = -(-parts.row.extent // sizes.height)
        self._tiles = sizes.tiles(parts.key.extent)
        self._head, self._part = self._block // sizes.parts // self._blocks, self._block % sizes.parts
        self._first_row = self._block // sizes.parts % self._blocks * sizes.height
        self._reached = self._tiles * sizes.parts * sizes.tile
        self._heads = heads_of(parts, self._head)
        self._sums_of_parts = SumsOfParts(parts, sizes.parts) if sizes.parts > 1 else None
        self._scores_in_pairs = _reads_pairs(loads_in(parts.score), parts.key) and not any(
            map(is_selection, walk(parts.score))  # which TVM computes one by one, in a loop
        )

    def _new(self, name: str, elements: int, dtype: str = _FLOAT, scope: str = "local") -> Any:
        self._allocated.append(intermediate(name, [elements], dtype, scope))
        return self._allocated[-1]

    def function(self) -> PrimFunc:
        """The scheduled function."""
        body = SeqStmt([*self._begin(), self._walk(), self._share_sums(), self._store()])
        body = bound(self._warp, self._sizes.warps, "threadIdx.y", bound(self._lane, WARP, "threadIdx.x", body))
        blocks = self._blocks * self._sizes.parts * math.prod(axis.extent for axis in self._parts.heads)
        statements = [bound(self._block, blocks, "blockIdx.x", body)]
        if self._sums_of_parts is not None:
            statements.append(self._sums_of_parts.added())
            self._allocated += self._sums_of_parts.buffers
        function = assemble(self._parts.parameters, [], statements, self._allocated).with_attr(ONLY_WAITS, True)
        # Otherwise TVM makes an array of vectors of the weights, whose elements `mma` then counts in another way.
        return function.with_attr(DISJOINT_SHARED, True)

    def _begin(self) -> list[Any]:
        """Sends for the queries and the first tile, and waits for the queries if they stay in registers."""
        number = IntImm("int32", 0)
        first = [self._fetch_keys(number)] if self._sizes.stages == 1 else self._fetch_tile(number)
        held = [_arrived([self._load_all_queries()], 1)] if self._sizes.holds_queries else []
        zero, lowest = FloatImm(_FLOAT, 0.0), tirx.min_value(_FLOAT)
        return [
            _committed([self._fetch_queries()]),
            _committed(first),
            _filled(self._output, zero),
            _filled(self._sums, zero),
            _filled(self._largest, lowest),
            *held,
        ]

    def _walk(self) -> Any:
        """Goes along the keys."""
        tile = self._tile
        multiply_keys, weigh, multiply_values = self._multiply_keys(), self._weigh(), self._multiply_values()
        if self._sizes.stages == 1:
            values, next_keys = _committed([self._fetch_values(tile)]), self._unless_last([self._fetch_keys(tile + 1)])
            steps = [_arrived([values]), multiply_keys, _arrived([next_keys, weigh]), multiply_values]
        else:
            next_tile = self._unless_last(self._fetch_tile(tile + 1))
            steps = [_arrived([next_tile, multiply_keys]), weigh, multiply_values]
        return For(tile, 0, self._tiles, ForKind.SERIAL, SeqStmt(steps))

    def _unless_last(self, copies: list[Any]) -> Any:
        return IfThenElse(self._tile + 1 < self._tiles, _committed(copies), None)

    def _fetch_tile(self, tile: Any) -> list[Any]:
        return [self._fetch_keys(tile), self._fetch_values(tile)]

    def _fetch_queries(self) -> Any:
        parts, reached = self._parts, self._blocks * self._sizes.height
        return self._fetch(
            self._queries, Rows(parts.query, parts.row, self._first_row, reached, parts.depth, self._heads)
        )

    def _fetch_keys(self, tile: Any) -> Any:
        return self._fetch(self._place(self._keys, tile), self._rows_of_tile(self._parts.keys, tile, self._parts.depth))

    def _fetch_values(self, tile: Any) -> Any:
        rows = self._rows_of_tile(self._parts.values, tile, self._parts.column)
        return self._fetch(self._place(self._values, tile), rows)

    def _rows_of_tile(self, load: Any, tile: Any, along: Axis) -> Rows:
        return Rows(load, self._parts.key, self._first_key(tile), self._reached, along, self._heads)

    def _first_key(self, tile: Any) -> Any:
        return (self._part * self._tiles + tile) * self._sizes.tile

    def _fetch(self, to: Staged, rows: Rows) -> Any:
        thread = self._warp * WARP + self._lane
        return AttrStmt(_ZERO, "async_scope", 1, fetch(rows, to, rows.along.extent, thread, self._sizes.threads))

    def _place(self, whole: Staged, tile: Any) -> Staged:
        """The rows of a tile, of all that shared memory has."""
        stages = self._sizes.stages
        return replace(whole, height=self._sizes.tile, first=tile % stages * self._sizes.tile * whole.stride)

    def _load_all_queries(self) -> Any:
        """Loads the fragments of all steps of the depth."""
        return unrolled(self._steps, lambda step: self._load_queries(step, step))

    def _load_queries(self, step: Any, to: Any) -> Any:
        """Loads the fragments of a step of the depth, one for each fragment of rows."""
        first = self._warp * self._sizes.rows

        def load(i: Any) -> Any:
            row = (first + i) * SIDE + self._lane % SIDE
            return self._load(self._left, to + i, self._queries, row, step * SIDE + self._lane // SIDE * _HALF)

        return unrolled(self._sizes.rows, load)

    def _load(
        self, registers: Any, number: Any, staged: Staged, row: Any, column: Any, transposed: bool = False
    ) -> Any:
        """Loads a fragment by `ldmatrix`, of whose four matrices of 8 x 8 a lane says where a row is."""
        dtype = _BITS.get(self._dtype, self._dtype)
        place = staged.first + row * staged.stride + column
        pointer = staged.buffer.access_ptr("r")
        return Evaluate(
            cuda.ptx_legacy_ldmatrix(dtype, transposed, 4, ".b16", registers.data, number * _OF_LANE, pointer, place)
        )

    def _multiply(self, left: Any, first: Any, to: Any, sums: Any) -> Any:
        """Adds the product of a fragment and that which was loaded last to a fragment of sums, by columns of 8."""
        kind = _NAMES[self._dtype]

        def half(number: int) -> Any:
            second, at = number * _OF_LANE // 2, sums * _OF_LANE + number * _OF_LANE // 2
            operands = (left.data, first * _OF_LANE, self._right.data, second, to.data, at)
            return Evaluate(cuda.ptx_legacy_mma("m16n8k16", "row", "col", kind, kind, "fp32", *operands, False))

        return SeqStmt([half(0), half(1)])

    def _multiply_keys(self) -> Any:
        """Computes the products of queries and keys."""
        sizes, lane = self._sizes, self._lane
        keys = self._place(self._keys, self._tile)

        def step(number: Any) -> Any:
            def multiply(j: Any) -> Any:
                row = j * SIDE + lane // SIDE * _HALF + lane % _HALF
                load = self._load(self._right, 0, keys, row, number * SIDE + lane // _HALF % 2 * _HALF)
                first = number if sizes.holds_queries else 0
                products = unrolled(
                    sizes.rows, lambda i: self._multiply(self._left, first + i, self._scores, i * sizes.keys + j)
                )
                return SeqStmt([load, products])

            load = [] if sizes.holds_queries else [self._load_queries(number, 0)]
            return _sequence([*load, unrolled(sizes.keys, multiply)])

        return SeqStmt([_filled(self._scores, FloatImm(_FLOAT, 0.0)), unrolled(self._steps, step)])

    def _weigh(self) -> Any:
        """Makes weights of the products, and scales what was summed up with a smaller largest score."""
        sizes, scores, output = self._sizes, self._scores, self._output
        largest, sums, scale = self._largest, self._sums, self._scale

        def of_row(i: Any, upper: Any) -> Any:
            """Of row l / 4 of a fragment, or that plus 8."""
            at = i * 2 + upper
            every = functools.partial(self._of_row, i, sizes.keys, upper)
            columns = functools.partial(self._of_row, i, self._columns, upper)

            def score(index: Any, key: Any) -> Any:
                return BufferStore(scores, self._scored(scores[index], i, upper, key), [index])

            def weigh(index: Any, key: Any) -> Any:
                weight = _exp(scores[index] - largest[at])
                return SeqStmt(
                    [BufferStore(scores, weight, [index]), BufferStore(sums, sums[at] + scores[index], [at])]
                )

            return SeqStmt(
                [
                    BufferStore(scale, largest[at], [at]),
                    every(score, self._scores_in_pairs),
                    every(lambda index, key: BufferStore(largest, tirx.max(largest[at], scores[index]), [at])),
                    *_with_quad(largest, at, tirx.max),
                    BufferStore(scale, _exp(scale[at] - largest[at]), [at]),
                    BufferStore(sums, sums[at] * scale[at], [at]),
                    columns(lambda index, column: BufferStore(output, output[index] * scale[at], [index])),
                    every(weigh),
                ]
            )

        def rounded(pair: Any) -> Any:
            return vectorized(
                2,
                lambda e: BufferStore(self._weights, prim.Cast(self._dtype, scores[pair * 2 + e]), [pair * 2 + e]),
            )

        rows = unrolled(sizes.rows, lambda i: unrolled(2, lambda upper: of_row(i, upper)))
        return SeqStmt([rows, unrolled(sizes.rows * sizes.keys * _OF_LANE // 2, rounded)])

    def _of_row(
        self, i: Any, fragments: int, upper: Any, use: Callable[[Any, Any], Any], in_pairs: bool = False
    ) -> Any:
        """Does something with what a lane has of a row of fragments: positions in its registers, and columns.

        If it is done in pairs, neighbours are a vector.
        """
        pair = vectorized if in_pairs else unrolled

        def element(j: Any, half: Any, e: Any) -> Any:
            index = (i * fragments + j) * _OF_LANE + half * 4 + upper * 2 + e
            return use(index, j * SIDE + half * _HALF + self._lane % 4 * 2 + e)

        return unrolled(fragments, lambda j: unrolled(2, lambda half: pair(2, lambda e: element(j, half, e))))

    def _scored(self, product: Any, i: Any, upper: Any, key: Any) -> Any:
        """The score of a product; the least there is if it has no row or no key."""
        parts, sizes = self._parts, self._sizes
        key = self._first_key(self._tile) + key
        row = self._row(i, upper)
        value = parts.scored(product, {parts.row.var: row, parts.key.var: key, **self._heads})
        vector = 2 if self._scores_in_pairs else 1
        there = [within(key, parts.key.extent, vector)] if parts.key.extent < self._reached else []
        there += [row < parts.row.extent] if parts.row.extent % sizes.height else []
        return tirx.if_then_else(tirx.all(*there), value, -tirx.infinity(_FLOAT)) if there else value

    def _row(self, i: Any, upper: Any) -> Any:
        in_block = (self._warp * self._sizes.rows + i) * SIDE + upper * _HALF + self._lane // 4
        return self._first_row + in_block

    def _multiply_values(self) -> Any:
        """Adds the products of weights and values to the output."""
        sizes, lane = self._sizes, self._lane
        values = self._place(self._values, self._tile)

        def multiply(j: Any, c: Any) -> Any:
            row, column = j * SIDE + lane % SIDE, c * SIDE + lane // SIDE * _HALF
            load = self._load(self._right, 0, values, row, column, transposed=True)
            products = unrolled(
                sizes.rows,
                lambda i: self._multiply(self._weights, i * sizes.keys + j, self._output, i * self._columns + c),
            )
            return SeqStmt([load, products])

        return unrolled(sizes.keys, lambda j: unrolled(self._columns, lambda c: multiply(j, c)))

    def _share_sums(self) -> Any:
        """Adds up what the four lanes of a row have summed up."""
        return unrolled(
            self._sizes.rows * 2, lambda at: SeqStmt(_with_quad(self._sums, at, lambda one, other: one + other))
        )

    def _store(self) -> Any:
        parts, sums, handed_on = self._parts, self._sums, self._sums_of_parts
        written = parts.store.buffer[parts.store.indices]
        in_pairs = handed_on is not None or _reads_pairs([written, *parts.store.loads()], parts.column)

        def store_row(i: Any, upper: Any) -> Any:
            row, total = self._row(i, upper), sums[i * 2 + upper]

            def element(index: Any, column: Any) -> Any:
                if handed_on is not None:
                    return handed_on.store(self._part, self._head, row, column, self._output[index])
                result = parts.divided(self._output[index], total)
                return parts.stored(result, {parts.row.var: row, parts.column.var: column, **self._heads})

            stores = self._of_row(i, self._columns, upper, element, in_pairs)
            if handed_on is not None:
                largest = self._largest[i * 2 + upper]
                of_row = handed_on.store_row(self._part, self._head, row, largest, total)
                stores = SeqStmt([stores, IfThenElse(self._lane % 4 == 0, of_row, None)])
            uneven = parts.row.extent % self._sizes.height
            return IfThenElse(row < parts.row.extent, stores, None) if uneven else stores

        return unrolled(self._sizes.rows, lambda i: unrolled(2, lambda upper: store_row(i, upper)))


def _reads_pairs(loads: Sequence[Any], axis: Axis) -> bool:
    """Whether all elements along an axis that are read, and some are, can be read as pairs."""
    along = [load for load in loads if any(axis.var in variables(index) for index in load.indices)]
    return bool(along) and all(contiguous_elements(load, axis) % 2 == 0 for load in along)


def _committed(copies: list[Any]) -> Any:
    """Copies that are waited for together."""
    return AttrStmt(_ZERO, "async_commit_queue_scope", 0, _sequence(copies))


def _arrived(statements: list[Any], pending: int = 0) -> Any:
    """Waits for the copies of all threads, but for so many of those that were committed last, before some statements.

    All threads are there then, so that these may send for what takes the place of what was used before.
    """
    count = AttrStmt(_ZERO, "async_wait_inflight_count", pending, _sequence(statements))
    return AttrStmt(_ZERO, "async_wait_queue_scope", 0, count)


def _sequence(statements: list[Any]) -> Any:
    return statements[0] if len(statements) == 1 else SeqStmt(statements)


def _exp(value: Any) -> Any:
    """The exponential by the instruction for powers of 2, which is off by 2**-22; weights have 11 digits at most."""
    power = value * FloatImm(_FLOAT, _LOG2_E)
    return cuda.cuda_func_call("stormdrop_exp2", power, source_code=_EXP2, return_type=_FLOAT)


def _filled(buffer: Any, value: Any) -> Any:
    return unrolled(shape_of(buffer)[0], lambda at: BufferStore(buffer, value, [at]))


def _with_quad(buffer: Any, at: Any, combine: Callable[[Any, Any], Any]) -> list[Any]:
    """Combines a number with those of the other three lanes of a row."""
    every = IntImm("uint32", 0xFFFFFFFF)

    def step(distance: int) -> Any:
        other = tvm_warp_shuffle_xor(every, buffer[at], distance, WARP, WARP)
        return BufferStore(buffer, combine(buffer[at], other), [at])

    return [step(1), step(2)]
