"""The machine-wide lock, between processes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from stormdrop.errors import MeasureError
from stormdrop.machine.lock import MachineLock

_HOLD = """
import sys, time
from pathlib import Path
from stormdrop.machine.lock import MachineLock
path, side = Path(sys.argv[1]), sys.argv[2]
lock = MachineLock(path)
with getattr(lock, side)():
    print("held", flush=True)
    sys.stdin.readline()
"""


def _holder(path: Path, side: str) -> subprocess.Popen[str]:
    """Another process that holds one side of the lock until it reads a line; returns once it holds it, or waits."""
    return subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path), side], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _held(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"


def _release(process: subprocess.Popen[str]) -> None:
    process.communicate("\n", timeout=30)


def test_runs_exclude_each_other_and_compilation(tmp_path: Path) -> None:
    """Whoever holds the exclusive side keeps the other process out until it is done."""
    path = tmp_path / "lock"
    lock = MachineLock(path)
    for side in ("shared", "exclusive"):
        with lock.exclusive():
            other = _holder(path, side)
            with pytest.raises(subprocess.TimeoutExpired):
                other.wait(timeout=0.5)
            released = time.perf_counter()
        _held(other)
        assert time.perf_counter() >= released
        _release(other)
    lock.close()


def test_compilations_do_not_exclude_each_other(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = MachineLock(path)
    with lock.shared():
        other = _holder(path, "shared")
        _held(other)  # would wait for ever
        _release(other)
    lock.close()


def test_a_waiting_run_is_not_overtaken(tmp_path: Path) -> None:
    """A run that waits for a compilation goes before a compilation that comes later."""
    path = tmp_path / "lock"
    compiling = _holder(path, "shared")
    _held(compiling)
    running = _holder(path, "exclusive")
    lock = MachineLock(path)
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(timeout=1.0)  # it has arrived at the gate by now
    late = _holder(path, "shared")
    with pytest.raises(subprocess.TimeoutExpired):
        late.wait(timeout=1.0)
    _release(compiling)
    _held(running)
    _release(running)
    _held(late)
    _release(late)
    lock.close()


def test_a_killed_holder_gives_the_lock_back(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    other = _holder(path, "exclusive")
    _held(other)
    other.kill()
    lock = MachineLock(path)
    with lock.exclusive():
        assert other.wait(timeout=30) != 0
    lock.close()


def test_waiting_is_accounted(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = MachineLock(path)
    with lock.exclusive():
        pass
    free = lock.waited
    other = _holder(path, "exclusive")
    _held(other)
    subprocess.Popen(
        [sys.executable, "-c", f"import time, os, signal; time.sleep(0.3); os.kill({other.pid}, signal.SIGKILL)"]
    )
    with lock.exclusive():
        pass
    assert lock.waited > free + 0.1
    other.wait(timeout=30)
    lock.close()


def test_every_user_may_open_the_file(tmp_path: Path) -> None:
    lock = MachineLock(tmp_path / "lock")
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o666
    lock.close()
    lock.close()


def test_a_process_that_holds_it_may_not_wait_for_itself(tmp_path: Path) -> None:
    lock = MachineLock(tmp_path / "lock")
    with lock.exclusive(), pytest.raises(MeasureError, match="held already"), lock.shared():
        pass
    with lock.shared():
        pass
    lock.close()


def test_a_folder_that_is_missing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="lock file"):
        MachineLock(tmp_path / "none" / "lock")
