"""The sketches that exist, which of them apply to a workload, and what they expect of their schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, hint
from ..ir.workload import Workload
from ..machine.cpu import Machine, Target
from ..machine.gpu import Device
from ..space import Space
from ..surrogate.features import Describe, Features, by_sketch, encoded
from ..trial import Candidate, Point
from .contract import Described, Estimator, Sketch
from .cpu.register_blocked import RegisterBlocked, few_columns
from .cpu.streaming import Streaming
from .cpu.winograd.sketch import Winograd
from .fingerprint import space_of
from .gpu.contraction import GpuContraction
from .gpu.streaming import GpuStreaming
from .gpu.tensor_core import GpuTensorCore

MAX_ERROR = 1e-4
"""What a schedule that computes in another way may differ from the reference: max|difference| / max|reference|."""


def sketches(max_error: float = MAX_ERROR) -> tuple[Sketch, ...]:
    """Those for CPUs; with `max_error` 0 only those that compute what the function says, in another order."""
    inexact = (Winograd(4, max_error), Winograd(2, max_error)) if max_error else ()
    return (RegisterBlocked(), *inexact, Streaming())


def gpu_sketches() -> tuple[Sketch, ...]:
    """Those for GPUs."""
    return (GpuTensorCore(), GpuContraction(), GpuStreaming())


SOURCES = ("builtin", "rules", "meta_schedule")
"""Where sketches come from: those of `sketches`, those that rules derive, and TVM MetaSchedule's own."""


def sketches_for(
    workload: Workload, target: Machine, given: Sequence[Sketch] | str | None = None, max_error: float = MAX_ERROR
) -> list[tuple[Sketch, Space]]:
    """The sketches that apply to a workload with their spaces, in the order in which they are given.

    `given` may be one of `SOURCES`, "builtin" by default; what streams is then only there where no other applies, or
    where a contraction has too few columns to fill a CPU's vectors with: elsewhere it does the same with less.
    """
    if isinstance(given, str):
        given = _sourced(given, workload, target)
    found: list[tuple[Sketch, Space]] = []
    own = gpu_sketches() if isinstance(target, Device) else sketches(max_error)
    for sketch in own if given is None else given:
        if given is None and found and _only_streams(sketch, workload, target):
            continue
        space = space_of(sketch, workload, target)
        if space is not None:
            found.append((sketch, space))
    return found


def _only_streams(sketch: Sketch, workload: Workload, target: Machine) -> bool:
    """Whether a sketch is of no use beside one for contractions."""
    if isinstance(target, Target):
        return isinstance(sketch, Streaming) and not few_columns(workload, target)
    return isinstance(sketch, GpuStreaming)


def _sourced(source: str, workload: Workload, target: Machine) -> Sequence[Sketch] | None:
    if source not in SOURCES:
        raise InputError(f"unknown space {source!r}; {hint(source, SOURCES)}")
    if source == "rules":
        if isinstance(target, Device):
            raise InputError("the rules derive sketches for CPUs; for a GPU there is builtin and meta_schedule")
        from .rules import derive

        return derive(workload, target)
    if source == "meta_schedule":
        from .meta_schedule import meta_schedule_sketches  # loads much of TVM

        return meta_schedule_sketches(workload, target)
    return None


def prior(
    found: Sequence[tuple[Sketch, Space]], workload: Workload, target: Machine
) -> Callable[[Sequence[Candidate]], NDArray[np.float64]] | None:
    """What candidates of these sketches are expected to cost, shape `(n,)`; NaN where a sketch does not say."""
    telling = [(sketch, space) for sketch, space in found if isinstance(sketch, Estimator)]

    def expected(candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        costs = np.full(len(candidates), np.nan)
        for sketch, space in telling:
            rows = [row for row, candidate in enumerate(candidates) if candidate.sketch == space.name]
            if rows:
                columns = space.columns([candidates[row].point for row in rows])
                costs[rows] = sketch.estimate(workload, target, columns)
        return costs

    return expected if telling else None


FEATURES = ("knobs", "analytic", "both", "statements")
"""What a cost model can be shown of a schedule."""


def features(found: Sequence[tuple[Sketch, Space]], workload: Workload, target: Machine, kind: str) -> Features | None:
    """What a cost model sees of candidates of these sketches; None for the knobs, which it sees without being shown.

    "analytic": what a sketch says of its schedules, the knobs where it says nothing; "both": that beside the knobs;
    "statements": Ansor's 164 features of every statement, for which each candidate is scheduled. Raises `InputError`
    for another kind.
    """
    if kind not in FEATURES:
        raise InputError(f"unknown features {kind!r}; {hint(kind, FEATURES)}")
    if kind == "knobs":
        return None
    if kind == "statements":
        from .statement_features import statement_features  # loads much of TVM

        return statement_features(found, workload, target)

    def describe(sketch: Sketch, space: Space) -> Describe:
        knobs = encoded(space)
        if not isinstance(sketch, Described):
            return knobs

        def analytic(points: Sequence[Point]) -> NDArray[np.float64]:
            return sketch.features(workload, target, space.columns(points))

        return analytic if kind == "analytic" else lambda points: np.hstack([knobs(points), analytic(points)])

    return by_sketch([space for _, space in found], [describe(*each) for each in found])
