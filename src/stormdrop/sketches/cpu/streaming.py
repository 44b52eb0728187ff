"""Parallel, vectorised, unrolled loops for all that is no contraction: pooling, reductions, softmax, elementwise.

`nests` says what the loop nests compute, `groups` which of them run row by row inside one parallel loop, and `loops`
what their loops look like.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from tvm.ir import Call

from ...ir.elementary import in_vectors
from ...ir.expressions import variables, walk
from ...ir.roles import inlines_well
from ...ir.stages import Stage, StageGraph, assemble
from ...ir.workload import Workload
from ...machine.cpu import Target
from ...space import Categorical, Constraint, Knob, Ordinal, Space
from ..contract import Variant
from .groups import Group, groups_of
from .loops import Steps, idle, in_parallel, laid_out, tasks
from .nests import nests_of
from .non_temporal import NON_TEMPORAL, STORES, stored, stores_knob

_STEPS = ("vectors", "unroll", "across", "columns", "parts")
_MOST_TILE = 256  # elements of a transposing tile, all unrolled: more take LLVM seconds
_SMALL = 1 << 20  # elements computed; above, threads are worth waking in any case


@dataclass(frozen=True)
class Streaming:
    """The sketch of this module; see there."""

    name: ClassVar[str] = "streaming"
    max_error: ClassVar[float] = 0.0

    def space(self, workload: Workload, target: Target) -> Space | None:
        """Knobs, where they make a difference: vectors per step (or the tile of a transpose), leading loops that run in
        parallel, unrolling of reductions, parts of a reduction of few results, rows together, padding apart or in the
        reduction that reads it, stores past the caches."""
        return _space(workload, target)

    def apply(self, workload: Workload, target: Target, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration."""
        graph = _inlined(workload, config.get("padding") == "inside")
        steps = _steps(target, config)
        statements, written = [], []
        for group in _groups(graph, target, bool(config.get("together"))):
            for each in laid_out(group, steps, target.cores):
                statements.append(in_parallel(each, group.shared, min(config["parallel"], len(each[0].outer))))
                written += [stage for nest in each for stage in nest.stages]
        return Variant(stored(in_vectors(assemble(graph.parameters, written, statements)), config))


@lru_cache(maxsize=64)
def _space(workload: Workload, target: Target) -> Space:
    lanes, cores = target.lanes, target.cores
    origin: dict[str, Any] = {"vectors": 4, "unroll": 16, "across": lanes, "columns": max(4, lanes // 2), "together": 1}
    knobs: list[Knob] = []
    constraints: list[Constraint] = []
    padding = _padding(workload.graph)
    if padding is not None:
        # A condition that holds for whole vectors is a branch; else it would take the vectors apart.
        origin["padding"] = "apart" if padding.axes[-1].var in _guards(padding) else "inside"
        knobs.append(Categorical("padding", ["apart", "inside"]))
    graph = _inlined(workload, origin.get("padding") == "inside")
    found = _groups(graph, target, together=True)
    every = [nest for group in found for each in laid_out(group, _steps(target, origin), cores) for nest in each]
    small = sum(nest.size for nest in every) <= _SMALL
    if any(group.shared for group in found):
        knobs.append(Categorical("together", [0, 1]))
    if any(nest.transposes for nest in every):
        knobs += [Ordinal("across", [4, 8, 16, 32]), Ordinal("columns", [4, 8, 16])]
        constraints.append(
            Constraint(("across", "columns"), lambda *tile: math.prod(tile) <= _MOST_TILE, f"{_MOST_TILE} elements")
        )
    if not all(nest.transposes for nest in every):
        knobs.append(Ordinal("vectors", [1, 2, 4, 8]))
    if any(nest.reduces for nest in every):
        knobs.append(Ordinal("unroll", [1, 4, 16, 64]))
        origin["vectors"] = 8
    if cores > 1 and any(idle(nest, cores) for nest in every):
        knobs.append(Ordinal("parts", [1, cores, 2 * cores, 4 * cores]))
        origin["parts"] = 1 if small else 2 * cores
    units = [(group, each) for group in found for each in laid_out(group, _steps(target, origin), cores)]
    apart = _groups(graph, target, together=False)
    alone = [each for group in apart for each in laid_out(group, _steps(target, origin), cores)]
    most = max(1, *(len(each[0].outer) for each in alone))
    shared = max(1, *(1 if group.shared else len(each[0].outer) for group, each in units))
    if shared < most:
        fits = Constraint(("together", "parallel"), lambda both, axes: not both or axes <= shared, "axes rows share")
        constraints.append(fits)
    knobs.append(Ordinal("parallel", range(0 if small else 1, most + 1)))
    origin["parallel"] = max(min(tasks(each, cores), shared) for _, each in units)
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


def _steps(target: Target, config: Mapping[str, Any]) -> Steps:
    return Steps(target.lanes, **{key: config[key] for key in _STEPS if key in config})


def _groups(graph: StageGraph, target: Target, together: bool) -> list[Group]:
    return groups_of(nests_of(graph), graph.parameters, target.cores if together else None)


@lru_cache(maxsize=64)
def _inlined(workload: Workload, padding: bool) -> StageGraph:
    graph = workload.graph
    inside = _padding(graph) if padding else None
    return graph.inlined(
        # By the buffer: inlining one stage makes the others anew.
        lambda stage: not inlines_well(graph, stage) and (inside is None or not stage.buffer.same_as(inside.buffer))
    )


def _padding(graph: StageGraph) -> Stage | None:
    """A stage that pads what one reduction reads."""
    for stage in graph.stages:
        readers = graph.readers(stage.buffer)
        if _guards(stage) and len(readers) == 1 and readers[0].combine is not None and stage.combine is None:
            return stage
    return None


def _guards(stage: Stage) -> set[Any]:
    """The variables in the conditions of a stage."""
    conditions = [
        node.args[0] for node in walk(stage.value) if isinstance(node, Call) and "if_then_else" in node.op.name
    ]
    return {name for condition in conditions for name in variables(condition)}
