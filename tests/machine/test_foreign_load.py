"""Foreign load: the decision on recorded counters, and the counters themselves."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from stormdrop.machine.sharing import foreign_load as module
from stormdrop.machine.sharing.foreign_load import (
    Counters,
    LoadThresholds,
    LoadWatch,
    disturbed,
    read_counters,
    spent_since,
)
from stormdrop.machine.threads import usable_cores

LIMITS = LoadThresholds()
IDLE = Counters(wall=8e-3, own_cpu=15.8e-3, run_delay=40e-6, involuntary=1, busy=0.02, stolen=0.0)
"""A run of two threads on an otherwise idle machine of two cores."""


def _cores() -> int:
    return usable_cores()


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (IDLE, False),
        # As recorded on idle machines: threads that spin and yield are switched a hundred times, and hardly wait.
        (Counters(8.9e-3, 17.6e-3, run_delay=190e-6, involuntary=117, busy=0.02, stolen=0.0), False),
        # As recorded beside a busy loop.
        (Counters(10.8e-3, 9.8e-3, run_delay=11.4e-3, involuntary=2603, busy=0.02, stolen=0.0), True),
        (Counters(12e-3, 19e-3, run_delay=4e-3, involuntary=2, busy=0.03, stolen=0.0), True),
        # Without schedstat: involuntary switches.
        (Counters(8e-3, 15.8e-3, involuntary=2), False),
        (Counters(40e-3, 60e-3, involuntary=10), True),
        # A platform that tells nothing.
        (Counters(8e-3), False),
    ],
)
def test_one_run(run: Counters, expected: bool) -> None:
    assert disturbed(run, LIMITS) is expected


def test_a_competitor_on_the_other_core_is_seen_over_a_window() -> None:
    """A kernel of one thread, 10 ms a run; somebody keeps the other core busy: a tick of 10 ms per run."""
    watch = LoadWatch(_cores())
    runs = [Counters(10e-3, 10e-3, run_delay=0.0, involuntary=0, busy=0.02, stolen=0.0)] * 140
    suspects = [watch.suspect(run) for run in runs]
    assert not suspects[0]
    assert all(suspects[105:])


def test_ticks_that_are_ours_are_not_foreign() -> None:
    """Ticks fall now into this run, now into that; on average they are our own time."""
    watch = LoadWatch(_cores())
    runs = [Counters(8e-3, 15.8e-3, 30e-6, 0, busy=0.03 if at % 2 else 0.0, stolen=0.0) for at in range(100)]
    assert not any(watch.suspect(run) for run in runs)


def test_a_window_forgets() -> None:
    watch = LoadWatch(_cores())
    loaded = Counters(10e-3, 10e-3, 0.0, 0, busy=0.02, stolen=0.0)
    quiet = Counters(10e-3, 10e-3, 0.0, 0, busy=0.01, stolen=0.0)
    for _ in range(140):
        watch.suspect(loaded)
    suspects = [watch.suspect(quiet) for _ in range(140)]
    assert suspects[0]
    assert not suspects[-1]


def test_stolen_time_is_foreign() -> None:
    watch = LoadWatch(_cores())
    stolen = Counters(50e-3, 100e-3, 0.0, 0, busy=0.1, stolen=0.01 * _cores())
    assert [watch.suspect(stolen) for _ in range(25)][-1]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not pin processes to cores")
@pytest.mark.compiles
def test_counters_notice_a_busy_loop_on_our_core() -> None:
    """Two processes that spin on one core: the first sees that it waits for the second."""
    core = {min(os.sched_getaffinity(0))}
    before_all = os.sched_getaffinity(0)
    spinner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(spinner.pid, core)
        while psutil.Process(spinner.pid).cpu_times().user < 0.05:
            time.sleep(0.01)  # it is still starting
        os.sched_setaffinity(0, core)
        before = read_counters()
        while time.perf_counter() < before.wall + 0.2:
            pass
        run = read_counters() - before
        assert disturbed(run, LIMITS)
        assert run.own_cpu is not None
        assert run.own_cpu < 0.9 * run.wall
    finally:
        os.sched_setaffinity(0, before_all)
        spinner.kill()
        spinner.wait()


@pytest.mark.parametrize(
    ("device", "gpu", "slowed"),
    [
        ("cuda", None, True),
        ("cuda", 0, True),
        ("cuda", 1, False),
        ("cuda", 2, False),
        ("opencl", None, False),
        ("", None, False),
    ],
)
def test_clocks_that_were_held_back_disturb_what_ran_on_the_gpu(
    device: str, gpu: int | None, slowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = [SimpleNamespace(number=number) for number in (3, 5)]
    nvml = SimpleNamespace(visible_gpus=lambda: here, is_slowed=lambda number: number == 3)
    monkeypatch.setattr(module, "nvml", nvml)
    run = spent_since(read_counters(), device, gpu)
    assert run.slowed is slowed and run.wall < 60
    assert disturbed(Counters(run.wall, slowed=run.slowed), LIMITS) is slowed


def test_differences_of_what_is_unknown_are_unknown() -> None:
    assert (Counters(2.0, involuntary=3) - Counters(1.0)).involuntary is None
    assert Counters(2.0, own_cpu=3.0) - Counters(1.0, own_cpu=1.0) == Counters(1.0, own_cpu=2.0)


@pytest.mark.parametrize(("busy", "quiet"), [(0.0, True), (0.02, True), (0.1, False)])
def test_a_busy_core_is_seen_while_this_process_waits(
    monkeypatch: pytest.MonkeyPatch, busy: float, quiet: bool
) -> None:
    readings = [Counters(0.0, 1.0, busy=5.0, stolen=0.0), Counters(0.1, 1.0, busy=5.0 + busy, stolen=0.0)]
    monkeypatch.setattr(module, "read_counters", lambda: readings.pop(0))
    assert module.is_quiet(0.0) is quiet
