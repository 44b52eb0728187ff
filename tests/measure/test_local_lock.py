"""Measuring on this machine takes the machine-wide lock: when it is held, and who waits for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from lock_waits import LINUX, until_it_waits
from stand_ins.faults import ChosenFaults, Plain
from stormdrop.errors import LockTimeout
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.sharing.lock import MachineLock
from stormdrop.measure.contract import KernelSetup
from stormdrop.measure.local import LocalMeasurer
from stormdrop.trial import Candidate, Request

pytestmark = pytest.mark.compiles

Make = Callable[..., Candidate]


@pytest.mark.parametrize("last", ["none", "raise"])
def test_no_lock_is_held_while_the_caller_has_a_measurement(
    measurer: LocalMeasurer, candidate: Make, tmp_path: Path, last: str
) -> None:
    """Others may use the machine while a measurement is written down, after a run and after a failed build."""
    requests = [Request(candidate(4, "raise"), 1), *(Request(candidate(tile), 1) for tile in (4, 8))]
    measurements = measurer.measure([*requests, Request(candidate(16, last), 1)])
    other = MachineLock(tmp_path / "lock")
    for expected in (False, True, True, last == "none"):
        assert next(measurements).ok is expected
        with other.exclusive(deadline=time.perf_counter() + 5.0):
            begin = time.perf_counter()
            while not _at_rest(measurer):
                assert time.perf_counter() < begin + 5.0, "a worker is at work"
    other.close()


def _at_rest(measurer: LocalMeasurer) -> bool:
    states = {psutil.Process(worker.pid).status() for worker in measurer._pool.workers if worker.alive}
    return states <= {psutil.STATUS_SLEEPING, psutil.STATUS_STOPPED}


def test_a_caller_that_does_not_go_on_leaves_no_worker_paused(measurer: LocalMeasurer, candidate: Make) -> None:
    for first in ("raise", "none"):
        measurements = measurer.measure([Request(candidate(4, first), 1), Request(candidate(8), 1)])
        next(measurements)
        measurements.close()  # type: ignore[attr-defined]
        states = [psutil.Process(worker.pid).status() for worker in measurer._pool.workers if worker.alive]
        assert psutil.STATUS_STOPPED not in states
        assert next(measurer.measure([Request(candidate(16), 1)])).ok


@LINUX
def test_waiting_for_the_machine_is_no_running_time(measurer: LocalMeasurer, candidate: Make, tmp_path: Path) -> None:
    """Another process measures for longer than a run may take, and the candidate does not pay for it."""
    list(measurer.measure([Request(candidate(4), 1)]))
    measurer.runs.timeout = limit = 3.0
    other = MachineLock(tmp_path / "lock")
    taken = threading.Event()

    def hold() -> None:
        with other.exclusive():
            taken.set()
            until_it_waits(os.getpid())
            time.sleep(1.2 * limit)

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    (measurement,) = measurer.measure([Request(candidate(4), 1)])
    holder.join()
    other.close()
    assert measurement.ok  # it took no longer than the limit, so the wait is no part of it
    assert measurer.account.lock >= 1.2 * limit
    assert measurement.phases.total < measurer.account.lock


def test_the_wait_for_the_machine_has_a_deadline(measurer: LocalMeasurer, candidate: Make, tmp_path: Path) -> None:
    other = MachineLock(tmp_path / "lock")
    with other.exclusive():
        for attempt in (
            lambda: list(measurer.measure([Request(candidate(4), 1)])),
            lambda: measurer.race([candidate(4)], 3),
        ):
            measurer.deadline = time.perf_counter() + 0.3
            with pytest.raises(LockTimeout, match="not free in time"):
                attempt()
            assert time.perf_counter() - measurer.deadline < 5
    other.close()
    (measurement,) = measurer.measure([Request(candidate(4), 1)])
    assert measurement.ok


@LINUX
def test_kernels_of_a_gpu_run_under_its_own_lock_and_are_built_under_that_of_the_machine(
    workload: Workload, target: Cpu, candidate: Make, tmp_path: Path
) -> None:
    sketch = ChosenFaults(Plain())
    space = sketch.space(workload, target)
    assert space is not None
    machine, other = MachineLock(tmp_path / "lock"), MachineLock(tmp_path / "lock.gpu1.lock")
    # The kernels run on the CPU in place of a GPU.
    with (
        LocalMeasurer(
            KernelSetup(workload, target, [(sketch, space)]), workers=1, lock_path=tmp_path / "lock", gpu=0
        ) as measurer,
        other.exclusive(),
    ):
        done = threading.Event()

        def measure() -> None:
            assert all(measurement.ok for measurement in measurer.measure([Request(candidate(), 1)]))
            done.set()

        with machine.exclusive():
            thread = threading.Thread(target=measure)
            thread.start()
            until_it_waits(os.getpid())
            assert not done.wait(1.0)
            assert measurer.account.built == 0
        # This is another build. A measurement on the CPU would have to wait for it.
        with machine.shared():
            assert done.wait(100.0)
        thread.join()
        assert measurer.account.lock >= 1
    machine.close()
    other.close()
