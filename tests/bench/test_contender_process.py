from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from contenders import Absent, Burner, Dying, NeedsPackage, Sleeper, Spinner, contender

from stormdrop.bench.contender import Unavailable
from stormdrop.bench.contender_process import ContenderProcess
from stormdrop.errors import MeasureError
from stormdrop.measure.timing import TimingPlan

SHORT = TimingPlan(repeats=3, sample_seconds=1e-3)


def test_a_process_times_and_answers() -> None:
    with ContenderProcess(contender(Sleeper, seconds=5e-3), 2) as process:
        assert process.settings == {"threads": 2}
        assert process.versions == {"sleeper": "1"}
        (output,) = process.outputs()
        samples, _ = process.take_turn(SHORT)
    assert output.shape == (2, 3)
    assert len(samples) == 3
    assert min(samples) >= 5e-3


def test_a_waiting_contender_uses_no_cpu() -> None:
    def cpu_seconds(process: ContenderProcess) -> float:
        times = psutil.Process(process._child.pid).cpu_times()
        return float(times.user + times.system)

    with ContenderProcess(contender(Spinner), 1) as process:
        process.take_turn(SHORT)
        time.sleep(0.1)  # until the system has counted all of its CPU time
        before = cpu_seconds(process)
        time.sleep(0.3)
        assert cpu_seconds(process) - before < 0.1  # a running one takes 0.3 s; time used before may be counted late
        before = cpu_seconds(process)
        for _ in range(1000):
            process.take_turn(SHORT)
            if cpu_seconds(process) > before:
                break
        else:
            pytest.fail("it does not run in its turns")


def test_why_a_contender_cannot_take_part() -> None:
    with pytest.raises(Unavailable, match="no form for this"):
        ContenderProcess(contender(Absent), 1)
    with pytest.raises(Unavailable, match="a_package_that_nobody_has is not installed"):
        ContenderProcess(contender(NeedsPackage), 1)


def test_a_contender_that_dies_is_an_error_and_not_a_wait() -> None:
    with (
        ContenderProcess(contender(Dying), 1) as process,
        pytest.raises(MeasureError, match=r"Dying: its process ended \(exit code 3\): no more"),
    ):
        process.take_turn(SHORT)


def test_a_contender_that_hangs_is_ended() -> None:
    start = time.monotonic()
    with pytest.raises(MeasureError, match="no message within 2 s; its process was ended"):
        ContenderProcess(contender(Sleeper, seconds=60.0), 1, patience=2.0)
    assert time.monotonic() - start < 30


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not say who waits for a core")
def test_steady_competitors_are_noticed() -> None:
    cores = sorted(os.sched_getaffinity(0))
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in cores]
    try:
        for loop, core in zip(loops, cores, strict=True):
            os.sched_setaffinity(loop.pid, {core})  # two on one core would leave the other to the contender
        while any(psutil.Process(loop.pid).cpu_times().user < 0.1 for loop in loops):
            time.sleep(0.01)  # they are still starting
        with ContenderProcess(contender(Burner), len(cores)) as process:
            disturbed = [process.take_turn(TimingPlan(5, 20e-3))[1] for _ in range(6)]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert sum(disturbed) >= 4
