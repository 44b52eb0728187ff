"""Export, import and merge by path, for the command line. All errors are `StoreError`."""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path

from ..errors import StoreError
from .contract import Absorbed, Filter, Store
from .json_lines import is_header, read_lines, write_lines
from .sql import SqlStore


def export_file(store: Store, path: str | Path, where: Filter | None = None) -> int:
    """Writes sessions as JSON lines; returns their number. An older export is replaced when all is written.

    Raises `StoreError` for a file that is something else, such as a database.
    """
    path = Path(path).expanduser()
    if path.is_file() and path.stat().st_size and not _is_export(path):
        raise StoreError(f"{path}: exists and is no export of records; it is left as it is")
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        if path.exists() and not path.is_file():  # a pipe or a device cannot be replaced
            with path.open("wb") as out:
                return write_lines(store.dump(where or Filter()), out)
        with partial.open("xb") as out:
            count = write_lines(store.dump(where or Filter()), out)
        partial.replace(path)
        return count
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):  # it is gone where all went well, and never was where its directory is not
            partial.unlink()


def _is_export(path: Path) -> bool:
    try:
        with path.open("rb") as lines:
            return is_header(lines.readline())
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error


def import_file(store: Store, path: str | Path) -> Absorbed:
    """Takes in a file of JSON lines, all of it or (where it is malformed) nothing."""
    path = Path(path).expanduser()
    try:
        with path.open("rb") as lines:
            return store.absorb(read_lines(lines, str(path)))
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error


def merge_database(store: Store, place: str | Path) -> Absorbed:
    """Takes in another database, which must exist and is not changed."""
    with SqlStore(place, create=False) as other:
        return store.absorb(other.dump())
