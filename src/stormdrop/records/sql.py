"""The store in a SQL database: every method is one transaction."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, select

from ..errors import StoreError
from . import rows, schema
from .codec import canonical, clean, clean_session, encode, outcome_to_json
from .contract import Absorbed, Dump, Filter, Outcome, Problem, Record, Session, Setting, State, StoredTrial, Summary
from .location import connect, transaction
from .merging import absorb
from .writer import is_dead, is_other_live_process, new_writer

_EVERYTHING = Filter()


def open_store(place: str | Path | None = None, *, create: bool = True) -> SqlStore:
    """The store at a path, a URL or (None) in the user's data directory; see `SqlStore`."""
    return SqlStore(place, create=create)


class SqlStore:
    """A `Store` over SQLAlchemy: SQLite in a file or in memory, or a server's database by URL.

    `place` is a path, a URL or None for the user's own database (see `location`). With `create=False` the
    database must exist already. Raises `StoreError` where it cannot be opened. Usable as a context manager.
    """

    def __init__(self, place: str | Path | None = None, *, create: bool = True) -> None:
        self._engine, self.where = connect(place, create=create)
        self._writer = new_writer()

    def __enter__(self) -> SqlStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._engine.dispose()

    # Writing

    def open(self, problem: Problem, setting: Setting) -> Session:
        session = Session(
            id=str(uuid.uuid4()),
            problem=problem,
            setting=setting,
            created=datetime.now(timezone.utc).isoformat(timespec="microseconds"),
            state=State.RUNNING,
        )
        session = clean_session(session)
        with transaction(self._engine, self.where, write=True) as connection:
            rows.insert_session(connection, session, writer=self._writer)
        return session

    def resume(self, session: Session) -> Session:
        with transaction(self._engine, self.where, write=True) as connection:
            row = _row(connection, session.id, lock=True)
            if row.state == State.FINISHED.value:
                raise StoreError(f"session {session.id} is finished; there is nothing to resume")
            if row.state == State.RUNNING.value and row.writer and (pid := is_other_live_process(row.writer)):
                raise StoreError(f"session {session.id} is being tuned by process {pid}; wait for its end or stop it")
            _update(connection, row, state=State.RUNNING.value, writer=self._writer, outcome=None)
            return _read(_row(connection, session.id))

    def append(self, session: Session, batch: int, records: Sequence[Record]) -> None:
        for record in records:
            _check_record(session, record)
        if not records:
            return
        ok = [record.measurement for record in records if record.measurement.ok]
        with transaction(self._engine, self.where, write=True) as connection:
            row = self._own(connection, session)
            connection.execute(
                schema.trial.insert(),
                [
                    rows.trial_values(row.number, row.trials + index, batch, record)
                    for index, record in enumerate(records)
                ],
            )
            _update(
                connection,
                row,
                trials=row.trials + len(records),
                failed=row.failed + len(records) - len(ok),
                best_seconds=rows.lowest(row.best_seconds, ok),
            )

    def finish(self, session: Session, outcome: Outcome) -> Session:
        return self._end(session, State.FINISHED, outcome)

    def interrupt(self, session: Session, outcome: Outcome | None = None) -> Session:
        return self._end(session, State.INTERRUPTED, outcome)

    def absorb(self, dump: Dump) -> Absorbed:
        with transaction(self._engine, self.where, write=True) as connection:
            return absorb(connection, dump)

    # Reading

    def session(self, id: str) -> Session:
        with transaction(self._engine, self.where) as connection:
            return _read(_row(connection, id))

    def records(self, session: Session) -> list[StoredTrial]:
        with transaction(self._engine, self.where) as connection:
            row = _row(connection, session.id)
            return rows.trials(connection, row.number, session.setting.sketches)

    def finished(self, problem: Problem) -> list[Session]:
        with transaction(self._engine, self.where) as connection:
            found = [_read(row) for row in _latest(connection, problem, schema.session.c.state == State.FINISHED.value)]
        return [each for each in found if each.outcome is not None and each.outcome.sketch is not None]

    def unfinished(self, problem: Problem, setting: Setting) -> list[Session]:
        wanted = and_(
            schema.session.c.state != State.FINISHED.value,
            schema.session.c.search == setting.search,
            schema.session.c.seed == str(setting.seed),
        )
        found = []
        with transaction(self._engine, self.where) as connection:
            for row in _latest(connection, problem, wanted):
                session = _read(row)
                busy = session.state is State.RUNNING and row.writer and is_other_live_process(row.writer)
                if canonical(session.setting.options) == canonical(setting.options) and not busy:
                    found.append(session)
        return found

    def sessions(self, where: Filter = _EVERYTHING) -> list[Summary]:
        with transaction(self._engine, self.where) as connection:
            found = connection.execute(rows.select_sessions(text=False).where(*_conditions(where))).all()
        summaries = [rows.summary(row, _state(row)) for row in reversed(found)]
        return [each for each in summaries if where.state in (None, each.state)]

    def dump(self, where: Filter = _EVERYTHING) -> Iterator[tuple[Session, list[StoredTrial]]]:
        with transaction(self._engine, self.where) as connection:
            statement = select(schema.session.c.id).where(*_conditions(where))
            ids = connection.execute(
                statement.join(schema.workload).order_by(schema.session.c.created, schema.session.c.number)
            )
            for id in ids.scalars().all():
                row = _row(connection, id)
                session = _read(row)
                if where.state in (None, session.state):
                    yield session, rows.trials(connection, row.number, session.setting.sketches)

    # Helpers

    def _own(self, connection: Connection, session: Session) -> Row[Any]:
        """The row of a running session that this store writes."""
        row = _row(connection, session.id, lock=True)
        if row.state != State.RUNNING.value:
            raise StoreError(f"session {session.id} is {row.state}; nothing can be added to it")
        if row.writer != self._writer:
            raise StoreError(f"session {session.id} has been resumed by another run, which writes it now")
        return row

    def _end(self, session: Session, state: State, outcome: Outcome | None) -> Session:
        with transaction(self._engine, self.where, write=True) as connection:
            row = self._own(connection, session)
            text = None if outcome is None else encode(outcome_to_json(outcome))
            _update(connection, row, state=state.value, outcome=text, writer=None)
            return _read(_row(connection, session.id))


def _check_record(session: Session, record: Record) -> None:
    if record.sketch not in session.setting.sketches:
        raise ValueError(f"session {session.id} has no sketch '{record.sketch}'")
    phases = record.measurement.phases
    times = (record.elapsed, *record.measurement.seconds, phases.schedule, phases.build, phases.run, phases.check)
    if not all(math.isfinite(time) for time in times):
        raise ValueError(f"a time of a record is not finite: {record.measurement}, elapsed {record.elapsed}")


def _row(connection: Connection, id: str, *, lock: bool = False) -> Row[Any]:
    """The row of a session; one that is locked for writing comes without the workload's text, which may be long."""
    statement = rows.select_sessions(text=not lock).where(schema.session.c.id == id)
    if lock:
        statement = statement.with_for_update(of=schema.session)
    row = connection.execute(statement).one_or_none()
    if row is None:
        raise StoreError(f"there is no session {id} in this database")
    return row


def _latest(connection: Connection, problem: Problem, *conditions: ColumnElement[bool]) -> Iterator[Row[Any]]:
    """The sessions of a problem, newest first. The key finds the workload, its text decides."""
    newest = rows.select_sessions(text=True, newest_first=True).where(
        schema.workload.c.key == clean(problem.workload_key),
        schema.workload.c.text == clean(problem.workload_text),
        schema.session.c.target == clean(problem.target),
        schema.session.c.machine == clean(problem.machine),
        *conditions,
    )
    yield from connection.execute(newest).all()


def _conditions(where: Filter) -> list[ColumnElement[bool]]:
    """A filter in SQL, all but the state: that depends on whether the writer lives."""
    wanted = {
        schema.session.c.workload_name: where.workload_name,
        schema.workload.c.key: where.workload_key,
        schema.session.c.target: where.target,
        schema.session.c.machine: where.machine,
        schema.session.c.search: where.search,
    }
    return [column == value for column, value in wanted.items() if value is not None]


def _update(connection: Connection, row: Row[Any], **values: Any) -> None:
    connection.execute(schema.session.update().where(schema.session.c.number == row.number).values(**values))


def _state(row: Row[Any]) -> State:
    state = State(row.state)
    if state is State.RUNNING and row.writer and is_dead(row.writer):
        return State.INTERRUPTED
    return state


def _read(row: Row[Any]) -> Session:
    return rows.session(row, _state(row))
