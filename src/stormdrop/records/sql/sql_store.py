"""The store in a SQL database. Every method is one transaction."""

from __future__ import annotations

import contextlib
import math
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from sqlalchemy import ColumnElement, Connection, Row, and_, select

from ...errors import StoreError, one_line, without_passwords
from ...plugins import plugins, require
from ..codec import canonical, clean, clean_session, encode, outcome_to_json
from ..contract import (
    Absorbed,
    Dump,
    Filter,
    Outcome,
    Problem,
    Record,
    Setting,
    State,
    Store,
    StoredSession,
    StoredTrial,
    Summary,
)
from . import rows, schema
from .connection import BUSY_SECONDS, close_all, connect, transaction
from .merging import absorb
from .writer_process import new_writer, other_live_process

_ALL = Filter()


def open_store(place: str | Path | None = None, *, create: bool = True) -> Store:
    """Opens the database of tuning records at a path or a URL.

    A package may add stores for other kinds of URLs by entry points of the group `stormdrop.stores`, whose names are
    the schemes. The entry point is called with the URL and with `create`.

    Args:
        place: A path (a file of SQLite's), a SQLAlchemy URL such as `postgresql://user@host/records`, `sqlite://` for
            a database in memory, or None for `records.db` in the user's data directory.
        create: Whether an absent or empty database gets its tables.

    Returns:
        The store, which is a context manager that closes it.

    Raises:
        StoreError: If the database cannot be opened, holds something else than records, or (without `create`) is
            absent or empty. The database is then left as it was.
        PluginError: If the store is that of a plug-in, which does not load.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder, open_store(f"{folder}/records.db") as store:
        ...     for session in store.sessions():
        ...         print(session.workload_name, session.best_seconds)
        ...     print(len(store.sessions()), "sessions")
        0 sessions
    """
    scheme, separator, _ = str(place or "").partition("://")
    plugin = plugins("stores").get(scheme) if separator else None
    if plugin is None:
        return SqlStore(place, create=create)
    store = plugin.load()(place, create=create)
    require(plugin, isinstance(store, Store), "something that opens a store")
    return cast(Store, store)


class SqlStore:
    """A `Store` over SQLAlchemy: SQLite in a file or in memory, or the database of a server by its URL.

    The arguments are those of `open_store`. What the methods do is described in `Store`.

    Attributes:
        patience: Seconds for which a method that writes waits while another connection writes to the same file.
    """

    def __init__(self, place: str | Path | None = None, *, create: bool = True) -> None:
        self.patience = BUSY_SECONDS
        self._given = place
        self._engine, self._place = connect(place, create=create)
        self._identity = self._place.identity
        self._writer = new_writer()

    def __enter__(self) -> SqlStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        close_all(self._engine)

    @property
    def given(self) -> str | None:
        """The database as it was given, without a password; None for the default one."""
        return None if self._given is None else without_passwords(str(self._given))

    # Writing

    def open(self, problem: Problem, setting: Setting) -> StoredSession:
        session = new_session(problem, setting)
        with self._writing() as connection:
            rows.insert_session(connection, session, writer=self._writer)
        return session

    def resume(self, session: StoredSession) -> StoredSession:
        with self._writing() as connection:
            row = _session_row(connection, session.id, lock=True)
            if row.state == State.FINISHED.value:
                raise StoreError(f"session {session.id} is finished; there is nothing to resume")
            if row.state == State.RUNNING.value and row.writer and (pid := other_live_process(row.writer)):
                raise StoreError(f"session {session.id} is being tuned by process {pid}; wait for its end or stop it")
            _update(connection, row, state=State.RUNNING.value, writer=self._writer, outcome=None)
            return rows.session(_session_row(connection, session.id))

    def append(self, session: StoredSession, batch: int, records: Sequence[Record]) -> None:
        for record in records:
            check_record(session, record)
        if not records:
            return
        worked = [record.measurement for record in records if record.measurement.ok]
        values = [rows.trial_values(batch, record) for record in records]
        with self._writing() as connection:
            row = self._writable_row(connection, session)
            connection.execute(
                schema.trial.insert(),
                [{"session": row.number, "position": row.trials + index, **each} for index, each in enumerate(values)],
            )
            _update(
                connection,
                row,
                trials=row.trials + len(records),
                failed=row.failed + len(records) - len(worked),
                best_seconds=rows.lowest_median(worked, row.best_seconds),
            )

    def finish(self, session: StoredSession, outcome: Outcome) -> StoredSession:
        return self._end(session, State.FINISHED, outcome)

    def interrupt(self, session: StoredSession, outcome: Outcome | None = None) -> StoredSession:
        return self._end(session, State.INTERRUPTED, outcome)

    def absorb(self, dump: Dump, *, measured_here: bool = False) -> Absorbed:
        with self._writing() as connection:
            return absorb(connection, dump, measured_here=measured_here)

    # Reading

    def session(self, session_id: str) -> StoredSession:
        with self._reading() as connection:
            return rows.session(_session_row(connection, session_id))

    def records(self, session: StoredSession) -> list[StoredTrial]:
        with self._reading() as connection:
            row = _session_row(connection, session.id)
            return rows.trials(connection, row.number, session.setting.sketches)

    def finished(self, problem: Problem) -> list[StoredSession]:
        is_finished = schema.session.c.state == State.FINISHED.value
        with self._reading() as connection:
            sessions = [rows.session(row) for row in _newest_first(connection, problem, is_finished)]
        return [session for session in sessions if session.outcome is not None and session.outcome.sketch is not None]

    def unfinished(self, problem: Problem, setting: Setting) -> list[StoredSession]:
        condition = and_(
            schema.session.c.state != State.FINISHED.value,
            schema.session.c.search == setting.search,
            schema.session.c.seed == str(setting.seed),
        )
        sessions = []
        with self._reading() as connection:
            for row in _newest_first(connection, problem, condition):
                session = rows.session(row)
                busy = session.state is State.RUNNING and row.writer and other_live_process(row.writer)
                if canonical(session.setting.options) == canonical(setting.options) and not busy:
                    sessions.append(session)
        return sessions

    def sessions(self, selection: Filter = _ALL) -> list[Summary]:
        statement = rows.select_sessions(text=False, newest_first=True).where(*_conditions(selection))
        with self._reading() as connection:
            summaries = [rows.summary(row) for row in connection.execute(statement).all()]
        return [summary for summary in summaries if selection.state in (None, summary.state)]

    def dump(self, selection: Filter = _ALL) -> Iterator[tuple[StoredSession, list[StoredTrial]]]:
        with self._reading() as connection:
            statement = select(schema.session.c.id).where(*_conditions(selection))
            ids = connection.execute(
                statement.join(schema.workload).order_by(schema.session.c.created, schema.session.c.number)
            )
            for session_id in ids.scalars().all():
                row = _session_row(connection, session_id)
                session = rows.session(row)
                if selection.state in (None, session.state):
                    yield session, rows.trials(connection, row.number, session.setting.sketches)

    # Helpers

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        """A transaction that writes. A file that was deleted or replaced is not written to: nobody would see it."""
        if self._place.identity != self._identity:
            close_all(self._engine)
            self._engine, self._place = connect(self._given, create=True)
            self._identity = self._place.identity
        transacting = transaction(self._engine, self._place, write=True, patience=self.patience)
        with transacting as connection, self._rows_as_errors():
            yield connection

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Connection]:
        """A transaction that reads."""
        with transaction(self._engine, self._place) as connection, self._rows_as_errors():
            yield connection

    @contextlib.contextmanager
    def _rows_as_errors(self) -> Iterator[None]:
        """Raises `StoreError` for a row that no stormdrop wrote. What is to be written is encoded before."""
        try:
            yield
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise StoreError(f"{self._place} holds a damaged record: {one_line(error)}") from error

    def _writable_row(self, connection: Connection, session: StoredSession) -> Row[Any]:
        """The locked row of a running session that this store writes. Raises `StoreError` for any other session."""
        row = _session_row(connection, session.id, lock=True)
        if row.state != State.RUNNING.value:
            raise StoreError(f"session {session.id} is {row.state}; nothing can be added to it")
        if row.writer != self._writer:
            raise StoreError(f"session {session.id} has been resumed by another run, which writes it now")
        return row

    def _end(self, session: StoredSession, state: State, outcome: Outcome | None) -> StoredSession:
        text = None if outcome is None else encode(outcome_to_json(outcome))
        with self._writing() as connection:
            row = self._writable_row(connection, session)
            _update(connection, row, state=state.value, outcome=text, writer=None)
            return rows.session(_session_row(connection, session.id))


def new_session(problem: Problem, setting: Setting) -> StoredSession:
    """A running session that begins now, as a database gives it back."""
    session = StoredSession(
        id=str(uuid.uuid4()),
        problem=problem,
        setting=setting,
        created=rows.now(),
        state=State.RUNNING,
    )
    return clean_session(session)


def check_record(session: StoredSession, record: Record) -> None:
    """Raises `ValueError` for a record that the session cannot hold."""
    if record.sketch not in session.setting.sketches:
        raise ValueError(f"session {session.id} has no sketch '{record.sketch}'")
    phases = record.measurement.phases
    times = (record.elapsed, *record.measurement.seconds, phases.schedule, phases.build, phases.run, phases.check)
    if not all(math.isfinite(time) for time in times):
        raise ValueError(f"a time of a record is not finite: {record.measurement}, elapsed {record.elapsed}")


def _session_row(connection: Connection, session_id: str, *, lock: bool = False) -> Row[Any]:
    """The row of a session. A row that is locked for writing comes without the workload's text, which may be long."""
    statement = rows.select_sessions(text=not lock).where(schema.session.c.id == session_id)
    if lock:
        statement = statement.with_for_update(of=schema.session)
    row = connection.execute(statement).one_or_none()
    if row is None:
        raise StoreError(f"there is no session {session_id} in this database")
    return row


def _newest_first(connection: Connection, problem: Problem, *conditions: ColumnElement[bool]) -> Sequence[Row[Any]]:
    """The rows of a problem's sessions. Workloads are looked up by key and compared by text."""
    statement = rows.select_sessions(text=True, newest_first=True).where(
        schema.workload.c.key == clean(problem.workload_key),
        schema.workload.c.text == clean(problem.workload_text),
        schema.session.c.target == clean(problem.target),
        schema.session.c.machine == clean(problem.machine),
        *conditions,
    )
    return connection.execute(statement).all()


def _conditions(selection: Filter) -> list[ColumnElement[bool]]:
    """A filter in SQL, without its state: whether a session is running depends on whether its writer lives."""
    wanted = {
        schema.session.c.workload_name: selection.workload_name,
        schema.workload.c.key: selection.workload_key,
        schema.session.c.target: selection.target,
        schema.session.c.machine: selection.machine,
        schema.session.c.search: selection.search,
    }
    return [column == value for column, value in wanted.items() if value is not None]


def _update(connection: Connection, row: Row[Any], **values: Any) -> None:
    connection.execute(
        schema.session.update().where(schema.session.c.number == row.number).values(written=rows.now(), **values)
    )
