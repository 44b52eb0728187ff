"""The loops of a Winograd convolution in one configuration; `sketch` says what they are.

Sums with constant factors are written out, so a row or a column of a tile is a Python number in them. Everything else
is loops, unrolled or not, because TVM's passes are slow on long functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm.ir.prim.expr import IntImm
from tvm.tirx import BufferStore, ForKind, PrimFunc, SeqStmt

from ....ir.attributes import NEEDS
from ....ir.contractions.contraction import contiguous
from ....ir.elementary import expand_for_cpu
from ....ir.expressions import Expr, substitute, tile_start, unraveled
from ....ir.stages import Stage, StageGraph, assemble, intermediate, loads_of, loop, sequence, shape_of
from ....machine.cpu import Cpu
from ...contract import Variant
from ...winograd.convolution import Convolution
from ...winograd.tiles import TilePosition, constant_stage, named_axes
from ...winograd.transforms import Filter, rows_of_input, rows_of_output
from ..loops import default_loops
from ..prefetch import PREFETCH, fetch_statements
from .arithmetic import Arithmetic

FUSED, BY_TILE, BY_COLUMN = ORDERS = ("fused", "tiles", "columns")
"""Values of the knob `order`, see `Winograd.space`."""


class WinogradLoops:
    """One convolution by filters of m outputs; `variant` is the result.

    Args:
        conv: The convolution.
        m: The outputs of a tile along each axis that has a window.
        arithmetic: What it is computed in.
        target: The machine to schedule for.
        config: The values of the knobs, see `Winograd.space`.

    The buffers, with `positions` = alpha of y times alpha of x:

    - `inputs` is V [(block,) position, chunk of channels, tile, channel]. If the order is `FUSED`, every task has a V
      of its own, without the dimension of blocks.
    - `weights` is U [column tile, position, group of channels, column], a number or a word for each group.
    - `products` is M [tile, position, column].
    """

    def __init__(
        self, conv: Convolution, m: int, arithmetic: Arithmetic, target: Cpu, config: Mapping[str, Any]
    ) -> None:
        self.conv, self.m, self.arithmetic, self.target = conv, m, arithmetic, target
        self.down, self.across = conv.filters(m)
        self.positions = self.down.alpha * self.across.alpha
        self.unroll: int = config["unroll"]
        self.order: str = config["order"]
        self.grid, self.tiles = conv.grid(m), conv.tiles(m)
        self.rows: int = min(config["rows"], self.tiles)
        self.block: int = min(self.rows * config["block"], self.tiles)
        self.blocks = -(-self.tiles // self.block)
        self.row_tiles = -(-self.block // self.rows)
        self.columns: int = config["columns"]
        self.prefetch = bool(config.get(PREFETCH))
        self.column_tiles = -(-conv.column.extent // self.columns)
        self.lanes = math.gcd(self.columns, target.lanes)
        self.width = math.gcd(conv.channel.extent, arithmetic.lanes(target))
        self.chunks = conv.channel.extent // self.width
        self.groups = conv.channel.extent // arithmetic.group
        inputs, sums = arithmetic.inputs, arithmetic.sums
        per_block = [self.positions, self.chunks, self.block, self.width]
        self.inputs = intermediate("V", per_block if self.order == FUSED else [self.blocks, *per_block], inputs)
        self.weights = intermediate("U", [self.column_tiles, self.positions, self.groups, self.columns], sums)
        self.products = intermediate("M", [self.block, self.positions, self.columns], sums)
        down, across = self.down, self.across
        self.half_input = intermediate("half_input", [down.alpha, across.alpha, self.width], inputs, "local")
        self.half_output = intermediate("half_output", [down.m, across.alpha, self.lanes], sums, "local")
        self.results = intermediate("results", [across.m, self.lanes], sums, "local")
        self.accumulators = intermediate("accumulators", [self.rows, self.columns], sums, "local")

    def variant(self) -> Variant:
        """The scheduled function between the stages before and after it, and the transform of the weights."""
        conv, contraction = self.conv, self.conv.contraction
        epilogue, graph = contraction.epilogue, contraction.graph
        kept = {*graph.parameters, conv.data.source}
        before, first = default_loops(conv.before, kept | loads_of([epilogue], contraction.after), self.target)
        after, last = default_loops(contraction.after, kept | loads_of([epilogue], conv.before), self.target)
        old_weights = conv.weight.source
        parameters = [self.weights if buffer.same_as(old_weights) else buffer for buffer in graph.parameters]
        buffers = [self.inputs, self.products, self.half_input, self.half_output, self.results, self.accumulators]
        if epilogue.buffer not in parameters:
            buffers.append(epilogue.buffer)
        main = assemble(parameters, (*first, *last), [*before, *self._phases(), *after], buffers)
        main = expand_for_cpu(main, self.target.keep_denormals)
        if self.arithmetic.feature is not None:
            main = main.with_attr(NEEDS, [self.arithmetic.feature])
        return Variant(main, {conv.constant: self._weight_transform()})

    def _weight_transform(self) -> PrimFunc:
        """From the weights to U: G g G^T, rows first, then packed."""
        conv, down, across, arithmetic = self.conv, self.down, self.across, self.arithmetic
        (_, ry), (_, rx) = conv.image
        channels, outputs = conv.channel.extent, conv.column.extent
        g_down, g_across = self._weight_matrix("G_down", down), self._weight_matrix("G_across", across)
        half = intermediate("half", [down.alpha, across.r, channels, outputs], arithmetic.sums)
        e, x, c, o, r = named_axes(e=down.alpha, x=across.r, c=channels, o=outputs, r=-down.r)
        taps = {ry.var: r.var, rx.var: x.var, conv.channel.var: c.var, conv.column.var: o.var}
        value = g_down.buffer[e.var, r.var] * arithmetic.weight(substitute(conv.weight, taps))
        rows = Stage("rows", (e, x, c, o, r), half, (e.var, x.var, c.var, o.var), value, "sum", self._zero)
        t, e, v, c, o, r = named_axes(
            t=self.column_tiles, e=down.alpha, v=across.alpha, c=channels, o=self.columns, r=-across.r
        )
        value = g_across.buffer[v.var, r.var] * half[e.var, r.var, c.var, self._column(t.var, o.var)]
        indices = (t.var, e.var * across.alpha + v.var, c.var, o.var)
        transformed = self.weights
        if arithmetic.group > 1:
            transformed = intermediate("transformed", [*shape_of(self.weights)[:2], channels, self.columns], "int32")
        columns = Stage("columns", (t, e, v, c, o, r), transformed, indices, value, "sum", self._zero)
        stages = [g_down, g_across, rows, columns]
        if arithmetic.group > 1:
            t, p, g, o = axes = named_axes(t=self.column_tiles, p=self.positions, g=self.groups, o=self.columns)
            members = [transformed[t.var, p.var, g.var * arithmetic.group + n, o.var] for n in range(arithmetic.group)]
            names = tuple(axis.var for axis in axes)
            stages.append(Stage("words", tuple(axes), self.weights, names, arithmetic.word(members)))
        return StageGraph((conv.weight.source, self.weights), tuple(stages)).function()

    def _weight_matrix(self, name: str, tile: Filter) -> Stage:
        """The matrix of a filter by which weights are multiplied, in a buffer."""
        return constant_stage(name, self.arithmetic.weight_matrix(tile), self.arithmetic.sums)

    @property
    def _zero(self) -> Expr:
        return self.arithmetic.constant(0.0)

    def _phases(self) -> list[Any]:
        """The statements of the convolution: one parallel loop if the order is `FUSED`, else two."""
        if self.order == FUSED:
            return [loop(self.blocks, self._fused, ForKind.PARALLEL)]
        inputs = _parallel(
            [self.blocks, self.block, self.chunks], lambda block, tile, chunk: self._input([block], block, tile, chunk)
        )

        def outputs(block: Expr, column_tile: Expr) -> Any:
            return self._outputs([block], block, column_tile)

        if self.order == BY_TILE:
            return [inputs, _parallel([self.blocks, self.column_tiles], outputs)]
        return [inputs, _parallel([self.column_tiles, self.blocks], lambda column, block: outputs(block, column))]

    def _fused(self, block: Expr) -> Any:
        """All of one block."""

        def inputs(tile: Expr) -> Any:
            return loop(self.chunks, lambda chunk: self._input([], block, tile, chunk))

        outputs = loop(self.column_tiles, lambda column_tile: self._outputs([], block, column_tile))
        return SeqStmt([loop(self.block, inputs), outputs])

    def _outputs(self, prefix: list[Expr], block: Expr, column_tile: Expr) -> Any:
        """The outputs of the tiles of a block in one tile of columns; `prefix` is the first index of V, if any."""

        def product(position: Expr) -> Any:
            def row_tile(number: Expr) -> Any:
                return self._product(prefix, column_tile, position, number)

            return loop(self.row_tiles, row_tile)

        def output(tile: Expr) -> Any:
            return loop(self.columns // self.lanes, lambda vector: self._output(block, column_tile, tile, vector))

        return SeqStmt([loop(self.positions, product), loop(self.block, output)])

    def _input(self, prefix: list[Expr], block: Expr, tile: Expr, chunk: Expr) -> Any:
        """V = B^T d B of one tile and one chunk of channels, columns first."""
        conv, position = self.conv, self._position(block, tile)
        (_, ry), (_, rx) = conv.image

        def element(row: int, column: Expr, lane: Expr) -> Expr:
            window = {ry.var: _int(row), rx.var: column, conv.channel.var: chunk * self.width + lane}
            return self.arithmetic.data(substitute(conv.data, {**position.corner, **window}))

        def down(column: Expr, lane: Expr) -> Any:
            values = rows_of_input(self.down, [element(row, column, lane) for row in range(self.down.alpha)])
            return sequence(
                [BufferStore(self.half_input, value, [row, column, lane]) for row, value in enumerate(values)]
            )

        def across(row: Expr, lane: Expr) -> Any:
            width = self.across.alpha
            values = rows_of_input(self.across, [self.half_input[row, column, lane] for column in range(width)])
            indices = [[*prefix, row * width + column, chunk, tile, lane] for column in range(width)]
            return sequence(
                [BufferStore(self.inputs, value, index) for value, index in zip(values, indices, strict=True)]
            )

        vectors = [_vectors(self.across.alpha, self.width, down), _vectors(self.down.alpha, self.width, across)]
        return SeqStmt([*position.bindings, *vectors])

    def _product(self, prefix: list[Expr], column_tile: Expr, position: Expr, row_tile: Expr) -> Any:
        """M of some tiles at one of the positions: a product of small matrices, accumulated in registers.

        Meanwhile the weights of the next position are fetched, if the knob says so.
        """
        accumulators, start = self.accumulators, _start(row_tile, self.rows, self.block)
        group = self.arithmetic.group
        per_chunk = self.width // group

        def for_all(statement: Callable[[Expr, Expr], Any]) -> Any:
            def vectors(row: Expr) -> Any:
                count = self.columns // self.lanes
                return _vectors(count, self.lanes, lambda vector, lane: statement(row, vector * self.lanes + lane))

            return loop(self.rows, vectors, ForKind.UNROLLED)

        def multiply(chunk: Expr, number: Expr) -> Any:
            def statement(row: Expr, column: Expr) -> Any:
                channels = [number * group + member if group > 1 else number for member in range(group)]
                indices = [(*prefix, position, chunk, start + row, channel) for channel in channels]
                inputs = [self.inputs[index] for index in indices]
                weight = self.weights[column_tile, position, chunk * per_chunk + number, column]
                value = accumulators[row, column] + self.arithmetic.product(inputs, weight)
                return BufferStore(accumulators, value, [row, column])

            return for_all(statement)

        def channels(chunk: Expr) -> Any:
            def steps(first: Expr) -> Any:
                products = loop(self.unroll, lambda step: multiply(chunk, first * self.unroll + step), ForKind.UNROLLED)
                if not self.prefetch:
                    return products
                count = per_chunk // self.unroll
                step = (row_tile * self.chunks + chunk) * count + first
                fetches = fetch_statements(
                    lambda element: self.weights[column_tile, position + 1, 0, element],
                    self.groups * self.columns,
                    self.row_tiles * self.chunks * count,
                    step,
                )
                return SeqStmt([*fetches, products])

            return loop(per_chunk // self.unroll, steps)

        def store(row: Expr, column: Expr) -> Any:
            return BufferStore(self.products, accumulators[row, column], [start + row, position, column])

        clear = for_all(lambda row, column: BufferStore(accumulators, self._zero, [row, column]))
        return SeqStmt([clear, loop(self.chunks, channels), for_all(store)])

    def _output(self, block: Expr, column_tile: Expr, tile: Expr, vector: Expr) -> Any:
        """A^T M A of one tile and one vector of columns, columns of the tile first, and the epilogue."""
        position, epilogue = self._position(block, tile), self.conv.contraction.epilogue
        written = epilogue.buffer[epilogue.indices]
        # A vector that goes to many places is one store per element: compiling them unrolled takes seconds.
        kind = ForKind.UNROLLED if contiguous(written, self.conv.column.var) else ForKind.SERIAL

        def down(column: Expr, lane: Expr) -> Any:
            inner = vector * self.lanes + lane
            indices = [(tile, row * self.across.alpha + column, inner) for row in range(self.down.alpha)]
            values = rows_of_output(self.down, [self.products[index] for index in indices])
            return sequence(
                [BufferStore(self.half_output, value, [row, column, lane]) for row, value in enumerate(values)]
            )

        def across(row: Expr, lane: Expr) -> Any:
            halves = [self.half_output[row, column, lane] for column in range(self.across.alpha)]
            values = [self.arithmetic.result(value) for value in rows_of_output(self.across, halves)]
            return sequence([BufferStore(self.results, value, [column, lane]) for column, value in enumerate(values)])

        def outputs(row: Expr) -> Any:
            def vector_of_columns(column: Expr) -> Any:
                def store(lane: Expr) -> Any:
                    output_channel = self._column(column_tile, vector * self.lanes + lane)
                    return position.store(epilogue, row, column, output_channel, self.results[column, lane])

                return position.unless_done_before(row, column, loop(self.lanes, store, ForKind.VECTORIZED))

            vector_of_row = loop(self.lanes, lambda lane: across(row, lane), ForKind.VECTORIZED)
            return SeqStmt([vector_of_row, loop(self.across.m, vector_of_columns, kind)])

        vectors = _vectors(self.across.alpha, self.lanes, down)
        return SeqStmt([*position.bindings, vectors, loop(self.down.m, outputs, kind)])

    def _position(self, block: Expr, tile: Expr) -> TilePosition:
        """Where a tile of a block is."""
        return TilePosition(self.conv, self.m, _start(block, self.block, self.tiles) + tile)

    def _column(self, column_tile: Expr, inner: Expr) -> Expr:
        return _start(column_tile, self.columns, self.conv.column.extent) + inner


def _start(number: Expr, size: int, extent: int) -> Expr:
    return tile_start(number, size, extent, -(-extent // size))


def _int(value: int) -> Expr:
    return IntImm("int32", value)


def _vectors(extent: int, lanes: int, statement: Callable[[Expr, Expr], Any]) -> Any:
    """A vectorised statement, unrolled over an extent."""

    def vector(index: Expr) -> Any:
        return loop(lanes, lambda lane: statement(index, lane), ForKind.VECTORIZED)

    return loop(extent, vector, ForKind.UNROLLED)


def _parallel(extents: Sequence[int], body: Callable[..., Any]) -> Any:
    """One parallel loop over several extents."""
    return loop(math.prod(extents), lambda task: body(*unraveled(task, extents)), ForKind.PARALLEL)
