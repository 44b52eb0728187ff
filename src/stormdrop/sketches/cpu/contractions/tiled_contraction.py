"""A contraction over tiles: its stages, whose loops divide perfectly, and their schedule.

`register_blocked` draws the loops that come out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from ....ir.contractions.contraction import Contraction
from ....ir.contractions.factors import factor_of
from ....ir.expressions import Expr, rewrite_loads, substitute, tile_start, variables
from ....ir.stages import Axis, Stage, StageGraph, assemble, intermediate, loads_of, variable
from ....machine.cpu import Cpu
from ..loops import default_loops
from ..nest_rewrites import unravel_axes
from .contraction_shape import fits_registers, worth_threads
from .dot_products import DotProducts
from .packed_words import packed_words

BY_COLUMN, BY_ROW, MIXED = ORDERS = ("columns", "rows", "mixed")
"""Values of the knob `order`: what runs in parallel, the outermost first, and what each task walks through.

Tiles of columns and blocks of rows, then tiles of rows; blocks and tiles of rows, then tiles of columns; blocks of rows
and tiles of columns, then tiles of rows. So the panel of columns or the rows stay in a cache.
"""

PAD_BEFORE, PAD_PER_TASK, PAD_PER_TILE = "apart", "task", "tile"
"""Values of the knob `prologue`: where data are padded, or widened for `wide_bytes`.

By a stage before the contraction, by each task for all of its tiles, or in the registers of each tile.
"""

DECODE_PER_STEP, DECODE_PER_TASK = "step", "task"
"""Values of the knob `decode`: where codes become numbers, in registers of each step, or in a panel of each task."""


class TiledContraction:
    """A function with one contraction, over tiles, ready to be scheduled.

    Args:
        contraction: What the function computes.
        config: The sizes of the tiles and of the blocks of tiles, and whether to pack; see `RegisterBlocked.space`.
        prologue_inside: Whether the stage that makes the other operand (padding) is part of the kernel.
        dots: How instructions for several products at a time compute it; None if each step is one multiply-add.

    Attributes:
        outer: The axes that are not tiled.
        rows: The tiled row axes.
        column: The tiled column axis.
        reductions: The number of reduction axes.
        inside: The stage of the prologue if it is part of the kernel, else None.
        decoding: The stage that decodes the column operand if each task does so, else None.
        parallel: Whether tasks are shared out to threads.
        packed: The column operand as it is packed; None if it is read as it lies.
        transforms: For each constant input that is packed ahead of time, what packs it. They are the column operand,
            if it is constant, and what decodes it.
    """

    def __init__(
        self,
        contraction: Contraction,
        config: Mapping[str, Any],
        prologue_inside: bool,
        dots: DotProducts | None = None,
    ) -> None:
        extents = contraction.row_extents
        sizes = [config["rows"]] if len(extents) == 1 else [config["rows_outer"], config["rows"]]
        block = config["block"] if len(extents) == 1 else None
        self.outer = [Axis(variable(f"outer{number}"), axis.extent) for number, axis in enumerate(contraction.outer)]
        self.rows = [
            tiled_axis(f"row{number}", extent, size, block)
            for number, (extent, size) in enumerate(zip(extents, sizes, strict=True))
        ]
        self.column = tiled_axis("column", contraction.column.extent, config["columns"])
        self.parallel = worth_threads(contraction)
        self.transforms: dict[int, PrimFunc] = {}
        self.decoding: Stage | None = None
        steps = [axis.extent for axis in contraction.stage.reductions] if dots is None else dots.extents(contraction)
        reductions = tuple(Axis(variable(f"reduce{number}"), extent, True) for number, extent in enumerate(steps))
        self.reductions = len(reductions)
        positions = self._positions(contraction, reductions)
        packed: dict[Any, Any] = {}
        packing: tuple[tuple[Any, tuple[Stage, ...]], ...] = ()
        value, start = substitute(contraction.stage.value, positions), contraction.stage.identity
        operand = contraction.packable
        if dots is not None:
            packed_column = tiled_axis("pack_column", contraction.column.extent, self.column.inner.extent)
            words = packed_words(contraction, dots, packed_column, self.column, reductions, positions)
            value, start = words.term, words.start
            packing = ((contraction.operand.source, words.stages),)
        elif operand is not None and (contraction.constant is not None or config["pack"]):
            for load in (operand, *contraction.decoders):
                stage, packed[load.source] = self._pack(contraction, load, len(packed))
                packing += ((load.source, (stage,)),)
            value = rewrite_loads(contraction.stage.value, lambda load: packed.get(load.source))
            if config.get("decode") == DECODE_PER_TASK:
                self.decoding, value = self._decode(contraction, value)
            value = substitute(value, positions)
        self.packed = packing[0][1][-1].buffer if packing else None
        before, parameters = list(contraction.before), list(contraction.graph.parameters)
        for source, stages in packing:
            if contraction.constant is None:
                before += stages
            else:
                position = parameters.index(source)
                self.transforms[position] = StageGraph((source, stages[-1].buffer), stages).function()
                parameters[position] = stages[-1].buffer
        accumulate = self._accumulate(contraction, reductions, value, start)
        epilogue = self._epilogue(contraction, positions, accumulate.buffer)
        self.inside = contraction.prologue if prologue_inside else None
        self._before = tuple(stage for stage in before if stage is not self.inside)
        self._after = contraction.after
        self._parameters = tuple(parameters)
        first = tuple(stage for stage in (self.inside, self.decoding) if stage is not None)
        self._stages = (*first, accumulate, epilogue)

    def kernel(self) -> PrimFunc:
        """The contraction with its epilogue (and with the prologue, if that is inside) as a function of its own.

        It reads what the stages before it have written as if these were inputs.
        """
        written = {stage.buffer for stage in self._stages}
        read = dict.fromkeys(load.source for stage in self._stages for load in stage.loads())
        return assemble([*(buffer for buffer in read if buffer not in written), self._stages[-1].buffer], self._stages)

    def with_neighbours(self, kernel: PrimFunc, target: Cpu) -> PrimFunc:
        """The whole function: the scheduled kernel between the stages before and after it."""
        before, first = default_loops(self._before, {*self._parameters, *loads_of(self._stages, self._after)}, target)
        after, last = default_loops(self._after, {*self._parameters, *loads_of(self._stages, self._before)}, target)
        root = kernel.body.block
        statements = [*before, root.body, *after]
        return assemble(self._parameters, (*first, self._stages[-1], *last), statements, root.alloc_buffers)

    @property
    def tile_axes(self) -> list[Axis]:
        """The axes over tiles of rows."""
        return [axis for tiled in self.rows for axis in tiled.tiles]

    def _axes(self) -> list[Axis]:
        inner_rows = [tiled.inner for tiled in self.rows]
        return [*self.outer, *self.column.tiles, *self.tile_axes, *inner_rows, self.column.inner]

    def _positions(self, contraction: Contraction, reductions: tuple[Axis, ...]) -> dict[Any, Expr]:
        """The position on each axis of the contraction, by variable, in terms of the new axes."""
        positions: dict[Any, Expr] = {contraction.column.var: self.column.position}
        renamed = [*zip(contraction.outer, self.outer, strict=True)]
        renamed += zip(contraction.stage.reductions, reductions, strict=True)
        positions.update((old.var, new.var) for old, new in renamed)
        if contraction.flat:
            positions.update(unravel_axes(contraction.rows, self.rows[0].position))
        else:
            positions.update((axis.var, row.position) for axis, row in zip(contraction.rows, self.rows, strict=True))
        return positions

    def _pack(self, contraction: Contraction, load: Any, number: int) -> tuple[Stage, Any]:
        """The stage that lays an operand out as [outer..., tile, reductions..., column], and its load.

        Args:
            contraction: The contraction.
            load: The load of the operand.
            number: How many operands are packed before it.
        """
        used = {name for index in load.indices for name in variables(index)}
        old_axes = [axis for axis in (*contraction.outer, *contraction.stage.reductions) if axis.var in used]
        new_axes = [Axis(variable(f"pack{number}"), axis.extent) for number, axis in enumerate(old_axes)]
        leading = [new for new, old in zip(new_axes, old_axes, strict=True) if not old.reduce]
        reduced = [new for new, old in zip(new_axes, old_axes, strict=True) if old.reduce]
        column = tiled_axis("pack_column", contraction.column.extent, self.column.inner.extent)
        axes = (*leading, *column.tiles, *reduced, column.inner)
        positions = {old.var: new.var for old, new in zip(old_axes, new_axes, strict=True)}
        positions[contraction.column.var] = column.position
        name = f"{number}" if number else ""
        buffer = intermediate(f"packed{name}", [axis.extent for axis in axes], str(load.source.dtype))
        stage = Stage(f"pack{name}", axes, buffer, tuple(axis.var for axis in axes), substitute(load, positions))
        outer = [axis.var for axis in old_axes if not axis.reduce]
        reductions = [axis.var for axis in old_axes if axis.reduce]
        indices = (*outer, self.column.tiles[0].var, *reductions, self.column.inner.var)
        return stage, buffer[indices]

    def _decode(self, contraction: Contraction, value: Expr) -> tuple[Stage, Expr]:
        """The stage that decodes packed columns as [tile, reductions..., column], and the value that reads it.

        Args:
            contraction: The contraction.
            value: What it sums, over packed columns.
        """
        column_first = factor_of(value.a).decoders  # type: ignore[union-attr]
        decoded, other = (value.a, value.b) if column_first else (value.b, value.a)
        (tile,), inner, reductions = self.column.tiles, self.column.inner, contraction.stage.reductions
        old = (tile, *reductions, inner)
        new = [Axis(variable(f"decode{number}"), axis.extent) for number, axis in enumerate(old)]
        renamed = {before.var: after.var for before, after in zip(old, new, strict=True)}
        buffer = intermediate("decoded", [axis.extent for axis in new], str(contraction.stage.buffer.dtype))
        at = tuple(axis.var for axis in new)
        stage = Stage("decode", tuple(new), buffer, at, substitute(decoded, renamed))
        indices = tuple(axis.var for axis in old)
        return stage, other * buffer[indices]

    def _accumulate(self, contraction: Contraction, reductions: tuple[Axis, ...], value: Expr, start: Expr) -> Stage:
        axes = self._axes()
        indices = tuple(axis.var for axis in axes)
        dtype = str(contraction.stage.buffer.dtype)
        accumulators = intermediate("accumulators", [axis.extent for axis in axes], dtype)
        return Stage("contraction", (*axes, *reductions), accumulators, indices, value, "sum", start)

    def _epilogue(self, contraction: Contraction, positions: Mapping[Any, Expr], accumulators: Any) -> Stage:
        old_axes = self._axes()
        new_axes = [Axis(variable(f"{axis.name}_out"), axis.extent) for axis in old_axes]
        renamed = {old.var: new.var for old, new in zip(old_axes, new_axes, strict=True)}
        indices = tuple(axis.var for axis in new_axes)
        result = contraction.stage.buffer

        def moved(node: Expr) -> Expr:
            # Two steps: a load of the contraction's result has to be recognised before its indices change.
            from_registers = rewrite_loads(
                node, lambda load: accumulators[indices] if load.source.same_as(result) else None
            )
            return substitute(substitute(from_registers, positions), renamed)

        epilogue = contraction.epilogue
        written = tuple(moved(index) for index in epilogue.indices)
        return replace(epilogue, axes=tuple(new_axes), indices=written, value=moved(epilogue.value))


@dataclass(frozen=True, eq=False)
class TiledAxis:
    """An axis that is divided into tiles: the axes over tiles, the axis inside of one, and the position on the axis."""

    tiles: tuple[Axis, ...]
    inner: Axis
    position: Expr


def tiled_axis(name: str, extent: int, size: int, block: int | None = None) -> TiledAxis:
    """Tiles of one size, in blocks of `block` tiles if that is given.

    If the size does not divide the extent, the last tiles overlap those before them.
    """
    count = -(-extent // size)
    if block is None:
        tiles: tuple[Axis, ...] = (Axis(variable(f"{name}_tile"), count),)
        tile: Expr = tiles[0].var
    else:
        tiles = (Axis(variable(f"{name}_block"), -(-count // block)), Axis(variable(f"{name}_tile"), block))
        tile = tiles[0].var * block + tiles[1].var
    inner = Axis(variable(name), size)
    start = tile_start(tile, size, extent, math.prod(axis.extent for axis in tiles))
    return TiledAxis(tiles, inner, start + inner.var)


def scheduled_kernel(
    tiled: TiledContraction, target: Cpu, config: Mapping[str, Any], prologue_in_registers: bool
) -> PrimFunc:
    """Schedules the kernel of a tiled contraction.

    Args:
        tiled: The contraction.
        target: The machine to schedule for.
        config: `order` and `unroll`; see `RegisterBlocked.space`.
        prologue_in_registers: If the prologue is inside of the kernel: whether each tile computes what it needs in
            registers, or each task does in a buffer.

    Returns:
        `tiled.kernel()`, scheduled.
    """
    schedule = Schedule(tvm.IRModule({"main": tiled.kernel()}), debug_mask=0)
    task, tile = _schedule_tiles(schedule, tiled, target, config)
    if tiled.inside is not None:
        loop = tile if prologue_in_registers else task
        _schedule_prologue(schedule, tiled.inside, loop, prologue_in_registers, target)
    if tiled.decoding is not None:
        _schedule_prologue(schedule, tiled.decoding, task, False, target)
    return schedule.mod["main"]


def _schedule_tiles(
    schedule: Schedule, tiled: TiledContraction, target: Cpu, config: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Schedules contraction and epilogue. Returns the loop over tasks and the one over a task's tiles."""
    contraction, epilogue = schedule.get_sblock("contraction"), schedule.get_sblock("epilogue")
    loops = schedule.get_loops(epilogue)
    outer, loops = loops[: len(tiled.outer)], loops[len(tiled.outer) :]
    in_registers = fits_registers(math.prod(row.inner.extent for row in tiled.rows), tiled.column.inner.extent, target)
    row_tiles = len(tiled.tile_axes)
    column, first, *rest = loops[: 1 + row_tiles]
    inner = loops[1 + row_tiles :]
    parallel, serial = {
        BY_COLUMN: ([column, first], rest),
        BY_ROW: ([first, *rest], [column]),
        MIXED: ([first, column], rest),
    }[config["order"]]
    parallel = [*outer, *parallel]
    schedule.reorder(*parallel, *serial, *inner)
    vectors, _ = _vectorize(schedule, inner[-1], target.lanes)
    for loop in (*inner[:-1], *([vectors] if in_registers else [])):
        schedule.unroll(loop)
    task = schedule.fuse(*parallel)
    if tiled.parallel:
        schedule.parallel(task)
    tile = serial[-1] if serial else task
    schedule.compute_at(contraction, tile, preserve_unit_loops=True)
    schedule.set_scope(contraction, 0, "local")
    if not in_registers:
        _put_rows_side_by_side(
            schedule, contraction, len(tiled.rows), math.gcd(tiled.column.inner.extent, target.lanes)
        )

    loops = schedule.get_loops(contraction)
    spatial = loops[-(len(inner) + tiled.reductions) : -tiled.reductions]
    *reduced, innermost = loops[-tiled.reductions :]
    steps, unrolled = schedule.split(innermost, [None, config["unroll"]])
    vectors, lanes = _vectorize(schedule, spatial[-1], target.lanes)
    around = [vectors, unrolled] if not in_registers else [unrolled]
    within = [*spatial[:-1], *([vectors] if in_registers else [])]
    schedule.reorder(*reduced, steps, *around, *within, lanes)
    for loop in (unrolled, *within):
        schedule.unroll(loop)
    schedule.decompose_reduction(contraction, reduced[0] if reduced else steps)
    return task, tile


def _put_rows_side_by_side(schedule: Schedule, contraction: Any, rows: int, lanes: int) -> None:
    """Lays accumulators in a cache out as [vector, row, lane]: rows that are 4 KiB apart would hinder each other."""

    def layout(*indices: Any) -> list[Any]:
        *tile, column = indices
        return [*tile[:-rows], column // lanes, *tile[-rows:], column % lanes]

    schedule.transform_layout(contraction, ("write", 0), layout)


def _schedule_prologue(schedule: Schedule, stage: Stage, loop: Any, in_registers: bool, target: Cpu) -> None:
    """Computes what one iteration of a loop needs of a stage at its beginning, in registers or a buffer of its own."""
    block = schedule.get_sblock(stage.name)
    schedule.compute_at(block, loop, preserve_unit_loops=True)
    around = len(schedule.get_loops(block)) - len(stage.axes)
    *outer, last = schedule.get_loops(block)[around:]
    width = math.gcd(int(schedule.get(last).extent), target.lanes)
    vectors, lanes = schedule.split(last, [None, width])
    schedule.vectorize(lanes)
    if in_registers:
        schedule.set_scope(block, 0, "local")
        for unrolled in (*outer, vectors):
            schedule.unroll(unrolled)


def _vectorize(schedule: Schedule, loop: Any, lanes: int) -> tuple[Any, Any]:
    """Vectorises a perfect tile of columns. Returns the loop over its vectors, and that over the lanes of one."""
    extent = int(schedule.get(loop).extent)
    width = math.gcd(extent, lanes)
    vectors, vector = schedule.split(loop, [extent // width, width])
    schedule.vectorize(vector)
    return vectors, vector
