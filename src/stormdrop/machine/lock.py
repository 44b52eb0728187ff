"""The machine-wide lock: many may compile at once, one kernel runs alone.

Two locks make it fair: whoever wants the machine first passes a gate, and keeps the gate while it waits. So a run
that waits for the compilations of others is not overtaken by new ones, and two tuning runs take turns.

Both are `flock`s on files that all users of the machine share; the kernel drops them when their owner dies, however
it dies. This needs a POSIX system.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import MeasureError


def default_lock_path() -> Path:
    """The lock file that all users of this machine share."""
    return Path(tempfile.gettempdir()) / "stormdrop.lock"


class MachineLock:
    """Shared and exclusive use of the machine; not reentrant, for one thread.

    `waited` is the number of seconds spent waiting so far.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Raises MeasureError where the lock files can be neither opened nor made."""
        self.path = default_lock_path() if path is None else Path(path)
        self.waited = 0.0
        self._main = _open(self.path)
        try:
            self._gate = _open(self.path.with_name(self.path.name + ".gate"))
        except MeasureError:
            os.close(self._main)
            raise
        self._held = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """The machine is used, but not measured: compilation."""
        with self._hold(exclusive=False):
            yield

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """The machine is measured: nobody else compiles or runs."""
        with self._hold(exclusive=True):
            yield

    def close(self) -> None:
        """Gives the files back; twice is harmless."""
        for descriptor in (self._main, self._gate):
            if descriptor >= 0:
                os.close(descriptor)
        self._main = self._gate = -1

    @contextmanager
    def _hold(self, exclusive: bool) -> Iterator[None]:
        if self._held:
            raise MeasureError("the machine lock is held already by this process: finish one measurement first")
        start = time.perf_counter()
        self._held = True
        try:
            try:
                fcntl.flock(self._gate, fcntl.LOCK_EX)
                fcntl.flock(self._main, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            finally:
                fcntl.flock(self._gate, fcntl.LOCK_UN)
            self.waited += time.perf_counter() - start
            yield
        finally:
            self._held = False
            if self._main >= 0:
                fcntl.flock(self._main, fcntl.LOCK_UN)


def _open(path: Path) -> int:
    """A descriptor of a lock file that every user may lock."""
    try:
        # An existing file of another user is opened without O_CREAT: in sticky directories Linux refuses the latter.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise MeasureError(f"the lock file {path} cannot be opened: {error.strerror}") from error
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        if os.fstat(descriptor).st_uid == os.getuid():
            os.fchmod(descriptor, 0o666)  # whatever the umask says: other users must be able to open it
        return descriptor
    except OSError as error:
        raise MeasureError(f"the lock file {path} cannot be made: {error.strerror}") from error
