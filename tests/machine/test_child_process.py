"""Child processes: they answer, they can be paused and limited, and they do not outlive their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

import stormdrop
from stormdrop.machine.child_process import ChildProcess, describe_exit


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


def environment_of(connection: Connection, name: str) -> None:
    """Sends a variable of the environment."""
    connection.send(os.environ.get(name))


@pytest.fixture
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


pytestmark = pytest.mark.usefixtures("_importable")


def test_it_answers_until_it_is_closed() -> None:
    child = ChildProcess(f"{__name__}:echo", (">",))
    assert child.send("a")
    assert child.answer(60) == ">a"
    child.close()
    assert not child.alive
    assert not child.send("b")
    child.close()  # twice is harmless


def test_a_paused_child_answers_when_it_is_resumed() -> None:
    child = ChildProcess(f"{__name__}:echo", (">",))
    child.send("a")
    assert child.answer(60) == ">a"
    child.pause()
    child.send("b")
    assert not child.connection.poll(0.2)
    child.resume()
    assert child.answer(60) == ">b"
    child.close()


def test_a_child_that_does_not_answer_is_killed() -> None:
    child = ChildProcess(f"{__name__}:hang")
    with pytest.raises(TimeoutError, match=r"no message within 0\.5 s"):
        child.answer(0.5)
    assert not child.alive
    assert not psutil.pid_exists(child.pid)
    child.close()


def test_how_it_died_and_what_it_said_last() -> None:
    child = ChildProcess(f"{__name__}:die", (3,))
    assert child.answer(60) is None
    assert child.wait() == "exit code 3"
    assert child.last_line() == "last words"
    child.close()


def test_it_has_the_variables_that_it_is_given() -> None:
    child = ChildProcess(f"{__name__}:environment_of", ("OF_THE_CHILD",), {"OF_THE_CHILD": "yes"})
    assert child.answer(60) == "yes"
    child.close()
    assert "OF_THE_CHILD" not in os.environ


@pytest.mark.parametrize(
    ("code", "text"), [(0, "exit code 0"), (3, "exit code 3"), (-signal.SIGSEGV, "SIGSEGV"), (-77, "signal 77")]
)
def test_exits_have_names(code: int, text: str) -> None:
    assert describe_exit(code) == text


PARENT = """
import sys, time
from stormdrop.machine.child_process import ChildProcess
child = ChildProcess("test_child_process:greet_and_hang")
child.answer(60)
if sys.argv[1] == "paused":
    child.pause()
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("state", ["running", "paused"])
def test_it_does_not_outlive_a_parent_that_is_killed(state: str) -> None:
    path = os.pathsep.join([str(Path(stormdrop.__file__).parents[1]), str(Path(__file__).parent)])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, state],
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
