"""Everything that is no contraction on a GPU: elementwise chains, transposes, pools, reductions, softmax, layer norm.

    elements, not combined      blocks of threads, neighbouring threads a vector of neighbouring elements each
    a reduction                 `lanes` threads of a block share an element's terms and combine what they have
    rows (softmax)              a block per row (or several): its reductions one after the other, in shared memory

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

from ...errors import UnsupportedFunction
from ...space import Constraint, Knob, Ordinal, Space
from ..roles import contiguous
from ..sketch import Variant, revision
from ..stages import Stage, StageGraph
from ..workload import Workload
from .device import Device

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
        shared = shared_axes(graph.stages)
        if shared:
            _rows(schedule, graph.stages, shared, config)
        else:
            for stage in graph.stages:
                (_reduction if stage.reductions else _elements)(schedule, stage, config)
        return Variant(schedule.mod["main"])


@lru_cache(maxsize=64)
def _space(workload: Workload, target: Device) -> Space | None:
    try:
        graph = take_apart(workload)
    except UnsupportedFunction:
        return None
    knobs: list[Knob] = [Ordinal("threads", [count for count in _THREADS if count <= target.threads_per_block])]
    constraints = []
    if not shared_axes(graph.stages):
        knobs.append(Ordinal("vector", _VECTORS))
        terms = max((math.prod(axis.extent for axis in stage.reductions) for stage in graph.stages), default=1)
        if terms > 1:
            knobs.append(Ordinal("lanes", [count for count in _LANES if count <= max(1, terms)]))
            constraints.append(Constraint(("threads", "lanes"), lambda threads, lanes: lanes <= threads, "lanes fit"))
    knobs.append(Ordinal("unroll", _UNROLL))
    return Space(GpuStreaming.name, knobs, constraints, revision=revision(__name__))


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
    fused = schedule.fuse(*_loops(schedule, block))
    blocks, threads, vector = schedule.split(fused, [None, config["threads"], config.get("vector", 1)])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(threads, "threadIdx.x")
    if config.get("vector", 1) > 1:
        schedule.vectorize(vector)


def _reduction(schedule: Schedule, stage: Stage, config: Mapping[str, Any]) -> None:
    """A kernel of its own: `lanes` threads per element, the others of the block have other elements."""
    block, lanes = schedule.get_sblock(stage.name), config["lanes"]
    loops = _loops(schedule, block)
    fused = schedule.fuse(*loops[: len(stage.spatial)]) if stage.spatial else schedule.add_unit_loop(loops[0])
    terms = schedule.fuse(*loops[len(stage.spatial) :])
    blocks, elements = schedule.split(fused, [None, config["threads"] // lanes])
    if lanes == 1:
        schedule.reorder(blocks, elements, terms)
        schedule.bind(elements, "threadIdx.x")
    else:
        # Neighbouring threads read neighbouring memory: along the terms where these are contiguous.
        along = any(contiguous(load, stage.reductions[-1].var) for load in stage.loads())
        steps, lane = schedule.split(terms, [None, lanes])
        schedule.reorder(blocks, elements, lane, steps)
        schedule.bind(lane, "threadIdx.x" if along else "threadIdx.y")
        schedule.bind(elements, "threadIdx.y" if along else "threadIdx.x")
    schedule.bind(blocks, "blockIdx.x")
    _unrolled(schedule, blocks, config)


def _rows(schedule: Schedule, stages: Sequence[Stage], shared: int, config: Mapping[str, Any]) -> None:
    """One kernel, a block per row: its stages one after the other, all threads at each."""
    *inner, last = [schedule.get_sblock(stage.name) for stage in stages]
    loops = _loops(schedule, last)
    rows = schedule.fuse(*loops[:shared])
    schedule.bind(rows, "blockIdx.x")
    _unrolled(schedule, rows, config)
    _across(schedule, loops[shared:], config["threads"])
    for block, _ in reversed(list(zip(inner, stages, strict=False))):
        schedule.compute_at(block, rows, preserve_unit_loops=True)
        schedule.set_scope(block, 0, "shared")
        _across(schedule, _loops(schedule, block)[1:], config["threads"])


def _across(schedule: Schedule, loops: Sequence[Any], threads: int) -> None:
    """The loops of a stage inside of a row, over the threads of a block."""
    reduced = [loop for loop in loops if int(schedule.get(loop).extent) > 1] or list(loops[-1:])
    if not reduced:
        return
    fused = schedule.fuse(*reduced)
    _, lane = schedule.split(fused, [None, threads])
    schedule.bind(lane, "threadIdx.x")


def _unrolled(schedule: Schedule, loop: Any, config: Mapping[str, Any]) -> None:
    if config["unroll"]:
        schedule.annotate(loop, "pragma_auto_unroll_max_step", config["unroll"])
        schedule.annotate(loop, "pragma_unroll_explicit", 1)


def _loops(schedule: Schedule, block: Any) -> list[Any]:
    return list(schedule.get_loops(block))
