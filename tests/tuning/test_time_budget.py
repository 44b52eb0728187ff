"""A tuning with a time budget: batches are cut, and nothing is started without time. The clock is simulated."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import pytest
from replayed_tuning import TARGET, WORKLOAD, Counting, tune_replayed

from simulated_clock import SimulatedClock, simulated
from stormdrop.errors import LockTimeout
from stormdrop.records import open_store
from stormdrop.trial import Candidate, Measurement, Request
from stormdrop.tuning.tune import tune


class Slow(Counting):
    """Every measurement takes a second of the clock's."""

    def __init__(self, clock: SimulatedClock) -> None:
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
    return Slow(simulated(monkeypatch))


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


class ShutOut(Slow):
    """Another process takes the machine for ever after a number of measurements, or before the race."""

    free = 0

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for measurement in super().measure(requests):
            if self.free == 0:
                self._wait_in_vain()
            self.free -= 1
            yield measurement

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        return super().race(candidates, rounds) if self.free > 0 else self._wait_in_vain()

    def _wait_in_vain(self) -> NoReturn:
        self.clock.now = self.deadline  # fails if the session has not set one
        raise LockTimeout("the machine was not free in time")


@pytest.fixture
def shut_out(slow: Slow) -> ShutOut:
    return ShutOut(slow.clock)


def test_waiting_for_the_machine_counts(shut_out: ShutOut) -> None:
    """What was measured before is the result, without a race. Later it is no answer, and it is gone on with."""
    shut_out.free = 3
    with open_store("sqlite://") as store:
        result = tune_replayed(store, shut_out, search="random", time=20.0)
        assert result.trials == 3
        assert result.best is not None and result.best.speedup is None
        assert result.seconds == 20.0
        shut_out.free = 10**9
        assert tune_replayed(store, shut_out, search="random", time=20.0).reused < 10


def test_a_race_that_waits_in_vain_is_left_out(shut_out: ShutOut) -> None:
    shut_out.free = 19  # all that the time suffices for
    with open_store("sqlite://") as store:
        result = tune_replayed(store, shut_out, search="random", time=20.0)
    assert (result.trials, result.seconds) == (19, 20.0)
    assert result.best is not None and result.best.speedup is None


def test_a_machine_that_is_never_free_is_an_error(shut_out: ShutOut) -> None:
    with open_store("sqlite://") as store:
        with pytest.raises(LockTimeout, match="not free in time"):
            tune_replayed(store, shut_out, search="random", time=20.0)
        assert shut_out.clock.now == 20.0
        assert [session.trials for session in store.sessions()] == [0]


def test_without_a_time_there_is_no_deadline(shut_out: ShutOut) -> None:
    shut_out.free = 10**9
    with open_store("sqlite://") as store:
        tune_replayed(store, shut_out, search="random", trials=4)
    assert shut_out.deadline == math.inf


def test_without_time_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    sites = importlib.import_module("stormdrop.measure.sites")

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a measurer was started")

    monkeypatch.setattr(sites, "LocalMeasurer", refuse)
    with open_store("sqlite://") as store:
        result = tune(WORKLOAD, target=TARGET, store=store, time=1e-9)
        assert store.sessions() == []
    assert (result.best, result.trials) == (None, 0)
