"""A child process that serves its parent over a pipe: one class for workers, contenders and the peak measurement.

    parent                                                    child
    ChildProcess("package.module:serve", arguments)   ->      serve(connection, *arguments)
    send, receive, answer, pause, resume, kill, wait

The child dies with its parent, whatever it is doing, even if the parent was killed. It is no
`multiprocessing.Process`: that would run the user's script again, which need not be written for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from ..errors import MeasureError

_PR_SET_PDEATHSIG = 1
_START_SECONDS = 120.0  # until a child takes its arguments


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
            MeasureError: the process cannot be started.
        """
        self.alive = True
        self.started = time.perf_counter()
        self.connection, theirs = Pipe(duplex=True)
        lifeline, self._lifeline = os.pipe()
        # In a file and not on the terminal: libraries are talkative, and a crashing kernel prints pages.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  closed in `close`
        # Linux ends a child when the thread that started it ends: only the main thread lives as long as the process.
        signalled = die_with_thread or threading.current_thread() is threading.main_thread()
        command = (theirs.fileno(), lifeline, os.getpid() if signalled else 0)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import main; main()", *map(str, command)],
                pass_fds=(theirs.fileno(), lifeline),
                # The parent's search path, so that modules of the user are found.
                env={
                    **os.environ,
                    **(environment or {}),
                    "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
                },
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
            )
        except OSError as error:
            self._output.close()
            os.close(self._lifeline)
            raise MeasureError(f"no child process can be started: {error}") from error
        finally:
            theirs.close()
            os.close(lifeline)
        try:
            with self._limited(_START_SECONDS):
                self.send((serve, pickle.dumps(tuple(arguments))))
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
        """Sends a message; False if the process has died."""
        try:
            self.connection.send(message)
        except OSError:
            return False
        return True

    def receive(self) -> Any:
        """The next message, which must have arrived or is waited for; None if the process has died instead."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            return None

    def answer(self, seconds: float) -> Any:
        """Waits for a message.

        Returns:
            The message; None if the process died.

        Raises:
            TimeoutError: the whole message did not come within so many seconds. The process was killed.
        """
        if not self.alive:
            return None
        with self._limited(seconds):
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
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            for child in psutil.Process(self.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        self._process.kill()
        self.wait(0.0)

    def wait(self, seconds: float = 5.0) -> str:
        """Waits for the end of a process whose pipe is closed, and kills it if it takes longer.

        Returns:
            How it ended: "SIGSEGV", "exit code 3".
        """
        try:
            self._process.wait(timeout=seconds)  # its pipe closes a moment before it has ended
        except subprocess.TimeoutExpired:
            self._process.kill()
        code = self._process.wait()
        if self.alive:
            self.connection.close()
            os.close(self._lifeline)
            self.alive = False
        return describe_exit(code)

    def last_line(self) -> str:
        """The last line that the process wrote to its standard output or error."""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no message"

    def close(self) -> None:
        """Ends the process. Closing twice is harmless."""
        if self.alive:
            self.kill()
        self._output.close()

    @contextlib.contextmanager
    def _limited(self, seconds: float) -> Iterator[None]:
        """Kills the process after so many seconds, which ends whatever is waited for. Raises `TimeoutError` then."""
        expired = threading.Event()

        def end() -> None:
            expired.set()
            self._process.kill()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
        if expired.is_set():
            self.kill()
            raise TimeoutError(f"no message within {seconds:g} s")

    def _signal(self, number: signal.Signals) -> None:
        if self.alive and self._process.poll() is None:
            self._process.send_signal(number)


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
    pipe, lifeline, parent = (int(argument) for argument in sys.argv[1:4])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
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
