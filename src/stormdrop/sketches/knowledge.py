"""What sketches tell others: expected costs and features of candidates, and what a machine is fast at."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, UnsupportedFunction, hint
from ..ir.dtypes import BFLOAT16
from ..ir.stages import StageGraph
from ..ir.workload import Workload
from ..machine.contract import Machine
from ..machine.cpu import Cpu
from ..machine.gpu import WARP, Gpu
from ..space import Space
from ..surrogate.features import Describe, Features, by_sketch, encoded
from ..trial import Candidate, Point
from .contract import AnySketch, Bounded, Described, Estimator
from .cpu.attention.chain import find_chain
from .cpu.contractions import dot_products
from .cpu.tiles.instructions import product_of
from .gpu.attention.mma import GpuMmaAttention
from .gpu.attention.parts import find_attention
from .gpu.attention.sketch import GpuAttention

FEATURES = ("knobs", "analytic", "both", "statements")
"""The kinds of features that a cost model can see; see `features`."""


_DOT_PRODUCTS = {"int8": 8.0, "uint8": 8.0, BFLOAT16: 4.0}
"""Multiply-adds of a type by dot products in the time of one in lanes of float32, at most: twice what was measured."""


def comparable(kind: str) -> bool:
    """Whether features of this kind have the same columns for all kernels, so that kernels can share a cost model."""
    return kind == "statements"


def prior(
    sketches: Sequence[tuple[AnySketch, Space]], workload: Workload, target: Machine
) -> Callable[[Sequence[Candidate]], NDArray[np.float64]] | None:
    """What candidates are expected to cost before any of them is measured.

    Args:
        sketches: Sketches with their spaces, as `sketches_for` returns them.
        workload: The function to tune.
        target: The machine to tune it for.

    Returns:
        A function from n candidates to their costs as `Estimator` has them, shape `(n,)`, with NaN for the candidates
        of sketches that are no `Estimator`; None if no sketch is one.
    """
    estimators = [(sketch, space) for sketch, space in sketches if isinstance(sketch, Estimator)]

    def expected(candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        costs = np.full(len(candidates), np.nan)
        for sketch, space in estimators:
            rows = [row for row, candidate in enumerate(candidates) if candidate.sketch == space.name]
            if rows:
                columns = space.columns([candidates[row].point for row in rows])
                costs[rows] = sketch.estimate(workload, target, columns)
        return costs

    return expected if estimators else None


def speedup_bound(sketches: Sequence[AnySketch], workload: Workload, target: Machine) -> float:
    """The most operations that the sketches do while lanes of float32 do one.

    Args:
        sketches: The sketches that apply. One that is not `Bounded` is taken to use dot products, if there are any.
        workload: The function to tune.
        target: The machine to tune it for.
    """
    plain = max((_DOT_PRODUCTS.get(spec.dtype, 1.0) for spec in workload.inputs), default=1.0)
    return max(plain, *(each.speedup_bound(workload, target) for each in sketches if isinstance(each, Bounded)), 1.0)


def multiplies_bfloat16(target: Cpu) -> bool:
    """Whether a CPU multiplies bfloat16 faster than float32, by dot products or by tiles."""
    by_tiles = product_of(BFLOAT16, BFLOAT16, target) is not None
    return by_tiles or dot_products.multiplies_bfloat16(target)


@dataclass(frozen=True, eq=False)
class OneAttention:
    """An attention that one kernel may compute, without all scores at a time.

    Attributes:
        factors: The buffers that its two products multiply.
        heads: How many heads there are.
        score_bytes: The size of all scores of a head.
    """

    factors: frozenset[Any]
    heads: int
    score_bytes: int


def one_attention(graph: StageGraph, target: Machine) -> OneAttention | None:
    """A function as an attention that one kernel of a machine may compute; None if no sketch takes it."""
    try:
        return _attention_of_gpu(graph, target) if isinstance(target, Gpu) else _attention_of_cpu(graph)
    except UnsupportedFunction:
        return None


def _attention_of_cpu(graph: StageGraph) -> OneAttention:
    chain = find_chain(graph)
    factors = {load.source for product in (chain.scores, chain.values) for load in product.factors}
    return OneAttention(frozenset(factors), chain.heads, 4 * chain.rows * chain.scores.column.extent)


def _attention_of_gpu(graph: StageGraph, target: Gpu) -> OneAttention | None:
    """One on tensor cores for 16 bits: others multiply three kernels of them there."""
    parts = find_attention(graph)
    sketch = GpuAttention() if parts.dtype == "float32" else GpuMmaAttention()
    if sketch.space(Workload.create("attention", graph.function()), target) is None:
        return None  # such as for more shared memory than there is
    factors = {load.source for load in (parts.query, parts.keys, parts.values)}
    heads = math.prod(axis.extent for axis in parts.heads)
    return OneAttention(frozenset(factors), heads, 4 * parts.row.extent * parts.key.extent)


def unit(target: Machine) -> int:
    """The float32 numbers that a machine computes together: the lanes of a vector, or the threads of a warp."""
    return target.lanes if isinstance(target, Cpu) else WARP


def favoured(target: Machine) -> float:
    """The share of candidates that an opening is chosen from, those that are expected to be the fastest.

    `benchmarks/gpu/model_of_time.py` compares shares for GPUs.
    """
    return 1 / 30 if isinstance(target, Gpu) else 0.5


def features(
    sketches: Sequence[tuple[AnySketch, Space]], workload: Workload, target: Machine, kind: str, kernels: int = 1
) -> Features | None:
    """What a cost model sees of candidates.

    Args:
        sketches: Sketches with their spaces, as `sketches_for` returns them.
        workload: The function to tune.
        target: The machine to tune it for.
        kind: One of `FEATURES`. "knobs" are the encodings of the knobs. "analytic" is what a sketch computes of its
            schedules, or the knobs for a sketch that is not `Described`. "both" are the knobs and the analytic
            features. "statements" are Ansor's 164 features of every statement, for which each candidate is scheduled
            unless its sketch is `Stated`.
        kernels: How many kernels are tuned side by side, and share the memory for features.

    Returns:
        A function from candidates to their features; None for "knobs", which a cost model sees anyway.

    Raises:
        InputError: The kind is unknown.
    """
    if kind not in FEATURES:
        raise InputError(f"unknown features {kind!r}; {hint(kind, FEATURES)}")
    if kind == "knobs":
        return None
    if kind == "statements":
        from .statement_features import statement_features  # loads much of TVM

        return statement_features(sketches, workload, target, kernels)

    def describe(sketch: AnySketch, space: Space) -> Describe:
        knobs = encoded(space)
        if not isinstance(sketch, Described):
            return knobs

        def analytic(points: Sequence[Point]) -> NDArray[np.float64]:
            return sketch.features(workload, target, space.columns(points))

        return analytic if kind == "analytic" else lambda points: np.hstack([knobs(points), analytic(points)])

    return by_sketch([space for _, space in sketches], [describe(sketch, space) for sketch, space in sketches])
