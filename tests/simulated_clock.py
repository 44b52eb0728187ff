"""Time that passes only where a test says so: what the tuning of kernels, models and callables reads of the clock."""

from __future__ import annotations

import importlib

import pytest

_READERS = (
    *("tuning.tune", "tuning.session", "tuning.request", "tuning.kernel", "tuning.minimize"),
    *("tuning.functions.autotune", "model.tuning.budget", "compare.search_run"),
)


class SimulatedClock:
    """Stands for the module `time`.

    Args:
        tick: Seconds that pass with each reading.

    Attributes:
        now: The next reading.
    """

    def __init__(self, tick: float = 0.0) -> None:
        self.now, self._tick = 0.0, tick

    def perf_counter(self) -> float:
        self.now += self._tick
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def simulated(monkeypatch: pytest.MonkeyPatch, tick: float = 0.0) -> SimulatedClock:
    """The clock that a test has until it ends."""
    clock = SimulatedClock(tick)
    for name in _READERS:
        # Not by its name: `stormdrop.tuning.tune` is also a function.
        monkeypatch.setattr(importlib.import_module(f"stormdrop.{name}"), "clock", clock)
    return clock
