"""A child process that serves its parent over a pipe: one class for workers, contenders and the peak measurement.

    parent                                                    child
    ChildProcess("package.module:serve", arguments)   ->      serve(connection, *arguments)
    send, receive, answer, pause, resume, kill, wait

The child is forked from a process that has loaded what it needs (`fork_server`), or it is a new program
(`fresh_process`). It dies with its parent, whatever it is doing, even if the parent was killed. It leads a process
group of its own: what it has started ends with it, also if it has crashed. It is no `multiprocessing.Process`: that
would run the user's script again, which need not be written for it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from ...errors import MeasureError
from . import fork_server
from .fresh_process import FreshProcess
from .last_output import LastOutput

STALL_SECONDS = 30.0
"""A child that takes or brings nothing of a message for so long is killed. It is stopped, or it never reads."""

_PAUSE = 0.002  # seconds between two looks whether a process has ended


class ChildProcess:
    """A running child process. It is paused and resumed as a whole.

    Attributes:
        connection: The parent's end of the pipe.
        started: When it was started, a reading of `time.perf_counter`.
        alive: Whether it has not been waited for yet.
    """

    def __init__(
        self,
        serve: str,
        arguments: Sequence[object] = (),
        environment: Mapping[str, str] | None = None,
        loads: Sequence[str] = (),
        fresh: bool = False,
        die_with_thread: bool = False,
    ) -> None:
        """Starts the process, without waiting for it.

        Args:
            serve: The function "module:name" that the child calls with its end of the pipe and the arguments.
            arguments: Are pickled.
            environment: Variables that the child has besides those of this process.
            loads: Modules that the child needs and that take time to load: it is forked from a process that has them,
                and those that they name in `LOADS`. NumPy has one thread there.
            fresh: The child is a new program that loads everything itself: it has variables, or needs libraries, that
                settle something when they are loaded. Where no fork server is possible, every child is.
            die_with_thread: A fresh child also ends when the thread that starts it ends. A child that is paused needs
                this, unless the main thread starts it: a paused child cannot watch its parent.

        Raises:
            MeasureError: The process cannot be started, or it takes no arguments.
        """
        self.alive = True
        self.started = time.perf_counter()
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:  # the ends of the pipes
            try:
                self.connection, connection = _pipe()
                ours.callback(self.connection.close)
                theirs.callback(connection.close)
                # Not on the terminal: libraries are talkative, and a crashing kernel prints pages.
                self._output, output = LastOutput.of_pipe()
                theirs.callback(os.close, output)
                pipe, path, variables = connection.fileno(), search_path(), {**os.environ, **(environment or {})}
                self._process = (
                    FreshProcess(pipe, output, path, variables, die_with_thread)
                    if fresh or not fork_server.is_possible()
                    else fork_server.fork(pipe, output, path, variables, loads)
                )
            except OSError as error:
                raise MeasureError(f"no child process can be started: {error}") from error
            ours.pop_all()
        try:
            if not self.send((serve, pickle.dumps(tuple(arguments)))):
                raise MeasureError(f"a child process does not start ({self.wait()}): {self.last_line()}")
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The id of the process. It is waited for until the process has started."""
        return self._process.pid

    def send(self, message: object) -> bool:
        """Sends a message; False if the process has died. One that takes nothing for `STALL_SECONDS` is killed."""
        try:
            self.connection.send(message)
        except BlockingIOError:  # a part may have been sent, so the pipe is of no use any more
            self.kill()
            return False
        except OSError:
            return False
        return True

    def receive(self) -> Any:
        """The next message, which has begun to arrive; None if the process has died instead.

        A process that stops in the middle of a message for `STALL_SECONDS` is killed.
        """
        try:
            return self.connection.recv()
        except BlockingIOError:
            self.kill()
            return None
        except (EOFError, OSError):
            return None

    def answer(self, seconds: float) -> Any:
        """Waits for a message.

        Returns:
            The message; None if the process died.

        Raises:
            TimeoutError: No message came within `seconds`. The process was killed.
        """
        if not self.alive:
            return None
        if not self.connection.poll(seconds):
            self.kill()
            raise TimeoutError(f"no message within {seconds:g} s")
        return self.receive()

    def pause(self) -> None:
        """Takes the process off the cores. Thread pools spin for a while after a run and wait for the next."""
        self._process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a paused process go on; it is harmless if it is not paused."""
        self._process.signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends the process at once, whatever it is doing, and the processes that it may have started."""
        if not self.alive:
            return
        if self._process.has_started():
            with contextlib.suppress(psutil.Error):  # it has ended
                for child in psutil.Process(self.pid).children(recursive=True):  # also those that left its group
                    with contextlib.suppress(psutil.Error):
                        child.kill()
        self._process.signal(signal.SIGKILL)
        self.wait(0.0)

    def wait(self, seconds: float = 5.0) -> str:
        """Waits for the end of a process whose pipe is closed, and kills it if it takes longer.

        Returns:
            How it ended: "SIGSEGV", "exit code 3".
        """
        deadline = time.monotonic() + seconds
        while not self._process.has_ended() and time.monotonic() < deadline:
            time.sleep(_PAUSE)  # its pipe closes a moment before it has ended
        self._process.signal(signal.SIGKILL)  # what it has started, even if it has crashed
        code = self._process.reap()
        if self.alive:
            self.connection.close()
            self.alive = False
        return describe_exit(code)

    def last_line(self) -> str:
        """The last line that the process wrote to its standard output or error."""
        return self._output.last_line(ended=not self.alive) or self._process.last_line() or "no message"

    def close(self) -> None:
        """Ends the process. Closing twice is harmless."""
        self.kill()


def prepare(*loads: str, here: bool = False) -> None:
    """Lets modules be loaded in the background, so that children that need them start sooner.

    Args:
        loads: The modules, as `ChildProcess` takes them.
        here: They are loaded in this process, which needs them, too, and then forked, if that is possible
            (`fork_server.fork_here`).
    """
    if fork_server.is_possible():
        with contextlib.suppress(OSError):  # whoever needs a child says why none can be started
            if here:
                fork_server.fork_here(search_path(), loads)
            fork_server.prepare(search_path(), loads)


def _pipe() -> tuple[Connection, Connection]:
    """Both ends of a pipe, the parent's first, which waits for `STALL_SECONDS` at most in the midst of a message."""
    ours, theirs = socket.socketpair()
    seconds = struct.pack("@ll", *divmod(int(STALL_SECONDS * 1e6), 10**6))
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
    return Connection(ours.detach()), Connection(theirs.detach())


def search_path() -> list[str]:
    """The parent's search path, so that modules of the user are found. The current folder, if it is there, comes last.

    It is there if the parent is interactive. What lies in that folder must not take the place of a library.
    """
    folders = [folder for folder in sys.path if isinstance(folder, str)]
    return [*filter(None, folders), *([str(Path.cwd())] if "" in folders else [])]


def describe_exit(code: int) -> str:
    """How a process with this return code ended: "SIGSEGV", "exit code 3"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
