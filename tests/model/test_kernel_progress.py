"""What a model's tuning tells of its kernels while it runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from stormdrop.model.tuning.gain import TaskProgress
from stormdrop.model.tuning.scheduler import _State
from stormdrop.tuning.result import KernelProgress


def state(**fields: Any) -> _State:
    task: Any = SimpleNamespace(name="dense", weight=3)
    return _State(task, **fields)


def test_a_kernel_goes_from_waiting_to_done() -> None:
    kernel: Any = object()
    session: Any = SimpleNamespace(trials=8)
    progress = TaskProgress(3, 1.0, ("tiled",), 0.0)
    assert state(kernel=kernel).so_far(False) == KernelProgress("dense", 3, "waiting")
    assert state(kernel=kernel, session=session, progress=progress).so_far(True) == KernelProgress(
        "dense", 3, "tuning", 8
    )
    progress.add(1.0, 2e-3)
    assert state(kernel=kernel, session=session, progress=progress).so_far(False) == KernelProgress(
        "dense", 3, "paused", 8, 2e-3
    )
    result: Any = SimpleNamespace(trials=9, best=SimpleNamespace(seconds=1e-3))
    assert state(kernel=kernel, result=result, tuned_here=True).so_far(False) == KernelProgress(
        "dense", 3, "done", 9, 1e-3
    )
    assert state(kernel=kernel, result=result).so_far(False).state == "recorded"


def test_a_kernel_that_is_not_tuned() -> None:
    assert state(reason="no sketch").so_far(False) == KernelProgress("dense", 3, "plain")
    assert state(kernel=object(), reason="no time left").so_far(False).state == "plain"  # type: ignore[arg-type]
