"""A candidate that does something wrong costs only that candidate."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from stand_ins.faults import FAULTS, SUBTLE_FAULTS, ChosenFaults, Plain, RandomFaults
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.measure.contract import KernelSetup
from stormdrop.measure.local import LocalMeasurer
from stormdrop.measure.pool.pool import WorkerPool
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
    faults += ["wrong_later", "writes_before", "writes_after", "overwrites_input_later", "garbage_apply"]
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
    assert "after 1 samples: y0[0, 0] is" in errors["wrong_later"] or "y0[0, 0] is" in errors["wrong_later"]
    assert "writes to 4 bytes before output 0" in errors["writes_before"]
    assert "writes to 4 bytes after output 0" in errors["writes_after"]
    assert "writes to its inputs" in errors["overwrites_input_later"]
    assert "bytes that are no message while applying the sketch" in errors["garbage_apply"]


def test_one_worker_alone_survives_a_batch_of_faults(
    workload: Workload, target: Cpu, tmp_path: Path, candidate: Make
) -> None:
    """The other kernels of a worker that crashes are built again."""
    sketch = ChosenFaults(Plain())
    space = sketch.space(workload, target)
    assert space is not None
    kinds = ["segfault_run", "none", "abort_run", "none", "wrong", "none"]
    with LocalMeasurer(
        KernelSetup(workload, target, [(sketch, space)]), workers=1, lock_path=tmp_path / "lock"
    ) as measurer:
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


def test_a_worker_killed_while_it_runs_is_nobodys_fault(
    measurer: LocalMeasurer, pool: WorkerPool, candidate: Make
) -> None:
    measurer.runs.timeout = 60.0
    measurements = measurer.measure([Request(candidate(32), 1), Request(candidate(4, "sleep_run"), 1)])
    assert next(measurements).ok  # both are built by now, so only the running worker dies at work
    processes = [worker.pid for worker in pool.workers if worker.alive]
    killer = threading.Timer(0.5, lambda: [os.kill(process, signal.SIGKILL) for process in processes])
    killer.start()
    (killed,) = measurements
    killer.join()
    assert killed.ok, killed.error
    assert measurer.account.restarts > 0


def test_a_worker_killed_while_it_builds_is_nobodys_fault(
    measurer: LocalMeasurer, pool: WorkerPool, candidate: Make
) -> None:
    """The one that kills itself each time fails; the hanging one is killed once, and then hangs once more."""
    measurer.build_timeout = 4.0
    measurements = measurer.measure([Request(candidate(4, "hang_build"), 1), Request(candidate(8), 1)])
    assert next(measurer.measure([Request(candidate(16), 1)])).ok  # the workers are ready
    processes = [worker.pid for worker in pool.workers if worker.alive]
    killer = threading.Timer(0.5, lambda: [os.kill(process, signal.SIGKILL) for process in processes])
    killer.start()
    hung, other = measurements
    killer.join()
    assert hung.status is Status.BUILD_TIMEOUT and "still applying the sketch after 4 s" in hung.error
    assert hung.phases.schedule >= 4.0 and hung.phases.build == 0.0  # its seconds count where time is summed up
    assert other.ok


@pytest.mark.parametrize("fault", ["segfault_run", "kill_run", "exit_run"])
def test_only_what_may_come_from_outside_is_tried_again(measurer: LocalMeasurer, candidate: Make, fault: str) -> None:
    (failed,) = measurer.measure([Request(candidate(4, fault), 1)])
    assert failed.status is Status.RUNTIME
    assert next(measurer.measure([Request(candidate(4), 1)])).ok
    assert measurer.account.built == (3 if fault == "kill_run" else 2)


def test_a_worker_that_is_stopped_for_a_while_is_nobodys_fault(
    measurer: LocalMeasurer, pool: WorkerPool, candidate: Make
) -> None:
    """The stop is longer than the limit of the run, and does not count."""
    measurer.runs.timeout = 5.0  # 2.5 s at the first time, of which the kernel sleeps for 2
    measurements = measurer.measure([Request(candidate(32), 1), Request(candidate(4, "sleep_run"), 1)])
    assert next(measurements).ok
    restarts = measurer.account.restarts
    processes = [worker.pid for worker in pool.workers if worker.alive]
    timers = [
        threading.Timer(at, lambda number=number: [os.kill(process, number) for process in processes])
        for at, number in ((0.3, signal.SIGSTOP), (4.3, signal.SIGCONT))
    ]
    for timer in timers:
        timer.start()
    (stopped,) = measurements
    for timer in timers:
        timer.join()
    assert stopped.ok, stopped.error
    assert measurer.account.restarts == restarts


def test_a_worker_that_is_stopped_before_its_job_goes_on(
    measurer: LocalMeasurer, pool: WorkerPool, candidate: Make
) -> None:
    measurements = measurer.measure([Request(candidate(32), 1), Request(candidate(8), 1)])
    for _ in range(2):
        for worker in pool.workers:
            if worker.alive:
                os.kill(worker.pid, signal.SIGSTOP)
        assert next(measurements).ok


@pytest.mark.parametrize("fault", SUBTLE_FAULTS)
def test_what_small_integers_hide_does_not_win(measurer: LocalMeasurer, candidate: Make, fault: str) -> None:
    """It does not become the fastest, and fails in a race."""
    (subtle,) = measurer.measure([Request(candidate(4, fault), 2)])
    assert subtle.status is SUBTLE_FAULTS[fault] and "for real numbers" in subtle.error
    assert measurer.best is None
    raced = measurer.race([candidate(8), candidate(4, fault)], rounds=3)
    assert [measurement.status for measurement in raced] == [Status.OK, SUBTLE_FAULTS[fault]]


def test_a_fault_of_a_later_execution_is_found_in_a_race(
    measurer: LocalMeasurer, candidate: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    raced = measurer.race([candidate(8), candidate(4, "wrong_later"), candidate(16, "writes_after")], rounds=3)
    assert [measurement.status for measurement in raced] == [Status.OK, Status.WRONG_ANSWER, Status.WRONG_ANSWER]


def test_no_process_of_a_candidate_is_left(measurer: LocalMeasurer, candidate: Make) -> None:
    before = set(psutil.Process().children(recursive=True))
    (forked,) = measurer.measure([Request(candidate(4, "fork_apply"), 1)])
    assert forked.status is Status.BUILD_TIMEOUT
    assert next(measurer.measure([Request(candidate(4), 1)])).ok
    workers = {worker.pid for worker in measurer._pool.workers if worker.alive}
    left = set(psutil.Process().children(recursive=True)) - before
    assert {process.pid for process in left} <= workers


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


def test_random_faults_are_the_asked_share_and_always_the_same(workload: Workload, target: Cpu) -> None:
    sketch = RandomFaults(Plain(), share=0.25, kinds=("raise", "wrong"))
    faults = [sketch.fault({"tile": tile}) for tile in range(2000)]
    assert faults == [sketch.fault({"tile": tile}) for tile in range(2000)]
    assert set(faults) == {"none", "raise", "wrong"}
    assert 0.2 < sum(fault != "none" for fault in faults) / len(faults) < 0.3
    assert Plain().space(workload, target).size == sketch.space(workload, target).size  # type: ignore[union-attr]
