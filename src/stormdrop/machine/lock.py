"""The machine-wide lock: many processes may compile at once, but a kernel that is measured runs alone.

Two locks make the waiting fair. Whoever wants the machine first takes the gate, and holds it while waiting for the
main lock. So new compilations do not overtake a run that waits for the compilations of others, and two tuning
sessions take turns.

Both locks are `flock`s on files that all users of the machine share. The operating system releases them when the
process that holds them ends, in whatever way. This needs a POSIX system. `measure/local`, `machine/peak`,
`bench/turns`, `model/tune` and `model/profile` take the lock.
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
    """Shared and exclusive use of the machine. A lock is for one thread and cannot be taken again while it is held.

    Attributes:
        path: The lock file.
        waited: Seconds that were spent waiting for the lock so far.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Open the lock files, and create them if they do not exist.

        Args:
            path: The lock file; by default that of `default_lock_path`. The gate is the file beside it.

        Raises:
            MeasureError: A lock file can be neither opened nor created.
        """
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
        """Use the machine for work that is not measured, such as compilation.

        Raises:
            MeasureError: This lock is already held.
        """
        with self._hold(exclusive=False):
            yield

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Use the machine for a measurement, while nobody else compiles or runs.

        Raises:
            MeasureError: This lock is already held.
        """
        with self._hold(exclusive=True):
            yield

    def close(self) -> None:
        """Close the files. Closing a closed lock does nothing."""
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
        # Without O_CREAT, because Linux refuses it for another user's file in a sticky directory.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise MeasureError(f"the lock file {path} cannot be opened: {error.strerror}") from error
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        if os.fstat(descriptor).st_uid == os.getuid():
            os.fchmod(descriptor, 0o666)  # other users must be able to open it, whatever the umask is
        return descriptor
    except OSError as error:
        raise MeasureError(f"the lock file {path} cannot be created: {error.strerror}") from error
