"""A tuning with a time budget: batches are cut, and nothing is started without time. The clock is simulated."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from replayed_tuning import TARGET, WORKLOAD, Counting, tune_replayed

from stormdrop.records import open_store
from stormdrop.trial import Candidate, Measurement, Request
from stormdrop.tuning.tune import tune


class Clock:
    """Time that passes when something is measured."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Slow(Counting):
    """Every measurement takes a second of the clock's."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.abandoned = 0
        self.rounds = 0

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for count, measurement in enumerate(super().measure(requests), start=1):
            self.clock.now += 1.0
            try:
                yield measurement
            except GeneratorExit:
                self.abandoned += count < len(requests)
                raise

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        self.rounds = rounds
        return super().race(candidates, rounds)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    clock = Clock()
    for module in ("stormdrop.tuning.tune", "stormdrop.tuning.session", "stormdrop.tuning.request"):
        monkeypatch.setattr(importlib.import_module(module), "clock", clock)
    return Slow(clock)


def test_a_batch_is_cut_to_the_time_that_is_left(slow: Slow) -> None:
    """Of 20 s one is for the race: two batches of 8, and 3 more, without abandoning any."""
    with open_store("sqlite://") as store:
        result = tune_replayed(store, slow, search="random", time=20.0)
    assert result.trials == 19
    assert slow.abandoned == 0


def test_a_batch_ends_when_the_time_is_clearly_over(slow: Slow) -> None:
    with open_store("sqlite://") as store:
        result = tune_replayed(store, slow, search="random", time=5.0)
        assert store.sessions()[0].trials == result.trials == 5
    assert result.best is not None


def test_without_time_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    local = importlib.import_module("stormdrop.measure.local")

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a measurer was started")

    monkeypatch.setattr(local, "LocalMeasurer", refuse)
    with open_store("sqlite://") as store:
        result = tune(WORKLOAD, target=TARGET, store=store, time=1e-9)
        assert store.sessions() == []
    assert (result.best, result.trials) == (None, 0)
