"""Temporary folders that are removed even if their process is killed: the next process that makes one does it then.

Whoever makes such a folder holds a lock on it as long as it lives.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "stormdrop-scratch-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder among the temporary files, which is removed at the end. What killed processes have left is, too.

    Yields:
        The folder, which only this user may open.

    Raises:
        OSError: The folder cannot be made.

    Example:
        >>> with scratch_folder() as folder:
        ...     size = (folder / "file").write_text("text")
        >>> folder.exists()
        False
    """
    parent = Path(tempfile.gettempdir())
    for folder in abandoned_folders(parent, _PREFIX):
        remove_folder(folder)  # if something stays, the next process tries again
    with locked_folder(parent, _PREFIX) as folder:
        yield folder


def remove_folder(folder: Path) -> None:
    """Removes a folder with all that it holds, as far as that can be done; if it is gone, nothing happens."""
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked_folder(parent: Path, prefix: str, remove: Callable[[Path], None] = remove_folder) -> Iterator[Path]:
    """A new folder that is locked as long as this context lasts and this process lives. At the end it is removed.

    It is also removed if a signal ends the context while the folder is made, or the removal itself.

    Args:
        parent: The folder that it stands in.
        prefix: What its name begins with.
        remove: Removes it. It is called a second time if a signal interrupts it.

    Raises:
        OSError: The folder cannot be made.
    """
    while True:
        folder = parent / f"{prefix}{uuid.uuid4().hex}"  # known before it is made: a signal may come at once
        descriptor = None
        try:
            folder.mkdir(mode=0o700)
            descriptor = _locked(folder)
            if descriptor is not None:
                yield folder
                return
        finally:
            try:
                remove(folder)
            except BaseException:
                remove(folder)
                raise
            finally:
                if descriptor is not None:
                    os.close(descriptor)


def _locked(folder: Path) -> int | None:
    """The descriptor of a folder that is locked now. None if another process took it for a killed one's before."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    if _try_lock(descriptor) is not False and folder.exists():
        return descriptor
    os.close(descriptor)
    return None


def abandoned_folders(parent: Path, prefix: str) -> Iterator[Path]:
    """The folders with this prefix whose process has ended. Each is locked until the next one is asked for.

    Args:
        parent: The folder that they stand in.
        prefix: What their names begin with.
    """
    for folder in folders_with(parent, prefix):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # it is another user's, or its process has just removed it
        try:
            if _try_lock(descriptor):
                yield folder
        finally:
            os.close(descriptor)


def folders_with(parent: Path, prefix: str) -> list[Path]:
    """What stands in a folder under names that begin with this prefix; nothing if the folder cannot be listed."""
    try:
        names = os.listdir(parent)  # noqa: PTH208  iterdir makes a Path of every name
    except OSError:
        return []
    return [parent / name for name in sorted(names) if name.startswith(prefix)]


def _try_lock(descriptor: int) -> bool | None:
    """Locks a folder until this process ends. False if another process holds the lock; None if there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
