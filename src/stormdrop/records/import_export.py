"""Export to a file, import from a file, and merge with another database, as `stormdrop db` does them."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ..errors import StoreError
from .contract import Absorbed, Filter, Store
from .json_lines import is_header, read_lines, write_lines
from .sql.sql_store import SqlStore

LONGEST_LINE = 64 << 20
"""Bytes of a line in a file that is imported; the longest lines hold the text of a workload."""


def export_file(store: Store, path: str | Path, selection: Filter | None = None) -> int:
    """Writes sessions with their trials to a file of JSON lines.

    An older export is replaced once the new one is complete.

    Args:
        store: Where the sessions come from.
        path: The file. A pipe or a device is written to directly.
        selection: Which sessions to write; by default all.

    Returns:
        The number of sessions.

    Raises:
        StoreError: If the file cannot be written, or if it exists and is something else than an export.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from stormdrop.records import import_file, open_store
        >>> with TemporaryDirectory() as folder, open_store("sqlite://") as store:
        ...     print(export_file(store, f"{folder}/records.jsonl"), "sessions")
        ...     print(import_file(store, f"{folder}/records.jsonl").added, "new")
        0 sessions
        0 new
    """
    path = Path(path).expanduser()
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        if path.is_file() and path.stat().st_size and not _is_export(path):
            raise StoreError(f"{path}: exists and is no export of records; it is left as it is")
        if path.exists() and not path.is_file():  # a pipe or a device cannot be replaced
            with path.open("wb") as out:
                return write_lines(store.dump(selection or Filter()), out)
        with partial.open("xb") as out:
            count = write_lines(store.dump(selection or Filter()), out)
        partial.replace(path)
        return count
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):  # it is gone after success, and never existed if its directory does not
            partial.unlink()


def _is_export(path: Path) -> bool:
    try:
        with path.open("rb") as lines:
            return is_header(lines.readline())
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error


def import_file(store: Store, path: str | Path, *, trusted: bool = False) -> Absorbed:
    """Takes in a file of JSON lines.

    Args:
        store: Where the sessions go.
        path: A file that `export_file` wrote.
        trusted: Whether the records are your own, measured on this machine. Then they answer later tunings as others
            in the store do. Otherwise a tuning begins with what they say, and measures it again.

    Returns:
        How many sessions and trials were new.

    Raises:
        StoreError: If the file cannot be read, is malformed, or holds what no tuning measures. Then nothing was taken
            in.
    """
    path = Path(path).expanduser()
    try:
        with path.open("rb") as file:
            return store.absorb(read_lines(_lines(file, path), str(path)), measured_here=trusted)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error


def _lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """The lines of a file. Raises `StoreError` for one that would fill the memory."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if number == 1 and line.startswith(b"\x1f\x8b"):
            raise StoreError(f"{path} is compressed: unpack it first, as with gunzip")
        if len(line) > LONGEST_LINE:
            raise StoreError(f"{path}, line {number}: longer than {LONGEST_LINE >> 20} MiB; no export of stormdrop")
        yield line


def merge_database(store: Store, place: str | Path, *, trusted: bool = False) -> Absorbed:
    """Takes in another database.

    Args:
        store: Where the sessions go.
        place: The path or URL of the other database, which must exist and is not changed.
        trusted: As in `import_file`.

    Returns:
        How many sessions and trials were new.

    Raises:
        StoreError: If the other database cannot be opened or read. Then nothing was taken in.
    """
    with SqlStore(place, create=False) as other:
        return store.absorb(other.dump(), measured_here=trusted)
