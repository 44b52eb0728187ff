"""Where a database is, how to connect to it, and what its errors mean.

The place of a database is a SQLAlchemy URL (`postgresql://...`, `sqlite:///relative.db`, `sqlite://` for a database in
memory) or a plain path, which means SQLite in that file. Without a place it is `records.db` in the user's data
directory.

SQLite runs with a write-ahead log and `synchronous=NORMAL`. What was committed survives the death of the process at any
moment, also by `kill -9`. If the operating system crashes or the power fails, the last transactions may be lost. The
database then stays sound and holds a prefix of what was committed.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_plus

import platformdirs
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from ..errors import StoreError, passwords_in, without_passwords
from .schema import check_schema, create_schema

BUSY_SECONDS = 30.0
"""Seconds for which a SQLite connection waits while another one writes."""

_WRITES = "stormdrop_writes"
_PATIENCE = "stormdrop_patience"
_SLICE_SECONDS = 0.25  # of a wait, during which Python handles no signal


class DatabaseFailure(StoreError):
    """The database itself reports an error, whatever was asked of it."""


@dataclass(frozen=True)
class Place:
    """A database, for messages.

    Attributes:
        name: its name, which holds no password.
        secrets: what no message may hold.
        file: SQLite's file; None for another database or one in memory.
    """

    name: str
    secrets: tuple[str, ...] = ()
    file: Path | None = None

    def __str__(self) -> str:
        return self.name

    def reason(self, text: str) -> str:
        """The first line of a driver's message without secrets, with advice if there is any for it."""
        reason = without_passwords(_reason(text))
        for secret in self.secrets:
            reason = reason.replace(secret, "***")
        return reason

    @property
    def identity(self) -> tuple[int, int] | None:
        """What tells the file from another one of the same name; None if there is no file."""
        if self.file is None:
            return None
        try:
            status = self.file.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino


def default_path() -> Path:
    """The database that is used if none is named; a relative path if there is no home directory."""
    try:
        return Path(platformdirs.user_data_dir("stormdrop", appauthor=False)) / "records.db"
    except RuntimeError:  # the system does not know this user
        return Path("~/records.db")


def why_no_default() -> str | None:
    """Why the default database cannot keep records, as in a read-only home directory; None if it can."""
    path = default_path()
    if not path.is_absolute():
        return "there is no home directory"
    try:
        _check_file(path, create=True, make_directory=True)
    except StoreError as error:
        return str(error)
    return None


def connect(place: str | Path | None, *, create: bool) -> tuple[Engine, Place]:
    """Connects to a database and checks that it holds records.

    Args:
        place: A path, a URL, or None for the default database.
        create: Whether an absent or empty database gets its tables. The default database gets its directory, too.

    Returns:
        The engine, and the database's name for messages.

    Raises:
        StoreError: If the database cannot be opened, holds something else than records, or (without `create`) is
            absent or empty. The database is then left as it was.
    """
    url = _url(place)
    database = _place(url, str(place or ""))
    if database.file is not None:
        if place is None and not database.file.is_absolute():
            raise StoreError("there is no home directory for the default database; give a database, as with --db")
        _check_file(database.file, create=create, make_directory=place is None)
    engine = _engine(url, database)
    try:
        with one_line_errors(database):
            _prepare(engine, database, create=create)
    except StoreError:
        engine.dispose()
        raise
    return engine, database


@contextlib.contextmanager
def one_line_errors(place: Place) -> Iterator[None]:
    """Turns what a database reports into a `DatabaseFailure` of one line."""
    try:
        yield
    except DBAPIError as error:
        raise DatabaseFailure(f"{place}: {place.reason(str(error.orig))}") from error
    except SQLAlchemyError as error:
        raise DatabaseFailure(f"{place}: {place.reason(str(error))}") from error


@contextlib.contextmanager
def transaction(
    engine: Engine, place: Place, *, write: bool = False, patience: float = BUSY_SECONDS
) -> Iterator[Connection]:
    """A transaction that commits at the end, and that changes nothing if its body raises.

    Args:
        engine: The engine from `connect`.
        place: The database, for messages.
        write: Whether the transaction may write. On SQLite, nothing else writes during such a transaction. Without it
            the transaction sees the database as of one moment.
        patience: Seconds for which a transaction that writes to SQLite waits while another one writes. Ctrl-C ends
            the wait.

    Yields:
        The connection.

    Raises:
        StoreError: If the database fails.
    """
    options: dict[str, Any] = {_WRITES: write, _PATIENCE: patience}
    if not write and engine.dialect.name == "postgresql":  # the other databases do so by themselves
        options["isolation_level"] = "REPEATABLE READ"
    with one_line_errors(place), engine.execution_options(**options).begin() as connection:
        yield connection


def _url(place: str | Path | None) -> URL:
    if place is None:
        return URL.create("sqlite", database=str(default_path()))
    text = str(place)
    if not text.strip() or "\0" in text:
        raise StoreError("the database has no name; give a path or a URL such as sqlite:///records.db")
    if "://" not in text:
        return URL.create("sqlite", database=str(Path(text).expanduser()))
    try:
        return make_url(text)
    except (ArgumentError, ValueError) as error:
        kind = text.partition("://")[0]  # what follows may hold a password
        raise StoreError(f"'{kind}://...' is no database URL; one looks like sqlite:///records.db") from error


def _place(url: URL, given: str) -> Place:
    if _is_file(url) and url.database:
        return Place(url.database, file=Path(url.database))
    # A driver may repeat a password as it was given, as it was meant, and in parts.
    written = [part for secret in passwords_in(given) for part in (secret, *secret.split("@"))]
    forms = {form for secret in written for form in (secret, unquote_plus(secret), unquote(secret)) if form}
    name = without_passwords(url.render_as_string(hide_password=True))
    return Place(name, tuple(sorted(forms, key=len, reverse=True)))


def _is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def _is_file(url: URL) -> bool:
    """Whether the database is SQLite in a plain file."""
    return _is_sqlite(url) and url.database not in (None, "", ":memory:") and "uri" not in url.query


def _check_file(path: Path, *, create: bool, make_directory: bool) -> None:
    """Raises `StoreError` with the reason if SQLite would only say "unable to open database file"."""
    try:
        if make_directory and create:
            path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise StoreError(f"{path} is a directory; give the path of a database file in it")
        if not path.parent.is_dir():
            raise StoreError(f"{path} cannot be opened: there is no directory {path.parent}; create it first")
        if not create and not path.exists():
            raise StoreError(f"{path} does not exist; give the path of a stormdrop database")
        used_paths = [path, path.parent] if path.exists() else [path.parent]  # the log lies beside the file
        for used_path in used_paths:
            if not os.access(used_path, os.R_OK | os.W_OK):
                raise StoreError(
                    f"{path} cannot be opened: {used_path} is not readable and writable; give another --db"
                )
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error.strerror or error}") from error


def _engine(url: URL, place: Place) -> Engine:
    options: dict[str, Any] = {}
    if _is_sqlite(url):
        options["connect_args"] = {"timeout": BUSY_SECONDS, "check_same_thread": False}
        if not _is_file(url):
            options["poolclass"] = StaticPool  # a second connection would open a second, empty database
    try:
        engine = create_engine(url, **options)
    except NoSuchModuleError as error:
        raise StoreError(f"there is no kind of database '{url.drivername}'; sqlite:///records.db is one") from error
    except ImportError as error:
        raise StoreError(f"{place} needs the Python package {error.name}, which is not installed") from error
    except (SQLAlchemyError, ValueError, TypeError) as error:
        raise StoreError(f"{place} cannot be opened: {place.reason(str(error))}") from error
    if _is_sqlite(url):
        event.listen(engine, "connect", _on_connect)
        event.listen(engine, "begin", _on_begin)
    return engine


def _on_connect(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # the driver would begin too late; _on_begin begins instead
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")


def _on_begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    if not options.get(_WRITES, False):
        connection.exec_driver_sql("BEGIN")
        return
    # A transaction that reads first and writes later would fail at once, instead of waiting, if another one wrote
    # in between.
    deadline = time.perf_counter() + options.get(_PATIENCE, BUSY_SECONDS)
    _set_busy_seconds(connection, _SLICE_SECONDS)
    try:
        while True:
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                return
            except OperationalError as error:
                if "locked" not in str(error.orig) or time.perf_counter() > deadline:
                    raise
    finally:
        _set_busy_seconds(connection, BUSY_SECONDS)


def _set_busy_seconds(connection: Connection, seconds: float) -> None:
    driver: Any = connection.connection.driver_connection
    driver.execute(f"PRAGMA busy_timeout = {int(1000 * seconds)}")


def _prepare(engine: Engine, place: Place, *, create: bool) -> None:
    """Checks the database and creates its tables. Its journal is changed only if the database is accepted."""
    with transaction(engine, place) as connection:
        has_tables = check_schema(connection, str(place))
    if not create:
        if not has_tables:
            raise StoreError(f"{place} holds no records yet")
        return
    if engine.dialect.name == "sqlite":
        _use_write_ahead_log(engine, place)
    if has_tables:
        return
    try:
        with transaction(engine, place, write=True) as connection:
            if not check_schema(connection, str(place)):  # another process may have been faster
                create_schema(connection)
    except StoreError:
        with transaction(engine, place) as connection:
            # On a server, another process may have created the tables at the same time.
            if not check_schema(connection, str(place)):
                raise


def _use_write_ahead_log(engine: Engine, place: Place) -> None:
    """Switches the file (for good) to a write-ahead log, so that readers and the writer do not wait for each other.

    The switch needs exclusive access to the file, and SQLite does not always wait for that by itself. If the switch is
    not possible (in memory, on some network file systems), SQLite keeps its old journal, which is slower and as safe.
    """
    deadline = time.perf_counter() + BUSY_SECONDS
    while True:
        try:
            with contextlib.closing(engine.raw_connection()) as connection:
                connection.cursor().execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.Error as error:
            if "locked" not in str(error) or time.perf_counter() > deadline:
                raise StoreError(f"{place}: {place.reason(str(error))}") from error
        time.sleep(0.02)


def _reason(text: str) -> str:
    """The first line of a driver's message, with advice if there is any for it."""
    line = text.strip().splitlines()[0] if text.strip() else "the database reports an error without a message"
    for symptom, advice in _ADVICE.items():
        if symptom in line:
            return f"{line} ({advice})"
    return line


_ADVICE = {
    "file is not a database": "it is not SQLite's: give the path of a new or a stormdrop database",
    "database is locked": "another process has been writing for a long time; try again when it has finished",
    "disk is full": "free some space, or give another --db",
    "disk I/O error": "the disk or its quota fails; give another --db",
    "readonly database": "the file or its directory is not writable; give another --db",
    "unable to open database file": "it cannot be read or written; give another --db",
    "disk image is malformed": "the file is damaged; give another --db",
}
