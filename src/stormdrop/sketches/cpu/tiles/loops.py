"""The loops of a contraction by tiles in one configuration; `sketch` draws them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm
from tvm.tirx import BufferStore, For, ForKind, IfThenElse, SeqStmt

from ....ir.attributes import NEEDS
from ....ir.contractions.contraction import Contraction
from ....ir.elementary import expand_for_cpu
from ....ir.expressions import Expr, raveled, rewrite_loads, substitute, tile_start, unraveled
from ....ir.stages import StageGraph, assemble, intermediate, loads_of, loop, sequence, shape_of, variable
from ....machine.cpu import Cpu
from ...contract import Variant
from ..contractions.dot_products import DotProducts
from ..loops import default_loops
from ..prefetch import PREFETCH, fetch_statements
from . import instructions
from .columns import TileColumns
from .data import TileData
from .groups import BY_COLUMN, steps_per_group
from .instructions import CONFIGURATION_WORDS, TILE, WORD_BYTES
from .parts import HIGH, PRODUCTS
from .reductions import depth_of, reduction_loops, split_at
from .rows import rows_of

BLOCK = "block"
"""The name of the knob: the products of tiles in a block of the reduction."""


@dataclass(frozen=True)
class Step:
    """One step while its group is at one block of the reduction.

    Attributes:
        outer: The position on each outer axis.
        starts: Where the rows of the step start on each row axis.
        panel: The panel of columns.
        block: The position on each loop over blocks.
        number: The number of the step among those of a panel.
        position: Its position in its group.
    """

    outer: Mapping[Any, Expr]
    starts: Sequence[Expr]
    panel: Expr
    block: Sequence[Expr]
    number: Expr
    position: Expr


class TileLoops:
    """One contraction; `variant` is the result.

    Args:
        contraction: The contraction.
        dots: How its column operand becomes words; the grouped reduction is the last one, and the data have whole
            groups of its steps.
        target: The machine.
        config: The values of the knobs, see `Tiles.space`.

    The buffers:

    - `columns.buffer` holds words of the column operand: all of them [outer..., panel, word, column], or two panels.
    - `scratch` holds the sums of a group of steps, from which vectors store the results.
    """

    def __init__(self, contraction: Contraction, dots: DotProducts, target: Cpu, config: Mapping[str, Any]) -> None:
        self.contraction, self.dots, self.target = contraction, dots, target
        self.rows: int = config["rows"]
        self.row_tiles: int = config["row_tiles"]
        self.column_tiles: int = config["column_tiles"]
        self.by_column: bool = config["order"] == BY_COLUMN
        self.row_axes = rows_of(contraction)
        self.extents = self.row_axes.extents
        self.others, words = reduction_loops(contraction, dots)
        self.depth = depth_of(words)
        width = TILE * self.column_tiles
        self.columns = TileColumns(contraction, dots, self.column_tiles, self.by_column)
        self.words = intermediate("tile_configuration", [CONFIGURATION_WORDS], "int32", "local")
        # Tiles of rows in a step, and steps along each row axis. With two row axes, the tiles of a step lie one below
        # the other in the first one.
        self.step = [self.row_tiles, self.rows] if len(self.extents) == 2 else [self.row_tiles * self.rows]
        self.counts = [-(-extent // size) for extent, size in zip(self.extents, self.step, strict=True)]
        self.outer = [axis.extent for axis in contraction.outer]
        self.panels = -(-contraction.column.extent // width)
        self.products = [*(axis.extent for axis in self.others), words // self.depth]
        self.blocks, self.inside = split_at(self.products, config.get(BLOCK, math.prod(self.products)))
        steps = math.prod(self.outer) * math.prod(self.counts)
        # The steps of a group have their sums in the scratch while the blocks of the reduction follow each other.
        self.group = 1
        if math.prod(self.blocks) > 1:
            sums = self._step_rows * width
            self.group = int(steps_per_group(contraction, dots, target, steps, self.panels, sums, self.by_column))
        tiles = self.group * self.row_tiles
        self.data = TileData(contraction, dots, self.row_axes, self.by_column, tiles=tiles, tile_rows=self.rows)
        self.groups = -(-steps // self.group)
        self.scratch = intermediate("scratch", [self.group * self._step_rows, width], dots.sums, "local")
        self.total = self.groups * self.panels
        self.tasks = min(self.total, target.cores * config["tasks"])
        self.fetches = bool(config.get(PREFETCH)) or (self.columns.can_fetch and self.panels > self.tasks)

    def variant(self) -> Variant:
        """The scheduled function between the stages before and after it, and what packs constant columns."""
        contraction, graph = self.contraction, self.contraction.graph
        epilogue, source = contraction.epilogue, contraction.operand.source
        before, parameters, transforms = self.data.before, list(graph.parameters), {}
        if contraction.constant is None:
            before += self.columns.before
        else:
            position = parameters.index(source)
            packing = StageGraph((source, self.columns.buffer), tuple(self.columns.before))
            parameters[position], transforms[position] = self.columns.buffer, packing.function()
        read = {*self.data.sources, self.columns.buffer}
        kept, inside = {*parameters, *read}, [epilogue, *self.data.inside, *self.columns.inside]
        first, made = default_loops(before, kept | loads_of(inside, contraction.after), self.target)
        last, made_after = default_loops(contraction.after, kept | loads_of(inside, before), self.target)
        buffers = [self.scratch, self.words, *self.data.rows]
        if self.columns.by_panel:
            buffers.append(self.columns.buffer)
        if epilogue.buffer not in parameters:
            buffers.append(epilogue.buffer)
        main = assemble(parameters, (*made, *made_after), [*first, self._tasks(), *last], buffers)
        main = expand_for_cpu(main, self.target.keep_denormals)
        return Variant(main.with_attr(NEEDS, ["amx-tile", self.dots.feature]), transforms)

    def _tasks(self) -> Any:
        """Parallel tasks of about as many groups each. Tiles belong to the thread that has configured them."""
        each = -(-self.total // self.tasks)

        def task(number: Expr) -> Any:
            def group(position: Expr) -> Any:
                at = number * each + position
                body = self._group(at, position, each)
                return body if self.tasks * each == self.total else IfThenElse(at < self.total, body, None)

            sums, panels = self.row_tiles * self.column_tiles, [self.columns.buffer] if self.columns.by_panel else []
            configured = instructions.configure(self.words, self.rows, self.depth, sums, self.row_tiles)
            whole = [_last_element(buffer) for buffer in (self.scratch, *self.data.spaced, *panels)]
            return SeqStmt([*whole, *configured, loop(each, group), instructions.release()])

        return loop(self.tasks, task, ForKind.PARALLEL)

    def _group(self, number: Expr, done: Expr, each: int) -> Any:
        """The results of some steps: of all blocks of the reduction one after the other, each for all of them.

        Args:
            number: The number of the group, and of the panel.
            done: How many the task has computed before.
            each: How many a task computes.
        """
        if self.by_column:
            panel, group = unraveled(number, [self.panels, self.groups])
        else:
            group, panel = unraveled(number, [self.groups, self.panels])
        first = tile_start(group, self.group, math.prod([*self.outer, *self.counts]), self.groups)

        def block(at: Sequence[Expr]) -> Any:
            def step(position: Expr) -> Any:
                outer, starts = self._begin(first + position)
                return self._step(Step(outer, starts, panel, at, first + position, position))

            return loop(self.group, step)

        results = _nested(self.blocks, block)
        if self.columns.by_panel:
            last = prim.Min(number - done + (each - 1), int32(self.total - 1))
            follows = (panel + 1) * self.groups <= last
            packing = self.columns.packing(panel, group, self.groups, done == 0, follows, self.target.lanes)
            return SeqStmt([*packing, results])
        if self.data.rows:
            is_new, parts = tirx.any(panel == 0, done == 0), loop(self.group, lambda step: self._parts(first, step))
            return SeqStmt([IfThenElse(is_new, parts, None), results])
        return results

    def _parts(self, first: Expr, position: Expr) -> Any:
        """Computes the parts of the rows of a step.

        Args:
            first: The number of the first step of the group.
            position: The position of the step in the group.
        """
        outer, starts = self._begin(first + position)

        def tile(number: int) -> Any:
            def where(row: Expr) -> dict[Any, Expr]:
                return {**outer, **self._row(starts, number, row)}

            first_row = (position * self.row_tiles + number) * self.rows
            return self.data.compute_tile(self.target.lanes, first_row, where)

        return sequence([tile(number) for number in range(self.row_tiles)])

    def _begin(self, number: Expr) -> tuple[dict[Any, Expr], list[Expr]]:
        """The positions on the outer axes at a step among those of a panel, and where it starts on each row axis."""
        steps = unraveled(number, [*self.outer, *self.counts])
        outer_axes = [axis.var for axis in self.contraction.outer]
        outer = dict(zip(outer_axes, steps[: len(self.outer)], strict=True))
        numbers = zip(steps[len(self.outer) :], self.step, self.extents, self.counts, strict=True)
        return outer, [tile_start(*each) for each in numbers]

    def _step(self, step: Step) -> Any:
        """The sums of some tiles of rows and columns over a block of the reduction; after the last one, the results."""
        base = step.position * self._step_rows
        sums = [
            (self._sums(row, column), self.scratch[base + row * self.rows, column * TILE])
            for row in range(self.row_tiles)
            for column in range(self.column_tiles)
        ]
        stride = WORD_BYTES * self._width
        begin: Any = sequence([instructions.clear(tile) for tile, _ in sums])
        end = self._results(step.outer, step.starts, step.panel, base)
        if math.prod(self.blocks) > 1:
            loads = sequence([instructions.load(tile, element, stride) for tile, element in sums])
            is_first = tirx.all(*(at == 0 for at in step.block))
            is_last = tirx.all(*(at == extent - 1 for at, extent in zip(step.block, self.blocks, strict=True)))
            begin, end = IfThenElse(is_first, begin, loads), IfThenElse(is_last, end, None)
        stores = [instructions.store(tile, element, stride) for tile, element in sums]
        return SeqStmt([begin, self._products(step), *stores, end])

    def _products(self, step: Step) -> Any:
        """Loops over a block of the reductions around the products of the tiles of a step."""
        reductions = self.contraction.stage.reductions

        def innermost(inside: Sequence[Expr]) -> Any:
            # The last loop over blocks and the first one inside are two parts of one loop.
            *before, part = step.block
            whole, *after = inside
            positions = [*before, part * self.inside[0] + whole, *after]
            product = raveled(positions, self.products)
            at: dict[Any, Expr] = {axis.var: int32(0) for axis in reductions}
            at.update({axis.var: position for axis, position in zip(self.others, positions[:-1], strict=True)})
            at[reductions[-1].var] = positions[-1] * (self.depth * self.dots.group)
            fetches = self._fetches(step, product) if self.fetches else []
            return SeqStmt([*fetches, *self._multiply(step, at, product)])

        return _nested(self.inside, innermost)

    def _multiply(self, step: Step, at: Mapping[Any, Expr], product: Expr) -> list[Any]:
        """Adds one product of all tiles of a step to their sums.

        Args:
            step: The step.
            at: The position on each reduction.
            product: The number of the product.
        """
        statements: list[Any] = []
        loaded: tuple[int | None, int | None] = (None, None)
        for data_part, column_part in PRODUCTS if self.dots.parts > 1 else ((HIGH, HIGH),):
            if column_part != loaded[1]:
                word = (product + column_part * math.prod(self.products)) * self.depth + self.columns.first
                for column in range(self.column_tiles):
                    element = self.columns.element(step.outer, step.panel, word, int32(column * TILE))
                    statements.append(instructions.load(self._columns(column), element, WORD_BYTES * self._width))
            for row in range(self.row_tiles):
                if data_part != loaded[0]:
                    where = {**step.outer, **self._row(step.starts, row, int32(0)), **at}
                    base = step.position * self._step_rows + row * self.rows
                    element = self.data.element(data_part, where, base)
                    statements.append(instructions.load(self._data(row), element, self.data.stride))
                for column in range(self.column_tiles):
                    tiles = (self._sums(row, column), self._data(row), self._columns(column))
                    statements.append(instructions.multiply(self.dots.instruction, *tiles))
            loaded = (data_part, column_part)
        return statements

    def _fetches(self, step: Step, product: Expr) -> list[Any]:
        """What a product fetches ahead.

        A panel to which the groups of a task come back one after the other lies in the second cache. The products of
        all of their steps share the work of fetching the next one, or what it will be packed from. Else a group fetches
        the next block.
        """
        each = math.prod(self.products)
        if self.columns.by_panel:
            # The last group overlaps the one before it if groups do not divide the steps.
            group = prim.FloorDiv(step.number - step.position + (self.group - 1), int32(self.group)) + 1
            panel = step.panel + 1 + prim.FloorDiv(group, int32(self.groups))
            whole = self.columns.of_slice(panel, prim.FloorMod(group, int32(self.groups)), self.groups)
            return fetch_statements(*whole, self.group * each, step.position * each + product)
        if self.by_column and self.groups > 1:
            steps = math.prod([*self.outer, *self.counts]) * each
            whole = self.columns.of_panel(step.outer, step.panel + 1)
            return fetch_statements(*whole, steps, step.number * each + product)
        inside, count = math.prod(self.inside), math.prod(self.blocks)
        following = raveled(step.block, self.blocks) + 1
        panel = prim.FloorMod(step.panel + prim.FloorDiv(following, int32(count)), int32(self.panels))
        block = prim.FloorMod(following, int32(count))
        statements: list[Any] = []
        for part in range(self.dots.parts):
            word = (block * inside + part * each) * self.depth + self.columns.first
            statements += fetch_statements(
                partial(self.columns.element, step.outer, panel, word),
                inside * self.depth * self._width,
                self.group * inside,
                step.position * inside + prim.FloorMod(product, int32(inside)),
            )
        return statements

    def _results(self, outer: Mapping[Any, Expr], starts: Sequence[Expr], panel: Expr, base: Expr) -> Any:
        """Stores the results of a step: the epilogue of its sums, which begin at the row `base` of the scratch."""
        contraction = self.contraction
        epilogue, result = contraction.epilogue, contraction.stage.buffer
        lanes = math.gcd(self._width, self.target.lanes)
        start = tile_start(panel, self._width, contraction.column.extent, self.panels)

        def store(tile: int, row: Expr, inner: Expr) -> Any:
            mapping = {**outer, **self._row(starts, tile, row), contraction.column.var: start + inner}
            total = self.scratch[base + (row + tile * self.rows), inner]
            if self.columns.first:
                total = total + self.columns.element(outer, panel, int32(0), inner)
            # Two steps: a load of the result has to be recognised before its indices change.
            value = rewrite_loads(epilogue.value, lambda load: total if load.source.same_as(result) else None)
            indices = [substitute(index, mapping) for index in epilogue.indices]
            return BufferStore(epilogue.buffer, substitute(value, mapping), indices)

        def vectors(tile: int, row: Expr) -> Any:
            def vector(number: Expr) -> Any:
                return loop(lanes, lambda lane: store(tile, row, number * lanes + lane), ForKind.VECTORIZED)

            stored = loop(self._width // lanes, vector, ForKind.UNROLLED)
            present = self.row_axes.present(self._position(starts, tile, row)) if len(starts) == 1 else None
            return stored if present is None else IfThenElse(present, stored, None)

        loops = [loop(self.rows, partial(vectors, tile)) for tile in range(self.row_tiles)]
        return sequence(loops)

    def _row(self, starts: Sequence[Expr], tile: int, row: Expr) -> dict[Any, Expr]:
        """The positions on the row axes of a row of one of the tiles of a step."""
        if len(starts) == 2:
            first, last = self.contraction.rows
            return {first.var: starts[0] + tile, last.var: starts[1] + row}
        return self.row_axes.positions(self._position(starts, tile, row))

    def _position(self, starts: Sequence[Expr], tile: int, row: Expr) -> Expr:
        """The position on the only row axis of a row of one of the tiles of a step."""
        return starts[0] + (row + tile * self.rows)

    @property
    def _step_rows(self) -> int:
        """The rows of a step."""
        return self.row_tiles * self.rows

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


def int32(number: int) -> Expr:
    """A number as an operand."""
    return IntImm("int32", number)


def _last_element(buffer: Any) -> Any:
    """A store to the last element of a buffer.

    TVM allocates what it sees stored and loaded, where it sees that. It does not see what instructions on tiles do.
    A buffer that is stored to in a loop only would be allocated in each of its steps.
    """
    return BufferStore(buffer, tirx.const(0, str(buffer.dtype)), [extent - 1 for extent in shape_of(buffer)])


def _nested(extents: Sequence[int], body: Callable[[Sequence[Expr]], Any]) -> Any:
    """Serial loops, the first one outermost, around a statement."""
    indices = [variable("k") for _ in extents]
    statement = body(indices)
    for index, extent in zip(reversed(indices), reversed(extents), strict=True):
        statement = For(index, 0, extent, ForKind.SERIAL, statement)
    return statement
