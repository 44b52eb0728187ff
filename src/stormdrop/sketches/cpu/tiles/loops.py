"""The loops of a contraction by tiles in one configuration; `sketch` draws them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm
from tvm.tirx import BufferStore, For, ForKind, IfThenElse, SeqStmt

from ....ir.attributes import NEEDS
from ....ir.elementary import expand_for_cpu
from ....ir.expressions import Expr, rewrite_loads, substitute, tile_start, unraveled
from ....ir.roles import Contraction
from ....ir.stages import Axis, StageGraph, assemble, intermediate, loads_of, shape_of, variable
from ....machine.cpu import Target
from ...contract import Variant
from ..dot_products import DotProducts, packed_columns
from ..loops import default_loops
from ..nests import load_stride
from ..prefetch import PREFETCH, fetch_statements
from ..tiled_contraction import tiled_axis
from . import instructions
from .instructions import CONFIGURATION_WORDS, TILE, WORD_BYTES
from .rows import rows_of


class TileLoops:
    """One contraction; `variant` is the result.

    Args:
        contraction: the contraction.
        dots: how its column operand becomes words; the grouped reduction is the last one, and the data have whole
            groups of its steps.
        target: the machine.
        config: the values of the knobs, see `Tiles.space`.

    The buffers:

    - `packed` is the column operand [outer..., column tile, word, column].
    - `scratch` holds the sums of one step, from which vectors store the results.
    """

    def __init__(self, contraction: Contraction, dots: DotProducts, target: Target, config: Mapping[str, Any]) -> None:
        self.contraction, self.dots, self.target = contraction, dots, target
        self.rows: int = config["rows"]
        self.row_tiles: int = config["row_tiles"]
        self.column_tiles: int = config["column_tiles"]
        self.by_column: bool = config["order"] == "columns"
        self.prefetch = bool(config.get(PREFETCH))
        self.image = rows_of(contraction)
        self.extents = self.image.extents
        self.depth = depth_of(contraction, dots)
        width = TILE * self.column_tiles
        self.column = tiled_axis("pack_column", contraction.column.extent, width)
        self.columns = packed_columns(contraction, dots, self.column)
        self.scratch = intermediate("scratch", [self.row_tiles * self.rows, width], dots.sums, "local")
        self.words = intermediate("tile_configuration", [CONFIGURATION_WORDS], "int32", "local")
        # Tiles of rows in a step, and steps along each row axis. With two row axes, the tiles of a step lie one below
        # the other in the first one.
        self.step = [self.row_tiles, self.rows] if len(self.extents) == 2 else [self.row_tiles * self.rows]
        self.counts = [-(-extent // size) for extent, size in zip(self.extents, self.step, strict=True)]
        self.outer = [axis.extent for axis in contraction.outer]
        self.panels = -(-contraction.column.extent // width)
        self.total = math.prod(self.outer) * math.prod(self.counts) * self.panels
        self.tasks = min(self.total, target.cores * config["tasks"])

    def variant(self) -> Variant:
        """The scheduled function between the stages before and after it, and what packs constant columns."""
        contraction, graph = self.contraction, self.contraction.graph
        epilogue, source = contraction.epilogue, contraction.operand.source
        before, parameters, transforms = list(contraction.before), list(graph.parameters), {}
        if contraction.constant is None:
            before += self.columns.stages
        else:
            position = parameters.index(source)
            packing = StageGraph((source, self.columns.buffer), self.columns.stages)
            parameters[position], transforms[position] = self.columns.buffer, packing.function()
        read = {contraction.other.source, self.columns.buffer}
        kept = {*parameters, *read}
        first, made = default_loops(before, kept | loads_of([epilogue], contraction.after), self.target)
        last, made_after = default_loops(contraction.after, kept | loads_of([epilogue], before), self.target)
        buffers = [self.scratch, self.words]
        if epilogue.buffer not in parameters:
            buffers.append(epilogue.buffer)
        main = assemble(parameters, (*made, *made_after), [*first, self._tasks(), *last], buffers)
        main = expand_for_cpu(main, self.target.keep_denormals)
        return Variant(main.with_attr(NEEDS, ["amx-tile", self.dots.feature]), transforms)

    def _tasks(self) -> Any:
        """Parallel tasks of about as many steps each. Tiles belong to the thread that has configured them."""
        each = -(-self.total // self.tasks)

        def task(number: Expr) -> Any:
            def step(position: Expr) -> Any:
                at = number * each + position
                body = self._step(at)
                return body if self.tasks * each == self.total else IfThenElse(at < self.total, body, None)

            sums = self.row_tiles * self.column_tiles
            configured = instructions.configure(self.words, self.rows, self.depth, sums, self.row_tiles)
            return SeqStmt([self._whole_scratch(), *configured, _loop(each, step), instructions.release()])

        return _loop(self.tasks, task, ForKind.PARALLEL)

    def _whole_scratch(self) -> Any:
        """A store to the last element of the scratch.

        TVM allocates what it sees stored and loaded, and it does not see what instructions on tiles do.
        """
        rows, columns = shape_of(self.scratch)
        return BufferStore(self.scratch, tirx.const(0, self.dots.sums), [rows - 1, columns - 1])

    def _step(self, number: Expr) -> Any:
        """The results of some tiles of rows and columns."""
        if self.by_column:
            panel, *rest = unraveled(number, [self.panels, *self.outer, *self.counts])
        else:
            *rest, panel = unraveled(number, [*self.outer, *self.counts, self.panels])
        outer = {axis.var: index for axis, index in zip(self.contraction.outer, rest[: len(self.outer)], strict=True)}
        numbers = zip(rest[len(self.outer) :], self.step, self.extents, self.counts, strict=True)
        starts = [tile_start(*each) for each in numbers]
        sums = [(row, column) for row in range(self.row_tiles) for column in range(self.column_tiles)]
        stores = [
            instructions.store(
                self._sums(row, column), self.scratch[row * self.rows, column * TILE], WORD_BYTES * self._width
            )
            for row, column in sums
        ]
        clear = [instructions.clear(self._sums(row, column)) for row, column in sums]
        share = self._share(rest) if self.by_column and self.prefetch else None
        products = self._products(outer, starts, panel, share)
        return SeqStmt([*clear, products, *stores, self._results(outer, starts, panel)])

    def _share(self, steps: Sequence[Expr]) -> tuple[Expr, int]:
        """The number of a step among those that have one panel, and how many these are."""
        number: Expr = IntImm("int32", 0)
        extents = [*self.outer, *self.counts]
        for step, extent in zip(steps, extents, strict=True):
            number = number * extent + step
        return number, math.prod(extents)

    def _products(
        self, outer: Mapping[Any, Expr], starts: Sequence[Expr], panel: Expr, share: tuple[Expr, int] | None
    ) -> Any:
        """Loops over the reductions around the products of the tiles.

        If a `share` is given, they fetch that part of the next panel (see `_share`).
        """
        contraction = self.contraction
        *_, grouped = contraction.stage.reductions
        others, words = reduction_loops(contraction, self.dots)
        data = contraction.other
        row_variable = contraction.rows[-1].var
        stride = load_stride(data, row_variable)
        assert stride is not None  # `applies` has asked
        itemsize = WORD_BYTES // self.dots.group
        leading = [outer[axis.var] for axis in self.columns.leading]

        def innermost(steps: Sequence[Expr]) -> Any:
            *positions, step = steps
            at: dict[Any, Expr] = {axis.var: IntImm("int32", 0) for axis in contraction.stage.reductions}
            at.update({axis.var: position for axis, position in zip(others, positions, strict=True)})
            at[grouped.var] = step * (self.depth * self.dots.group)
            word: Expr = IntImm("int32", 0)
            for axis, position in zip(others, positions, strict=True):
                word = word * axis.extent + position
            word = word * words + step * self.depth + self.columns.first
            statements = [] if share is None else self._fetches(leading, panel, share, word)
            for column in range(self.column_tiles):
                element = self._packed(leading, panel, word, IntImm("int32", column * TILE))
                statements.append(instructions.load(self._columns(column), element, WORD_BYTES * self._width))
            for row in range(self.row_tiles):
                where = {**outer, **self._row(starts, row, IntImm("int32", 0)), **at}
                statements.append(instructions.load(self._data(row), substitute(data, where), stride * itemsize))
                for column in range(self.column_tiles):
                    tiles = (self._sums(row, column), self._data(row), self._columns(column))
                    statements.append(instructions.multiply(self.dots.instruction, *tiles))
            return SeqStmt(statements)

        return _nested([*(axis.extent for axis in others), words // self.depth], innermost)

    def _fetches(self, leading: Sequence[Expr], panel: Expr, share: tuple[Expr, int], word: Expr) -> list[Any]:
        """What the products at a word of a step fetch of the next panel."""
        *_, rows, width = shape_of(self.columns.buffer)
        number, steps = share
        each = rows // self.depth
        zero = IntImm("int32", 0)
        return fetch_statements(
            lambda position: self._packed(leading, panel + 1, zero, position),
            rows * width,
            steps * each,
            number * each + prim.FloorDiv(word, IntImm("int32", self.depth)),
        )

    def _results(self, outer: Mapping[Any, Expr], starts: Sequence[Expr], panel: Expr) -> Any:
        """Stores the results of a step: the epilogue of its sums."""
        contraction = self.contraction
        epilogue, result = contraction.epilogue, contraction.stage.buffer
        lanes = math.gcd(self._width, self.target.lanes)
        leading = [outer[axis.var] for axis in self.columns.leading]
        start = tile_start(panel, self._width, contraction.column.extent, self.panels)

        def store(tile: int, row: Expr, inner: Expr) -> Any:
            mapping = {**outer, **self._row(starts, tile, row), contraction.column.var: start + inner}
            total = self.scratch[row + tile * self.rows, inner]
            if self.columns.first:
                total = total + self._packed(leading, panel, IntImm("int32", 0), inner)
            # Two steps: a load of the result has to be recognised before its indices change.
            value = rewrite_loads(epilogue.value, lambda load: total if load.source.same_as(result) else None)
            indices = [substitute(index, mapping) for index in epilogue.indices]
            return BufferStore(epilogue.buffer, substitute(value, mapping), indices)

        def vectors(tile: int, row: Expr) -> Any:
            def vector(number: Expr) -> Any:
                return _loop(lanes, lambda lane: store(tile, row, number * lanes + lane), ForKind.VECTORIZED)

            stored = _loop(self._width // lanes, vector, ForKind.UNROLLED)
            present = self.image.present(self._position(starts, tile, row)) if len(starts) == 1 else None
            return stored if present is None else IfThenElse(present, stored, None)

        loops = [_loop(self.rows, partial(vectors, tile)) for tile in range(self.row_tiles)]
        return loops[0] if len(loops) == 1 else SeqStmt(loops)

    def _packed(self, leading: Sequence[Expr], panel: Expr, word: Expr, column: Expr) -> Expr:
        """A word of the column operand."""
        indices = (*leading, panel, word, column)
        return self.columns.buffer[indices]

    def _row(self, starts: Sequence[Expr], tile: int, row: Expr) -> dict[Any, Expr]:
        """The positions on the row axes of a row of one of the tiles of a step."""
        if len(starts) == 2:
            first, last = self.contraction.rows
            return {first.var: starts[0] + tile, last.var: starts[1] + row}
        return self.image.positions(self._position(starts, tile, row))

    def _position(self, starts: Sequence[Expr], tile: int, row: Expr) -> Expr:
        """The position on the only row axis of a row of one of the tiles of a step."""
        return starts[0] + (row + tile * self.rows)

    @property
    def _width(self) -> int:
        """The columns of a step."""
        return TILE * self.column_tiles

    def _sums(self, row: int, column: int) -> int:
        return row * self.column_tiles + column

    def _data(self, row: int) -> int:
        return self.row_tiles * self.column_tiles + row

    def _columns(self, column: int) -> int:
        return self.row_tiles * self.column_tiles + self.row_tiles + column


def reduction_loops(contraction: Contraction, dots: DotProducts) -> tuple[list[Axis], int]:
    """The reductions that need a loop of their own, and the words of the data that lie one behind the other.

    The latter are those of the grouped reduction, and of others whose steps follow at its end: the channels of the
    pixels of a window's row.
    """
    *others, grouped = contraction.stage.reductions
    words = -(-grouped.extent // dots.group)
    while others and load_stride(contraction.other, others[-1].var) == words * dots.group:
        words *= others.pop().extent
    return others, words


def depth_of(contraction: Contraction, dots: DotProducts) -> int:
    """The words in a row of a tile of data: the most that divide those that lie one behind the other."""
    _, words = reduction_loops(contraction, dots)
    return max(depth for depth in range(1, min(words, TILE) + 1) if words % depth == 0)


def _loop(extent: int, body: Callable[[Expr], Any], kind: Any = ForKind.SERIAL) -> Any:
    index = variable("i")
    return For(index, 0, extent, kind, body(index))


def _nested(extents: Sequence[int], body: Callable[[Sequence[Expr]], Any]) -> Any:
    """Serial loops, the first one outermost, around a statement."""
    indices = [variable("k") for _ in extents]
    statement = body(indices)
    for index, extent in zip(reversed(indices), reversed(extents), strict=True):
        statement = For(index, 0, extent, ForKind.SERIAL, statement)
    return statement
