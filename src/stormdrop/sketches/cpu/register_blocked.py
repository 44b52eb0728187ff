"""The register-blocked packed contraction: matmul, dense, batch_matmul, convolutions.

    for tiles of outer axes, columns and rows:                  parallel over the outermost, in one of three orders
        accumulators[rows, columns] = 0                          registers
        for reduction:                                           innermost part unrolled
            for row, for vector in columns:                      unrolled and vectorised
                accumulators[row, vector] += data[row, reduction] * packed[reduction, vector]
        output[rows, columns] = epilogue(accumulators)           bias, residual, activation

The column operand is packed so that the columns of a tile are contiguous per reduction step: ahead of time where it
is a constant, else by a stage of its own or not at all. An extent that a tile does not divide is covered by letting
the last tile overlap the one before it: it starts at `extent - tile`, computes some elements twice, and needs neither
predicate nor padding. Row axes that every access takes as whole consecutive dimensions (a 1x1 convolution) are one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from ...errors import UnsupportedFunction
from ...ir.elementary import in_vectors
from ...ir.expressions import Expr, rewrite_loads, substitute, tile_start, variables
from ...ir.roles import Contraction, take_apart
from ...ir.stages import Axis, Stage, StageGraph, assemble, intermediate, loads_of, variable
from ...ir.workload import Workload
from ...machine.cpu import Target
from ...space import Categorical, Constraint, Knob, Ordinal, Space
from ..contract import Variant
from . import cost_model as prior
from .loops import stream
from .nests import unflattened
from .non_temporal import stored, stores_knob

_WASTE = 1.16  # a tiling may compute up to this many times the elements
APART, TASK, TILE = "apart", "task", "tile"
"""Where padding is computed: by a stage before, by each task, in the registers of each tile."""


@lru_cache(maxsize=64)
def _take_apart(workload: Workload) -> Contraction:
    return take_apart(workload.graph, workload.constants)


@dataclass(frozen=True)
class RegisterBlocked:
    """The sketch of this module; see there."""

    name: ClassVar[str] = "register_blocked"
    max_error: ClassVar[float] = 0.0

    def space(self, workload: Workload, target: Target) -> Space | None:
        """Knobs: rows per tile (one or two axes), columns, rows of tiles per block, reduction unroll, loop order,
        packing where it is a choice, padding apart, per task or per tile, stores past the caches. A tile's accumulators
        fit the register file."""
        return _space(workload, target)

    def estimate(self, workload: Workload, target: Target, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """See `prior`."""
        parts = _take_apart(workload)
        return prior.cycles(prior.shape(parts, _row_extents(parts)), knobs, target)

    def features(self, workload: Workload, target: Target, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """See `prior.FEATURES`."""
        parts = _take_apart(workload)
        return prior.features(prior.shape(parts, _row_extents(parts)), knobs, target)

    def apply(self, workload: Workload, target: Target, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration; raises `UnsupportedFunction` for a function without one contraction."""
        parts = _take_apart(workload)
        prologue = config.get("prologue", APART)
        tiled = _Tiled(parts, config, inside=prologue != APART)
        schedule = Schedule(tvm.IRModule({"main": tiled.kernel()}), debug_mask=0)
        task, tile = _schedule_tile(schedule, tiled, target, config)
        if tiled.inside is not None:
            _schedule_inside(schedule, tiled.inside, tile if prologue == TILE else task, prologue == TILE, target)
        transforms = {} if tiled.transform is None else {_required(parts.constant): tiled.transform}
        return Variant(stored(in_vectors(tiled.around(schedule.mod["main"], target)), config), transforms)


@lru_cache(maxsize=64)
def _space(workload: Workload, target: Target) -> Space | None:
    try:
        parts = _take_apart(workload)
    except UnsupportedFunction:
        return None
    extents = _row_extents(parts)
    shape = prior.shape(parts, extents)
    most = target.registers - 2
    knobs: list[Knob] = []
    row_names = []
    for position, extent in enumerate(extents):
        row_names.append("rows" if position == len(extents) - 1 else "rows_outer")
        knobs.append(Ordinal(row_names[-1], _covers(extent, most if len(extents) == 1 else 14)))
    knobs.append(Ordinal("columns", _columns(parts.column.extent, target.lanes)))
    constraints = [
        Constraint(
            (*row_names, "columns"),
            lambda *sizes: (math.prod(sizes[:-1]) + 1) * math.ceil(sizes[-1] / target.lanes) < target.registers,
            f"accumulators, a row of columns and one more fit {target.registers} registers of {target.lanes}",
        )
    ]
    if len(extents) == 1:
        blocks = [block for block in (1, 2, 4, 8, 16, 32, 64) if block == 1 or block * 2 <= extents[0]]
        knobs.append(Ordinal("block", blocks))
        constraints.append(
            Constraint(("rows", "block"), lambda rows, block: _blocks_well(extents[0], rows, block), "blocks")
        )
    inner = parts.stage.reductions[-1].extent
    knobs.append(Ordinal("unroll", [factor for factor in (1, 2, 3, 4, 5, 6, 7, 8) if inner % factor == 0]))
    knobs.append(Categorical("order", ["columns", "rows", "mixed"]))
    if parts.packable is not None and parts.constant is None:
        knobs.append(Categorical("pack", [1] if parts.must_pack else [0, 1]))
    if parts.prologue is not None:
        # Scalars of padding are no faster from registers; vectors, which several outputs share, are.
        knobs.append(Categorical("prologue", [APART, TASK, TILE] if shape.follows_columns else [APART, TASK]))
    knobs += stores_knob(workload, target)
    space = Space(RegisterBlocked.name, knobs, constraints)
    points = list(space.points())
    expected = prior.cycles(shape, space.columns(points), target)
    origin = space.config(points[int(np.argmin(expected))])
    return Space(RegisterBlocked.name, knobs, constraints, origin=origin)


def few_columns(workload: Workload, target: Target) -> bool:
    """Whether vectors along the columns would be short, or what they read be copied for one or two rows.

    Vectors along the reduction may do better there.
    """
    parts = _take_apart(workload)
    return parts.column.extent < target.lanes or (parts.must_pack and math.prod(_row_extents(parts)) <= 2)


def _required(value: int | None) -> int:
    assert value is not None
    return value


def _row_extents(parts: Contraction) -> list[int]:
    extents = [axis.extent for axis in parts.rows]
    return [math.prod(extents)] if parts.flat else extents


def _covers(extent: int, most: int) -> list[int]:
    """Tile sizes worth having: for each number of tiles the smallest size that covers the extent without much waste."""
    sizes = {-(-extent // count) for count in range(1, extent + 1)}
    return sorted(
        size for size in sizes if size <= most and (-(-extent // size) * size <= _WASTE * extent or size == 1)
    )


def _columns(extent: int, lanes: int) -> list[int]:
    """Column tiles: multiples of the vector length, or of half of it where the extent asks for that."""
    if extent < lanes:
        return [1 << (extent.bit_length() - 1)]
    sizes = [lanes * count for count in (1, 2, 3, 4) if lanes * count <= extent]
    sizes += [size for size in range(lanes // 2, 4 * lanes, lanes // 2) if size > lanes and extent % size == 0]
    fitting = [size for size in sizes if -(-extent // size) * size <= _WASTE * extent]
    return sorted(set(fitting or sizes[:1]))


def _blocks_well(extent: int, rows: int, block: int) -> bool:
    tiles = -(-extent // rows)
    return block == 1 or (block < tiles and -(-tiles // block) * block <= 1.1 * tiles)


@dataclass(frozen=True, eq=False)
class _Tiling:
    """An axis walked as tiles: the new axes, and where the old one is in terms of them."""

    tiles: tuple[Axis, ...]
    inner: Axis
    position: Expr


def _tile(name: str, extent: int, size: int, block: int | None = None) -> _Tiling:
    """Tiles of one size; the last ones overlap their predecessor where the size does not divide the extent."""
    count = -(-extent // size)
    if block is None:
        tiles: tuple[Axis, ...] = (Axis(variable(f"{name}_tile"), count),)
        tile: Expr = tiles[0].var
    else:
        tiles = (Axis(variable(f"{name}_block"), -(-count // block)), Axis(variable(f"{name}_tile"), block))
        tile = tiles[0].var * block + tiles[1].var
    inner = Axis(variable(name), size)
    start = tile_start(tile, size, extent, math.prod(axis.extent for axis in tiles))
    return _Tiling(tiles, inner, start + inner.var)


class _Tiled:
    """The function over tiles: stages whose loops divide perfectly, ready to be scheduled.

    `kernel` is the contraction with its epilogue (and with the prologue, `inside`, where it is computed there) as a
    function of its own, for TVM's schedule; `around` puts the stages before and after it back.
    """

    def __init__(self, parts: Contraction, config: Mapping[str, Any], inside: bool) -> None:
        extents = _row_extents(parts)
        sizes = [config["rows"]] if len(extents) == 1 else [config["rows_outer"], config["rows"]]
        self.column = _tile("column", parts.column.extent, config["columns"])
        self.rows = [
            _tile(f"row{at}", extent, size, config["block"] if len(extents) == 1 else None)
            for at, (extent, size) in enumerate(zip(extents, sizes, strict=True))
        ]
        self.outer = [Axis(variable(f"outer{at}"), axis.extent) for at, axis in enumerate(parts.outer)]
        mapping: dict[Any, Expr] = {parts.column.var: self.column.position}
        mapping.update((old.var, new.var) for old, new in zip(parts.outer, self.outer, strict=True))
        if parts.flat:
            mapping.update(unflattened(parts.rows, self.rows[0].position))
        else:
            mapping.update((axis.var, tiling.position) for axis, tiling in zip(parts.rows, self.rows, strict=True))
        self.tile_axes = [axis for tiling in self.rows for axis in tiling.tiles]
        self.inner_axes = [tiling.inner for tiling in self.rows]
        self.pack_stage: Stage | None = None
        self.transform: PrimFunc | None = None
        before, parameters = list(parts.before), list(parts.graph.parameters)
        value = parts.stage.value
        operand = parts.packable
        if operand is not None and (parts.constant is not None or config["pack"]):
            packed, load = self._pack(parts, operand)
            value = rewrite_loads(value, lambda item: load if item.source.same_as(operand.source) else None)
            if parts.constant is None:
                before.append(packed)
            else:
                self.transform = StageGraph((operand.source, packed.buffer), (packed,)).function()
                parameters[parameters.index(operand.source)] = packed.buffer
            self.pack_stage = packed
        axes = self._axes()
        accumulators = intermediate("accumulators", [axis.extent for axis in axes], str(parts.stage.buffer.dtype))
        reductions = tuple(
            Axis(variable(f"reduce{at}"), old.extent, True) for at, old in enumerate(parts.stage.reductions)
        )
        self.reductions = len(reductions)
        mapping.update((old.var, new.var) for old, new in zip(parts.stage.reductions, reductions, strict=True))
        contraction = Stage(
            "contraction",
            (*axes, *reductions),
            accumulators,
            tuple(axis.var for axis in axes),
            substitute(value, mapping),
            "sum",
            parts.stage.identity,
        )
        epilogue = self._epilogue(parts, mapping, accumulators)
        self.inside = parts.prologue if inside else None
        self.before = tuple(stage for stage in before if stage is not self.inside)
        self.after = parts.after
        self.parameters = tuple(parameters)
        first = () if self.inside is None else (self.inside,)
        self.stages = (*first, contraction, epilogue)

    def kernel(self) -> PrimFunc:
        """The contraction alone: it reads what the stages before it have written as if these were inputs."""
        written = {stage.buffer for stage in self.stages}
        read = dict.fromkeys(load.source for stage in self.stages for load in stage.loads())
        return assemble([*(buffer for buffer in read if buffer not in written), self.stages[-1].buffer], self.stages)

    def around(self, kernel: PrimFunc, target: Target) -> PrimFunc:
        """The scheduled contraction between its neighbours."""
        before, first = stream(self.before, {*self.parameters, *loads_of(self.stages, self.after)}, target)
        after, last = stream(self.after, {*self.parameters, *loads_of(self.stages, self.before)}, target)
        root = kernel.body.block
        statements = [*before, root.body, *after]
        return assemble(self.parameters, (*first, self.stages[-1], *last), statements, root.alloc_buffers)

    def _axes(self) -> list[Axis]:
        return [*self.outer, *self.column.tiles, *self.tile_axes, *self.inner_axes, self.column.inner]

    def _pack(self, parts: Contraction, load: Any) -> tuple[Stage, Any]:
        """The stage that lays the column operand out as [outer..., tile, reductions..., column], and its load."""
        used = {name for index in load.indices for name in variables(index)}
        own = [axis for axis in (*parts.outer, *parts.stage.reductions) if axis.var in used]
        fresh = [Axis(variable(f"pack{at}"), axis.extent) for at, axis in enumerate(own)]
        leading = [axis for axis, old in zip(fresh, own, strict=True) if not old.reduce]
        reduced = [axis for axis, old in zip(fresh, own, strict=True) if old.reduce]
        column = _tile("pack_column", parts.column.extent, self.column.inner.extent)
        axes = (*leading, *column.tiles, *reduced, column.inner)
        mapping = {old.var: new.var for old, new in zip(own, fresh, strict=True)}
        mapping[parts.column.var] = column.position
        buffer = intermediate("packed", [axis.extent for axis in axes], str(load.source.dtype))
        stage = Stage("pack", axes, buffer, tuple(axis.var for axis in axes), substitute(load, mapping))
        outer = [axis.var for axis in own if not axis.reduce]
        reductions = [axis.var for axis in own if axis.reduce]
        at = (*outer, self.column.tiles[0].var, *reductions, self.column.inner.var)
        return stage, buffer[at]

    def _epilogue(self, parts: Contraction, mapping: Mapping[Any, Expr], accumulators: Any) -> Stage:
        own = self._axes()
        fresh = [Axis(variable(f"{axis.name}_out"), axis.extent) for axis in own]
        renamed = {old.var: new.var for old, new in zip(own, fresh, strict=True)}
        at = tuple(axis.var for axis in fresh)

        def moved(node: Expr) -> Expr:
            # Two steps: a load of the contraction's result has to be recognised before its indices change.
            with_registers = rewrite_loads(
                node, lambda load: accumulators[at] if load.source.same_as(parts.stage.buffer) else None
            )
            return substitute(substitute(with_registers, mapping), renamed)

        epilogue = parts.epilogue
        indices = tuple(moved(index) for index in epilogue.indices)
        return replace(epilogue, axes=tuple(fresh), indices=indices, value=moved(epilogue.value))


def _schedule_inside(schedule: Schedule, stage: Stage, loop: Any, registers: bool, target: Target) -> None:
    """Computes what one iteration of a loop needs of a stage at its beginning, in a buffer of its own or registers."""
    block = schedule.get_sblock(stage.name)
    schedule.compute_at(block, loop, preserve_unit_loops=True)
    around = len(schedule.get_loops(block)) - len(stage.axes)
    own = schedule.get_loops(block)[around:]
    width = math.gcd(int(schedule.get(own[-1]).extent), target.lanes)
    vectors, lanes = schedule.split(own[-1], [None, width])
    schedule.vectorize(lanes)
    if registers:
        schedule.set_scope(block, 0, "local")
        for each in (*own[:-1], vectors):
            schedule.unroll(each)


def _schedule_tile(schedule: Schedule, tiled: _Tiled, target: Target, config: Mapping[str, Any]) -> tuple[Any, Any]:
    """Schedules contraction and epilogue, and returns the parallel loop over tasks and the one over a task's tiles."""
    contraction, epilogue = schedule.get_sblock("contraction"), schedule.get_sblock("epilogue")
    loops = schedule.get_loops(epilogue)
    outer, loops = loops[: len(tiled.outer)], loops[len(tiled.outer) :]
    column, first, *rest = loops[: 1 + len(tiled.tile_axes)]
    inner = loops[1 + len(tiled.tile_axes) :]
    order = {
        "columns": ([column, first], rest),
        "rows": ([first, *rest], [column]),
        "mixed": ([first, column], rest),
    }[config["order"]]
    parallel, serial = [*outer, *order[0]], order[1]
    schedule.reorder(*parallel, *serial, *inner)
    _vectorize(schedule, inner[-1], target.lanes)
    for loop in inner[:-1]:
        schedule.unroll(loop)
    task = schedule.fuse(*parallel)
    schedule.parallel(task)
    tile = serial[-1] if serial else task
    schedule.compute_at(contraction, tile, preserve_unit_loops=True)
    schedule.set_scope(contraction, 0, "local")

    own = schedule.get_loops(contraction)
    reductions = tiled.reductions
    spatial = own[-(len(inner) + reductions) : -reductions]
    reduced = own[-reductions:]
    outermost, unrolled = schedule.split(reduced[-1], [None, config["unroll"]])
    schedule.reorder(*reduced[:-1], outermost, unrolled, *spatial)
    for loop in (unrolled, *spatial[:-1]):
        schedule.unroll(loop)
    _vectorize(schedule, spatial[-1], target.lanes)
    schedule.decompose_reduction(contraction, reduced[0] if len(reduced) > 1 else outermost)
    return task, tile


def _vectorize(schedule: Schedule, loop: Any, lanes: int) -> None:
    """Vectorises a perfect tile of columns, several vectors unrolled."""
    extent = int(schedule.get(loop).extent)
    width = math.gcd(extent, lanes)
    outer, vector = schedule.split(loop, [extent // width, width])
    schedule.unroll(outer)
    schedule.vectorize(vector)
