"""A candidate that does something wrong costs only that candidate."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Target
from stormdrop.measure.local import LocalMeasurer
from stormdrop.measure.pool import WorkerPool
from stormdrop.testing.faults import FAULTS, ChosenFaults, Plain, RandomFaults
from stormdrop.trial import Candidate, Request, Status

pytestmark = pytest.mark.compiles

Make = Callable[..., Candidate]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_has_its_status_and_the_rest_is_well(measurer: LocalMeasurer, candidate: Make, fault: str) -> None:
    """Candidates before and after it in the same batch, and in the next batch, are measured."""
    batch = [candidate(2), candidate(4, fault), candidate(8)]
    measurements = list(measurer.measure([Request(member, 2) for member in batch]))
    assert [measurement.status for measurement in measurements] == [Status.OK, FAULTS[fault], Status.OK]
    assert measurements[1].error
    assert "\n" not in measurements[1].error
    assert next(measurer.measure([Request(candidate(32), 2)])).ok


def test_errors_say_what_happened(measurer: LocalMeasurer, candidate: Make) -> None:
    faults = ["segfault_apply", "abort_run", "exit_run", "kill_run", "wrong", "unwritten", "memory_apply"]
    measurements = list(measurer.measure([Request(candidate(4, fault), 1) for fault in faults]))
    errors = dict(zip(faults, (measurement.error for measurement in measurements), strict=True))
    assert "SIGSEGV while applying the sketch" in errors["segfault_apply"]
    assert "SIGABRT while running" in errors["abort_run"]
    assert "exit code 3 while running" in errors["exit_run"]
    assert "SIGKILL while running" in errors["kill_run"]
    assert "is 12345, not" in errors["wrong"]
    assert "1 of 3072 elements" in errors["wrong"]
    assert "is 1.2345e+30, not" in errors["unwritten"]  # what outputs hold before a kernel runs
    assert "3072 of 3072 elements" in errors["unwritten"]
    assert "MemoryError" in errors["memory_apply"]


def test_one_worker_alone_survives_a_batch_of_faults(
    workload: Workload, target: Target, tmp_path: Path, candidate: Make
) -> None:
    """The other kernels of a worker that crashes are built again."""
    sketch = ChosenFaults(Plain())
    space = sketch.space(workload, target)
    assert space is not None
    kinds = ["segfault_run", "none", "abort_run", "none", "wrong", "none"]
    with LocalMeasurer(workload, target, [sketch], [space], workers=1, lock_path=tmp_path / "lock") as measurer:
        batch = [candidate(4 << index % 3, kind) for index, kind in enumerate(kinds)]
        measurements = list(measurer.measure([Request(member, 1) for member in batch]))
        expected = [Status.OK if kind == "none" else FAULTS[kind] for kind in kinds]
        assert [measurement.status for measurement in measurements] == expected
        assert measurer.account.restarts == 2


def test_a_worker_killed_between_two_batches_is_nobodys_fault(
    measurer: LocalMeasurer, pool: WorkerPool, candidate: Make
) -> None:
    assert next(measurer.measure([Request(candidate(8), 1)])).ok
    for worker in pool.workers:
        if worker.alive:
            os.kill(worker.pid, signal.SIGKILL)
    measurements = list(measurer.measure([Request(candidate(tile), 1) for tile in (8, 16, 32)]))
    assert [measurement.status for measurement in measurements] == [Status.OK] * 3


def test_a_worker_killed_while_it_runs_costs_that_candidate(
    measurer: LocalMeasurer, pool: WorkerPool, candidate: Make
) -> None:
    assert next(measurer.measure([Request(candidate(8), 1)])).ok
    measurer.runs.timeout = 60.0
    measurements = measurer.measure(
        [Request(candidate(32), 1), Request(candidate(4, "hang_run"), 1), Request(candidate(8), 1)]
    )
    assert next(measurements).ok  # all are built by now, so only the running worker dies at work
    processes = [worker.pid for worker in pool.workers if worker.alive]
    killer = threading.Timer(0.5, lambda: [os.kill(process, signal.SIGKILL) for process in processes])
    killer.start()
    killed, other = measurements
    killer.join()
    assert killed.status is Status.RUNTIME
    assert "SIGKILL while running" in killed.error
    assert other.ok


def test_an_overwritten_input_does_not_spoil_the_next_candidate(measurer: LocalMeasurer, candidate: Make) -> None:
    """Only the candidate that wrote to it is wrong, in every order and in the same worker."""
    batch = [candidate(tile, fault) for tile in (4, 8) for fault in ("none", "overwrites_input", "none")]
    measurements = list(measurer.measure([Request(member, 1) for member in batch]))
    assert [measurement.ok for measurement in measurements] == [True, False, True] * 2


def test_a_race_goes_on_without_the_candidates_that_fail(measurer: LocalMeasurer, candidate: Make) -> None:
    racing = [candidate(4), candidate(4, "segfault_run"), candidate(8), candidate(8, "raise"), candidate(4)]
    measurements = measurer.race(racing, rounds=3)
    assert [measurement.status for measurement in measurements] == [
        Status.OK,
        Status.RUNTIME,
        Status.OK,
        Status.INSTANTIATION,
        Status.OK,
    ]
    assert [len(measurement.seconds) for measurement in measurements] == [3, 0, 3, 0, 3]


def test_a_hang_ends_at_its_timeout(measurer: LocalMeasurer, candidate: Make) -> None:
    list(measurer.measure([Request(candidate(4), 1)]))
    start = time.perf_counter()
    (measurement,) = measurer.measure([Request(candidate(4, "hang_run"), 1)])
    assert measurement.status is Status.RUN_TIMEOUT
    assert time.perf_counter() - start >= measurer.runs.timeout  # type: ignore[operator]


def test_random_faults_are_the_asked_share_and_always_the_same(workload: Workload, target: Target) -> None:
    sketch = RandomFaults(Plain(), share=0.25, kinds=("raise", "wrong"))
    faults = [sketch.fault({"tile": tile}) for tile in range(2000)]
    assert faults == [sketch.fault({"tile": tile}) for tile in range(2000)]
    assert set(faults) == {"none", "raise", "wrong"}
    assert 0.2 < sum(fault != "none" for fault in faults) / len(faults) < 0.3
    assert Plain().space(workload, target).size == sketch.space(workload, target).size  # type: ignore[union-attr]
