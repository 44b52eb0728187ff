"""Parallel, vectorised, unrolled loops for all that is no contraction: pooling, reductions, softmax, elementwise.

`loops` says what the loops look like. Stages that hand each other whole rows (softmax) may run row by row inside one
parallel loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

from ..space import Categorical, Knob, Ordinal, Space
from . import compile, expressions, loops, roles, stages
from .loops import Loops, body_of, by_lanes, nests_of, parallel, shared_axes, tasks
from .roles import inlines_well
from .sketch import Variant, revision
from .stages import StageGraph, assemble
from .target import Target
from .workload import Workload


class Streaming:
    """The sketch of this module; see there."""

    name: ClassVar[str] = "streaming"

    def space(self, workload: Workload, target: Target) -> Space | None:
        """Knobs: vectors per step, leading loops that run in parallel, unrolling of reductions, rows together."""
        nests = nests_of(_inlined(workload))
        outer = nests[-1].store.spatial
        knobs: list[Knob] = [
            Ordinal("vectors", [1, 2, 4, 8]),
            Ordinal("parallel", list(range(1, max(1, len(outer)) + 1))),
        ]
        if any(nest.reduction is not None for nest in nests):
            knobs.append(Ordinal("unroll", [1, 4, 16, 64]))
        if len(nests) > 1 and shared_axes(nests):
            knobs.append(Categorical("together", [0, 1]))
        origin = {"vectors": 2, "parallel": max(1, tasks(outer, target.cores)), "unroll": 16, "together": 1}
        names = {knob.name for knob in knobs}
        return Space(
            self.name,
            knobs,
            origin={key: value for key, value in origin.items() if key in names},
            revision=revision(*(module.__name__ for module in (compile, expressions, loops, roles, stages)), __name__),
        )

    def apply(self, workload: Workload, target: Target, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration."""
        graph = _inlined(workload)
        nests = [piece for nest in nests_of(graph) for piece in by_lanes(nest, target.lanes * config["vectors"])]
        shared = shared_axes(nests) if config.get("together") else 0
        every = [Loops(nest, target.lanes, config["vectors"], shared) for nest in nests]
        written = [stage for each in every for stage in each.stages]
        unroll = config.get("unroll", 1)
        if shared:
            statement = parallel(every[-1].outer[:shared], lambda at: [each.body(at, unroll) for each in every])
            return Variant(assemble(graph.parameters, written, [statement]))
        statements = [parallel(each.outer[: config["parallel"]], body_of(each, unroll)) for each in every]
        return Variant(assemble(graph.parameters, written, statements))


@lru_cache(maxsize=64)
def _inlined(workload: Workload) -> StageGraph:
    graph = workload.graph
    return graph.inlined(lambda stage: not inlines_well(graph, stage))
