"""What a candidate can do wrong costs that candidate, and nothing else."""

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
from stormdrop.testing.faults import FAULTS, Plain, RandomFaults
from stormdrop.trial import Candidate, Request, Status

Make = Callable[..., Candidate]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_has_its_status_and_the_rest_is_well(measurer: LocalMeasurer, candidate: Make, fault: str) -> None:
    """Candidates before and behind it in the same batch, and in the next one, are measured."""
    batch = [candidate(2), candidate(4, fault), candidate(8)]
    answers = list(measurer.measure([Request(member, 2) for member in batch]))
    assert [answer.status for answer in answers] == [Status.OK, FAULTS[fault], Status.OK]
    assert answers[1].error
    assert "\n" not in answers[1].error
    assert next(measurer.measure([Request(candidate(32), 2)])).ok


def test_errors_say_what_happened(measurer: LocalMeasurer, candidate: Make) -> None:
    faults = ["segfault_apply", "abort_run", "exit_run", "kill_run", "wrong", "unwritten", "memory_apply"]
    answers = list(measurer.measure([Request(candidate(4, fault), 1) for fault in faults]))
    said = dict(zip(faults, (answer.error for answer in answers), strict=True))
    assert "SIGSEGV while applying the sketch" in said["segfault_apply"]
    assert "SIGABRT while running" in said["abort_run"]
    assert "exit code 3 while running" in said["exit_run"]
    assert "SIGKILL while running" in said["kill_run"]
    assert "is 12345, not" in said["wrong"]
    assert "1 of 3072 elements" in said["wrong"]
    assert "is 1.2345e+30, not" in said["unwritten"]  # what outputs hold before
    assert "3072 of 3072 elements" in said["unwritten"]
    assert "MemoryError" in said["memory_apply"]


def test_one_worker_alone_survives_a_batch_of_faults(
    workload: Workload, target: Target, tmp_path: Path, candidate: Make
) -> None:
    """Every crash takes the other kernels of the worker with it: they are built again, and nobody notices."""
    from tests.measure.conftest import SKETCH

    space = SKETCH.space(workload, target)
    assert space is not None
    kinds = ["segfault_run", "none", "abort_run", "none", "wrong", "none"]
    with LocalMeasurer(workload, target, [SKETCH], [space], workers=1, lock_path=tmp_path / "lock") as measurer:
        batch = [candidate(4 << index % 3, kind) for index, kind in enumerate(kinds)]
        answers = list(measurer.measure([Request(member, 1) for member in batch]))
        expected = [Status.OK if kind == "none" else FAULTS[kind] for kind in kinds]
        assert [answer.status for answer in answers] == expected
        assert measurer.account.restarts == 2


def test_a_worker_killed_between_two_batches_is_nobodys_fault(
    measurer: LocalMeasurer, pool: WorkerPool, candidate: Make
) -> None:
    assert next(measurer.measure([Request(candidate(8), 1)])).ok
    for worker in pool.workers:
        if worker.alive:
            os.kill(worker.pid, signal.SIGKILL)
    answers = list(measurer.measure([Request(candidate(tile), 1) for tile in (8, 16, 32)]))
    assert [answer.status for answer in answers] == [Status.OK] * 3


def test_a_worker_killed_while_it_runs_costs_that_candidate(
    measurer: LocalMeasurer, pool: WorkerPool, candidate: Make
) -> None:
    assert next(measurer.measure([Request(candidate(8), 1)])).ok
    measurer.run_timeout = 60.0
    answers = measurer.measure(
        [Request(candidate(32), 1), Request(candidate(4, "hang_run"), 1), Request(candidate(8), 1)]
    )
    assert next(answers).ok  # all are built now: nobody dies but who runs
    processes = [worker.pid for worker in pool.workers if worker.alive]
    killer = threading.Timer(0.5, lambda: [os.kill(process, signal.SIGKILL) for process in processes])
    killer.start()
    killed, other = answers
    killer.join()
    assert killed.status is Status.RUNTIME
    assert "SIGKILL while running" in killed.error
    assert other.ok


def test_an_overwritten_input_does_not_spoil_the_next_candidate(measurer: LocalMeasurer, candidate: Make) -> None:
    """It is the candidate that wrote to it that is wrong, in every order and in the same worker."""
    batch = [candidate(tile, fault) for tile in (4, 8) for fault in ("none", "overwrites_input", "none")]
    answers = list(measurer.measure([Request(member, 1) for member in batch]))
    assert [answer.ok for answer in answers] == [True, False, True] * 2


def test_a_race_goes_on_without_what_fails(measurer: LocalMeasurer, candidate: Make) -> None:
    runners = [candidate(4), candidate(4, "segfault_run"), candidate(8), candidate(8, "raise"), candidate(4)]
    answers = measurer.race(runners, rounds=3)
    assert [answer.status for answer in answers] == [
        Status.OK,
        Status.RUNTIME,
        Status.OK,
        Status.INSTANTIATION,
        Status.OK,
    ]
    assert [len(answer.seconds) for answer in answers] == [3, 0, 3, 0, 3]


def test_a_hang_ends_at_its_timeout(measurer: LocalMeasurer, candidate: Make) -> None:
    list(measurer.measure([Request(candidate(4), 1)]))
    start = time.perf_counter()
    (answer,) = measurer.measure([Request(candidate(4, "hang_run"), 1)])
    assert answer.status is Status.RUN_TIMEOUT
    assert time.perf_counter() - start >= measurer.run_timeout  # type: ignore[operator]


def test_random_faults_are_the_asked_share_and_always_the_same(workload: Workload, target: Target) -> None:
    sketch = RandomFaults(Plain(), share=0.25, kinds=("raise", "wrong"))
    faults = [sketch.fault({"tile": tile}) for tile in range(2000)]
    assert faults == [sketch.fault({"tile": tile}) for tile in range(2000)]
    assert set(faults) == {"none", "raise", "wrong"}
    assert 0.2 < sum(fault != "none" for fault in faults) / len(faults) < 0.3
    assert Plain().space(workload, target).size == sketch.space(workload, target).size  # type: ignore[union-attr]
