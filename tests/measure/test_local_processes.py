"""What becomes of the workers if a measurement is interrupted, or if the measuring process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from stormdrop.machine.sharing.lock import MachineLock

pytestmark = pytest.mark.compiles

_SESSION = """
    import sys
    from pathlib import Path
    from tvm import tirx
    from tvm.s_tir import SBlock, SBlockRealize
    from stormdrop import operators
    from stormdrop.machine.cpu import Target
    from stormdrop.measure.contract import KernelSetup
    from stormdrop.measure.local import Limits, LocalMeasurer
    from stormdrop.sketches.contract import Variant
    from stand_ins.faults import ChosenFaults, Plain
    from stormdrop.trial import Candidate, Request

    _, lock, fault, limit, sign = sys.argv

    class Telling(ChosenFaults):
        # A candidate with a fault makes a file before it hangs or sleeps.
        def apply(self, workload, target, config):
            if config["fault"] == "hang_build":
                Path(sign).touch()
            variant = ChosenFaults.apply(self, workload, target, config)
            return variant if config["fault"] == "none" else Variant(telling(variant.main))

    def telling(function):
        root = function.body.block
        tell = tirx.Evaluate(tirx.call_extern("int32", "creat", sign, 0o600))
        block = SBlock([], [], [], "root", tirx.SeqStmt([tell, root.body]), alloc_buffers=root.alloc_buffers)
        return function.with_body(SBlockRealize([], True, block))

    workload, target, sketch = operators.matmul(64, 48, 32), Target.detect(), Telling(Plain())
    space = sketch.space(workload, target)
    point = lambda fault: Candidate(space.name, space.point({"tile": 4, "fault": fault}))

    setup, limits = KernelSetup(workload, target, [(sketch, space)]), Limits(build_seconds=60, run_seconds=float(limit))
    with LocalMeasurer(setup, workers=2, lock_path=Path(lock), limits=limits) as measurer:
        assert next(measurer.measure([Request(point("none"), 1)])).ok
        print(*(worker.pid for worker in measurer._pool.workers), flush=True)
        try:
            for measurement in measurer.measure([Request(point("none"), 1), Request(point(fault), 1)]):
                print(measurement.status.value, flush=True)
            print("alive", [worker.pid for worker in measurer._pool.workers])
        except KeyboardInterrupt:
            print("interrupted", sum(worker.alive for worker in measurer._pool.workers), flush=True)
            assert next(measurer.measure([Request(point("none"), 1)])).ok
            print("measured", flush=True)
"""


def _session(tmp_path: Path, fault: str, limit: str = "60") -> tuple[subprocess.Popen[str], list[int]]:
    """A process that has measured one candidate and in which another one hangs now, and the ids of its workers."""
    sign = tmp_path / "at work"
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_SESSION), str(tmp_path / "lock"), fault, limit, str(sign)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    workers = [int(word) for word in process.stdout.readline().split()]
    while not sign.exists():
        assert process.poll() is None
        time.sleep(0.01)
    return process, workers


@pytest.mark.parametrize("fault", ["hang_build", "hang_run"])
def test_ctrl_c_stops_at_once_and_the_measurer_goes_on(tmp_path: Path, fault: str) -> None:
    """As on a terminal, the signal goes to the whole process group."""
    process, workers = _session(tmp_path, fault)
    assert len(workers) == 2
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    lines = output.splitlines()
    assert "interrupted 1" in lines  # one of the two was at work and was killed
    assert lines[-1] == "measured"
    assert process.returncode == 0
    assert not any(psutil.pid_exists(worker) for worker in workers)


def test_a_group_that_is_stopped_for_a_while_loses_nothing(tmp_path: Path) -> None:
    """As with Ctrl-Z and `fg`. The stop begins while a kernel sleeps for two seconds, and is longer than its limit."""
    process, workers = _session(tmp_path, "sleep_run", limit="6")
    os.killpg(process.pid, signal.SIGSTOP)
    time.sleep(6.5)
    os.killpg(process.pid, signal.SIGCONT)
    output, _ = process.communicate(timeout=60)
    assert output.splitlines() == ["ok", "ok", f"alive {workers}"]


def test_workers_die_with_their_parent(tmp_path: Path) -> None:
    """This holds for a worker that is busy in Python and never looks at its pipe, too."""
    process, workers = _session(tmp_path, "hang_build")
    process.kill()
    process.wait(timeout=30)
    deadline = time.perf_counter() + 30
    while any(_lives(worker) for worker in workers):
        assert time.perf_counter() < deadline, "a worker outlives its parent"
        time.sleep(0.05)
    lock = MachineLock(tmp_path / "lock")
    with lock.exclusive():  # no process of it still holds the machine
        pass
    lock.close()


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
