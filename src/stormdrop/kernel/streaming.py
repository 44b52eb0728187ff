"""Parallel, vectorised, unrolled loops for everything that is no contraction: pooling, reductions, softmax, padding.

    for outer axes in parallel:
        for vectors of the last axis:
            accumulators[vector] = identity                       registers, where the stage reduces
            for reduction: accumulators[vector] += ...            unrolled where it is short
            output[vector] = epilogue(accumulators)

A reduction along the contiguous axis of its input keeps one partial result per vector lane and combines them at the
end. Stages that hand each other whole rows (softmax) may run row by row inside one parallel loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from tvm.ir import Var
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm
from tvm.s_tir import Schedule
from tvm.tirx import For, ForKind, SeqStmt

from ..space import Categorical, Knob, Ordinal, Space
from . import expressions, roles, stages
from .expressions import rewrite_loads, substitute
from .roles import contiguous, fused_epilogue, inlines_well
from .sketch import Variant, revision
from .stages import Axis, Stage, StageGraph, assemble, intermediate, variable
from .target import Target
from .workload import Workload

_TASKS_PER_CORE = 4


@dataclass(frozen=True, eq=False)
class _Nest:
    """What one loop nest computes: a store, and the reduction that feeds it if there is one."""

    store: Stage
    reduction: Stage | None


class Streaming:
    """The sketch of this module; see there."""

    name: ClassVar[str] = "streaming"

    def space(self, workload: Workload, target: Target) -> Space | None:
        """Knobs: vectors per step, leading loops that run in parallel, unrolling of reductions, rows together."""
        nests, _ = _nests(workload)
        if not nests:
            return None
        last = nests[-1].store
        knobs: list[Knob] = [
            Ordinal("vectors", [1, 2, 4, 8]),
            Ordinal("parallel", list(range(1, len(last.spatial) + 1))),
        ]
        if any(nest.reduction is not None for nest in nests):
            knobs.append(Ordinal("unroll", [1, 4, 16, 64]))
        if _shared(nests) and len(nests) > 1:
            knobs.append(Categorical("together", [0, 1]))
        extents = [axis.extent for axis in last.spatial]
        leading = next(
            (n for n in range(1, len(extents)) if math.prod(extents[:n]) >= _TASKS_PER_CORE * target.cores),
            len(extents),
        )
        origin = {"vectors": 2, "parallel": leading, "unroll": 16, "together": 1}
        names = {knob.name for knob in knobs}
        return Space(
            self.name,
            knobs,
            origin={key: value for key, value in origin.items() if key in names},
            revision=revision(*(module.__name__ for module in (expressions, roles, stages)), __name__),
        )

    def apply(self, workload: Workload, target: Target, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration."""
        nests, graph = _nests(workload)
        nests = [piece for nest in nests for piece in _by_lanes(nest, target.lanes * config["vectors"])]
        shared = _shared(nests) if config.get("together") else 0
        loops = [_Loops(nest, target.lanes, config["vectors"], shared) for nest in nests]
        written = [stage for item in loops for stage in item.stages]
        unroll = config.get("unroll", 1)
        if shared:
            statement = _parallel(loops[-1].outer[:shared], lambda at: [item.body(at, unroll) for item in loops])
            return Variant(assemble(graph.parameters, written, [statement]))
        statements = []
        for item in loops:
            count = max(1, min(config["parallel"], len(item.outer)))
            statements.append(_parallel(item.outer[:count], _body_of(item, unroll)))
        return Variant(assemble(graph.parameters, written, statements))


@lru_cache(maxsize=64)
def _nests(workload: Workload) -> tuple[list[_Nest], StageGraph]:
    """The loop nests of a function, elementwise stages inlined and epilogues fused into reductions."""
    graph = workload.graph
    graph = graph.inlined(lambda stage: not inlines_well(graph, stage))
    nests: list[_Nest] = []
    taken: set[Any] = set()
    for stage in graph.stages:
        if stage.buffer in taken:
            continue
        if stage.combine is None:
            nests.append(_Nest(stage, None))
            continue
        store, fused = fused_epilogue(graph, stage)
        early = {item.buffer for nest in nests for item in (nest.store,)} | set(graph.inputs) | {stage.buffer}
        if len(fused) > 1 and not all(load.source in early for load in store.loads()):
            store, fused = fused_epilogue(graph, stage, alone=True)
        taken |= {item.buffer for item in fused}
        nests.append(_Nest(replace(store, name=f"{stage.name}_store"), stage))
    return nests, graph


def _shared(nests: list[_Nest]) -> int:
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


def _by_lanes(nest: _Nest, most: int) -> list[_Nest]:
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
    return [_Nest(own, accumulate), replace(nest, reduction=combine)]


def _reduces_along_memory(stage: Stage) -> bool:
    along, spatial = stage.reductions[-1].var, [axis.var for axis in stage.spatial if axis.extent > 1]
    loads = stage.loads()
    vectorised = any(contiguous(load, spatial[-1]) for load in loads) if spatial else False
    return not vectorised and any(contiguous(load, along) for load in loads)


class _Loops:
    """The loops of one nest: outer axes, then vectors along the last axis (the last may overlap its predecessor).

    Accumulators are registers of one step of vectors.
    """

    def __init__(self, nest: _Nest, lanes: int, vectors: int, shared: int) -> None:
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


def _body_of(loops: _Loops, unroll: int) -> Callable[[list[Any]], list[Any]]:
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


def _parallel(axes: tuple[Axis, ...], body: Callable[[list[Any]], list[Any]]) -> Any:
    """One parallel loop over several axes; the body is told where on each axis it is."""
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


def schedule_streaming(schedule: Schedule, stage: Stage, target: Target) -> None:
    """Schedules the block of this stage: outer loops parallel, the last spatial loop vectorised where it divides.

    Before:     for i, j, k: B[i, j, k] = ...
    After:      for i_j in parallel: for k0: for k1 in vectorized: ...
    """
    block = schedule.get_sblock(stage.name)
    loops = schedule.get_loops(block)
    spatial = [loop for loop, axis in zip(loops, stage.axes, strict=True) if not axis.reduce]
    reduced = [loop for loop, axis in zip(loops, stage.axes, strict=True) if axis.reduce]
    if not spatial:
        return
    extents = [int(schedule.get(loop).extent) for loop in spatial]
    leading, serial = spatial[:-1], [spatial[-1]]
    width = math.gcd(extents[-1], target.lanes)
    vector: Any = None
    if width > 1:
        outer, vector = schedule.split(spatial[-1], [extents[-1] // width, width])
        serial = [outer]
    # Only as many loops are fused as it takes to keep the cores busy: index arithmetic stays cheap.
    wanted = _TASKS_PER_CORE * target.cores
    fused, count = 0, 1
    while fused < len(leading) and count < wanted:
        count *= extents[fused]
        fused += 1
    parallel, serial = leading[:fused], [*leading[fused:], *serial]
    if count < wanted:
        parallel, serial = [*parallel, *serial], []
    if reduced:
        schedule.reorder(*parallel, *serial, *reduced, *([] if vector is None else [vector]))
    if vector is not None:
        schedule.vectorize(vector)
    schedule.parallel(schedule.fuse(*parallel))
