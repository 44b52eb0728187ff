"""The fork server: its children are what this process is now, and inherit nothing that they need not."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from stormdrop.errors import MeasureError
from stormdrop.machine.process import child_process, fork_server
from stormdrop.machine.process.child_process import ChildProcess

if not fork_server.is_possible():
    pytest.skip("no fork server is possible on this system", allow_module_level=True)


def describe(connection: Connection) -> None:
    """Sends what the process is."""
    descriptors = {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}
    descriptors = {number for number in descriptors if Path(f"/proc/self/fd/{number}").exists()}  # the listing's own
    connection.send(
        {
            "descriptors": descriptors - {0, 1, 2, connection.fileno()},
            "threads": len(list(Path("/proc/self/task").iterdir())),
            "environment": dict(os.environ),
            "folder": str(Path.cwd()),
            "cores": os.sched_getaffinity(0),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE),
            "umask": os.umask(0),
            "parent": os.getppid(),
            "group": os.getpgid(0) == os.getpid(),
            "program": Path("/proc/self/cmdline").read_text(),
        }
    )
    connection.recv()


def multiply(connection: Connection) -> None:
    """Sends how many threads the process has once NumPy has multiplied matrices."""
    import numpy as np

    np.dot(np.ones((300, 300)), np.ones((300, 300)))
    connection.send(len(list(Path("/proc/self/task").iterdir())))


def modules(connection: Connection) -> None:
    """Sends the names of what is loaded."""
    connection.send(set(sys.modules))


def attribute(connection: Connection, module: str, name: str) -> None:
    """Sends what a module has under a name."""
    connection.send(getattr(importlib.import_module(module), name))


def fail(connection: Connection) -> None:
    """Raises an exception."""
    raise ValueError("these are the last words")


def leave(connection: Connection, code: object) -> None:
    """Ends as a program does that calls `sys.exit`."""
    sys.exit(code)  # type: ignore[arg-type]


def echo(connection: Connection) -> None:
    """Answers each message with itself, until there are no more."""
    while True:
        try:
            connection.send(connection.recv())
        except EOFError:
            return


@pytest.fixture(autouse=True)
def _server_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    fork_server.stop()
    yield
    fork_server.stop()


def _described(child: ChildProcess) -> dict[str, object]:
    answer = child.answer(60)
    assert isinstance(answer, dict), child.last_line()
    child.close()
    return answer


def _child(function: str = "describe", *arguments: object, loads: tuple[str, ...] = ()) -> ChildProcess:
    return ChildProcess(f"{__name__}:{function}", arguments, loads=loads)


def test_a_child_is_what_this_process_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _described(_child())  # starts the server
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONLY_SINCE_NOW", "yes")
    monkeypatch.delenv("HOME", raising=False)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        child = _described(_child())
    finally:
        os.sched_setaffinity(0, cores)
    assert child["folder"] == str(tmp_path)
    assert child["environment"] == dict(os.environ)
    assert child["cores"] == {min(cores)}


def test_a_child_inherits_no_descriptors_and_no_threads() -> None:
    other = _child("echo")
    child = _described(_child())
    assert child["descriptors"] == set()
    assert child["threads"] == 1
    assert child["group"]
    other.close()


def test_limits_and_masks_of_this_process_hold_in_children() -> None:
    first = _described(_child())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    mask = os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        second = _described(_child())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.umask(mask)
    assert first["files"] == (soft, hard)
    assert second["files"] == (soft - 1, hard)
    assert second["umask"] == 0o077
    assert second["parent"] != first["parent"]


_COMMAND = """
import os, select, signal, sys, threading
from stormdrop.machine.process import fork_server
from stormdrop.machine.process.child_process import ChildProcess, prepare

print(os.getpid(), end=" ")  # which nobody else says, too
os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)
if "beside a thread" in sys.argv:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
if "ignoring ends" in sys.argv:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
prepare("counted", here=True)
children = [ChildProcess("test_fork_server:describe", loads=["counted"]) for _ in range(2)]
for child in children:
    said = child.answer(60)
    assert said is not None, child.last_line()
    assert not said["descriptors"] and said["threads"] == 1 and said["group"], said
    assert said["environment"] == dict(os.environ), said
    child.close()
child = ChildProcess("test_fork_server:multiply", loads=["counted"])
assert child.answer(60) == 1
child.close()
server = os.pidfd_open(said["parent"])
os.kill(said["parent"], 9)
select.select([server], [], [])
child = ChildProcess("test_fork_server:describe", loads=["counted"])
assert child.answer(60)["parent"] != said["parent"]
"""


@pytest.mark.parametrize("how", ["alone", "ignoring ends", "beside a thread"])
def test_a_command_forks_the_server_from_itself_if_it_has_one_thread(how: str, tmp_path: Path) -> None:
    """The command, or else a server that is a new program, loads what children need; so does the second server."""
    (tmp_path / "counted.py").write_text(
        "import os\nfrom pathlib import Path\nimport numpy\n"
        "Path(__file__).with_suffix('.txt').open('a').write(f'{os.getpid()} ')"
    )
    path = os.pathsep.join([str(Path(__file__).parent), str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", _COMMAND, how],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (command,) = done.stdout.split()
    first, second = (tmp_path / "counted.txt").read_text().split()
    forks = how != "beside a thread" and importlib.util.find_spec("torch") is None
    assert (first == command) == forks
    assert second not in (first, command)


def test_children_share_a_server() -> None:
    children = [_child() for _ in range(4)]
    assert len({_described(child)["parent"] for child in children}) == 1


@pytest.mark.parametrize(
    ("function", "arguments", "code", "words"),
    [
        ("fail", (), "exit code 1", "ValueError: these are the last words"),
        ("leave", (3,), "exit code 3", "no message"),
        ("leave", (None,), "exit code 0", "no message"),
        ("leave", ("it is broken",), "exit code 1", "it is broken"),
    ],
)
def test_it_ends_as_a_program_would(function: str, arguments: tuple[object, ...], code: str, words: str) -> None:
    child = _child(function, *arguments)
    assert child.answer(60) is None
    assert child.wait() == code
    assert child.last_line() == words


def test_ended_children_leave_no_zombies() -> None:
    children = [_child() for _ in range(8)]
    server = psutil.Process(int(str(_described(children[0])["parent"])))
    for child in children:
        child.kill()
    deadline = time.monotonic() + 30
    while server.children():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_children_die_with_the_server_and_the_next_one_has_another() -> None:
    child = _child("echo")
    child.send("a")
    assert child.answer(60) == "a"
    child.pause()
    server = psutil.Process(child.pid).parent()
    assert server is not None
    server.kill()
    assert child.wait(60) == "SIGKILL"
    other = _described(_child())
    assert other["parent"] != server.pid


def test_a_server_without_work_ends_and_the_next_child_starts_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "IDLE_SECONDS", 1)
    child = _child("echo")
    child.send("a")
    assert child.answer(60) == "a"
    server = psutil.Process(child.pid).parent()
    assert server is not None
    with pytest.raises(psutil.TimeoutExpired):  # it has a child
        server.wait(1.5)
    child.close()
    server.wait(60)
    assert _described(_child())["parent"] != server.pid


def test_a_child_that_is_killed_before_the_server_is_ready_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_library.py").write_text("import time; time.sleep(3)")
    monkeypatch.syspath_prepend(str(tmp_path))
    child = _child(loads=("slow_library",))
    child.kill()
    assert child.pid == 0
    assert child.wait() == "SIGKILL"
    assert not child.alive
    assert fork_server._running is not None
    assert not fork_server._running.last_line()
    assert _described(_child())["group"]  # the server goes on


def test_a_library_that_starts_threads_makes_children_new_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    (tmp_path / "library_with_a_thread.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("ONLY_SINCE_NOW", "yes")
    child = _described(_child(loads=("library_with_a_thread",)))
    assert child["threads"] == 1
    assert "child_side" in str(child["program"])
    assert child["descriptors"] == set()
    assert child["environment"] == dict(os.environ)
    monkeypatch.undo()


def test_a_library_that_cannot_be_loaded_does_not_end_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_library.py").write_text("raise RuntimeError('it is broken')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert _described(_child(loads=("broken_library", "no_such_library")))["group"]


def test_modules_that_are_written_after_the_server_has_looked_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "later"))
    monkeypatch.syspath_prepend(str(tmp_path))
    _described(_child(loads=("no_such_library",)))  # looks everywhere
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "written_later.py").write_text("ANSWER = 42")
    child = ChildProcess(f"{__name__}:attribute", ("written_later", "ANSWER"))
    assert child.answer(60) == 42, child.last_line()
    child.close()


def test_a_request_that_is_interrupted_costs_the_next_ones_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _described(_child())
    send = socket.send_fds

    def interrupted(*arguments: object) -> int:
        send(*arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(socket, "send_fds", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _child("echo")
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    for _ in range(2):
        assert _described(_child())["group"]


def test_a_process_that_ignores_the_ends_of_its_children_has_them_all_the_same() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        other = _child("echo")
        child = _child("leave", 3)
        assert child.answer(60) is None
        assert child.wait() == "exit code 3"
    finally:
        signal.signal(signal.SIGCHLD, before)
    other.send("a")
    assert other.answer(60) == "a"
    other.close()


def test_a_server_without_free_descriptors_fails_one_child_only() -> None:
    other = _child("echo")
    other.send("a")
    assert other.answer(60) == "a"
    server = psutil.Process(other.pid).parent()
    assert server is not None
    soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (server.num_fds() + 2, hard))
    with contextlib.suppress(MeasureError):  # the pipe may be closed before its arguments are sent
        child = _child()
        assert child.answer(60) is None
        child.close()
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (soft, hard))
    other.send("b")
    assert other.answer(60) == "b"
    assert _described(_child())["parent"] == server.pid
    other.close()


def test_children_of_many_threads() -> None:
    answers: list[dict[str, object]] = []
    threads = [threading.Thread(target=lambda: answers.append(_described(_child()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert len({answer["parent"] for answer in answers}) == 1


def test_a_process_that_was_forked_from_this_one_has_a_server_of_its_own() -> None:
    server = _described(_child())["parent"]
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            theirs.sendall(str(_described(_child())["parent"]).encode())
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    theirs.close()
    other = int(ours.recv(100))
    os.waitpid(pid, 0)
    ours.close()
    assert other != server
    assert _described(_child())["parent"] == server


def test_a_server_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(MeasureError, match="no child process can be started"):
        _child()


@pytest.mark.parametrize("name", ["stormdrop.measure.worker.worker", "stormdrop.model.importer.isolated"])
def test_what_children_load_is_loaded_before_they_are_forked(name: str) -> None:
    """Otherwise each of them would load it, and TVM with it."""
    child_process.prepare(name)
    child = _child("modules")
    loaded = child.answer(60)
    child.close()
    assert "tvm" in loaded
    assert {name, *importlib.import_module(name).LOADS} <= loaded
