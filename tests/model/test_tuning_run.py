"""A run of the tuning of a model: what Ctrl-C does before and after something was measured, and a time that is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from stormdrop.model.building.tuned_task import TunedTasks
from stormdrop.model.tuning.tuning_run import TuningRun


def tuned(*, trials: int, reused: int = 0, interrupted: bool = False) -> TunedTasks:
    """A model with one kernel, for which a session of this run, or the records, have these trials."""
    result = SimpleNamespace(trials=trials, reused=reused, interrupted=interrupted, phases={})
    return TunedTasks([SimpleNamespace(result=result)], interrupted, [], 1.5)  # type: ignore[list-item]


def interrupted_once() -> tuple[list[int], Callable[[], int]]:
    calls: list[int] = []

    def work() -> int:
        calls.append(len(calls))
        if len(calls) == 1:
            raise KeyboardInterrupt
        return len(calls)

    return calls, work


@pytest.mark.parametrize(
    "known",
    [None, tuned(trials=0), tuned(trials=12, reused=12)],
    ids=["before the tuning", "nothing measured", "everything in the records"],
)
def test_ctrl_c_ends_a_run_that_has_measured_nothing(known: TunedTasks | None) -> None:
    run = TuningRun(time.perf_counter(), None, None)
    if known is not None:
        run.add(known)
    calls, work = interrupted_once()
    with pytest.raises(KeyboardInterrupt):
        run.despite_interruption(work)
    assert calls == [0]


def test_what_was_measured_is_finished_despite_ctrl_c() -> None:
    run = TuningRun(time.perf_counter(), None, None)
    run.add(tuned(trials=12, reused=6))
    _, work = interrupted_once()
    assert run.despite_interruption(work) == 2
    assert run.interrupted


@pytest.mark.parametrize(("trials", "reused"), [(12, 6), (6, 6)], ids=["goes on", "was resumed"])
def test_a_tuning_that_ctrl_c_ends_is_kept_if_it_has_trials(trials: int, reused: int) -> None:
    run = TuningRun(time.perf_counter(), None, None)
    run.add(tuned(trials=trials, reused=reused, interrupted=True))
    assert run.interrupted


def test_a_tuning_that_ctrl_c_ends_before_its_first_trial_is_over() -> None:
    with pytest.raises(KeyboardInterrupt):
        TuningRun(time.perf_counter(), None, None).add(tuned(trials=0, interrupted=True))


@pytest.mark.parametrize(("seconds", "late"), [(5.0, True), (600.0, False), (None, False)])
def test_a_run_that_takes_longer_than_its_time_says_why(
    seconds: float | None, late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    run = TuningRun(time.perf_counter() - 9.0, seconds, None)
    run.add(tuned(trials=6, reused=6))
    with caplog.at_level(logging.WARNING):
        run.say_if_late("net")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == late
    assert all("of 5.0 s: records 1.5 s" in line for line in lines)
