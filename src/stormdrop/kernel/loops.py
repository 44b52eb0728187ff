"""Loop nests for stages: parallel outer axes, vectors along the last, reductions in registers.

    for outer axes in parallel:
        for vectors of the last axis:
            accumulators[vector] = identity                       registers, where the stage reduces
            for reduction: accumulators[vector] += ...            unrolled where it is short
            output[vector] = epilogue(accumulators)

A reduction along the contiguous axis of its input keeps one partial result per vector lane and combines them at the
end. An axis that a step of vectors does not divide is covered by letting the last step overlap the one before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm.ir import Var
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm
from tvm.tirx import For, ForKind, SeqStmt

from .expressions import rewrite_loads, substitute
from .roles import contiguous, fused_epilogue
from .stages import Axis, Stage, StageGraph, intermediate, variable
from .target import Target

_TASKS_PER_CORE = 4


@dataclass(frozen=True, eq=False)
class Nest:
    """What one loop nest computes: a store, and the reduction that feeds it if there is one."""

    store: Stage
    reduction: Stage | None


def nests_of(graph: StageGraph, kept: Collection[Any] = ()) -> list[Nest]:
    """The loop nests of the stages in their order, epilogues fused into reductions.

    Buffers in `kept` are read from outside: what writes them stays as it is.
    """
    nests: list[Nest] = []
    taken: set[Any] = set()
    later = {stage.buffer for stage in graph.stages}
    for stage in graph.stages:
        later.discard(stage.buffer)
        if stage.buffer in taken:
            continue
        if stage.combine is None:
            nests.append(Nest(stage, None))
            continue
        store, fused = fused_epilogue(graph, stage, alone=stage.buffer in kept)
        if len(fused) > 1 and any(load.source in later - taken for load in store.loads()):
            store, fused = fused_epilogue(graph, stage, alone=True)
        taken |= {item.buffer for item in fused}
        nests.append(Nest(replace(store, name=f"{stage.name}_store"), stage))
    return nests


def stream(stages: Sequence[Stage], kept: Collection[Any], target: Target) -> tuple[list[Any], list[Stage]]:
    """Loops for stages that stand beside a scheduled kernel, by fixed choices.

    Returns the statements and the stages that they hold (whose buffers have to be allocated).
    """
    statements, written = [], []
    for nest in nests_of(StageGraph((), tuple(stages)), kept):
        for piece in by_lanes(nest, 2 * target.lanes):
            loops = Loops(piece, target.lanes, 2, 0)
            statements.append(parallel(loops.outer[: tasks(loops.outer, target.cores)], body_of(loops, 16)))
            written += loops.stages
    return statements, written


def tasks(axes: Sequence[Axis], cores: int) -> int:
    """How many leading axes to run in parallel: as few as keep the cores busy, for index arithmetic costs."""
    for count in range(1, len(axes)):
        if math.prod(axis.extent for axis in axes[:count]) >= _TASKS_PER_CORE * cores:
            return count
    return len(axes)


def shared_axes(nests: list[Nest]) -> int:
    """How many leading axes all nests have in common, each element depending on its own row only."""
    stores = [nest.store for nest in nests]
    written = {stage.buffer for stage in stores}
    most = min(len(stage.spatial) for stage in stores)
    count = 0
    for at in range(most):
        axes = [stage.spatial[at] for stage in stores]
        if len({axis.extent for axis in axes}) != 1:
            break
        aligned = True
        for nest, axis in zip(nests, axes, strict=True):
            accesses = [list(nest.store.indices)] if nest.store.buffer in written else []
            for stage in (nest.store, nest.reduction):
                if stage is not None:
                    accesses += [list(load.indices) for load in stage.loads() if load.source in written]
            aligned &= all(
                len(index) > at and isinstance(index[at], Var) and index[at].same_as(axis.var) for index in accesses
            )
        if not aligned:
            break
        count = at + 1
    return count


def by_lanes(nest: Nest, most: int) -> list[Nest]:
    """Splits a reduction along the contiguous axis of its input into partial results per lane and their combination.

    Before:     y[i] = sum over r of x[i, r]
    After:      partial[i, l] = sum over r0 of x[i, r0 * lanes + l];  y[i] = sum over l of partial[i, l]
    """
    stage = nest.reduction
    if stage is None or not _reduces_along_memory(stage):
        return [nest]
    along = stage.reductions[-1]
    width = max(size for size in range(1, min(most, along.extent) + 1) if along.extent % size == 0)
    if width < 4:
        return [nest]
    lane, step = Axis(variable("lane"), width), Axis(variable("step"), along.extent // width, True)
    rest = tuple(axis for axis in stage.reductions if axis is not along)
    fresh = {axis.var: variable(f"{axis.name}_part") for axis in (*stage.spatial, *rest)}
    spatial = tuple(Axis(fresh[axis.var], axis.extent) for axis in stage.spatial)
    others = tuple(Axis(fresh[axis.var], axis.extent, True) for axis in rest)
    partial = intermediate(f"{stage.name}_partial", [axis.extent for axis in (*spatial, lane)], str(stage.buffer.dtype))
    mapping = {**fresh, along.var: step.var * width + lane.var}
    store_at = tuple(axis.var for axis in (*spatial, lane))
    accumulate = Stage(
        f"{stage.name}_lanes",
        (*spatial, lane, *others, step),
        partial,
        store_at,
        substitute(stage.value, mapping),
        stage.combine,
        stage.identity,
    )
    total = Axis(variable("lane_total"), width, True)
    lanes = (*(axis.var for axis in stage.spatial), total.var)
    combine = replace(
        stage,
        axes=(*stage.spatial, total),
        value=partial[lanes],
    )
    own = Stage(f"{stage.name}_lanes_store", (*spatial, lane), partial, store_at, partial[store_at])
    return [Nest(own, accumulate), replace(nest, reduction=combine)]


def _reduces_along_memory(stage: Stage) -> bool:
    along, spatial = stage.reductions[-1].var, [axis.var for axis in stage.spatial if axis.extent > 1]
    loads = stage.loads()
    vectorised = any(contiguous(load, spatial[-1]) for load in loads) if spatial else False
    return not vectorised and any(contiguous(load, along) for load in loads)


class Loops:
    """The loops of one nest: outer axes, then vectors along the last axis (the last may overlap its predecessor).

    Accumulators are registers of one step of vectors.
    """

    def __init__(self, nest: Nest, lanes: int, vectors: int, shared: int) -> None:
        store, reduction = nest.store, nest.reduction
        axis = next((item for item in reversed(store.spatial[shared:]) if item.extent > 1), None)
        size = 1 if axis is None else _step(axis.extent, lanes, vectors)
        width = math.gcd(size, lanes)
        self.chunk, self.lane = Axis(variable("chunk"), size // width), Axis(variable("lane"), width)
        inner = self.chunk.var * width + self.lane.var
        mapping: dict[Any, Any] = {}
        tiles: tuple[Axis, ...] = ()
        if axis is not None:
            count = -(-axis.extent // size)
            tile = Axis(variable(f"{axis.name}_tile"), count)
            start = tile.var * size
            if count * size != axis.extent:
                start = prim.Min(start, IntImm("int32", axis.extent - size))
            mapping, tiles = {axis.var: start + inner}, (tile,)
        self.outer = (*(item for item in store.spatial if item is not axis), *tiles)
        axes = (*self.outer, self.chunk, self.lane)
        self.update: Stage | None = None
        self.init: Stage | None = None
        value = store.value
        if reduction is not None:
            registers = intermediate(f"{reduction.name}_registers", [size], str(reduction.buffer.dtype), "local")
            element = (inner,)
            identity = substitute(reduction.identity, mapping)
            self.init = _renamed(Stage(f"{reduction.name}_init", axes, registers, element, identity))
            accumulate = replace(
                reduction,
                axes=(*axes, *reduction.reductions),
                buffer=registers,
                indices=element,
                value=substitute(reduction.value, mapping),
                identity=None,
            )
            order = (*self.outer, *reduction.reductions, self.chunk, self.lane)
            self.update = _renamed(replace(accumulate, axes=order))
            value = rewrite_loads(
                value, lambda load: registers[element] if load.source.same_as(reduction.buffer) else None
            )
        self.store = replace(
            store,
            axes=axes,
            indices=tuple(substitute(index, mapping) for index in store.indices),
            value=substitute(value, mapping),
        )

    @property
    def stages(self) -> list[Stage]:
        return [stage for stage in (self.init, self.update, self.store) if stage is not None]

    def body(self, around: list[Any], unroll: int) -> Any:
        """The loops inside of those that give the first outer axes their values."""
        rest = self.outer[len(around) :]
        loops = [variable(axis.name) for axis in rest]
        at = [*around, *loops]
        statements = [stage.statement(at, self._kinds(stage, unroll)) for stage in self.stages]
        body: Any = statements[0] if len(statements) == 1 else SeqStmt(statements)
        for loop, axis in zip(reversed(loops), reversed(rest), strict=True):
            body = For(loop, 0, axis.extent, ForKind.SERIAL, body)
        return body

    @staticmethod
    def _kinds(stage: Stage, unroll: int) -> dict[Any, Any]:
        """The last two axes are the vectors of a step; reductions are unrolled from the inside as far as asked."""
        kinds = {stage.axes[-2].var: ForKind.UNROLLED, stage.axes[-1].var: ForKind.VECTORIZED}
        size = 1
        for axis in reversed(stage.reductions):
            size *= axis.extent
            if size > unroll:
                break
            kinds[axis.var] = ForKind.UNROLLED
        return kinds


def body_of(loops: Loops, unroll: int) -> Callable[[list[Any]], list[Any]]:
    """What `parallel` asks for, of one nest."""
    return lambda at: [loops.body(at, unroll)]


def _step(extent: int, lanes: int, vectors: int) -> int:
    """Elements of one step along an axis: some vectors, or a shorter power of two where the axis is short."""
    if extent < 4:
        return 1
    if extent < lanes:
        return 1 << (extent.bit_length() - 1)
    return max(lanes * count for count in range(1, vectors + 1) if lanes * count <= extent)


def _renamed(stage: Stage) -> Stage:
    """The same stage over new variables: blocks do not share theirs."""
    fresh = {axis.var: variable(axis.name) for axis in stage.axes}
    return replace(
        stage,
        axes=tuple(replace(axis, var=fresh[axis.var]) for axis in stage.axes),
        indices=tuple(substitute(index, fresh) for index in stage.indices),
        value=substitute(stage.value, fresh),
    )


def parallel(axes: tuple[Axis, ...], body: Callable[[list[Any]], list[Any]]) -> Any:
    """One parallel loop over several axes; the body is told where on each axis it is."""
    if not axes:
        return SeqStmt(statements) if len(statements := body([])) > 1 else statements[0]
    task = variable("task")
    at: list[Any] = []
    remaining: Any = task
    for axis in reversed(axes[1:]):
        at.insert(0, prim.FloorMod(remaining, IntImm("int32", axis.extent)))
        remaining = prim.FloorDiv(remaining, IntImm("int32", axis.extent))
    at.insert(0, remaining)
    statements = body(at)
    inside = statements[0] if len(statements) == 1 else SeqStmt(statements)
    return For(task, 0, math.prod(axis.extent for axis in axes), ForKind.PARALLEL, inside)
