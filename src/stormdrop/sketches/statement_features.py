"""Ansor's 164 features of each statement of a scheduled function, by TVM's extractor.

One row per statement that stores: a cost model sums up the scores of a candidate's rows (Ansor, OSDI 2020, 5.2).
What cannot be scheduled is one row of zeros. A candidate takes 5 ms to schedule and 5 to extract.
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
_KEPT = 20_000  # candidates, of some 10 KB each


def statement_features(found: Sequence[tuple[AnySketch, Space]], workload: Workload, target: Machine) -> Features:
    """One array of shape `(stores, 164)` per candidate."""
    sketches = {space.name: (sketch, space) for sketch, space in found}
    extract = extractor(workload, target)
    known: dict[Candidate, NDArray[np.float64]] = {}  # searches score a candidate again and again

    def scheduled(candidate: Candidate) -> PrimFunc | None:
        sketch, space = sketches[candidate.sketch]
        try:
            return sketch.apply(workload, target, space.config(candidate.point)).main
        except Exception:  # noqa: BLE001  whatever a sketch raises is this candidate's failure, which measuring records
            return None

    def rows_of(candidates: Sequence[Candidate]) -> list[NDArray[np.float64]]:
        if len(known) > _KEPT:
            known.clear()
        new = {each: scheduled(each) for each in dict.fromkeys(candidates) if each not in known}
        working = {each: function for each, function in new.items() if function is not None}
        known.update({each: np.zeros((1, WIDTH)) for each in new})
        known.update(zip(working, extract(list(working.values())), strict=True))
        return [known[each] for each in candidates]

    return rows_of


def extractor(workload: Workload, target: Machine) -> Callable[[Sequence[PrimFunc]], list[NDArray[np.float64]]]:
    """From schedules of a workload to one array of shape `(stores, 164)` for each."""
    features = PerStoreFeature()
    context = tune_context(_module(workload.function), target, threads=thread_count())

    def rows_of(functions: Sequence[PrimFunc]) -> list[NDArray[np.float64]]:
        candidates = [MeasureCandidate(Schedule(_module(function)), []) for function in functions]
        return [array.numpy() for array in features.extract_from(context, candidates)] if candidates else []

    return rows_of


def _module(function: PrimFunc) -> Any:
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
