"""The machine-wide lock, between processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lock_waits import LINUX, is_waiting, until_it_waits
from stormdrop.errors import LockTimeout, MeasureError
from stormdrop.machine.sharing import lock as module
from stormdrop.machine.sharing.lock import MachineLock

_HOLD = """
import sys, time
from pathlib import Path
from stormdrop.machine.sharing.lock import MachineLock
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


def _waits(process: subprocess.Popen[str]) -> None:
    """Returns once the process waits for the lock or for its gate; fails if it has the lock."""
    assert process.stdout is not None
    while not is_waiting(process.pid):
        assert not select.select([process.stdout], [], [], 0.02)[0], "it has the lock, or it has ended"


def _release(process: subprocess.Popen[str]) -> None:
    process.communicate("\n", timeout=30)


@LINUX
def test_runs_exclude_each_other_and_compilation(tmp_path: Path) -> None:
    """Whoever holds the exclusive side keeps the other process out until it is done."""
    path = tmp_path / "lock"
    lock = MachineLock(path)
    for side in ("shared", "exclusive"):
        with lock.exclusive():
            other = _holder(path, side)
            _waits(other)
        _held(other)
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


@LINUX
def test_a_waiting_run_is_not_overtaken(tmp_path: Path) -> None:
    """A run that waits for a compilation goes before a compilation that comes later."""
    path = tmp_path / "lock"
    compiling = _holder(path, "shared")
    _held(compiling)
    running = _holder(path, "exclusive")
    _waits(running)
    late = _holder(path, "shared")
    _waits(late)
    _release(compiling)
    _held(running)
    _waits(late)
    _release(running)
    _held(late)
    _release(late)


def test_a_killed_holder_gives_the_lock_back(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    other = _holder(path, "exclusive")
    _held(other)
    other.kill()
    lock = MachineLock(path)
    with lock.exclusive():
        assert other.wait(timeout=30) != 0
    lock.close()


@LINUX
def test_waiting_is_accounted(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = MachineLock(path)
    with lock.exclusive():
        pass
    free = lock.waited
    other = _holder(path, "exclusive")
    _held(other)

    def end_the_wait() -> None:
        until_it_waits(os.getpid())
        time.sleep(0.2)
        other.kill()

    killer = threading.Thread(target=end_the_wait)
    killer.start()
    with lock.exclusive():
        pass
    assert lock.waited > free + 0.1
    killer.join()
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


# Who waits is told, and need not wait for ever


def test_a_wait_has_a_deadline(tmp_path: Path) -> None:
    other = _holder(tmp_path / "lock", "exclusive")
    _held(other)
    lock = MachineLock(tmp_path / "lock")
    begin = time.perf_counter()
    holder = f"process {other.pid} " if sys.platform == "linux" else "another process uses it"
    with pytest.raises(LockTimeout, match=f"not free in time: {holder}"), lock.shared(begin + 0.3):
        pass
    assert 0.3 <= time.perf_counter() - begin < 3
    assert lock.waited >= 0.3
    _release(other)
    with lock.exclusive(deadline=begin):  # it is free, so a deadline in the past does no harm
        pass
    lock.close()


def test_a_wait_that_was_given_up_blocks_nobody(tmp_path: Path) -> None:
    other = _holder(tmp_path / "lock", "shared")
    _held(other)
    lock = MachineLock(tmp_path / "lock")
    with pytest.raises(LockTimeout), lock.exclusive(time.perf_counter() + 0.1):
        pass
    late = _holder(tmp_path / "lock", "shared")
    _held(late)  # neither the gate nor the main lock is wanted any more
    _release(other)
    _release(late)
    lock.close()


@LINUX
def test_who_waits_is_told_for_whom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "TELL_AFTER", 0.1)
    other = _holder(tmp_path / "lock", "exclusive")
    _held(other)
    lock = MachineLock(tmp_path / "lock")

    def end_the_wait() -> None:
        while not caplog.messages:
            time.sleep(0.01)
        _release(other)

    threading.Thread(target=end_the_wait).start()
    with lock.exclusive():
        pass
    lock.close()
    (message,) = caplog.messages
    assert message.startswith(f"waiting for the machine (lock file {tmp_path / 'lock'}")
    assert f"process {other.pid} ({sys.executable} -c" in message
    assert message.isprintable()


@LINUX
def test_a_holder_that_is_stopped_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    stopped = _holder(path, "exclusive")
    _held(stopped)
    stopped.send_signal(signal.SIGSTOP)
    waiting = _holder(path, "exclusive")
    _waits(waiting)  # and holds the gate
    lock = MachineLock(path)
    with (
        pytest.raises(LockTimeout, match=rf"{stopped.pid} .* is stopped; let it go on \(kill -CONT {stopped.pid}\)"),
        lock.exclusive(time.perf_counter() + 0.2),
    ):
        pass
    lock.close()
    stopped.send_signal(signal.SIGCONT)
    _release(stopped)
    _held(waiting)
    _release(waiting)


# The folder of the lock file is everybody's


@pytest.mark.parametrize("gate", ["", ".gate"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder"])
def test_only_a_regular_file_is_a_lock_file(tmp_path: Path, kind: str, gate: str) -> None:
    path, victim = tmp_path / "lock", tmp_path / "victim"
    victim.write_text("")
    victim.chmod(0o600)
    file = Path(f"{path}{gate}")
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to(victim if kind == "link" else tmp_path / "none")
    with pytest.raises(MeasureError, match=rf"the lock file {file} cannot be used: it is .*; remove it") as caught:
        MachineLock(path)
    assert "\n" not in str(caught.value)
    assert victim.stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "none").exists()


def test_what_somebody_else_made_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("")
    path.chmod(0o644)
    lock = MachineLock(path)
    with lock.exclusive():  # reading suffices
        assert path.stat().st_mode & 0o777 == 0o644
    lock.close()


def test_a_lock_file_that_is_deleted_is_made_again(tmp_path: Path) -> None:
    """Otherwise an old process and a new one would hold locks on different files."""
    path = tmp_path / "lock"
    lock = MachineLock(path)
    path.unlink()
    other = _holder(path, "exclusive")
    _held(other)
    with pytest.raises(LockTimeout), lock.exclusive(time.perf_counter()):
        pass
    _release(other)
    lock.close()


def test_without_a_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(module.tempfile, "gettempdir", fails)  # type: ignore[attr-defined]
    with pytest.raises(MeasureError, match=r"no folder for temporary files can be written: .*; let TMPDIR name one"):
        MachineLock()
