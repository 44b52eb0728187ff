"""The machine-wide lock: many processes may compile at once, but a kernel that is measured runs alone.

Two locks make the waiting fair. Whoever wants the machine first takes the gate, and holds it while waiting for the
main lock. So new compilations do not overtake a run that waits for the compilations of others, and two tuning
sessions take turns.

Both locks are `flock`s on files that all users of the machine share. The operating system releases them when the
process that holds them ends, in whatever way. A process that is stopped keeps them. So whoever waits for long is told
who holds the lock (`lock_holder.py`), and a wait may have a deadline. This needs a POSIX system. `measure/local`,
`limits/peak`, `bench/turns`, `model/tuning/latency` and `model/profile` take the lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import math
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from ... import events
from ...errors import LockTimeout, MeasureError
from .lock_holder import describe_holder

TELL_AFTER = 5.0
"""Seconds of waiting after which the user is told who holds the lock."""

# The folder is everybody's: a link may be in the file's place, or a pipe that blocks whoever opens it.
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

_TRIES = 100  # to lock a file that somebody deletes meanwhile

_logger = logging.getLogger(__name__)


def default_lock_path() -> Path:
    """The lock file that all users of this machine share.

    Raises:
        MeasureError: There is no folder for temporary files.
    """
    try:
        return Path(tempfile.gettempdir()) / "stormdrop.lock"
    except FileNotFoundError as error:
        raise MeasureError(
            f"no folder for temporary files can be written: {error.strerror}; let TMPDIR name one"
        ) from error


class MachineLock:
    """Shared and exclusive use of the machine. A lock is for one thread and cannot be taken again while it is held.

    Attributes:
        path: The lock file.
        waited: Seconds that were spent waiting for the lock so far.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Checks the lock files, and creates them if they do not exist.

        Args:
            path: The lock file; by default that of `default_lock_path`. The gate is the file beside it.

        Raises:
            MeasureError: A lock file can be neither opened nor created, or is no regular file.
        """
        self.path = default_lock_path() if path is None else Path(path)
        self.waited = 0.0
        self._gate_path = self.path.with_name(self.path.name + ".gate")
        self._held = False
        self._descriptor: int | None = None  # of the lock file while the lock is held
        for file in (self.path, self._gate_path):
            os.close(_open(file))

    def shared(self, deadline: float = math.inf) -> AbstractContextManager[None]:
        """Uses the machine for work that is not measured, such as compilation.

        Args:
            deadline: A reading of `time.perf_counter` after which the lock is not waited for any more.

        Raises:
            LockTimeout: The lock was not free before the deadline.
            MeasureError: This lock is already held, or a lock file cannot be used.
        """
        return self._hold(fcntl.LOCK_SH, deadline)

    def exclusive(self, deadline: float = math.inf) -> AbstractContextManager[None]:
        """Uses the machine for a measurement, while nobody else compiles or runs.

        Args:
            deadline: A reading of `time.perf_counter` after which the lock is not waited for any more.

        Raises:
            LockTimeout: The lock was not free before the deadline.
            MeasureError: This lock is already held, or a lock file cannot be used.
        """
        return self._hold(fcntl.LOCK_EX, deadline)

    def close(self) -> None:
        """Gives the lock back if it is held. Closing a closed lock does nothing."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None

    @contextmanager
    def _hold(self, operation: int, deadline: float) -> Iterator[None]:
        if self._held:
            raise MeasureError("the machine lock is held already by this process: finish one measurement first")
        start = time.perf_counter()
        self._held = True
        try:
            use, where = "exclusive" if operation == fcntl.LOCK_EX else "shared", f"lock {self.path.name}"
            try:
                with events.span("wait", where, use=use):
                    gate = _locked(self._gate_path, fcntl.LOCK_EX, deadline)
                    try:
                        self._descriptor = _locked(self.path, operation, deadline)
                    finally:
                        os.close(gate)
            finally:
                self.waited += time.perf_counter() - start
            with events.span(use, where):
                yield
        finally:
            self._held = False
            self.close()


def _locked(path: Path, operation: int, deadline: float) -> int:
    """A descriptor of a lock file whose lock is held until the descriptor is closed.

    The file is opened anew each time, so that all processes use the same one, even if somebody has deleted it.
    """
    for _ in range(_TRIES):
        descriptor = _open(path)
        try:
            try:
                fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
            except BlockingIOError:
                _wait(descriptor, path, operation, deadline)
            if _is_at(descriptor, path):
                return descriptor
        except OSError as error:
            os.close(descriptor)
            raise _unusable(path, error) from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # somebody has deleted the file, and others may have made a new one
    raise _unusable(path, "somebody deletes it again and again")


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether a descriptor is of the file that is at a path now."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _wait(descriptor: int, path: Path, operation: int, deadline: float) -> None:
    """Waits for the lock.

    A thread waits: `flock` has no time limit, and a process that looked again and again would disturb the kernels that
    are measured meanwhile. The thread has a duplicate of the descriptor, which shares its locks. If the wait is given
    up, the caller closes the descriptor. The thread then closes the duplicate as soon as it has the lock, which gives
    the lock back.
    """
    if deadline <= time.perf_counter():  # an abandoned thread would hold the lock for a moment, later
        raise LockTimeout(_not_free(path))
    duplicate, done = os.dup(descriptor), threading.Event()

    def block() -> None:
        try:
            with contextlib.suppress(OSError):  # the caller meets the same error below
                fcntl.flock(duplicate, operation)
        finally:
            os.close(duplicate)
            done.set()

    threading.Thread(target=block, name="machine lock", daemon=True).start()
    left = deadline - time.perf_counter()
    if left > TELL_AFTER and not done.wait(TELL_AFTER):
        _logger.warning("waiting for the machine (lock file %s): %s", path, describe_holder())
    left = deadline - time.perf_counter()
    if not done.wait(None if math.isinf(left) else max(0.0, left)):
        raise LockTimeout(_not_free(path))
    fcntl.flock(descriptor, operation | fcntl.LOCK_NB)


def _not_free(path: Path) -> str:
    return f"the machine (lock file {path}) was not free in time: {describe_holder()}"


def _open(path: Path) -> int:
    """A descriptor of a lock file that every user may lock. Reading suffices for that."""
    try:
        try:
            # Without O_CREAT, because Linux refuses it for another user's file in a sticky directory.
            descriptor = os.open(path, _OPEN)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                return _created(path)
            descriptor = os.open(path, _OPEN)  # another process has just created it
    except OSError as error:
        raise _unusable(path, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _unusable(path, "it is no regular file")
    return descriptor


def _created(path: Path) -> int:
    descriptor = os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, 0o666)
    os.fchmod(descriptor, 0o666)  # other users must be able to open it, whatever the umask is
    return descriptor


def _unusable(path: Path, reason: OSError | str) -> MeasureError:
    if isinstance(reason, OSError):
        reason = "it is a symbolic link" if reason.errno == errno.ELOOP else str(reason.strerror)
    return MeasureError(
        f"the lock file {path} cannot be used: {reason}; remove it, or let TMPDIR name a folder that all users of this"
        " machine share"
    )
