"""A child process that starts as a new program: it loads everything itself."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence

from . import child_side


class FreshProcess:
    """A new Python process that serves its parent. `ChildProcess` says what the parent may do with it."""

    def __init__(
        self, pipe: int, output: int, path: Sequence[str], environment: Mapping[str, str], die_with_thread: bool
    ) -> None:
        """Starts the process, without waiting for it.

        Args:
            pipe: The child's end of the pipe to the parent.
            output: Where its standard output and error go.
            path: The folders from which it may import.
            environment: All variables that it has.
            die_with_thread: It also ends when the thread that starts it ends.

        Raises:
            OSError: It cannot be started.
        """
        # Linux ends a child when the thread that started it ends: only the main thread lives as long as the process.
        signalled = die_with_thread or threading.current_thread() is threading.main_thread()
        lifeline, self._lifeline = os.pipe()
        try:
            numbers = (pipe, lifeline, os.getpid() if signalled else 0)
            self._process = subprocess.Popen(
                child_side.command(child_side.__name__, "main", numbers, list(path)),
                pass_fds=(pipe, lifeline),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(lifeline)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def has_started(self) -> bool:
        """Whether `pid` is there without waiting: always."""
        return True

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process and to what it has started."""
        if self._process.returncode is not None:
            return  # its id may be that of another process by now
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:  # it has just been started, and does not lead its group yet
            self._process.send_signal(number)

    def has_ended(self) -> bool:
        """Whether the process has ended. As long as nobody waits for it, no other process or group gets its id."""
        if self._process.returncode is not None or not hasattr(os, "waitid"):
            return self._process.poll() is not None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # this process ignores the ends of its children
            return True

    def reap(self) -> int:
        """Waits for the end of the process. Returns its exit code; a signal that ended it is negative."""
        code = self._process.wait()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        return code

    def last_line(self) -> str:
        """What is known of the process beside its output: nothing."""
        return ""
