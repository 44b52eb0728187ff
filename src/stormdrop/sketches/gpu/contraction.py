"""A contraction in blocks, threads and registers: Listing 1 of the AF-DS paper, Ansor's schedule for GPUs.

The tiles, and what they ask of a device, are in `tiling`. Around them:

- what is staged in shared memory is fetched by all threads of the block together, neighbouring ones a vector apart;
  padding and other producers are computed while fetching
- bias, residual and activation are computed where a thread's outputs leave its registers
- the loops inside a thread are unrolled up to a number of steps

Hardware limits are constraints of the space: a block has a warp or more and no more threads than there may be, its
shared memory fits, a thread's registers are enough and a multiprocessor has those of a block, virtual threads are few.
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
from ...ir.roles import multiplied
from ...ir.stages import Stage, StageGraph, shape_of
from ...ir.workload import Workload
from ...machine.gpu import REGISTERS_PER_THREAD, WARP, Device
from ...space import Constraint, Knob, Ordinal, Space, Tile
from ..contract import Variant
from ..rules.blocks import largest_divisor
from . import features
from .features import seconds
from .tiling import THREAD, Contraction, Counts, Operand, Tiling

_VECTORS = (1, 2, 4)  # elements that a thread fetches at a time
_UNROLL = (0, 16, 64, 512, 1024)  # Ansor's
_VIRTUAL_THREADS = 8
_INNERMOST = 64

# What the default is one of: threads of a block, of them neighbours along the last axis, outputs of a thread along that
# axis (of which so many apart) and along another, steps that are staged.
_THREADS, _LANES, _OUTPUTS, _APART, _STEPS = (64, 128, 256, 512), (8, 32, 512), (1, 2, 4, 8), (1, 2), (8, 16, 32)


@dataclass(frozen=True, eq=False)
class Parts:
    """A function that is one contraction with what is computed before and after it, element by element."""

    graph: StageGraph
    stage: Stage
    before: tuple[Stage, ...]
    epilogue: Stage | None
    contraction: Contraction


@lru_cache(maxsize=64)
def take_apart(workload: Workload) -> Parts:
    """Raises `UnsupportedFunction` where the function is something else."""
    graph = workload.graph
    found = [stage for stage in graph.stages if multiplied(stage)]
    if len(found) != 1 or len([stage for stage in graph.stages if stage.combine is not None]) != 1:
        raise UnsupportedFunction("not one contraction")
    stage = found[0]
    position = graph.stages.index(stage)
    # What feeds the contraction stays apart: it is computed where its result is staged. What follows becomes one.
    fed = {item.buffer for item in graph.stages[:position]}
    graph = graph.inlined(lambda item: item.buffer in fed)
    stage = next(item for item in graph.stages if item.buffer.same_as(stage.buffer))
    position = graph.stages.index(stage)
    after = graph.stages[position + 1 :]
    if len(after) > 1 or (after and not any(load.source.same_as(stage.buffer) for load in after[0].loads())):
        raise UnsupportedFunction("more than one result")
    epilogue = after[0] if after else None
    if epilogue is not None and [axis.extent for axis in epilogue.axes] != [axis.extent for axis in stage.spatial]:
        raise UnsupportedFunction("the result is laid out anew")
    return Parts(graph, stage, graph.stages[:position], epilogue, _contraction(stage))


def _contraction(stage: Stage) -> Contraction:
    every = {axis.var for axis in stage.axes}
    operands = []
    loads = multiplied(stage)
    assert loads is not None
    for load in loads:
        dimensions = []
        for index in load.indices:
            factors = coefficients(index, every)
            if factors is None or any(factor < 0 for factor in factors.values()):
                raise UnsupportedFunction("an operand is not read along its dimensions")
            dimensions.append(tuple((_name(stage, name), int(factor)) for name, factor in factors.items()))
        operands.append(Operand(tuple(dimensions), shape_of(load.source)))
    spatial = tuple((_name(stage, axis.var), axis.extent) for axis in stage.spatial)
    reductions = tuple((_name(stage, axis.var), axis.extent) for axis in stage.reductions)
    return Contraction(spatial, reductions, tuple(operands), np.dtype(str(loads[0].source.dtype)).itemsize)


def _name(stage: Stage, variable: Any) -> str:
    """The knob of an axis: by its place, since names may repeat."""
    spatial, reductions = [axis.var for axis in stage.spatial], [axis.var for axis in stage.reductions]
    if variable in spatial:
        return f"space{spatial.index(variable)}"
    return f"reduce{reductions.index(variable)}"


class GpuContraction:
    """The sketch of this module; see there."""

    name: ClassVar[str] = "gpu_contraction"
    max_error: ClassVar[float] = 0.0

    def space(self, workload: Workload, target: Device) -> Space | None:
        """Knobs: five factors per spatial axis, three per reduction, elements per fetch of each operand, unrolling."""
        return _space(workload, target)

    def features(self, workload: Workload, target: Device, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The seven of `features`, shape (n, 7), of n configurations given as n values of each knob."""
        contraction = take_apart(workload).contraction
        names = [name for name, _ in (*contraction.spatial, *contraction.reductions)]
        factors = {name: np.array([tuple(each) for each in knobs[name]], dtype=np.int64) for name in names}
        return features.features(Tiling(contraction, factors), target)

    def apply(self, workload: Workload, target: Device, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration; raises `UnsupportedFunction` for a function that is no contraction."""
        parts = take_apart(workload)
        schedule = Schedule(tvm.IRModule({"main": parts.graph.function()}), debug_mask=0)
        block = schedule.get_sblock(parts.stage.name)
        if parts.epilogue is None:
            written = schedule.cache_write(block, 0, "local")
        else:
            schedule.set_scope(block, 0, "local")
            written = schedule.get_sblock(parts.epilogue.name)
        levels = _tiled(schedule, block, parts, config)
        spatial, outer = levels[:3], levels[3]
        blocks, virtual, threads = (schedule.fuse(*loops) for loops in spatial)
        for loop, axis in ((blocks, "blockIdx.x"), (virtual, "vthread.x"), (threads, "threadIdx.x")):
            schedule.bind(loop, axis)
        schedule.reverse_compute_at(written, threads, preserve_unit_loops=True)
        count = math.prod(config[name][THREAD] for name, _ in parts.contraction.spatial)
        for position in range(2):
            staged = schedule.cache_read(block, position, "shared")
            schedule.compute_at(staged, outer[-1], preserve_unit_loops=True)
            fused = schedule.fuse(*schedule.get_loops(staged)[3 + len(outer) :])
            _, lane, elements = schedule.split(fused, [None, count, config[f"fetch{position}"]])
            schedule.bind(lane, "threadIdx.x")
            schedule.vectorize(elements)
        for stage in parts.before:
            schedule.compute_inline(schedule.get_sblock(stage.name))
        if config["unroll"]:
            schedule.annotate(blocks, "pragma_auto_unroll_max_step", config["unroll"])
            schedule.annotate(blocks, "pragma_unroll_explicit", 1)
        schedule.decompose_reduction(block, outer[0])
        return Variant(schedule.mod["main"])


def valid(counts: Counts, device: Device) -> Any:
    """Whether a tiling is within the limits that are the constraints of the space; of n tilings, shape (n,)."""
    return _block_fits(counts, device) & _shared_fits(counts, device)


def _block_fits(counts: Counts, device: Device) -> Any:
    least = min(WARP, math.prod(extent for _, extent in counts.contraction.spatial))
    fits = (counts.threads >= least) & (counts.threads <= device.threads_per_block)
    fits &= (counts.virtual <= _VIRTUAL_THREADS) & (counts.least_registers <= REGISTERS_PER_THREAD)
    return fits & (-(-counts.threads // WARP) <= device.warps_by_registers(counts.least_registers))


def _shared_fits(counts: Counts, device: Device) -> Any:
    return counts.shared_bytes <= device.shared_per_block


def _tiled(schedule: Schedule, block: Any, parts: Parts, config: Mapping[str, Any]) -> list[list[Any]]:
    """The loops of the block by level: of blocks, virtual threads, threads, staged reductions, and the rest."""
    stage = parts.stage
    loops = dict(zip((_name(stage, axis.var) for axis in stage.axes), schedule.get_loops(block), strict=True))
    spatial = [schedule.split(loops[name], list(config[name])) for name, _ in parts.contraction.spatial]
    reduced = [schedule.split(loops[name], list(config[name])) for name, _ in parts.contraction.reductions]

    def level(of: Sequence[Any], at: int) -> list[Any]:
        return [each[at] for each in of]

    levels = [level(spatial, 0), level(spatial, 1), level(spatial, 2), level(reduced, 0), level(reduced, 1)]
    levels += [level(spatial, 3), level(reduced, 2), level(spatial, 4)]
    schedule.reorder(*(loop for each in levels for loop in each))
    return levels


@lru_cache(maxsize=64)
def _space(workload: Workload, target: Device) -> Space | None:
    try:
        parts = take_apart(workload)
    except UnsupportedFunction:
        return None
    contraction = parts.contraction
    spatial = [name for name, _ in contraction.spatial]
    every = [name for name, _ in (*contraction.spatial, *contraction.reductions)]
    knobs: list[Knob] = [Tile(name, extent, 5, max_inner=_INNERMOST) for name, extent in contraction.spatial]
    knobs += [Tile(name, extent, 3, max_inner=_INNERMOST) for name, extent in contraction.reductions]
    knobs += [Ordinal(f"fetch{position}", _VECTORS) for position in range(2)]
    knobs.append(Ordinal("unroll", _UNROLL))
    constraints = [
        Constraint(
            tuple(spatial),
            _Within(_block_fits, spatial, target, contraction),
            f"a warp to {target.threads_per_block} threads, {_VIRTUAL_THREADS} virtual ones, their registers",
        ),
        Constraint(
            tuple(every), _Within(_shared_fits, every, target, contraction), f"{target.shared_per_block} bytes shared"
        ),
    ]
    origin = _origin(contraction, target)
    if origin is None:
        return None
    return Space(GpuContraction.name, knobs, constraints, origin)


@dataclass(frozen=True)
class _Within:
    """Whether the tiles of some axes are within a limit; those of the others do not matter to it."""

    limit: Callable[[Counts, Device], Any]
    names: Sequence[str]
    device: Device
    contraction: Contraction

    def __call__(self, *tiles: Sequence[int]) -> bool:
        counts = Counts(self.contraction, dict(zip(self.names, tiles, strict=True)), min)
        return bool(self.limit(counts, self.device))

    def columns(self, *tiles: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Of n tilings at once: factors of shape (n, 5) or (n, 3) for each axis."""
        levels = {name: each.T for name, each in zip(self.names, tiles, strict=True)}
        return np.asarray(self.limit(Counts(self.contraction, levels, np.minimum), self.device))


def _origin(contraction: Contraction, target: Device) -> dict[str, Any] | None:
    """The default: of tilings with few threads or many, small tiles in registers or large, the one to expect most of.

    That is the one which needs least of the device's time by its features (`features.seconds`). None where none is
    within the limits: an extent that is a large prime.
    """
    *others, last = [name for name, extent in contraction.spatial if extent > 1] or [contraction.spatial[-1][0]]
    found = []
    for second, threads, lanes, columns, apart, rows, deep in itertools.product(
        others or [last], _THREADS, _LANES, _OUTPUTS, _APART, _OUTPUTS, _STEPS
    ):
        factors: dict[str, tuple[int, ...]] = {}
        held = {second: rows, last: columns}
        for name, extent in reversed(contraction.spatial):
            outputs = largest_divisor(extent, held.get(name, 1))
            virtual = largest_divisor(outputs, apart) if name == last else 1
            across = largest_divisor(extent // outputs, min(threads, lanes) if name == last else threads)
            threads //= across
            factors[name] = (extent // outputs // across, virtual, across, 1, outputs // virtual)
        for name, extent in reversed(contraction.reductions):
            inner = largest_divisor(extent, min(deep, _INNERMOST))
            deep = max(1, deep // inner)
            factors[name] = (extent // inner, 1, inner)
        found.append(factors)
    names = [name for name, _ in (*contraction.spatial, *contraction.reductions)]
    tilings = Tiling(contraction, {name: np.array([factors[name] for factors in found]) for name in names})
    fits = valid(tilings, target)
    if not fits.any():
        return None
    best = int(np.argmin(np.where(fits, seconds(tilings, target), np.inf)))
    return {**found[best], "fetch0": 1, "fetch1": 1, "unroll": 64}
