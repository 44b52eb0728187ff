"""The seconds of a job: what counts, and what does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from stormdrop.measure.pool import job_clock
from stormdrop.measure.pool.job_clock import INTERVAL, JobClock


@pytest.fixture
def process() -> Iterator[int]:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield child.pid
    child.kill()
    child.wait()


def waits(clock: JobClock, count: int) -> None:
    for _ in range(count):
        clock.add(INTERVAL, INTERVAL)


def test_waits_count_until_the_limit(process: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_clock, "_run_delays", lambda pid: {})
    clock = JobClock(process, 3 * INTERVAL, most_granted=100.0)
    waits(clock, 2)
    assert not clock.late and clock.left == pytest.approx(INTERVAL)
    waits(clock, 1)
    assert clock.late and clock.left == 0  # type: ignore[unreachable]


def test_a_wait_that_takes_far_too_long_counts_as_long_as_was_asked(process: int) -> None:
    """Nothing may be granted here, so that only the length of the wait decides."""
    clock = JobClock(process, 3 * INTERVAL, most_granted=0.0)
    clock.add(INTERVAL, 3600.0)
    assert not clock.late
    waits(clock, 2)
    assert clock.late


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says whether a process is stopped")
def test_a_stopped_process_is_waited_for_within_bounds(process: int) -> None:
    os.kill(process, signal.SIGSTOP)
    os.waitid(os.P_PID, process, os.WSTOPPED | os.WNOWAIT)
    clock = JobClock(process, 2 * INTERVAL, most_granted=10 * INTERVAL)
    waits(clock, 10)
    assert not clock.late
    waits(clock, 2)
    assert clock.late


def test_waiting_for_a_core_does_not_count(process: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first reading only says from where on to count. The thread that waited longest decides."""
    delays = iter([{"1": 7.0, "2": 1.0}, {"1": 7.1, "2": 1.4}, {"1": 7.2, "2": 1.8, "3": 50.0}, {}])
    monkeypatch.setattr(job_clock, "_run_delays", lambda pid: next(delays))
    clock = JobClock(process, 3.5 * INTERVAL, most_granted=100.0)
    waits(clock, 4)
    assert not clock.late
    assert clock.used == pytest.approx(4 * INTERVAL - 0.8)
