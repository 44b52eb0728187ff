"""The sketch `gpu_contraction`: a sum of products in blocks, threads and registers, as Ansor schedules it for GPUs.

It is Listing 1 of the AF-DS paper. `tiling` draws the tiles and counts the resources that they use. Around the tiles:

- An axis that operands divide is two axes: the channels of a grouped convolution are groups and columns of a group. So
  tiles lie within a group, whose data and weights are staged as those of a convolution of one group.
- What is read in another order, such as shuffled channels, is put in order while it is staged.
- All threads of a block fetch together what is staged in shared memory. Neighbouring threads fetch neighbouring
  vectors. Padding and other producers are computed while fetching.
- Zero points of bytes are subtracted while these are fetched: `zero_points` says how.
- Bias, residual and activation are computed when a thread's outputs leave its registers.
- The loops inside a thread are unrolled up to a number of steps.
- If outputs are few, the longest reduction may be split: `split_reduction` says how.
- In two stages the next step is fetched, into a second half of shared memory, beside the products of this one. Copies
  are asynchronous since sm_80 if they compute nothing. Else what is fetched waits in registers.

Hardware limits are constraints of the space; `limits.py` lists them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from ...errors import UnsupportedFunction
from ...ir.contractions.contraction import fused_epilogue, multiplied_loads
from ...ir.contractions.split_axes import columns_of_group, split_axis, step_of
from ...ir.expressions import Expr, coefficients, rewrite_loads, substitute, variables
from ...ir.kept import kept
from ...ir.stages import Axis, Stage, StageGraph, intermediate, shape_of, variable
from ...ir.workload import Workload
from ...machine.gpu import Gpu
from ...space import Constraint, Ordinal, Space
from ..contract import Variant
from ..statements.features import rows_of
from .features import analytic_features
from .limits import (
    DEFAULT_UNROLL,
    default_in_parts,
    pipeline_constraint,
    tiling_constraints,
    tiling_knobs,
    widest_fetches,
)
from .split_reduction import add_parts, of_parts, possible_parts, split_reduction
from .statements.contraction import contraction_nest
from .tiled_loops import ASYNCHRONOUS_BYTES, STAGES, schedule_tiles
from .tiling import ContractionAxes, Operand, Tilings
from .times.tilings import expected_seconds
from .zero_points import product_of_integers, staged_less_zero_points


@dataclass(frozen=True)
class GpuContraction:
    """The sketch that this module describes.

    Attributes:
        listing_1: Whether its space has the knobs of Listing 1 of the AF-DS paper only, as the paper searches it.

    Example:
        >>> from stormdrop import operators
        >>> from stormdrop.machine.gpu import GPUS
        >>> work, a100 = operators.matmul(64, 64, 1024), GPUS["a100"]
        >>> ours, papers = GpuContraction().space(work, a100), GpuContraction(listing_1=True).space(work, a100)
        >>> [knob.name for knob in ours.knobs if knob not in papers.knobs]
        ['parts', 'stages']
    """

    listing_1: bool = False

    name: ClassVar[str] = "gpu_contraction"
    max_error: ClassVar[float] = 0.0

    def space(self, workload: Workload, target: Gpu) -> Space | None:
        """The tilings of a contraction within the device's limits.

        None if the function is no contraction, or if it reads each element of an operand once: tiles would use nothing
        again, and a thread for each output is too few of them. `GpuStreaming` shares the terms of an output.

        The knobs are five factors per spatial axis, three per reduction, the elements per fetch of each operand,
        the steps that are unrolled, the parts of the longest reduction, and the stages of the loop over steps.
        """
        return _space(workload, target, self.listing_1)

    def features(self, workload: Workload, target: Gpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The seven of `analytic_features`, shape (n, 7), of n configurations given as n values of each knob."""
        parts, stages = knobs.get("parts", 1), knobs.get("stages", 1)
        tilings = Tilings.of(find_fused_contraction(workload).axes, knobs)
        return analytic_features(tilings, target, parts, stages)

    def statements(
        self, workload: Workload, target: Gpu, knobs: Mapping[str, NDArray[Any]]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]] | None:
        """Ansor's features of n configurations, and of which they are known; None if `statements/` lacks the function.

        Those of a configuration in several parts or stages are not known.
        """
        fused = find_fused_contraction(workload)
        try:
            tilings = Tilings.of(fused.axes, knobs)
            nest, known = contraction_nest(fused.stage, fused.producers, fused.epilogue, tilings, knobs)
        except UnsupportedFunction:
            return None
        return rows_of(nest), known

    def estimate(self, workload: Workload, target: Gpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The seconds that `times/tilings.py`, which picks the default, expects of n configurations, shape (n,)."""
        return seconds_of_tiles(find_fused_contraction(workload), target, knobs)

    def apply(self, workload: Workload, target: Gpu, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration."""
        return Variant(scheduled_in_tiles(find_fused_contraction(workload), target, config))


def scheduled_in_tiles(fused: FusedContraction, target: Gpu, config: Mapping[str, Any]) -> PrimFunc:
    """The schedule of a contraction at a configuration of `space_of_tiles`.

    Args:
        fused: The contraction.
        target: The GPU.
        config: A value for each knob.
    """
    schedule = Schedule(tvm.IRModule({"main": fused.graph.function()}), debug_mask=0)
    block, axes, parts = schedule.get_sblock(fused.stage.name), fused.axes, config.get("parts", 1)
    names = [_knob_name(fused.stage, axis.var) for axis in fused.stage.axes]
    factors: Mapping[str, Any] = config
    if parts > 1:
        total, loops = block, dict(zip(names, schedule.get_loops(block), strict=True))
        block = split_reduction(schedule, total, loops, axes.longest, parts)
        output = _sum_in_registers(schedule, total, fused.epilogue)
        add_parts(schedule, total, output)
        axes, factors = of_parts(axes, config, parts)
        names = [axes.spatial[0][0], *names]
    output = _sum_in_registers(schedule, block, None if parts > 1 else fused.epilogue)
    loops = dict(zip(names, schedule.get_loops(block), strict=True))
    asynchronous = _copies_beside(fused, target)
    schedule_tiles(schedule, block, output, loops, axes, factors, config, fused.producers, asynchronous)
    return schedule.mod["main"]


def seconds_of_tiles(fused: FusedContraction, target: Gpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """The seconds that are expected of n configurations of `space_of_tiles`, shape (n,).

    Args:
        fused: The contraction.
        target: The GPU.
        knobs: n values of each knob.
    """
    fetch, parts, stages = (knobs["fetch0"], knobs["fetch1"]), knobs.get("parts", 1), knobs.get("stages", 1)
    tilings = Tilings.of(fused.axes, knobs)
    return expected_seconds(tilings, target, fetch, knobs["unroll"], parts=parts, stages=stages)


def _copies_beside(fused: FusedContraction, target: Gpu) -> bool:
    """Whether a device copies the operands to shared memory beside other work."""
    return target.asynchronous_copies and not fused.producers


def _sum_in_registers(schedule: Schedule, block: Any, epilogue: Stage | None) -> Any:
    """Has a block keep its sums in registers. Returns the block that writes the results."""
    if epilogue is None:
        return schedule.cache_write(block, 0, "local")
    schedule.set_scope(block, 0, "local")
    return schedule.get_sblock(epilogue.name)


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


@kept
def find_fused_contraction(workload: Workload) -> FusedContraction:
    """The contraction of a function, as lanes compute it: see `fused_contraction`."""
    return fused_contraction(workload.graph)


def fused_contraction(graph: StageGraph) -> FusedContraction:
    """The contraction of a function.

    Args:
        graph: The function.

    Raises:
        UnsupportedFunction: The function is something else than one contraction with elementwise stages around it.
    """
    contractions = [stage for stage in graph.stages if multiplied_loads(stage) or product_of_integers(stage)]
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
    divided = _divided_axes(stage)
    if divided:
        graph, stage, epilogue = _split(graph, stage, divided)
    graph, stage = staged_less_zero_points(graph, stage)
    graph, stage = _with_affine_operands(graph, stage)
    return FusedContraction(graph, stage, graph.stages[: graph.stages.index(stage)], epilogue, named_axes(stage))


def _divided_axes(stage: Stage) -> dict[Axis, int]:
    """The spatial axes of a contraction that its operands divide, such as the channels of groups, and by what."""
    loads, sizes = stage.loads(), {}
    for axis in stage.spatial:
        found = {size for size in (step_of(loads, axis), *(columns_of_group(load, axis) for load in loads)) if size}
        if len(found) == 1:
            sizes[axis] = found.pop()
    return sizes


def _split(graph: StageGraph, stage: Stage, sizes: Mapping[Axis, int]) -> tuple[StageGraph, Stage, Stage]:
    """The function with two axes in place of some of a contraction's, the contraction, and the stage after it.

    Before:     y[c] += x[c // 8 * 4 + k] * w[c, k]
    After:      t[g, c] += x[g * 4 + k] * w[g * 8 + c, k];  y[g * 8 + c] = t[g, c]

    Args:
        graph: The function. The contraction is its last stage, or the last but one.
        stage: The contraction.
        sizes: The extents of the second axes, by the axes that are split.
    """
    epilogue, fused = fused_epilogue(graph, stage)
    position = graph.stages.index(stage)
    if len(fused) != len(graph.stages[position:]):
        raise UnsupportedFunction("what follows does not take the results one by one")
    whole = stage.buffer
    for axis, size in sizes.items():
        stage, epilogue, _ = split_axis(stage, epilogue, axis, size)
    sums = intermediate("sums", [axis.extent for axis in stage.spatial], str(whole.dtype))
    element = tuple(axis.var for axis in stage.spatial)
    stage = replace(stage, buffer=sums, indices=element)
    stored = rewrite_loads(epilogue.value, partial(_read_from, {whole: sums[element]}))
    axes = [Axis(variable(axis.name), axis.extent) for axis in stage.spatial]
    values = dict(zip(element, (axis.var for axis in axes), strict=True))
    epilogue = replace(epilogue, value=stored).over(axes, values)
    return StageGraph(graph.parameters, (*graph.stages[:position], stage, epilogue)), stage, epilogue


def _with_affine_operands(graph: StageGraph, stage: Stage) -> tuple[StageGraph, Stage]:
    """The function with producers of the operands that a contraction reads in another order, and the contraction.

    Before:     y[g, c] += x[(g * 4 + k) % 3 * 8 + (g * 4 + k) // 3] * w[g, c, k]
    After:      t[g, k] = x[(g * 4 + k) % 3 * 8 + (g * 4 + k) // 3];  y[g, c] += t[g, k] * w[g, c, k]
    """
    position, former, loads = graph.stages.index(stage), stage, multiplied_loads(stage)
    assert loads is not None
    producers: list[Stage] = []
    for load in loads:
        if all(_factors(index, former) is not None for index in load.indices):
            continue
        axes: list[Axis] = []
        own: dict[Any, Any] = {}
        element, source = [], []
        for index, extent in zip(load.indices, shape_of(load.source), strict=True):
            if _factors(index, former) is not None:
                axes.append(Axis(variable("at"), extent))
                element.append(index)
                source.append(axes[-1].var)
                continue
            for axis in former.axes:
                if axis.var in variables(index) and axis.var not in own:
                    own[axis.var] = variable(axis.name)
                    axes.append(Axis(own[axis.var], axis.extent))
                    element.append(axis.var)
            source.append(substitute(index, own))
        name = f"ordered{len(producers)}"
        ordered = intermediate(name, [axis.extent for axis in axes], str(load.source.dtype))
        indices = tuple(axis.var for axis in axes)
        producers.append(Stage(name, tuple(axes), ordered, indices, load.source[tuple(source)]))
        elements = {load.source: ordered[tuple(element)]}
        stage = replace(stage, value=rewrite_loads(stage.value, partial(_read_from, elements)))
    stages = (*graph.stages[:position], *producers, stage, *graph.stages[position + 1 :])
    return StageGraph(graph.parameters, stages), stage


def _read_from(elements: Mapping[Any, Expr], load: Any) -> Expr | None:
    """What stands in place of a load, by the buffer that it reads."""
    return elements.get(load.source)


def _factors(index: Expr, stage: Stage) -> dict[Any, int] | None:
    """The factors by which an index follows the axes of a stage; None if it does anything else."""
    factors = coefficients(index, {axis.var for axis in stage.axes})
    return None if factors is None or any(factor < 0 for factor in factors.values()) else factors


def named_axes(stage: Stage) -> ContractionAxes:
    """The axes of a contraction, under the names of their knobs.

    Args:
        stage: The contraction, which sums what it makes of two loads.
    """
    operands, loads = [], stage.loads()
    for load in loads:
        indices = [_factors(index, stage) or {} for index in load.indices]
        dimensions = [
            tuple((_knob_name(stage, axis), int(factor)) for axis, factor in index.items()) for index in indices
        ]
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


@kept
def _space(workload: Workload, target: Gpu, listing_1: bool) -> Space | None:
    try:
        fused = find_fused_contraction(workload)
    except UnsupportedFunction:
        return None
    return space_of_tiles(GpuContraction.name, fused, target, listing_1)


def space_of_tiles(name: str, fused: FusedContraction, target: Gpu, listing_1: bool = False) -> Space | None:
    """The tilings of a contraction within the limits of a device; None as for `GpuContraction.space`.

    Args:
        name: The sketch.
        fused: The contraction.
        target: The GPU.
        listing_1: Whether the knobs are those of Listing 1 of the AF-DS paper only.
    """
    axes = fused.axes
    if axes.read_once:
        return None
    parts = (1,) if listing_1 else possible_parts(axes)
    beside = not listing_1 and _copies_beside(fused, target) and axes.item_bytes in ASYNCHRONOUS_BYTES
    found = default_in_parts(axes, target, parts, STAGES if beside else STAGES[:1])
    if found is None:
        return None
    tiling, more = found
    knobs = tiling_knobs(axes)
    # Vectors spare the copies beside products instructions. With one stage, nothing says that a default has any.
    widths = widest_fetches(axes, tiling) if more["stages"] > 1 else (1, 1)
    fetches = {f"fetch{position}": width for position, width in enumerate(widths)}
    origin: dict[str, Any] = {**tiling, **fetches, "unroll": DEFAULT_UNROLL}
    constraints = tiling_constraints(axes, target)
    if not listing_1:
        knobs += [Ordinal("parts", parts, absent=1), Ordinal("stages", STAGES, absent=1)]
        constraints.append(Constraint((axes.longest, "parts"), _Divided(), "each part has as many steps"))
        constraints.append(pipeline_constraint(axes, target))
        origin |= more
    return Space(name, knobs, constraints, origin)


class _Divided:
    """Whether the steps of a reduction divide among its parts."""

    def __call__(self, tile: Sequence[int], parts: int) -> bool:
        return tile[0] % parts == 0

    def columns(self, tiles: NDArray[np.int64], parts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The same for n configurations at once."""
        return np.asarray(tiles[:, 0] % parts == 0)
