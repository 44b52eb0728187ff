"""Parallel, vectorised, unrolled loops for all but contractions: pooling, reductions, softmax, elementwise.

`nests` says what the loop nests compute, `groups` which of them run row by row inside one parallel loop, and `loops`
what their loops look like.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ...ir.contractions.tables import ENTRIES, with_tables
from ...ir.elementary import expand_for_cpu
from ...ir.expressions import intrinsic, variables, walk
from ...ir.inlining import inline_well, inlines_well
from ...ir.kept import kept
from ...ir.stages import Stage, StageGraph, assemble
from ...ir.workload import Workload
from ...machine.cpu import Cpu
from ...space import Categorical, Constraint, Knob, Ordinal, Space
from ..contract import Variant
from .contractions.register_blocked import few_columns
from .groups import Group, groups_of
from .loops import LoopSizes, NestLoops, leaves_cores_idle, loops_of, parallel_axis_count, parallel_loop
from .nests import nests_of
from .non_temporal import NON_TEMPORAL, STORES, stored, stores_knob

_SIZE_KNOBS = ("vectors", "unroll", "across", "columns", "parts")
_MOST_TILE = 256  # elements of a transposing tile, all unrolled: more take LLVM seconds
_SMALL = 1 << 20  # elements computed; above, threads are worth waking in any case


@dataclass(frozen=True)
class Streaming:
    """A sketch that applies to every workload: one parallel loop per nest or group of nests.

    See the module for its parts.
    """

    name: ClassVar[str] = "streaming"
    max_error: ClassVar[float] = 0.0

    def yields(self, workload: Workload, target: Cpu) -> bool:
        """See `Yielding`: a contraction may have too few columns to fill the vectors of a CPU."""
        return not few_columns(workload, target)

    def space(self, workload: Workload, target: Cpu) -> Space | None:
        """The knobs that make a difference for a workload.

        - `vectors`: vectors per step; for a transpose `across` and `columns`, the sides of its tile
        - `parallel`: how many leading axes run in parallel
        - `unroll`: iterations of a reduction that are unrolled
        - `parts`: parts of a reduction of few results
        - `together`: whether nests that share rows run in one loop over the rows
        - `padding`: "apart" in a nest of its own, or "inside" the reduction that reads it
        - `stores`: stores past the caches (see `non_temporal`)
        """
        return _space(workload, target)

    def apply(self, workload: Workload, target: Cpu, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration."""
        graph = _inlined(workload, config.get("padding") == "inside")
        sizes = _sizes(target, config)
        statements, written = [], []
        for group in _groups(graph, target, bool(config.get("together"))):
            for loops in loops_of(group, sizes, target.cores):
                # A table, or another few numbers that a nest after it reads, is computed by one thread.
                few = sum(nest_loops.size for nest_loops in loops) <= ENTRIES
                leading = 0 if few else min(config["parallel"], len(loops[0].outer))
                statements.append(parallel_loop(loops, group.shared, leading))
                written += [stage for nest_loops in loops for stage in nest_loops.stages]
        return Variant(
            stored(expand_for_cpu(assemble(graph.parameters, written, statements), target.keep_denormals), config)
        )


@kept
def _space(workload: Workload, target: Cpu) -> Space:
    lanes, cores = target.lanes, target.cores
    origin: dict[str, Any] = {"vectors": 4, "unroll": 16, "across": lanes, "columns": max(4, lanes // 2), "together": 1}
    knobs: list[Knob] = []
    constraints: list[Constraint] = []
    padding = _padding(workload.graph)
    if padding is not None:
        # A condition that holds for whole vectors is a branch; else it would take the vectors apart.
        origin["padding"] = "apart" if padding.axes[-1].var in _condition_variables(padding) else "inside"
        knobs.append(Categorical("padding", ["apart", "inside"]))
    graph = _inlined(workload, origin.get("padding") == "inside")
    groups = _groups(graph, target, together=True)
    sizes, together = _sizes(target, origin), _loops(groups, target, origin)
    nests = [nest_loops for _, loops in together for nest_loops in loops]
    small = sum(nest.size for nest in nests) <= _SMALL
    shares = any(group.shared for group in groups)
    if shares:
        knobs.append(Categorical("together", [0, 1]))
    if any(nest.transposes for nest in nests):
        knobs += [Ordinal("across", [4, 8, 16, 32]), Ordinal("columns", [4, 8, 16])]
        constraints.append(
            Constraint(("across", "columns"), lambda *tile: math.prod(tile) <= _MOST_TILE, f"{_MOST_TILE} elements")
        )
    if not all(nest.transposes for nest in nests):
        knobs.append(Ordinal("vectors", [1, 2, 4, 8]))
    if any(nest.reduces for nest in nests):
        knobs.append(Ordinal("unroll", [1, 4, 16, 64]))
        origin["vectors"] = 8
    if cores > 1 and any(leaves_cores_idle(nest, cores) for nest in nests):
        knobs.append(Ordinal("parts", [1, cores, 2 * cores, 4 * cores]))
        origin["parts"] = 1 if small else 2 * cores
    if _sizes(target, origin) != sizes:
        together = _loops(groups, target, origin)
    separate = _loops(_groups(graph, target, together=False), target, origin) if shares else together
    most = max(1, *(len(loops[0].outer) for _, loops in separate))
    shared = max(1, *(1 if group.shared else len(loops[0].outer) for group, loops in together))
    if shared < most:
        fits = Constraint(("together", "parallel"), lambda both, axes: not both or axes <= shared, "axes rows share")
        constraints.append(fits)
    knobs.append(Ordinal("parallel", range(0 if small else 1, most + 1)))
    origin["parallel"] = max(min(parallel_axis_count(loops, cores), shared) for _, loops in together)
    if not small:
        origin["parallel"] = max(1, origin["parallel"])
    knobs += stores_knob(workload, target)
    origin[STORES] = NON_TEMPORAL
    names = {knob.name for knob in knobs}
    return Space(
        Streaming.name,
        knobs,
        constraints,
        origin={key: value for key, value in origin.items() if key in names},
    )


def _sizes(target: Cpu, config: Mapping[str, Any]) -> LoopSizes:
    return LoopSizes(target.lanes, **{knob: config[knob] for knob in _SIZE_KNOBS if knob in config})


def _loops(groups: Sequence[Group], target: Cpu, config: Mapping[str, Any]) -> list[tuple[Group, list[NestLoops]]]:
    """The nests' loops of each parallel loop, with the group that they are of."""
    sizes = _sizes(target, config)
    return [(group, loops) for group in groups for loops in loops_of(group, sizes, target.cores)]


def _groups(graph: StageGraph, target: Cpu, together: bool) -> list[Group]:
    return groups_of(nests_of(graph), graph.parameters, target.cores if together else None)


@kept
def _inlined(workload: Workload, padding: bool) -> StageGraph:
    """The stages with elementwise ones inlined into their readers; padding too if `padding` is true."""
    graph = workload.graph
    inside = _padding(graph) if padding else None

    def wants(current: StageGraph, stage: Stage) -> bool:
        # Compare the buffers: inlining one stage makes the other stages anew.
        return inlines_well(current, stage) or (inside is not None and stage.buffer.same_as(inside.buffer))

    return with_tables(inline_well(graph, wants))


def _padding(graph: StageGraph) -> Stage | None:
    """A stage that pads what one reduction reads."""
    for stage in graph.stages:
        readers = graph.readers(stage.buffer)
        feeds_one_reduction = len(readers) == 1 and readers[0].combine is not None
        if _condition_variables(stage) and feeds_one_reduction and stage.combine is None:
            return stage
    return None


def _condition_variables(stage: Stage) -> set[Any]:
    """The variables in the conditions of a stage."""
    conditions = [node.args[0] for node in walk(stage.value) if intrinsic(node) == "if_then_else"]
    return {variable for condition in conditions for variable in variables(condition)}
