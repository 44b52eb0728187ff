"""Default schedules for GPUs that TVM cannot lower; no GPU has to be here."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from stormdrop import operators
from stormdrop.machine.gpu import GPUS
from stormdrop.model.building import builder
from stormdrop.model.building.builder import TaskSchedules
from stormdrop.tuning.kernel import KernelTask
from stormdrop.tuning.options import TuneOptions

KERNEL = KernelTask.create(operators.softmax(64, 64), GPUS["a100"], TuneOptions())


@pytest.fixture
def nothing_lowers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: Any) -> None:
        raise RuntimeError("Cannot insert syncs inside condition")

    monkeypatch.setattr(builder, "lower_for_gpu", refuse)
    builder._problem_of.cache_clear()
    yield
    builder._problem_of.cache_clear()


def schedules(**result: Any) -> TaskSchedules:
    described = SimpleNamespace(described="softmax")
    found = SimpleNamespace(**result) if result else None
    task: Any = SimpleNamespace(task=described, result=found, borrowed=None)
    return TaskSchedules.of(task, KERNEL)


@pytest.mark.usefixtures("nothing_lowers")
def test_a_default_that_does_not_lower_gives_way_to_a_plain_schedule(caplog: pytest.LogCaptureFixture) -> None:
    assert not schedules().usable
    assert "its default schedule cannot be lowered: RuntimeError: Cannot insert syncs" in caplog.text


@pytest.mark.usefixtures("nothing_lowers")
def test_so_does_that_of_a_kernel_for_which_no_time_was_left() -> None:
    assert not schedules(best=None, default_failed=False).usable


@pytest.mark.usefixtures("nothing_lowers")
def test_what_was_measured_is_not_asked_again() -> None:
    space = KERNEL.sketches[0][1]
    best = SimpleNamespace(sketch=space.name, config=space.config(space.origin))
    assert schedules(best=best, default_failed=False).usable


def test_a_default_that_lowers_is_used() -> None:
    assert schedules().usable
