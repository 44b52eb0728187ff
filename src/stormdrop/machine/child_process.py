"""A child process that serves its parent over a pipe: one class for workers, contenders and the peak measurement.

    parent                                                    child
    ChildProcess("package.module:serve", arguments)   ->      serve(connection, *arguments)
    send, receive, answer, pause, resume, kill, wait

The child dies with its parent, whatever it is doing, even if the parent was killed. It leads a process group of its
own: what it has started ends with it, also if it has crashed. It is no `multiprocessing.Process`: that would run the
user's script again, which need not be written for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from ..errors import MeasureError
from .last_output import LastOutput

STALL_SECONDS = 30.0
"""A child that takes or brings nothing of a message for so long is killed. It is stopped, or it never reads."""

_PAUSE = 0.002  # seconds between two looks whether a process has ended

_PR_SET_PDEATHSIG = 1

# `-c` lets the child import from the current folder, where anything may lie: it has exactly the given path instead.
_PROGRAM = f"import sys; sys.path[:] = sys.argv[4:]; from {__name__} import main; main()"


class ChildProcess:
    """A running child process. It is paused and resumed as a whole.

    Attributes:
        connection: the parent's end of the pipe.
        started: when it was started, a reading of `time.perf_counter`.
        alive: whether it has not been waited for yet.
    """

    def __init__(
        self,
        serve: str,
        arguments: Sequence[object] = (),
        environment: Mapping[str, str] | None = None,
        die_with_thread: bool = False,
    ) -> None:
        """Starts the process, without waiting for it.

        Args:
            serve: the function "module:name" that the child calls with its end of the pipe and the arguments.
            arguments: are pickled.
            environment: variables that the child has besides those of this process.
            die_with_thread: the child also ends when the thread that starts it ends. A child that is paused needs
                this, unless the main thread starts it: a paused child cannot watch its parent.

        Raises:
            MeasureError: the process cannot be started, or it takes no arguments.
        """
        self.alive = True
        self.started = time.perf_counter()
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:  # the ends of the pipes
            try:
                self.connection, connection = _pipe()
                ours.callback(self.connection.close)
                theirs.callback(connection.close)
                lifeline, self._lifeline = os.pipe()
                ours.callback(os.close, self._lifeline)
                theirs.callback(os.close, lifeline)
                # Not on the terminal: libraries are talkative, and a crashing kernel prints pages.
                self._output, output = LastOutput.of_pipe()
                theirs.callback(os.close, output)
                # Linux ends a child when the thread that started it ends: only the main thread lives as long as the
                # process.
                signalled = die_with_thread or threading.current_thread() is threading.main_thread()
                command = (connection.fileno(), lifeline, os.getpid() if signalled else 0)
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, *map(str, command), *_search_path()],
                    pass_fds=(connection.fileno(), lifeline),
                    env={**os.environ, **(environment or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
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
        """The id of the process."""
        return self._process.pid

    @property
    def cpu_seconds(self) -> float:
        """CPU time that the process has used so far."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

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
            TimeoutError: no message came within `seconds`. The process was killed.
        """
        if not self.alive:
            return None
        if not self.connection.poll(seconds):
            self.kill()
            raise TimeoutError(f"no message within {seconds:g} s")
        return self.receive()

    def pause(self) -> None:
        """Takes the process off the cores. Thread pools spin for a while after a run and wait for the next."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a paused process go on; it is harmless if it is not paused."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends the process at once, whatever it is doing, and the processes that it may have started."""
        if not self.alive:
            return
        with contextlib.suppress(psutil.Error):  # it has ended
            for child in psutil.Process(self.pid).children(recursive=True):  # also those that left its group
                with contextlib.suppress(psutil.Error):
                    child.kill()
        self._signal(signal.SIGKILL)
        self.wait(0.0)

    def wait(self, seconds: float = 5.0) -> str:
        """Waits for the end of a process whose pipe is closed, and kills it if it takes longer.

        Returns:
            How it ended: "SIGSEGV", "exit code 3".
        """
        deadline = time.monotonic() + seconds
        while not self._has_ended() and time.monotonic() < deadline:
            time.sleep(_PAUSE)  # its pipe closes a moment before it has ended
        self._signal(signal.SIGKILL)  # what it has started, even if it has crashed
        code = self._process.wait()
        if self.alive:
            self.connection.close()
            os.close(self._lifeline)
            self.alive = False
        return describe_exit(code)

    def last_line(self) -> str:
        """The last line that the process wrote to its standard output or error."""
        lines = self._output.text(ended=not self.alive).strip().splitlines()
        return lines[-1] if lines else "no message"

    def close(self) -> None:
        """Ends the process. Closing twice is harmless."""
        self.kill()

    def _signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process and to what it has started."""
        if self._process.returncode is not None:
            return  # its id may be that of another process by now
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:  # it has just been started, and does not lead its group yet
            self._process.send_signal(number)

    def _has_ended(self) -> bool:
        """Whether the process has ended. As long as nobody waits for it, no other process or group gets its id."""
        if self._process.returncode is not None or not hasattr(os, "waitid"):
            return self._process.poll() is not None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # this process ignores the ends of its children
            return True


def _pipe() -> tuple[Connection, Connection]:
    """Both ends of a pipe, the parent's first, which waits for `STALL_SECONDS` at most in the midst of a message."""
    ours, theirs = socket.socketpair()
    seconds = struct.pack("@ll", *divmod(int(STALL_SECONDS * 1e6), 10**6))
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
    return Connection(ours.detach()), Connection(theirs.detach())


def _search_path() -> list[str]:
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


# The child's side


def main() -> None:
    """The child: calls the function that the parent names. `sys.argv`: pipe, lifeline, parent's process id or 0."""
    os.setpgid(0, 0)
    pipe, lifeline, parent = (int(argument) for argument in sys.argv[1:4])
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # sent to all processes of a group; the parent ends us
        signal.signal(getattr(signal, name, signal.SIGINT), signal.SIG_IGN)
    _die_with_parent(lifeline, parent)
    connection = Connection(pipe)
    try:
        serve, arguments = connection.recv()
    except EOFError:
        return
    module, _, function = serve.partition(":")
    getattr(importlib.import_module(module), function)(connection, *pickle.loads(arguments))


def _die_with_parent(lifeline: int, parent: int) -> None:
    """Ends this process when the parent ends, whatever this process is doing then.

    The lifeline is a pipe that the parent holds open. Linux's own signal works even if a native loop keeps the
    interpreter's lock, but it comes when the *thread* that started the child ends: the parent passes its id only if
    that is the main thread.
    """

    def wait() -> None:
        os.read(lifeline, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()
    if parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the signal was set
            os._exit(1)
