"""Replaces a folder at once: at every moment one complete generation of it can be found, even after a kill -9.

folder                      the folder
.folder.saving-XXXXXXXX/    a save that is under way, whose process holds a lock on it, or one that was killed
    new/                    what is being written
    old/                    the former folder, for a moment, if the system cannot exchange two folders in one step
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from ...machine.process.scratch import abandoned_folders, folders_with, locked_folder, remove_folder

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux's fcntl.h


def replace_folder(path: Path, write: Callable[[Path], None]) -> None:
    """Writes a folder whole or not at all.

    The files are written into a temporary folder beside `path`, and reach the disk. Then the folder takes the place of
    the former one in one step. If several processes replace a folder, the last one that completes its own wins.

    Args:
        path: The folder to write or to replace. If it is a symbolic link, the folder that it names is replaced.
        write: Writes the files into the empty folder that it is given.

    Raises:
        OSError: The folder cannot be written. The former one is still there.
    """
    path = _real(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    recover(path)
    with _scratch(path) as scratch:
        new = scratch / "new"
        new.mkdir()
        write(new)
        for file in new.iterdir():
            _sync(file)
        _sync(new)
        _publish(new, path)
        _sync(path.parent)


def recover(path: Path) -> None:
    """Removes what killed saves of a folder have left. If one was killed between two renames, puts the folder back.

    Args:
        path: The folder. Saves that are under way, and what another user has left, are not touched.
    """
    path = _real(path)
    for scratch in abandoned_folders(path.parent, _prefix(path)):
        _discard(scratch, path)


def find_folder(path: Path) -> Path:
    """Where the folder is now: at `path`, or in what a save has left that was killed between two renames."""
    if path.exists():
        return path
    real = _real(path)
    scratches = folders_with(real.parent, _prefix(real))  # of all saves
    return next((old for scratch in scratches if (old := scratch / "old").exists()), path)


@contextmanager
def probe(path: Path) -> Iterator[None]:
    """Creates what a save of `path` creates first, if the parent folder exists, and removes it.

    Raises:
        OSError: It cannot be created.
    """
    with _scratch(_real(path)):
        yield


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _prefix(path: Path) -> str:
    return f".{path.name}.saving-"


def _scratch(path: Path) -> AbstractContextManager[Path]:
    """A temporary folder beside `path`. While this process lives, no other one takes it for a killed one's."""
    return locked_folder(path.parent, _prefix(path), lambda scratch: _discard(scratch, path))


def _discard(scratch: Path, path: Path) -> None:
    """Removes a temporary folder. If it holds the only generation of `path`, puts that back before."""
    if (scratch / "old").exists():
        _rename(scratch / "old", path)
    remove_folder(scratch)  # if something stays, the next save tries again


def _publish(new: Path, path: Path) -> None:
    """Puts the folder `new` in the place of `path`. The former folder is then beside `new`, or in its place."""
    old = new.with_name("old")
    while not (_rename(new, path) or _exchange(new, path)):
        # Without an exchange there are two renames. Between them the former folder is where `recover` finds it.
        shutil.rmtree(old, ignore_errors=True)  # another process has published since it was moved
        with suppress(FileNotFoundError):  # another process has just moved it
            os.rename(path, old)  # noqa: PTH104


def _rename(source: Path, target: Path) -> bool:
    """Renames a folder. False if the target is a folder with files."""
    try:
        os.rename(source, target)  # noqa: PTH104
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _exchange(first: Path, second: Path) -> bool:
    """Exchanges two folders in one step. False if the system or the file system cannot."""
    renameat2 = _renameat2()
    if renameat2 is None:
        return False
    code: int = renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    return code == 0


@cache
def _renameat2() -> Any | None:
    """The C library's function; None if it has none."""
    return getattr(ctypes.CDLL(None), "renameat2", None)


def _sync(path: Path) -> None:
    """Writes a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot do this for folders
            raise
    finally:
        os.close(descriptor)
