"""How to connect to a database (`place.py` says where it is), and its transactions.

What PostgreSQL needs is in `postgresql.py`.

SQLite runs with a write-ahead log and `synchronous=NORMAL`. What was committed survives the death of the process at any
moment, also by `kill -9`. If the operating system crashes or the power fails, the last transactions may be lost. The
database then stays sound and holds a prefix of what was committed.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, NoSuchModuleError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, StaticPool

from ...errors import StoreError
from ...optional_packages import refusal
from ..place import Place, check_file, is_file, is_sqlite, place_of, url_of
from . import postgresql
from .schema import VERSION, check_schema, create_schema

BUSY_SECONDS = 30.0
"""Seconds for which a transaction that writes waits while another one holds what it needs."""

_WRITES = "stormdrop_writes"
_PATIENCE = "stormdrop_patience"
_SLICE_SECONDS = 0.25  # of a wait, during which Python handles no signal
_OPEN: WeakKeyDictionary[Engine, set[ConnectionPoolEntry]] = WeakKeyDictionary()  # the connections of each engine


class DatabaseFailure(StoreError):
    """The database itself reports an error, whatever was asked of it.

    Attributes:
        passes: Whether it may pass by itself: somebody else holds a lock, or a server cannot be reached.
    """

    def __init__(self, message: str, *, passes: bool = False) -> None:
        super().__init__(message)
        self.passes = passes


def connect(place: str | Path | None, *, create: bool) -> tuple[Engine, Place]:
    """Connects to a database and checks that it holds records.

    Tables of an older version are upgraded if they are in a file that is opened with `create`. Those of a server are
    not, because other machines use them, too: `upgrade_database` does it.

    Args:
        place: A path, a URL, or None for the default database.
        create: Whether an absent or empty database gets its tables. The default database gets its directory, too.

    Returns:
        The engine, and the database's name for messages.

    Raises:
        StoreError: If the database cannot be opened, holds something else than records, has to be upgraded, or
            (without `create`) is absent or empty. The database is then left as it was.
    """
    engine, database = _open(place, create=create)
    try:
        with one_line_errors(database):
            _prepare(engine, database, create=create)
    except StoreError:
        close_all(engine)
        raise
    return engine, database


def upgrade_database(place: str | Path | None = None) -> tuple[int, int]:
    """Upgrades a database of an older version in one transaction. One of the present version stays as it is.

    Programs of the older version that have it open go on. Those that open it later refuse it.

    Args:
        place: A path, a URL, or None for the default database.

    Returns:
        The version of its tables before, and the version that it has now.

    Raises:
        StoreError: If the database cannot be opened, or holds something else than records. It is then left as it was.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from stormdrop.records import open_store, upgrade_database
        >>> with TemporaryDirectory() as folder:
        ...     open_store(f"{folder}/records.db").close()
        ...     before, now = upgrade_database(f"{folder}/records.db")
        >>> before == now
        True
    """
    engine, database = _open(place, create=False)
    try:
        with one_line_errors(database):
            with transaction(engine, database) as connection:
                found = check_schema(connection, str(database))
            if found is None:
                raise StoreError(f"{database} holds no records yet")
            if found < VERSION:
                _make_tables(engine, database)
    finally:
        close_all(engine)
    return found, VERSION


def _open(place: str | Path | None, *, create: bool) -> tuple[Engine, Place]:
    """An engine for a database that nothing is known of yet, and the database's name."""
    url = url_of(place)
    database = place_of(url, str(place or ""))
    if database.file is not None:
        if place is None and not database.file.is_absolute():
            raise StoreError("there is no home directory for the default database; give a database, as with --db")
        check_file(database.file, create=create, make_directory=place is None)
    return _engine(url, database), database


@contextlib.contextmanager
def one_line_errors(place: Place) -> Iterator[None]:
    """Turns what a database reports into a `DatabaseFailure` of one line."""
    try:
        yield
    except DBAPIError as error:
        reason = place.reason(str(error.orig))
        passes = isinstance(error, OperationalError) and (place.server or "locked" in reason)
        raise DatabaseFailure(f"{place}: {reason}", passes=passes) from error
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
        patience: Seconds for which a transaction that writes waits for another one: on SQLite while it writes, on
            PostgreSQL while it holds the same session. Ctrl-C ends the wait.

    Yields:
        The connection.

    Raises:
        StoreError: If the database fails.
    """
    options: dict[str, Any] = {_WRITES: write, _PATIENCE: patience}
    if not write and engine.dialect.name == "postgresql":  # the other databases do so by themselves
        options["isolation_level"] = "REPEATABLE READ"
    with one_line_errors(place), engine.execution_options(**options).begin() as connection:
        if write and engine.dialect.name == "postgresql":
            postgresql.bound_waits(connection, patience)
        yield connection


def _engine(url: URL, place: Place) -> Engine:
    options: dict[str, Any] = {}
    if is_sqlite(url):
        options["connect_args"] = {"timeout": BUSY_SECONDS, "check_same_thread": False}
        if not is_file(url):
            options["poolclass"] = StaticPool  # a second connection would open a second, empty database
    elif postgresql.is_postgresql(url):
        url = postgresql.with_driver(url)
        options.update(postgresql.engine_options(url))
    try:
        engine = create_engine(url, **options)
    except NoSuchModuleError as error:
        raise StoreError(f"there is no kind of database '{url.drivername}'; sqlite:///records.db is one") from error
    except ImportError as error:
        raise refusal(error.name or url.drivername, str(place), error, StoreError) from error
    except (SQLAlchemyError, ValueError, TypeError) as error:
        raise StoreError(f"{place} cannot be opened: {place.reason(str(error))}") from error
    _OPEN[engine] = opened = set[ConnectionPoolEntry]()
    event.listen(engine, "connect", lambda _, entry: opened.add(entry))
    event.listen(engine, "close", lambda _, entry: opened.discard(entry))
    pool = type(engine.pool)
    logging.getLogger(f"{pool.__module__}.{pool.__name__}").addFilter(_is_no_interruption)
    if is_sqlite(url):
        event.listen(engine, "connect", _on_connect)
        event.listen(engine, "begin", _on_begin)
    elif engine.dialect.name == "postgresql":
        postgresql.watch(engine, _PATIENCE)
    return engine


def close_all(engine: Engine) -> None:
    """Closes all connections of an engine that nobody uses, also what Ctrl-C has kept from coming back to its pool."""
    engine.dispose()
    for entry in list(_OPEN.get(engine, ())):
        if not entry.in_use:
            entry.close()


def _is_no_interruption(entry: logging.LogRecord) -> bool:
    """False for what SQLAlchemy logs if Ctrl-C meets it while it closes a connection: a traceback, and it is raised."""
    return not (entry.exc_info and isinstance(entry.exc_info[1], KeyboardInterrupt))


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
    """Checks the database and makes its tables. Its journal is changed only if the database is accepted."""
    with transaction(engine, place) as connection:
        found = check_schema(connection, str(place))
    if found is None and not create:
        raise StoreError(f"{place} holds no records yet")
    if found is not None and found < VERSION and (place.server or not create):
        raise StoreError(
            f"{place} holds records of version {found}, and this stormdrop needs {VERSION}: "
            f"`stormdrop db upgrade --db {place}` upgrades them"
        )
    if create and engine.dialect.name == "sqlite":
        _use_write_ahead_log(engine, place)
    if found != VERSION:
        _make_tables(engine, place)


def _make_tables(engine: Engine, place: Place) -> None:
    """Creates the tables, or upgrades those of an older version."""
    try:
        with transaction(engine, place, write=True) as connection:
            if engine.dialect.name == "postgresql":
                postgresql.alone_to_make_tables(connection)
            found = check_schema(connection, str(place))  # another process may have been faster
            if found is None:
                create_schema(connection)
            elif found < VERSION:
                from .migrations import upgrade  # loads Alembic

                upgrade(connection, found)
    except StoreError:
        with transaction(engine, place) as connection:
            # On another server, another process may have made the tables at the same time.
            if check_schema(connection, str(place)) != VERSION:
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
