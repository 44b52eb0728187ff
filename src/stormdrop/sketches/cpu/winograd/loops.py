"""The loops of a Winograd convolution in one configuration; `winograd` says what they are.

Sums with constant factors are written out, so that a row or a column of a tile is a Python number there. All else is
loops, unrolled or not: TVM's passes are slow on long functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm
from tvm.tirx import BufferStore, For, ForKind, IfThenElse, PrimFunc, SeqStmt

from ....ir.elementary import in_vectors
from ....ir.expressions import Expr, rewrite_loads, substitute, tile_start, unraveled
from ....ir.roles import contiguous
from ....ir.stages import Axis, Buffer, Stage, StageGraph, assemble, intermediate, loads_of, variable
from ....machine.cpu import Target
from ...contract import Variant
from ..loops import stream
from .convolution import Convolution
from .transforms import Filter, Matrix, matrices, rows_of_input, rows_of_output

_ZERO = tirx.const(0.0, "float32")


class WinogradLoops:
    """One convolution by filters of m outputs; `variant` is the result.

    With `positions` (alpha of y times alpha of x), `inputs` is V [(block,) position, chunk of channels, tile, channel],
    `weights` U [column tile, position, channel, column] and `products` M [tile, position, column]. Where `fused`, every
    task has a V of its own.
    """

    def __init__(self, conv: Convolution, m: int, target: Target, config: Mapping[str, Any]) -> None:
        self.conv, self.target = conv, target
        self.down, self.across = conv.filters(m)
        self.positions = self.down.alpha * self.across.alpha
        self.unroll: int = config["unroll"]
        self.order: str = config["order"]
        self.grid, self.tiles = conv.grid(m), conv.tiles(m)
        self.rows: int = min(config["rows"], self.tiles)
        self.block: int = min(self.rows * config["block"], self.tiles)
        self.blocks = -(-self.tiles // self.block)
        self.columns: int = config["columns"]
        self.column_tiles = -(-conv.column.extent // self.columns)
        self.lanes = math.gcd(self.columns, target.lanes)
        self.width = math.gcd(conv.channel.extent, target.lanes)
        self.chunks = conv.channel.extent // self.width
        per_block = [self.positions, self.chunks, self.block, self.width]
        self.inputs = _buffer("V", per_block if self.order == "fused" else [self.blocks, *per_block])
        self.weights = _buffer("U", [self.column_tiles, self.positions, conv.channel.extent, self.columns])
        self.products = _buffer("M", [self.block, self.positions, self.columns])
        down, across = self.down, self.across
        self.half_input = _buffer("half_input", [down.alpha, across.alpha, self.width], "local")
        self.half_output = _buffer("half_output", [down.m, across.alpha, self.lanes], "local")
        self.results = _buffer("results", [across.m, self.lanes], "local")
        self.accumulators = _buffer("accumulators", [self.rows, self.columns], "local")

    def variant(self) -> Variant:
        """The scheduled function between the stages before and after it, and the transform of the weights."""
        conv, parts = self.conv, self.conv.parts
        around = {*parts.graph.parameters, conv.data.source}
        before, first = stream(conv.before, around | loads_of([parts.epilogue], parts.after), self.target)
        after, last = stream(parts.after, around | loads_of([parts.epilogue], conv.before), self.target)
        old = conv.weight.source
        parameters = [self.weights if buffer.same_as(old) else buffer for buffer in parts.graph.parameters]
        own = [self.inputs, self.products, self.half_input, self.half_output, self.results, self.accumulators]
        if parts.epilogue.buffer not in parameters:
            own.append(parts.epilogue.buffer)
        main = assemble(
            parameters,
            (*first, *last),
            [*before, *self._phases(), *after],
            own,
        )
        return Variant(in_vectors(main), {conv.constant: self._transform()})

    def _transform(self) -> PrimFunc:
        """From the weights to U: G g G^T, rows first, then packed."""
        conv, down, across = self.conv, self.down, self.across
        (_, ry), (_, rx) = conv.image
        channels, outputs = conv.channel.extent, conv.column.extent
        first, second = _factors("G_down", down), _factors("G_across", across)
        half = _buffer("half", [down.alpha, across.r, channels, outputs])
        e, x, c, o, r = _axes(e=down.alpha, x=across.r, c=channels, o=outputs, r=-down.r)
        old = {ry.var: r.var, rx.var: x.var, conv.channel.var: c.var, conv.column.var: o.var}
        value = first.buffer[e.var, r.var] * substitute(conv.weight, old)
        rows = Stage("rows", (e, x, c, o, r), half, (e.var, x.var, c.var, o.var), value, "sum", _ZERO)
        t, e, v, c, o, r = _axes(
            t=self.column_tiles, e=down.alpha, v=across.alpha, c=channels, o=self.columns, r=-across.r
        )
        value = second.buffer[v.var, r.var] * half[e.var, r.var, c.var, self._column(t.var, o.var)]
        at = (t.var, e.var * across.alpha + v.var, c.var, o.var)
        columns = Stage("columns", (t, e, v, c, o, r), self.weights, at, value, "sum", _ZERO)
        return StageGraph((conv.weight.source, self.weights), (first, second, rows, columns)).function()

    def _phases(self) -> list[Any]:
        if self.order == "fused":
            return [_loop(self.blocks, self._fused, ForKind.PARALLEL)]
        inputs = _parallel(
            [self.blocks, self.block, self.chunks], lambda block, tile, chunk: self._input([block], block, tile, chunk)
        )
        if self.order == "tiles":
            rest = _parallel([self.blocks, self.column_tiles], lambda block, to: self._outputs([block], block, to))
        else:
            rest = _parallel([self.column_tiles, self.blocks], lambda to, block: self._outputs([block], block, to))
        return [inputs, rest]

    def _fused(self, block: Expr) -> Any:
        def inputs(tile: Expr) -> Any:
            return _loop(self.chunks, lambda chunk: self._input([], block, tile, chunk))

        return SeqStmt([_loop(self.block, inputs), _loop(self.column_tiles, lambda to: self._outputs([], block, to))])

    def _outputs(self, prefix: list[Expr], block: Expr, to: Expr) -> Any:
        """The outputs of the tiles of a block in one tile of columns."""
        row_tiles = -(-self.block // self.rows)

        def product(position: Expr) -> Any:
            return _loop(
                row_tiles, lambda tile: self._product(prefix, to, position, _start(tile, self.rows, self.block))
            )

        def output(tile: Expr) -> Any:
            return _loop(self.columns // self.lanes, lambda vector: self._output(block, to, tile, vector))

        return SeqStmt([_loop(self.positions, product), _loop(self.block, output)])

    def _input(self, prefix: list[Expr], block: Expr, tile: Expr, chunk: Expr) -> Any:
        """V = B^T d B of one tile and one chunk of channels, columns first."""
        conv, place = self.conv, _Place(self, block, tile)
        (_, ry), (_, rx) = conv.image

        def element(row: int, column: Expr, lane: Expr) -> Expr:
            window = {ry.var: _int(row), rx.var: column, conv.channel.var: chunk * self.width + lane}
            return substitute(conv.data, {**place.corner, **window})

        def down(column: Expr, lane: Expr) -> Any:
            values = rows_of_input(self.down, [element(row, column, lane) for row in range(self.down.alpha)])
            return _sequence(
                [BufferStore(self.half_input, value, [row, column, lane]) for row, value in enumerate(values)]
            )

        def across(row: Expr, lane: Expr) -> Any:
            width = self.across.alpha
            values = rows_of_input(self.across, [self.half_input[row, column, lane] for column in range(width)])
            at = [[*prefix, row * width + column, chunk, tile, lane] for column in range(width)]
            return _sequence([BufferStore(self.inputs, value, index) for value, index in zip(values, at, strict=True)])

        vectors = [_vectors(self.across.alpha, self.width, down), _vectors(self.down.alpha, self.width, across)]
        return SeqStmt([*place.bindings, *vectors])

    def _product(self, prefix: list[Expr], to: Expr, position: Expr, start: Expr) -> Any:
        """M of some tiles at one of the positions: a product of small matrices, accumulated in registers."""
        accumulators = self.accumulators

        def each(statement: Callable[[Expr, Expr], Any]) -> Any:
            def vectors(row: Expr) -> Any:
                count = self.columns // self.lanes
                return _vectors(count, self.lanes, lambda at, lane: statement(row, at * self.lanes + lane))

            return _loop(self.rows, vectors, ForKind.UNROLLED)

        def multiply(chunk: Expr, channel: Expr) -> Any:
            def statement(row: Expr, column: Expr) -> Any:
                at = (*prefix, position, chunk, start + row, channel)
                weight = self.weights[to, position, chunk * self.width + channel, column]
                return BufferStore(accumulators, accumulators[row, column] + self.inputs[at] * weight, [row, column])

            return each(statement)

        def channels(chunk: Expr) -> Any:
            def steps(first: Expr) -> Any:
                return _loop(self.unroll, lambda step: multiply(chunk, first * self.unroll + step), ForKind.UNROLLED)

            return _loop(self.width // self.unroll, steps)

        def store(row: Expr, column: Expr) -> Any:
            return BufferStore(self.products, accumulators[row, column], [start + row, position, column])

        clear = each(lambda row, column: BufferStore(accumulators, _ZERO, [row, column]))
        return SeqStmt([clear, _loop(self.chunks, channels), each(store)])

    def _output(self, block: Expr, to: Expr, tile: Expr, vector: Expr) -> Any:
        """A^T M A of one tile and one vector of columns, columns of the tile first, and the epilogue."""
        parts, place = self.conv.parts, _Place(self, block, tile)
        (y, _), (x, _) = self.conv.image

        written = parts.epilogue.buffer[parts.epilogue.indices]
        # A vector that goes to many places is one store per element: compiling them unrolled takes seconds.
        kind = ForKind.UNROLLED if contiguous(written, self.conv.column.var) else ForKind.SERIAL

        def down(column: Expr, lane: Expr) -> Any:
            inner = vector * self.lanes + lane
            at = [(tile, row * self.across.alpha + column, inner) for row in range(self.down.alpha)]
            values = rows_of_output(self.down, [self.products[index] for index in at])
            return _sequence(
                [BufferStore(self.half_output, value, [row, column, lane]) for row, value in enumerate(values)]
            )

        def across(row: Expr, lane: Expr) -> Any:
            taken = [self.half_output[row, column, lane] for column in range(self.across.alpha)]
            values = rows_of_output(self.across, taken)
            return _sequence([BufferStore(self.results, value, [column, lane]) for column, value in enumerate(values)])

        def store(row: Expr, column: Expr, lane: Expr) -> Any:
            mapping = {**place.corner, self.conv.column.var: self._column(to, vector * self.lanes + lane)}
            mapping[y.var], mapping[x.var] = mapping[y.var] + row, mapping[x.var] + column
            indices = [substitute(index, mapping) for index in parts.epilogue.indices]
            result, buffer = parts.stage.buffer, self.results
            # Two steps: a load of the result has to be recognised before its indices change.
            value = rewrite_loads(
                parts.epilogue.value, lambda load: buffer[column, lane] if load.source.same_as(result) else None
            )
            return BufferStore(parts.epilogue.buffer, substitute(value, mapping), indices)

        def guarded(row: Expr, column: Expr) -> Any:
            statement = _loop(self.lanes, lambda lane: store(row, column, lane), ForKind.VECTORIZED)
            # What the tile before computes too is stored there only.
            own = [
                number * of.m <= place.corner[axis.var] + offset
                for axis, of, number, offset in zip(
                    (y, x), (self.down, self.across), place.numbers, (row, column), strict=True
                )
                if axis.extent % of.m
            ]
            return IfThenElse(tirx.all(*own), statement, None) if own else statement

        def outputs(row: Expr) -> Any:
            vector_of_row = _loop(self.lanes, lambda lane: across(row, lane), ForKind.VECTORIZED)
            stores = _loop(self.across.m, lambda column: guarded(row, column), kind)
            return SeqStmt([vector_of_row, stores])

        vectors = _vectors(self.across.alpha, self.lanes, down)
        return SeqStmt([*place.bindings, vectors, _loop(self.down.m, outputs, kind)])

    def _column(self, tile: Expr, inner: Expr) -> Expr:
        return _start(tile, self.columns, self.conv.column.extent) + inner


class _Place:
    """Where a tile of a block is. Its variables are bound once: TVM's passes are slow on what they stand for.

    `corner` maps the batch axes and the axes of the image to where it begins, `numbers` says how many tiles lie above
    and to the left of it.
    """

    def __init__(self, loops: WinogradLoops, block: Expr, tile: Expr) -> None:
        self.bindings: list[Any] = []
        number = self._bound(_start(block, loops.block, loops.tiles) + tile)
        *batch, row, column = [self._bound(place) for place in unraveled(number, loops.grid)]
        self.numbers = [row, column]
        self.corner = {axis.var: place for axis, place in zip(loops.conv.batch, batch, strict=True)}
        for (axis, _), of, place in zip(loops.conv.image, (loops.down, loops.across), self.numbers, strict=True):
            self.corner[axis.var] = self._bound(_start(place, of.m, axis.extent))

    def _bound(self, value: Expr) -> Expr:
        name = variable("at")
        self.bindings.append(tirx.Bind(name, value))
        return name


def _start(number: Expr, size: int, extent: int) -> Expr:
    return tile_start(number, size, extent, -(-extent // size))


def _factors(name: str, of: Filter) -> Stage:
    """G of a filter, in a buffer."""
    row, tap = _axes(i=of.alpha, j=of.r)
    value = _element(matrices(of).weight, row.var, tap.var)
    return Stage(name, (row, tap), _buffer(name, [of.alpha, of.r]), (row.var, tap.var), value)


def _element(matrix: Matrix, row: Expr, column: Expr) -> Expr:
    """An element of a constant matrix at variable indices."""
    value: Expr = _ZERO
    for (i, j), element in np.ndenumerate(matrix):
        value = prim.Select(tirx.all(row == i, column == j), tirx.const(float(element), "float32"), value)
    return value


def _axes(**extents: int) -> list[Axis]:
    """Axes of these names and extents; a negative one reduces."""
    return [Axis(variable(name), abs(extent), extent < 0) for name, extent in extents.items()]


def _buffer(name: str, shape: Sequence[int], scope: str = "global") -> Buffer:
    return intermediate(name, shape, "float32", scope)


def _int(value: int) -> Expr:
    return IntImm("int32", value)


def _loop(extent: int, body: Callable[[Expr], Any], kind: Any = ForKind.SERIAL) -> Any:
    name = variable("i")
    return For(name, 0, extent, kind, body(name))


def _vectors(extent: int, lanes: int, statement: Callable[[Expr, Expr], Any]) -> Any:
    """A vectorised statement, unrolled over an extent."""

    def vector(at: Expr) -> Any:
        return _loop(lanes, lambda lane: statement(at, lane), ForKind.VECTORIZED)

    return _loop(extent, vector, ForKind.UNROLLED)


def _sequence(statements: Sequence[Any]) -> Any:
    return statements[0] if len(statements) == 1 else SeqStmt(statements)


def _parallel(extents: Sequence[int], body: Callable[..., Any]) -> Any:
    """One parallel loop over several extents."""
    return _loop(math.prod(extents), lambda task: body(*unraveled(task, extents)), ForKind.PARALLEL)
