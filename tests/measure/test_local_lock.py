"""Measuring on this machine takes the machine-wide lock: when it is held, and who waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stormdrop.errors import MeasureError
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Target
from stormdrop.machine.lock import MachineLock
from stormdrop.measure.local import LocalMeasurer
from stormdrop.testing.faults import ChosenFaults, Plain
from stormdrop.trial import Candidate, Request

pytestmark = pytest.mark.compiles

Make = Callable[..., Candidate]


def test_the_lock_is_free_after_the_last_measurement(measurer: LocalMeasurer, candidate: Make, tmp_path: Path) -> None:
    """It is free even if the caller never asks for one more, as `zip` does not."""
    measurements = measurer.measure([Request(candidate(4), 1), Request(candidate(8), 1)])
    assert next(measurements).ok
    with pytest.raises(MeasureError, match="held already"):
        list(measurer.measure([Request(candidate(4), 1)]))
    assert next(measurements).ok
    with measurer._run_lock.exclusive():
        assert measurer.account.lock < 5


def test_waiting_for_the_machine_is_no_running_time(measurer: LocalMeasurer, candidate: Make, tmp_path: Path) -> None:
    """Another process measures for longer than a run may take, and the candidate does not pay for it."""
    list(measurer.measure([Request(candidate(4), 1)]))
    measurer.runs.timeout = 0.8
    other = MachineLock(tmp_path / "lock")
    taken = threading.Event()

    def hold() -> None:
        with other.exclusive():
            taken.set()
            time.sleep(1.5)

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    (measurement,) = measurer.measure([Request(candidate(4), 1)])
    holder.join()
    other.close()
    assert measurement.ok
    assert measurer.account.lock > 1
    assert measurement.phases.total < 0.8


def test_kernels_of_a_gpu_run_under_its_own_lock_and_are_built_under_that_of_the_machine(
    workload: Workload, target: Target, candidate: Make, tmp_path: Path
) -> None:
    sketch = ChosenFaults(Plain())
    space = sketch.space(workload, target)
    assert space is not None
    machine, other = MachineLock(tmp_path / "lock"), MachineLock(tmp_path / "lock.gpu1.lock")
    # The kernels run on the CPU in place of a GPU.
    with (
        LocalMeasurer(workload, target, [sketch], [space], workers=1, lock_path=tmp_path / "lock", gpu=0) as measurer,
        other.exclusive(),
    ):
        done = threading.Event()

        def measure() -> None:
            assert all(measurement.ok for measurement in measurer.measure([Request(candidate(), 1)]))
            done.set()

        with machine.exclusive():
            thread = threading.Thread(target=measure)
            thread.start()
            assert not done.wait(3.0)
            assert measurer.account.built == 0
        # This is another build. A measurement on the CPU would have to wait for it.
        with machine.shared():
            assert done.wait(30.0)
        thread.join()
        assert measurer.account.lock > 2
    machine.close()
    other.close()
