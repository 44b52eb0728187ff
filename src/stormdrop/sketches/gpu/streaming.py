"""The sketch `gpu_streaming`: everything that no other sketch takes, such as elementwise chains, pools, and softmax.

    elementwise       blocks of threads, each of which computes a vector of neighbouring elements
    reductions        `lanes` threads of a block share the terms of an element and combine their partial results; what
                      follows (the division of a mean) is computed by the thread that has the element. So are products
                      of a matrix and a vector
    rows (softmax)    a block per row, which runs the stages one after the other with their results in shared memory
    columns           softmax or a norm along another axis than the last one, as over the channels of an image:
                      neighbouring threads have neighbouring columns, and `lanes` threads share the terms of a column

Elementwise stages are inlined into the stages that read them. The remaining stages run as one kernel after the other.
If they share leading axes, they run in one kernel, row by row; if they share axes up to the last one, column by column.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.s_tir import Schedule
from tvm.tirx import ForKind, IterVar

from ...errors import UnsupportedFunction
from ...ir.contractions.contraction import contiguous
from ...ir.expressions import variables
from ...ir.kept import kept
from ...ir.stages import Stage, StageGraph, shape_of
from ...ir.workload import Workload
from ...machine.gpu import WARP, Gpu
from ...space import Constraint, Knob, Ordinal, Space
from ..contract import Variant
from .rows.sketch import GpuRows
from .rows.stages import shares_terms
from .tiling import shared_bytes
from .times.movement import Pass, expected_seconds

_THREADS = (32, 64, 128, 256, 512, 1024)
_LANES = (1, 8, 16, 32, 64, 128, 256, 512, 1024)
_VECTORS = (1, 2, 4)
_UNROLL = (0, 16, 64)
_OF_SUMS = {"threads": 128, "lanes": WARP, "unroll": 16}
_CLEARLY = 0.9  # of the seconds of the usual schedule: the model of time was not compared with measurements


class GpuStreaming:
    """The sketch that this module describes."""

    name: ClassVar[str] = "gpu_streaming"
    max_error: ClassVar[float] = 0.0

    def yields(self, workload: Workload, target: Gpu) -> bool:
        """See `Yielding`: to every sketch but `gpu_rows`, beside which it has other schedules."""
        return GpuRows().space(workload, target) is None

    def space(self, workload: Workload, target: Gpu) -> Space | None:
        """The schedules of a function.

        The knobs are the threads of a block, the elements of a vector, the threads that share a reduction, and the
        steps that are unrolled, as far as the function has a use for them.
        """
        return _space(workload, target)

    def estimate(self, workload: Workload, target: Gpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The seconds that `times/movement.py` expects of n configurations, shape (n,)."""
        stages = _inlined(workload).stages
        together = _column_axes(stages) or _shared_axes(stages)
        kernels = [stages] if together else [[stage] for stage in stages]
        return np.asarray(sum(_expected(kernel, target, knobs) for kernel in kernels))

    def apply(self, workload: Workload, target: Gpu, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration."""
        graph = _inlined(workload)
        schedule = Schedule(tvm.IRModule({"main": graph.function()}), debug_mask=0)
        if columns := _column_axes(graph.stages):
            _schedule_columns(schedule, graph.stages, columns, config)
        elif shared := _row_axes(graph.stages):
            _schedule_rows(schedule, graph.stages, shared, config)
        elif _shared_axes(graph.stages):
            _schedule_reductions(schedule, graph.stages, config)
        else:
            for stage in graph.stages:
                if stage.reductions:
                    _schedule_reductions(schedule, [stage], config)
                else:
                    _schedule_elements(schedule, stage, config)
        return Variant(schedule.mod["main"])


def schedule_sums(schedule: Schedule, stage: Stage) -> None:
    """Makes a reduction a kernel, whose elements are sums of a warp each.

    Args:
        schedule: The schedule.
        stage: The reduction.
    """
    _schedule_reductions(schedule, [stage], _OF_SUMS)


def seconds_of_sums(stage: Stage, target: Gpu) -> float:
    """The seconds that are expected of a kernel as `schedule_sums` makes it.

    Args:
        stage: The reduction.
        target: The GPU.
    """
    return float(_expected([stage], target, {name: np.array([value]) for name, value in _OF_SUMS.items()})[0])


@kept
def _inlined(workload: Workload) -> StageGraph:
    """The stages that are kernels, or parts of one, after the others were inlined."""
    return workload.graph.inlined(lambda stage: False)


@kept
def _space(workload: Workload, target: Gpu) -> Space | None:
    try:
        graph = _inlined(workload)
    except UnsupportedFunction:
        return None
    counts = [count for count in _THREADS if count <= target.threads_per_block]
    largest = counts[-1]
    knobs: list[Knob] = [Ordinal("threads", counts)]
    constraints = []
    origin: dict[str, Any] = {"threads": min(256, largest)}
    reduces = any(stage.reductions for stage in graph.stages)
    across_threads = all(map(shares_terms, graph.stages))
    columns, rows = _column_axes(graph.stages), _row_axes(graph.stages)
    if rows and not columns:
        if not across_threads or _shared_bytes(graph.stages, rows) > target.shared_per_block:
            return None
    else:
        alone = not columns and not _shared_axes(graph.stages)  # each stage is a kernel
        if alone and not all(stage.reductions for stage in graph.stages):
            knobs.append(Ordinal("vector", _VECTORS))
            origin["vector"] = 1
        terms = max(math.prod(axis.extent for axis in stage.reductions) for stage in graph.stages)
        if terms > 1 and across_threads:
            knobs.append(Ordinal("lanes", [count for count in _LANES if count <= terms]))
            constraints.append(Constraint(("threads", "lanes"), lambda threads, lanes: lanes <= threads, "lanes fit"))
            most = WARP
            if columns:  # neighbouring columns are read by one warp
                count = math.prod(graph.stages[-1].spatial[axis].extent for axis in columns)
                most = origin["threads"] // min(WARP, 1 << (count - 1).bit_length())
            origin["lanes"] = max(count for count in _LANES if count <= min(terms, most))
    if reduces:
        knobs.append(Ordinal("unroll", _UNROLL))
        origin["unroll"] = 16
    return _with_faster_origin(Space(GpuStreaming.name, knobs, constraints, origin), workload, target)


def _with_faster_origin(space: Space, workload: Workload, target: Gpu) -> Space:
    """The space with another origin, if one is expected to be clearly faster."""
    points = [space.origin, *space.points()]
    seconds = GpuStreaming().estimate(workload, target, space.columns(points))
    fastest = int(np.argmin(seconds))
    if seconds[fastest] > _CLEARLY * seconds[0]:
        return space
    return Space(space.name, space.knobs, space.constraints, space.config(points[fastest]))


def _row_axes(stages: Sequence[Stage]) -> int:
    """The number of leading axes that number the rows; 0 if the stages have no rows.

    It is the number of shared axes, if the last stage has several elements along the other axes.
    """
    shared = _shared_axes(stages)
    return shared if shared and math.prod(axis.extent for axis in stages[-1].spatial[shared:]) > 1 else 0


def _shared_axes(stages: Sequence[Stage]) -> int:
    """The number of leading axes that all stages share; 0 for a single stage, and if none of them reduces."""
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


def _column_axes(stages: Sequence[Stage]) -> tuple[int, ...]:
    """The axes of the last stage that number the columns; none if the stages have none.

    They are the axes of each other stage, in the same order, and the last one is among them.
    """
    *inner, last = stages
    if not inner or last.reductions or not all(stage.reductions for stage in inner):
        return ()
    written = {stage.buffer for stage in inner}
    numbers = {axis.var: position for position, axis in enumerate(last.spatial)}
    read = {tuple(map(numbers.get, load.indices)) for load in last.loads() if load.source in written}
    if len(read) != 1:
        return ()
    (axes,) = read
    columns = tuple(position for position in axes if position is not None)
    extents = [last.spatial[position].extent for position in columns]
    shared = all([axis.extent for axis in stage.spatial] == extents for stage in inner) and all(
        [axis.var for axis in stage.spatial] == list(load.indices)
        for stage in inner
        for load in stage.loads()
        if load.source in written
    )
    along = columns == axes and columns == tuple(sorted(set(columns))) and columns[-1:] == (len(last.spatial) - 1,)
    return columns if along and shared and len(columns) < len(last.spatial) else ()


def _shared_bytes(stages: Sequence[Stage], rows: int) -> int:
    """The bytes of shared memory that the results of a row take."""
    return int(
        shared_bytes(
            math.prod(axis.extent for axis in stage.spatial[rows:]) * np.dtype(str(stage.buffer.dtype)).itemsize
            for stage in stages[:-1]
        )
    )


def _schedule_elements(schedule: Schedule, stage: Stage, config: Mapping[str, Any]) -> None:
    """Makes a stage a kernel of its own, with an element or a vector of elements per thread."""
    block = schedule.get_sblock(stage.name)
    fused = schedule.fuse(*schedule.get_loops(block))
    blocks, threads, vector = schedule.split(fused, [None, config["threads"], config.get("vector", 1)])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(threads, "threadIdx.x")
    if config.get("vector", 1) > 1:
        schedule.vectorize(vector)


def _schedule_reductions(schedule: Schedule, stages: Sequence[Stage], config: Mapping[str, Any]) -> None:
    """Makes stages one kernel, with `lanes` threads for each element of the last stage."""
    lanes = config.get("lanes", 1)
    rows = config["threads"] // lanes
    *inner, last = [schedule.get_sblock(stage.name) for stage in stages]
    spatial, last_terms = _spatial_and_reduced(schedule, last)
    if last_terms and lanes > 1 and math.prod(axis.extent for axis in stages[-1].spatial) % rows:
        # The last block has elements too many. TVM guards what a reduction across threads reads, but not its result.
        copy = schedule.cache_write(last, 0, "local")
        inner, last = [*inner, last], copy
        spatial, last_terms = _spatial_and_reduced(schedule, last)
    fused = schedule.fuse(*spatial)
    along_terms = _along_terms(stages)
    lane_axis = "threadIdx.x" if along_terms else "threadIdx.y"
    for block in [*reversed(inner), last]:
        terms = last_terms
        if block is not last:
            # Before the elements are split: TVM takes the indices apart with rows that do not divide an axis, and then
            # does not recognise the reduction.
            schedule.compute_at(block, fused, preserve_unit_loops=True)
            schedule.set_scope(block, 0, "local")
            _, terms = _spatial_and_reduced(schedule, block)
        if lanes > 1:
            # The first lane computes what has no terms.
            shared = schedule.fuse(*terms) if terms else schedule.add_unit_loop(block)
            steps, lane = schedule.split(shared, [None, lanes])
            schedule.reorder(lane, steps)
            schedule.bind(lane, lane_axis)
    blocks, elements = schedule.split(fused, [None, rows])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(elements, "threadIdx.y" if along_terms and lanes > 1 else "threadIdx.x")
    _annotate_unroll(schedule, blocks, config)


def _expected(stages: Sequence[Stage], target: Gpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """The seconds that are expected of one kernel in n configurations."""
    threads, unroll = knobs["threads"], knobs.get("unroll", 0)
    lanes = np.asarray(knobs.get("lanes", np.ones_like(threads)))
    last, columns, rows = stages[-1], _column_axes(stages), _row_axes(stages)
    outputs = math.prod(axis.extent for axis in last.spatial)
    if columns:
        elements, counted = threads // lanes, math.prod(last.spatial[axis].extent for axis in columns)
    elif rows:
        elements, counted = np.ones_like(threads), math.prod(axis.extent for axis in last.spatial[:rows])
    elif any(stage.reductions for stage in stages):
        elements, counted = threads // lanes, outputs
    else:
        elements, counted = threads * knobs.get("vector", 1), outputs
    passes = []
    for stage in stages:
        own = math.prod(axis.extent for axis in stage.spatial)  # elements of the stage
        terms = math.prod(axis.extent for axis in stage.reductions)
        along, run, sharing = stage.spatial[-1].var, elements, lanes
        if rows and not columns:
            run = sharing = threads
            if own == counted and stage.reductions:
                along = stage.reductions[-1].var
        elif stage.reductions and not columns and _along_terms(stages):
            along, run = stage.reductions[-1].var, lanes
        produced = elements * max(1, own // counted)
        passes.append(Pass(stage, produced * terms, produced, along, np.minimum(run, WARP), sharing, unroll))
    shared = _shared_bytes(stages, rows) if rows and not columns else 0
    return expected_seconds(passes, target, -(-counted // elements), threads, shared)


def _along_terms(stages: Sequence[Stage]) -> bool:
    """Whether neighbouring terms, rather than neighbouring elements, are neighbours in the largest buffer."""
    loads = [(stage, load) for stage in stages if stage.reductions for load in stage.loads()]
    most = max((math.prod(shape_of(load.source)) for _, load in loads), default=0)
    largest = [(stage, load) for stage, load in loads if math.prod(shape_of(load.source)) == most]
    return any(contiguous(load, stage.reductions[-1].var) for stage, load in largest)


def _schedule_rows(schedule: Schedule, stages: Sequence[Stage], shared: int, config: Mapping[str, Any]) -> None:
    """Makes stages one kernel with a block per row, whose threads work on one stage after the other."""
    *inner, last = [schedule.get_sblock(stage.name) for stage in stages]
    rows = schedule.fuse(*list(schedule.get_loops(last))[:shared])
    schedule.bind(rows, "blockIdx.x")
    _annotate_unroll(schedule, rows, config)
    _share_among_threads(schedule, last, config["threads"])
    for block, stage in zip(reversed(inner), reversed(stages[:-1]), strict=True):
        shares_terms = math.prod(axis.extent for axis in stage.spatial[shared:]) == 1
        result = block
        if stage.reductions and not shares_terms:  # TVM cannot order the steps of a sum in shared memory
            result = schedule.cache_write(block, 0, "local")
        schedule.compute_at(result, rows, preserve_unit_loops=True)
        schedule.set_scope(result, 0, "shared")
        lane = _share_among_threads(schedule, result, config["threads"])
        if result is not block:
            schedule.compute_at(block, lane, preserve_unit_loops=True)


def _schedule_columns(
    schedule: Schedule, stages: Sequence[Stage], columns: Sequence[int], config: Mapping[str, Any]
) -> None:
    """Makes stages one kernel, with `lanes` threads for each column, which keep its results in registers."""
    *inner, last = [schedule.get_sblock(stage.name) for stage in stages]
    loops = list(schedule.get_loops(last))
    along = [loop for position, loop in enumerate(loops) if position not in columns]
    schedule.reorder(*(loops[position] for position in columns), *along)
    fused = schedule.fuse(*(loops[position] for position in columns))
    lanes = config.get("lanes", 1)
    for block in [*reversed(inner), last]:
        steps = along
        if block is not last:  # before the columns are split, as in `_schedule_reductions`
            schedule.compute_at(block, fused, preserve_unit_loops=True)
            schedule.set_scope(block, 0, "local")
            _, steps = _spatial_and_reduced(schedule, block)
        if lanes > 1:
            outer, lane = schedule.split(schedule.fuse(*steps), [None, lanes])
            schedule.reorder(lane, outer)
            schedule.bind(lane, "threadIdx.y")
    blocks, threads = schedule.split(fused, [None, config["threads"] // lanes])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(threads, "threadIdx.x")
    _annotate_unroll(schedule, blocks, config)


def _share_among_threads(schedule: Schedule, block: Any, threads: int) -> Any:
    """Divides a stage of a row among the threads of a block: its elements, or the terms of its only element.

    Returns the loop of the threads.
    """
    spatial, terms = _spatial_and_reduced(schedule, block)
    several = [loop for loop in spatial if int(schedule.get(loop).extent) > 1]
    _, lane = schedule.split(schedule.fuse(*(several or terms or spatial)), [None, threads])
    schedule.bind(lane, "threadIdx.x")
    return lane


def _spatial_and_reduced(schedule: Schedule, block: Any) -> tuple[list[Any], list[Any]]:
    """The loops around a block that are not bound to threads: those of its elements, and those of its terms."""
    loops = [loop for loop in schedule.get_loops(block) if schedule.get(loop).kind == ForKind.SERIAL]
    if not loops:
        loops = [schedule.add_unit_loop(block)]
    realize = schedule.get(loops[-1]).body
    reduced = {
        variable
        for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
        if axis.iter_type == IterVar.CommReduce
        for variable in variables(value)
    }
    reduces = {loop: schedule.get(loop).loop_var in reduced for loop in loops}
    return [loop for loop in loops if not reduces[loop]], [loop for loop in loops if reduces[loop]]


def _annotate_unroll(schedule: Schedule, loop: Any, config: Mapping[str, Any]) -> None:
    if config.get("unroll"):
        schedule.annotate(loop, "pragma_auto_unroll_max_step", config["unroll"])
        schedule.annotate(loop, "pragma_unroll_explicit", 1)
