"""The sketch `gpu_contraction`: a sum of products in blocks, threads and registers, as Ansor schedules it for GPUs.

It is Listing 1 of the AF-DS paper. `tiling` draws the tiles and counts the resources that they use. Around the tiles:

- All threads of a block fetch together what is staged in shared memory. Neighbouring threads fetch neighbouring
  vectors. Padding and other producers are computed while fetching.
- Bias, residual and activation are computed when a thread's outputs leave its registers.
- The loops inside a thread are unrolled up to a number of steps.

Hardware limits are constraints of the space. A block has at least a warp and at most the threads that the device
allows, its shared memory fits, a thread has enough registers, a multiprocessor has enough of them for a block, and
virtual threads are few.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.s_tir import Schedule

from ...errors import UnsupportedFunction
from ...ir.expressions import coefficients
from ...ir.roles import multiplied_loads
from ...ir.stages import Stage, StageGraph, shape_of
from ...ir.workload import Workload
from ...machine.gpu import REGISTERS_PER_THREAD, WARP, Gpu
from ...space import Constraint, Knob, Ordinal, Space, Tile
from ..contract import Variant
from ..rules.blocks import largest_divisor
from .features import analytic_features, estimated_seconds
from .tiling import THREAD, ContractionAxes, Operand, ResourceUse, Tilings

_VECTORS = (1, 2, 4)  # elements that a thread fetches at a time
_UNROLL = (0, 16, 64, 512, 1024)  # Ansor's
_VIRTUAL_THREADS = 8
_MAX_INNERMOST = 64

# What the default is chosen from: threads of a block, the most of them along the last axis, outputs of a thread along
# that axis and along another one, virtual threads that share the outputs along the last axis, steps that are staged.
_THREADS, _LANES, _OUTPUTS, _VIRTUAL, _STEPS = (64, 128, 256, 512), (8, 32, 512), (1, 2, 4, 8), (1, 2), (8, 16, 32)


class GpuContraction:
    """The sketch that this module describes."""

    name: ClassVar[str] = "gpu_contraction"
    max_error: ClassVar[float] = 0.0

    def space(self, workload: Workload, target: Gpu) -> Space | None:
        """The tilings of a contraction within the device's limits; None if the function is no contraction.

        The knobs are five factors per spatial axis, three per reduction, the elements per fetch of each operand, and
        the steps that are unrolled.
        """
        return _space(workload, target)

    def features(self, workload: Workload, target: Gpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The seven of `analytic_features`, shape (n, 7), of n configurations given as n values of each knob."""
        axes = find_fused_contraction(workload).axes
        names = [name for name, _ in (*axes.spatial, *axes.reductions)]
        factors = {name: np.array([tuple(tile) for tile in knobs[name]], dtype=np.int64) for name in names}
        return analytic_features(Tilings(axes, factors), target)

    def apply(self, workload: Workload, target: Gpu, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration.

        Raises:
            UnsupportedFunction: The function is no contraction.
        """
        fused = find_fused_contraction(workload)
        schedule = Schedule(tvm.IRModule({"main": fused.graph.function()}), debug_mask=0)
        block = schedule.get_sblock(fused.stage.name)
        if fused.epilogue is None:
            output = schedule.cache_write(block, 0, "local")
        else:
            schedule.set_scope(block, 0, "local")
            output = schedule.get_sblock(fused.epilogue.name)
        levels = _split_and_reorder(schedule, block, fused, config)
        spatial, steps = levels[:3], levels[3]
        blocks, virtual, threads = (schedule.fuse(*loops) for loops in spatial)
        for loop, axis in ((blocks, "blockIdx.x"), (virtual, "vthread.x"), (threads, "threadIdx.x")):
            schedule.bind(loop, axis)
        schedule.reverse_compute_at(output, threads, preserve_unit_loops=True)
        count = math.prod(config[name][THREAD] for name, _ in fused.axes.spatial)
        for position in range(2):
            staged = schedule.cache_read(block, position, "shared")
            schedule.compute_at(staged, steps[-1], preserve_unit_loops=True)
            fetch = schedule.fuse(*schedule.get_loops(staged)[3 + len(steps) :])
            _, lane, elements = schedule.split(fetch, [None, count, config[f"fetch{position}"]])
            schedule.bind(lane, "threadIdx.x")
            schedule.vectorize(elements)
        for stage in fused.producers:
            schedule.compute_inline(schedule.get_sblock(stage.name))
        if config["unroll"]:
            schedule.annotate(blocks, "pragma_auto_unroll_max_step", config["unroll"])
            schedule.annotate(blocks, "pragma_unroll_explicit", 1)
        schedule.decompose_reduction(block, steps[0])
        return Variant(schedule.mod["main"])


@dataclass(frozen=True, eq=False)
class FusedContraction:
    """A function that is one contraction, and what is computed element by element before and after it.

    Attributes:
        graph: The function's stages, after those that follow the contraction became one.
        stage: The contraction.
        producers: The stages before it, which are computed when their results are staged.
        epilogue: The stage after it, if there is one.
        axes: The axes of the contraction, under the names of their knobs.
    """

    graph: StageGraph
    stage: Stage
    producers: tuple[Stage, ...]
    epilogue: Stage | None
    axes: ContractionAxes


@lru_cache(maxsize=64)
def find_fused_contraction(workload: Workload) -> FusedContraction:
    """The contraction of a function.

    Raises:
        UnsupportedFunction: The function is something else than one contraction with elementwise stages around it.
    """
    graph = workload.graph
    contractions = [stage for stage in graph.stages if multiplied_loads(stage)]
    if len(contractions) != 1 or len([stage for stage in graph.stages if stage.combine is not None]) != 1:
        raise UnsupportedFunction("not one contraction")
    stage = contractions[0]
    # Producers are not inlined, because they are computed when their results are staged. What follows becomes one.
    produced = {producer.buffer for producer in graph.stages[: graph.stages.index(stage)]}
    graph = graph.inlined(lambda other: other.buffer in produced)
    stage = next(other for other in graph.stages if other.buffer.same_as(stage.buffer))
    position = graph.stages.index(stage)
    after = graph.stages[position + 1 :]
    if len(after) > 1 or (after and not any(load.source.same_as(stage.buffer) for load in after[0].loads())):
        raise UnsupportedFunction("more than one result")
    epilogue = after[0] if after else None
    if epilogue is not None and [axis.extent for axis in epilogue.axes] != [axis.extent for axis in stage.spatial]:
        raise UnsupportedFunction("the result is laid out anew")
    return FusedContraction(graph, stage, graph.stages[:position], epilogue, _named_axes(stage))


def _named_axes(stage: Stage) -> ContractionAxes:
    """The axes of a contraction, under the names of their knobs."""
    variables = {axis.var for axis in stage.axes}
    operands = []
    loads = multiplied_loads(stage)
    assert loads is not None
    for load in loads:
        dimensions = []
        for index in load.indices:
            factors = coefficients(index, variables)
            if factors is None or any(factor < 0 for factor in factors.values()):
                raise UnsupportedFunction("an operand is not read along its dimensions")
            dimensions.append(tuple((_knob_name(stage, axis), int(factor)) for axis, factor in factors.items()))
        operands.append(Operand(tuple(dimensions), shape_of(load.source)))
    spatial = tuple((_knob_name(stage, axis.var), axis.extent) for axis in stage.spatial)
    reductions = tuple((_knob_name(stage, axis.var), axis.extent) for axis in stage.reductions)
    return ContractionAxes(spatial, reductions, tuple(operands), np.dtype(str(loads[0].source.dtype)).itemsize)


def _knob_name(stage: Stage, variable: Any) -> str:
    """The name of an axis's knob. It holds the axis's position, because the names of axes may repeat."""
    spatial, reductions = [axis.var for axis in stage.spatial], [axis.var for axis in stage.reductions]
    if variable in spatial:
        return f"space{spatial.index(variable)}"
    return f"reduce{reductions.index(variable)}"


def _split_and_reorder(
    schedule: Schedule, block: Any, fused: FusedContraction, config: Mapping[str, Any]
) -> list[list[Any]]:
    """The loops of the block by level: of blocks, virtual threads, threads, staged reductions, and the rest."""
    stage = fused.stage
    loops = dict(zip((_knob_name(stage, axis.var) for axis in stage.axes), schedule.get_loops(block), strict=True))
    spatial = [schedule.split(loops[name], list(config[name])) for name, _ in fused.axes.spatial]
    reduced = [schedule.split(loops[name], list(config[name])) for name, _ in fused.axes.reductions]

    def level(split_axes: Sequence[Any], number: int) -> list[Any]:
        return [parts[number] for parts in split_axes]

    levels = [level(spatial, 0), level(spatial, 1), level(spatial, 2), level(reduced, 0), level(reduced, 1)]
    levels += [level(spatial, 3), level(reduced, 2), level(spatial, 4)]
    schedule.reorder(*itertools.chain(*levels))
    return levels


def within_limits(use: ResourceUse, device: Gpu) -> Any:
    """Whether a tiling satisfies the constraints of the space: a truth value, or shape (n,) for n tilings."""
    return _block_fits(use, device) & _shared_fits(use, device)


def _block_fits(use: ResourceUse, device: Gpu) -> Any:
    fewest = min(WARP, math.prod(extent for _, extent in use.axes.spatial))
    fits = (use.threads >= fewest) & (use.threads <= device.threads_per_block)
    fits &= (use.virtual <= _VIRTUAL_THREADS) & (use.least_registers <= REGISTERS_PER_THREAD)
    return fits & (-(-use.threads // WARP) <= device.warps_by_registers(use.least_registers))


def _shared_fits(use: ResourceUse, device: Gpu) -> Any:
    return use.shared_bytes <= device.shared_per_block


@lru_cache(maxsize=64)
def _space(workload: Workload, target: Gpu) -> Space | None:
    try:
        axes = find_fused_contraction(workload).axes
    except UnsupportedFunction:
        return None
    spatial = [name for name, _ in axes.spatial]
    names = [name for name, _ in (*axes.spatial, *axes.reductions)]
    knobs: list[Knob] = [Tile(name, extent, 5, max_inner=_MAX_INNERMOST) for name, extent in axes.spatial]
    knobs += [Tile(name, extent, 3, max_inner=_MAX_INNERMOST) for name, extent in axes.reductions]
    knobs += [Ordinal(f"fetch{position}", _VECTORS) for position in range(2)]
    knobs.append(Ordinal("unroll", _UNROLL))
    constraints = [
        Constraint(
            tuple(spatial),
            _Limit(_block_fits, spatial, target, axes),
            f"a warp to {target.threads_per_block} threads, {_VIRTUAL_THREADS} virtual ones, their registers",
        ),
        Constraint(tuple(names), _Limit(_shared_fits, names, target, axes), f"{target.shared_per_block} bytes shared"),
    ]
    origin = _origin(axes, target)
    if origin is None:
        return None
    return Space(GpuContraction.name, knobs, constraints, origin)


@dataclass(frozen=True)
class _Limit:
    """A constraint on the tiles of the axes that are named. The limit does not depend on the other axes."""

    fits: Callable[[ResourceUse, Gpu], Any]
    names: Sequence[str]
    device: Gpu
    axes: ContractionAxes

    def __call__(self, *tiles: Sequence[int]) -> bool:
        use = ResourceUse(self.axes, dict(zip(self.names, tiles, strict=True)), min)
        return bool(self.fits(use, self.device))

    def columns(self, *tiles: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The same for n tilings at once, given factors of shape (n, 5) or (n, 3) for each axis."""
        levels = {name: factors.T for name, factors in zip(self.names, tiles, strict=True)}
        return np.asarray(self.fits(ResourceUse(self.axes, levels, np.minimum), self.device))


def _origin(axes: ContractionAxes, target: Gpu) -> dict[str, Any] | None:
    """The default configuration: the fastest of some tilings by `estimated_seconds`.

    They have few threads or many, and small tiles in registers or large ones. Returns None if none of them is within
    the limits, which happens if an extent is a large prime.
    """
    *others, last = [name for name, extent in axes.spatial if extent > 1] or [axes.spatial[-1][0]]
    tilings = []
    for second, threads, lanes, columns, virtual_threads, rows, steps in itertools.product(
        others or [last], _THREADS, _LANES, _OUTPUTS, _VIRTUAL, _OUTPUTS, _STEPS
    ):
        factors: dict[str, tuple[int, ...]] = {}
        outputs_along = {second: rows, last: columns}
        for name, extent in reversed(axes.spatial):
            outputs = largest_divisor(extent, outputs_along.get(name, 1))
            virtual = largest_divisor(outputs, virtual_threads) if name == last else 1
            across = largest_divisor(extent // outputs, min(threads, lanes) if name == last else threads)
            threads //= across
            factors[name] = (extent // outputs // across, virtual, across, 1, outputs // virtual)
        for name, extent in reversed(axes.reductions):
            inner = largest_divisor(extent, min(steps, _MAX_INNERMOST))
            steps = max(1, steps // inner)
            factors[name] = (extent // inner, 1, inner)
        tilings.append(factors)
    names = [name for name, _ in (*axes.spatial, *axes.reductions)]
    together = Tilings(axes, {name: np.array([factors[name] for factors in tilings]) for name in names})
    fits = within_limits(together, target)
    if not fits.any():
        return None
    best = int(np.argmin(np.where(fits, estimated_seconds(together, target), np.inf)))
    return {**tilings[best], "fetch0": 1, "fetch1": 1, "unroll": 64}
