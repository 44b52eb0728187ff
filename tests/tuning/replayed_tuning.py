"""Tuning a small kernel on recorded times instead of this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stormdrop import operators
from stormdrop.machine.cpu import Cpu
from stormdrop.measure.replay import ReplayMeasurer
from stormdrop.records import Store
from stormdrop.sketches.registry import sketches_for
from stormdrop.trial import Candidate, Measurement, Request, Trial
from stormdrop.tuning.result import TuneResult
from stormdrop.tuning.tune import tune

_DETECTED = Cpu.detect()
# Matmuls have one sketch on any machine: tiles are left out.
TARGET = replace(_DETECTED, features=tuple(name for name in _DETECTED.features if not name.startswith("amx")))
WORKLOAD = operators.matmul(32, 64, 32)
SIMILAR_WORKLOAD = operators.matmul(32, 64, 48)  # its space has the same knobs and values


def landscape(noise: float = 0.01) -> dict[Candidate, list[float]]:
    """A convex time over the whole space of the workload's sketch, with recorded noise."""
    (_, space), rng = sketches_for(WORKLOAD, TARGET)[0], np.random.default_rng(0)
    points = np.array(list(space.points()))
    bottom = points[len(points) // 3]
    recorded = {}
    for point in points:
        mean = 1e-3 * (1 + 0.05 * float(((point - bottom) ** 2).sum()))
        recorded[Candidate(space.name, tuple(map(int, point)))] = list(mean * rng.lognormal(0, noise, 20))
    return recorded


RECORDED = landscape()


class Counting(ReplayMeasurer):
    """A replay that keeps the candidates and trials that it measured, and that may be interrupted."""

    def __init__(self, interrupt_after: int | None = None) -> None:
        super().__init__(RECORDED, np.random.default_rng(7))
        self.candidates: list[Candidate] = []
        self.trials: list[Trial] = []
        self.left_until_interrupt = interrupt_after

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for request, measurement in zip(requests, super().measure(requests), strict=True):
            if self.left_until_interrupt == 0:
                raise KeyboardInterrupt
            self.left_until_interrupt = None if self.left_until_interrupt is None else self.left_until_interrupt - 1
            self.candidates.append(request.candidate)
            self.trials.append(Trial(request.candidate, measurement))
            yield measurement


def tune_replayed(store: Store, measurer: ReplayMeasurer, **settings: Any) -> TuneResult:
    return tune(WORKLOAD, target=TARGET, store=store, measurer=measurer, **{"search": "droplet", **settings})


def tune_similar_kernel(store: Store, **settings: Any) -> TuneResult:
    return tune(SIMILAR_WORKLOAD, target=TARGET, store=store, measurer=Counting(), search="droplet", **settings)


def stored_trials(store: Store) -> list[tuple[str, str, tuple[float, ...]]]:
    (summary,) = store.sessions()
    trials = store.records(store.session(summary.id))
    return [(trial.sketch, json.dumps(dict(trial.config)), trial.measurement.seconds) for trial in trials]
