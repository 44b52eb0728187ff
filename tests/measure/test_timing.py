"""Timing plain callables: how often they are called, and which samples result."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import pytest

from stormdrop.measure import timing
from stormdrop.measure.timing import TimingPlan, interleaved, sample


class Clock:
    """A clock that moves only when a kernel runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.log: list[str] = []
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)  # type: ignore[attr-defined]

    def kernel(self, seconds: float, name: str = "k") -> Callable[[], object]:
        def call() -> None:
            self.now += seconds
            self.log.append(name)

        return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_sample_lasts_two_milliseconds(clock: Clock) -> None:
    samples = sample(clock.kernel(0.25e-3), TimingPlan(repeats=4))
    assert samples == pytest.approx([0.25e-3] * 4)
    assert len(clock.log) == 1 + 3 + 4 * 8  # warm-up, three to estimate, four samples of eight


def test_a_hopeless_kernel_gets_one_sample(clock: Clock) -> None:
    assert sample(clock.kernel(30e-3), TimingPlan(repeats=5, cutoff=9e-3)) == pytest.approx([30e-3])
    assert len(clock.log) == 2
    assert len(sample(clock.kernel(8e-3), TimingPlan(repeats=5, cutoff=9e-3))) == 5


def test_a_slow_start_makes_no_kernel_hopeless(clock: Clock) -> None:
    """Waking the threads takes longer than a short kernel runs."""
    durations = iter([500e-6, 300e-6, 20e-6])

    def call() -> None:
        clock.now += next(durations, 20e-6)

    assert len(sample(call, TimingPlan(repeats=3, cutoff=60e-6))) == 3


def test_no_execution_of_a_long_kernel_is_thrown_away(clock: Clock) -> None:
    assert len(sample(clock.kernel(0.2), TimingPlan(repeats=3))) == 3
    assert len(clock.log) == 4
    clock.log.clear()
    assert len(sample(clock.kernel(2.0), TimingPlan(repeats=3))) == 3
    assert len(clock.log) == 3


def test_the_first_execution_may_have_been_done_already(clock: Clock) -> None:
    sample(clock.kernel(50e-3), TimingPlan(repeats=1), first=50e-3)
    assert len(clock.log) == 2


def test_a_race_takes_turns_forwards_and_backwards(clock: Clock) -> None:
    kernels = [clock.kernel(30e-3, "a"), clock.kernel(40e-3, "b"), clock.kernel(50e-3, "c")]
    samples = interleaved(kernels, rounds=3)
    assert clock.log[3:] == list("abccbaabc")
    for of_kernel, expected in zip(samples, (30e-3, 40e-3, 50e-3), strict=True):
        assert of_kernel == pytest.approx([expected] * 3)


def test_short_kernels_are_warmed_up_before_each_turn(clock: Clock) -> None:
    interleaved([clock.kernel(1e-3, "a"), clock.kernel(2e-3, "b")], rounds=2)
    assert clock.log[2:] == list("aaabbbbaaa")


def test_garbage_is_collected_afterwards_as_before() -> None:
    states: list[bool] = []
    assert gc.isenabled()
    sample(lambda: states.append(gc.isenabled()), TimingPlan(repeats=1))
    assert states
    assert not any(states)
    assert gc.isenabled()


def test_real_time_is_measured() -> None:
    (seconds,) = sample(lambda: time.sleep(0.01), TimingPlan(repeats=1))
    assert seconds >= 0.01
