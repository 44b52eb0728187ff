"""Everything that is no contraction on a GPU: elementwise chains, transposes, pools, reductions, softmax, layer norm.

    elements, not combined      blocks of threads, neighbouring threads a vector of neighbouring elements each
    reductions                  `lanes` threads of a block share an element's terms and combine what they have; what
                                follows (a mean's division) is computed where the element is
    rows (softmax)              a block per row: its stages one after the other, what they hand on in shared memory

What is computed element by element is inlined into who reads it; what remains runs as kernels one after the other, or
row by row in one kernel where all stages have leading axes in common.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import tvm
from tvm.s_tir import Schedule
from tvm.tirx import ForKind, IterVar

from ...errors import UnsupportedFunction
from ...ir.expressions import variables
from ...ir.roles import contiguous
from ...ir.stages import Stage, StageGraph
from ...ir.workload import Workload
from ...machine.gpu import WARP, Device
from ...space import Constraint, Knob, Ordinal, Space
from ..contract import Variant

_THREADS = (32, 64, 128, 256, 512, 1024)
_LANES = (1, 8, 16, 32, 64, 128, 256, 512, 1024)
_VECTORS = (1, 2, 4)
_UNROLL = (0, 16, 64)


@lru_cache(maxsize=64)
def take_apart(workload: Workload) -> StageGraph:
    """The stages that are kernels, or parts of one."""
    return workload.graph.inlined(lambda stage: False)


class GpuStreaming:
    """The sketch of this module; see there."""

    name: ClassVar[str] = "gpu_streaming"
    max_error: ClassVar[float] = 0.0

    def space(self, workload: Workload, target: Device) -> Space | None:
        """Knobs: threads of a block, elements of a vector, threads that share a reduction, unrolling."""
        return _space(workload, target)

    def apply(self, workload: Workload, target: Device, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration."""
        graph = take_apart(workload)
        schedule = Schedule(tvm.IRModule({"main": graph.function()}), debug_mask=0)
        if shared := _row_axes(graph.stages):
            _rows(schedule, graph.stages, shared, config)
        elif shared_axes(graph.stages):
            _reductions(schedule, graph.stages, config)
        else:
            for stage in graph.stages:
                if stage.reductions:
                    _reductions(schedule, [stage], config)
                else:
                    _elements(schedule, stage, config)
        return Variant(schedule.mod["main"])


@lru_cache(maxsize=64)
def _space(workload: Workload, target: Device) -> Space | None:
    try:
        graph = take_apart(workload)
    except UnsupportedFunction:
        return None
    knobs: list[Knob] = [Ordinal("threads", [count for count in _THREADS if count <= target.threads_per_block])]
    constraints = []
    origin: dict[str, Any] = {"threads": 256}
    reduces = any(stage.reductions for stage in graph.stages)
    if not _row_axes(graph.stages):
        if not shared_axes(graph.stages) and not all(stage.reductions for stage in graph.stages):
            knobs.append(Ordinal("vector", _VECTORS))
            origin["vector"] = 1
        terms = max(math.prod(axis.extent for axis in stage.reductions) for stage in graph.stages)
        if terms > 1:
            knobs.append(Ordinal("lanes", [count for count in _LANES if count <= terms]))
            constraints.append(Constraint(("threads", "lanes"), lambda threads, lanes: lanes <= threads, "lanes fit"))
            origin["lanes"] = max(count for count in _LANES if count <= min(terms, WARP))
    if reduces:
        knobs.append(Ordinal("unroll", _UNROLL))
        origin["unroll"] = 16
    return Space(GpuStreaming.name, knobs, constraints, origin)


def _row_axes(stages: Sequence[Stage]) -> int:
    """How many leading axes make a row, of which the last stage has several elements; 0 where there are no rows."""
    shared = shared_axes(stages)
    return shared if shared and math.prod(axis.extent for axis in stages[-1].spatial[shared:]) > 1 else 0


def shared_axes(stages: Sequence[Stage]) -> int:
    """How many leading axes the stages have in common where several of them reduce rows; 0 where they do not."""
    if len(stages) < 2 or not any(stage.reductions for stage in stages):
        return 0
    written = {stage.buffer for stage in stages}
    count = 0
    while all(count < len(stage.spatial) for stage in stages):
        axes = [stage.spatial[count] for stage in stages]
        aligned = all(
            len(load.indices) > count and axis.var.same_as(load.indices[count])
            for stage, axis in zip(stages, axes, strict=True)
            for load in stage.loads()
            if load.source in written
        )
        if len({axis.extent for axis in axes}) != 1 or not aligned:
            break
        count += 1
    return count


def _elements(schedule: Schedule, stage: Stage, config: Mapping[str, Any]) -> None:
    """A kernel of its own, an element (or a vector of them) per thread."""
    block = schedule.get_sblock(stage.name)
    fused = schedule.fuse(*schedule.get_loops(block))
    blocks, threads, vector = schedule.split(fused, [None, config["threads"], config.get("vector", 1)])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(threads, "threadIdx.x")
    if config.get("vector", 1) > 1:
        schedule.vectorize(vector)


def _reductions(schedule: Schedule, stages: Sequence[Stage], config: Mapping[str, Any]) -> None:
    """One kernel: `lanes` threads per element of the last stage, the others of the block have other elements."""
    lanes = config.get("lanes", 1)
    *inner, last = [schedule.get_sblock(stage.name) for stage in stages]
    spatial, own = _by_kind(schedule, last)
    blocks, elements = schedule.split(schedule.fuse(*spatial), [None, config["threads"] // lanes])
    schedule.bind(blocks, "blockIdx.x")
    # Neighbouring threads read neighbouring memory: along the terms where these are contiguous.
    along = any(
        contiguous(load, stage.reductions[-1].var) for stage in stages if stage.reductions for load in stage.loads()
    )
    schedule.bind(elements, "threadIdx.y" if along and lanes > 1 else "threadIdx.x")
    lane_axis = "threadIdx.x" if along else "threadIdx.y"
    for block in [*reversed(inner), last]:
        terms = own
        if block is not last:
            schedule.compute_at(block, elements, preserve_unit_loops=True)
            schedule.set_scope(block, 0, "local")
            _, terms = _by_kind(schedule, block)
        if lanes > 1:
            # What has no terms is the first lane's.
            shared = schedule.fuse(*terms) if terms else schedule.add_unit_loop(block)
            steps, lane = schedule.split(shared, [None, lanes])
            schedule.reorder(lane, steps)
            schedule.bind(lane, lane_axis)
    _unrolled(schedule, blocks, config)


def _rows(schedule: Schedule, stages: Sequence[Stage], shared: int, config: Mapping[str, Any]) -> None:
    """One kernel, a block per row: its stages one after the other, all threads at each."""
    *inner, last = [schedule.get_sblock(stage.name) for stage in stages]
    rows = schedule.fuse(*list(schedule.get_loops(last))[:shared])
    schedule.bind(rows, "blockIdx.x")
    _unrolled(schedule, rows, config)
    _across(schedule, last, config["threads"])
    for block in reversed(inner):
        schedule.compute_at(block, rows, preserve_unit_loops=True)
        schedule.set_scope(block, 0, "shared")
        _across(schedule, block, config["threads"])


def _across(schedule: Schedule, block: Any, threads: int) -> None:
    """A stage of a row, over the threads of a block: its elements, or the terms of its only element."""
    spatial, terms = _by_kind(schedule, block)
    several = [loop for loop in spatial if int(schedule.get(loop).extent) > 1]
    _, lane = schedule.split(schedule.fuse(*(several or terms or spatial)), [None, threads])
    schedule.bind(lane, "threadIdx.x")


def _by_kind(schedule: Schedule, block: Any) -> tuple[list[Any], list[Any]]:
    """The loops around a block that are not bound to threads: of its elements, and of what it reduces."""
    loops = [each for each in schedule.get_loops(block) if schedule.get(each).kind == ForKind.SERIAL]
    if not loops:
        loops = [schedule.add_unit_loop(block)]
    realize = schedule.get(loops[-1]).body
    reduced = {
        variable
        for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
        if axis.iter_type == IterVar.CommReduce
        for variable in variables(value)
    }
    of = {loop: schedule.get(loop).loop_var in reduced for loop in loops}
    return [loop for loop in loops if not of[loop]], [loop for loop in loops if of[loop]]


def _unrolled(schedule: Schedule, loop: Any, config: Mapping[str, Any]) -> None:
    if config.get("unroll"):
        schedule.annotate(loop, "pragma_auto_unroll_max_step", config["unroll"])
        schedule.annotate(loop, "pragma_unroll_explicit", 1)
