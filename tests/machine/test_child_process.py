"""Child processes: they answer, they can be paused and limited, and they do not outlive their parent."""

from __future__ import annotations

import importlib
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.machinery import PathFinder
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

import stormdrop
from stormdrop.errors import MeasureError
from stormdrop.machine.process import child_process as module
from stormdrop.machine.process import child_side, fork_server
from stormdrop.machine.process.child_process import ChildProcess, describe_exit


def echo(connection: Connection, prefix: str) -> None:
    """Answers each message with the prefix before it."""
    while True:
        try:
            connection.send(prefix + connection.recv())
        except EOFError:
            return


def hang(connection: Connection) -> None:
    """Never answers."""
    time.sleep(60)


def greet_and_hang(connection: Connection) -> None:
    """Sends one message, then nothing."""
    connection.send("here")
    time.sleep(60)


def die(connection: Connection, code: int) -> None:
    """Ends at once."""
    print("some library's chatter\nlast words")
    sys.stdout.flush()
    os._exit(code)


def write_without_end(connection: Connection) -> None:
    """Writes lines until it is ended."""
    while True:
        os.write(1, b"another line of a library that never ends\n" * 1000)


def chatter(connection: Connection, lines: int) -> None:
    """Writes more than a pipe holds, piece by piece, before it answers."""
    for number in range(lines):
        for piece in (b"line ", str(number).encode(), b" of a talkative library\n"):
            os.write(2, piece)
    connection.send("done")
    connection.recv()


def read_nothing(connection: Connection) -> None:
    """Says that it has begun, and takes nothing."""
    connection.send("here")
    time.sleep(60)


def send_a_part(connection: Connection) -> None:
    """Sends the beginning of a message, and nothing more."""
    os.write(connection.fileno(), struct.pack("!i", 1000) + b"beginning")
    time.sleep(60)


def where(connection: Connection, name: str) -> None:
    """Sends the file of a module, or the name of the exception that importing it raises."""
    try:
        connection.send(importlib.import_module(name).__file__)
    except ImportError as error:
        connection.send(type(error).__name__)


def environment_of(connection: Connection, name: str) -> None:
    """Sends a variable of the environment."""
    connection.send(os.environ.get(name))


def fork_and_crash(connection: Connection) -> None:
    """Sends the id of a process that it has started, and crashes."""
    connection.send(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid)
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.fixture
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


pytestmark = pytest.mark.usefixtures("_importable")


@pytest.fixture(params=["forked", "fresh"])
def start(request: pytest.FixtureRequest) -> Callable[..., ChildProcess]:
    """Starts a child that serves a function of this module with arguments."""
    if request.param == "forked" and not fork_server.is_possible():
        pytest.skip("no fork server is possible on this system")

    def started(function: str, *arguments: object, environment: dict[str, str] | None = None) -> ChildProcess:
        return ChildProcess(f"{__name__}:{function}", arguments, environment, fresh=request.param == "fresh")

    return started


def test_it_answers_until_it_is_closed(start: Callable[..., ChildProcess]) -> None:
    child = start("echo", ">")
    assert child.send("a")
    assert child.answer(60) == ">a"
    child.close()
    assert not child.alive
    assert not child.send("b")
    child.close()  # twice is harmless


def test_a_paused_child_answers_when_it_is_resumed(start: Callable[..., ChildProcess]) -> None:
    child = start("echo", ">")
    child.send("a")
    assert child.answer(60) == ">a"
    child.pause()
    child.send("b")
    assert not child.connection.poll(0.2)
    child.resume()
    assert child.answer(60) == ">b"
    child.close()


def test_a_child_that_does_not_answer_is_killed(start: Callable[..., ChildProcess]) -> None:
    child = start("hang")
    with pytest.raises(TimeoutError, match=r"no message within 0\.5 s"):
        child.answer(0.5)
    assert not child.alive
    deadline = time.monotonic() + 30
    while psutil.pid_exists(child.pid):  # a fork server waits for its children
        assert time.monotonic() < deadline
        time.sleep(0.001)
    child.close()


def test_what_a_child_has_started_ends_with_it_if_it_crashes(start: Callable[..., ChildProcess]) -> None:
    child = start("fork_and_crash")
    started = psutil.Process(child.answer(60))
    assert child.answer(60) is None
    assert child.wait() == "SIGSEGV"
    psutil.wait_procs([started], timeout=10)
    assert not started.is_running() or started.status() == psutil.STATUS_ZOMBIE
    child.close()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux lists the open files of a process")
def test_a_child_that_cannot_be_started_leaves_nothing_open(
    start: Callable[..., ChildProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    fork_server.stop()
    monkeypatch.setattr(subprocess, "Popen", fails)
    with pytest.raises(MeasureError, match=r"no child process can be started: .*temporarily unavailable"):
        start("hang")
    deadline = time.monotonic() + 10
    while open_files() > before:  # a thread closes the end that it reads
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_child_that_ends_before_it_has_its_arguments_is_an_error(
    start: Callable[..., ChildProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    fork_server.stop()
    monkeypatch.setattr(child_side, "_PROGRAM", "import sys; sys.exit('it is broken')")
    with pytest.raises(MeasureError, match=r"does not start \((exit code 1|SIGKILL)\): it is broken"):
        start("echo", "x" * 10**7)


def test_how_it_died_and_what_it_said_last(start: Callable[..., ChildProcess]) -> None:
    child = start("die", 3)
    assert child.answer(60) is None
    assert child.wait() == "exit code 3"
    assert child.last_line() == "last words"
    child.close()


def test_it_has_the_variables_that_it_is_given(start: Callable[..., ChildProcess]) -> None:
    child = start("environment_of", "OF_THE_CHILD", environment={"OF_THE_CHILD": "yes"})
    assert child.answer(60) == "yes"
    child.close()
    assert "OF_THE_CHILD" not in os.environ


def test_a_child_that_takes_nothing_is_killed(
    start: Callable[..., ChildProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be stopped while its pipe is full."""
    monkeypatch.setattr(module, "STALL_SECONDS", 0.5)
    child = start("read_nothing")
    assert child.answer(60) == "here"
    child.pause()
    begin = time.perf_counter()
    assert not child.send(bytes(10**7))
    assert 0.4 < time.perf_counter() - begin < 10
    assert not child.alive
    assert child.wait() == "SIGKILL"
    child.close()


def test_a_child_that_stops_in_the_midst_of_a_message_is_killed(
    start: Callable[..., ChildProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STALL_SECONDS", 0.5)
    child = start("send_a_part")
    assert child.answer(60) is None
    assert not child.alive
    child.close()


def test_a_large_message_may_take_its_time(start: Callable[..., ChildProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    child = start("echo", "x" * 10**7)
    monkeypatch.setattr(module, "STALL_SECONDS", 5.0)
    assert child.send("y" * 10**7)
    assert len(child.answer(60)) == 2 * 10**7
    child.close()


@pytest.mark.parametrize("way", ["forked", "fresh"])
def test_output_without_end_fills_no_disk(way: str) -> None:
    """A file may not grow beyond 1 MB here, as on a disk that is full. Kernels, too, write files in this process."""
    program = """
import psutil, resource, signal, sys, time
from stormdrop.machine.process.child_process import ChildProcess
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
child = ChildProcess("test_child_process:write_without_end", fresh=sys.argv[1] == "fresh")
process = psutil.Process(child.pid)
while not child._process.has_ended() and sum(process.cpu_times()[:2]) < 1.0:
    time.sleep(0.1)
print(child._process.has_ended(), sum(process.cpu_times()[:2]) > 0.1)
child.kill()
print(child.last_line())
print(psutil.Process().memory_info().rss)
"""
    path = os.pathsep.join([str(Path(stormdrop.__file__).parents[1]), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, "-c", program, way],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=60,
    )
    running, last, memory = done.stdout.splitlines()
    assert running == "False True"
    assert "another line of a library that never ends".startswith(last)  # it was ended in the midst of a line
    assert int(memory) < 100 << 20


def test_talkative_libraries_block_nobody(start: Callable[..., ChildProcess]) -> None:
    child = start("chatter", 20_000)
    assert child.answer(60) == "done"
    child.kill()
    assert child.last_line() == "line 19999 of a talkative library"
    child.close()


@pytest.mark.parametrize("entry", [[], [""]])
def test_the_current_folder_takes_no_librarys_place(
    start: Callable[..., ChildProcess], entry: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file `psutil.py` there made every worker fail, and its code ran."""
    for name in ("psutil", "pickle", "signal", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*entry, *sys.path])
    child = start("where", "psutil")
    library = PathFinder.find_spec("psutil", [folder for folder in sys.path if folder])  # Ray brings one of its own
    assert library is not None
    assert child.answer(60) == library.origin, child.last_line()
    child.close()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("entry", "found"), [([""], True), ([], False)])
def test_modules_of_an_interactive_user_are_found(
    start: Callable[..., ChildProcess], entry: list[str], found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_template.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*entry, *sys.path])
    child = start("where", "my_template")
    assert child.answer(60) == (str(tmp_path / "my_template.py") if found else "ModuleNotFoundError")
    child.close()


@pytest.mark.parametrize(
    ("code", "text"), [(0, "exit code 0"), (3, "exit code 3"), (-signal.SIGSEGV, "SIGSEGV"), (-77, "signal 77")]
)
def test_exits_have_names(code: int, text: str) -> None:
    assert describe_exit(code) == text


PARENT = """
import sys, time
from stormdrop.machine.process.child_process import ChildProcess
child = ChildProcess("test_child_process:greet_and_hang", fresh=sys.argv[2] == "fresh")
child.answer(60)
if sys.argv[1] == "paused":
    child.pause()
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("way", ["forked", "fresh"])
@pytest.mark.parametrize("state", ["running", "paused"])
@pytest.mark.long
def test_it_does_not_outlive_a_parent_that_is_killed(state: str, way: str) -> None:
    path = os.pathsep.join([str(Path(stormdrop.__file__).parents[1]), str(Path(__file__).parent)])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, state, way],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert child.wait(timeout=10) is None or not child.is_running()
