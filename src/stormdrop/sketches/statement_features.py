"""Ansor's 164 features of each statement of a scheduled function, as TVM extracts them.

There is one row per statement that stores, and a cost model adds the scores of a candidate's rows (Ansor, OSDI 2020,
section 5.2). A candidate that cannot be scheduled has one row of zeros. Scheduling a candidate takes 5 ms, extracting
its features another 5 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature
from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate
from tvm.tirx import PrimFunc

from ..ir.workload import Workload
from ..machine.contract import Machine
from ..machine.threads import thread_count
from ..space import Space
from ..surrogate.features import Features
from ..trial import Candidate
from .contract import AnySketch
from .meta_schedule import tune_context

WIDTH = 164
"""The number of features of a statement."""

_CACHED = 20_000  # candidates, of some 10 KB each


def statement_features(
    sketches: Sequence[tuple[AnySketch, Space]], workload: Workload, target: Machine, kernels: int = 1
) -> Features:
    """A function from candidates to their features, an array of shape `(stores, 164)` for each.

    Args:
        sketches: Sketches with their spaces.
        workload: The function to tune.
        target: The machine to tune it for.
        kernels: How many kernels are tuned side by side; the memory for features is shared out to them.
    """
    by_name = {space.name: (sketch, space) for sketch, space in sketches}
    extract = extractor(workload, target)
    cache: dict[Candidate, NDArray[np.float64]] = {}  # searches score the same candidate many times

    def scheduled(candidate: Candidate) -> PrimFunc | None:
        sketch, space = by_name[candidate.sketch]
        try:
            return sketch.apply(workload, target, space.config(candidate.point)).main
        except Exception:  # noqa: BLE001  whatever a sketch raises is the candidate's failure, which its measurement records
            return None

    def rows_of(candidates: Sequence[Candidate]) -> list[NDArray[np.float64]]:
        if len(cache) > _CACHED // kernels:
            cache.clear()
        new = [candidate for candidate in dict.fromkeys(candidates) if candidate not in cache]
        functions = {candidate: scheduled(candidate) for candidate in new}
        working = {candidate: function for candidate, function in functions.items() if function is not None}
        cache.update({candidate: np.zeros((1, WIDTH)) for candidate in functions})
        cache.update(zip(working, extract(list(working.values())), strict=True))
        return [cache[candidate] for candidate in candidates]

    return rows_of


def extractor(workload: Workload, target: Machine) -> Callable[[Sequence[PrimFunc]], list[NDArray[np.float64]]]:
    """A function from schedules of a workload to their features, an array of shape `(stores, 164)` for each."""
    features = PerStoreFeature()
    context = tune_context(_module(workload.function), target, threads=thread_count())

    def rows_of(functions: Sequence[PrimFunc]) -> list[NDArray[np.float64]]:
        candidates = [MeasureCandidate(Schedule(_module(function)), []) for function in functions]
        return [array.numpy() for array in features.extract_from(context, candidates)] if candidates else []

    return rows_of


def _module(function: PrimFunc) -> Any:
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
