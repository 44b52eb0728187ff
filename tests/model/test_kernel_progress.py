"""What a model's tuning tells of its kernels while it runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stormdrop.model.tuning.gain import TaskProgress
from stormdrop.model.tuning.task_state import Answered, Plain, Running, ScheduledTask, State, Waiting
from stormdrop.tuning.result import KernelProgress

KERNEL: Any = object()


def dense(state: str, trials: int = 0, best_seconds: float | None = None) -> KernelProgress:
    return KernelProgress("dense", 3, state, trials, best_seconds, ("head.dense",))


def so_far(state: State, now: bool = False) -> KernelProgress:
    task: Any = SimpleNamespace(name="dense", weight=3, layers=("head.dense",))
    return ScheduledTask(task, state).so_far(now)


def test_a_kernel_goes_from_waiting_to_done() -> None:
    session: Any = SimpleNamespace(trials=8)
    running = Running(KERNEL, session, TaskProgress(3, 1.0, ("tiled",), 0.0))
    assert so_far(Waiting(KERNEL)) == dense("waiting")
    assert so_far(running, now=True) == dense("tuning", 8)
    running.progress.add(1.0, 2e-3)
    assert so_far(running) == dense("paused", 8, 2e-3)
    result: Any = SimpleNamespace(trials=9, best=SimpleNamespace(seconds=1e-3))
    assert so_far(Answered(KERNEL, result, running.progress)) == dense("done", 9, 1e-3)
    assert so_far(Answered(KERNEL, result)).state == "recorded"


@pytest.mark.parametrize(
    ("interrupted", "reason"),
    [
        (True, "interrupted before a candidate was measured: default schedule"),
        (False, "no time left: default schedule"),
    ],
)
def test_a_kernel_of_which_nothing_was_measured_says_why(interrupted: bool, reason: str) -> None:
    result: Any = SimpleNamespace(trials=0, best=None, interrupted=interrupted)
    task: Any = SimpleNamespace(name="dense", weight=3, layers=())
    begun = ScheduledTask(task, Answered(KERNEL, result, TaskProgress(3, 1.0, ("tiled",), 0.0)))
    begun.conclude()
    assert (begun.tuned().kernel, begun.tuned().result, begun.tuned().reason) == (KERNEL, result, reason)


def test_a_kernel_that_is_not_tuned() -> None:
    assert so_far(Plain("no sketch")) == dense("plain")
    assert so_far(Waiting(KERNEL, "no time left")).state == "plain"


@pytest.mark.parametrize(
    ("default", "latency"),
    [
        pytest.param(4e-4, 3e-4, id="it was three quarters of the default alone: it is inside the model"),
        pytest.param(2e-4, 4e-4, id="a slower one than the default will not stand"),
        pytest.param(None, 3e-4, id="the default was not timed alone: what it takes alone"),
    ],
)
def test_a_gain_alone_is_a_gain_inside_the_model(default: float | None, latency: float) -> None:
    session: Any = SimpleNamespace(trials=8, default_seconds=None if default is None else default / 2)
    progress = TaskProgress(2, 1.0, ("tiled",), 0.0)
    task: Any = SimpleNamespace(name="dense", weight=2, layers=())
    scheduled = ScheduledTask(task, Running(KERNEL, session, progress), untuned=4e-4)
    assert scheduled.latency == 4e-4
    progress.add(1.0, 1.5e-4)
    assert scheduled.latency == pytest.approx(latency)
    assert scheduled.so_far(now=True).best_seconds == pytest.approx(latency / 2)
    result: Any = SimpleNamespace(trials=8, best=SimpleNamespace(seconds=1.5e-4), baseline=session.default_seconds)
    assert ScheduledTask(task, Answered(KERNEL, result, progress), untuned=4e-4).latency == pytest.approx(latency)
