"""Read-only questions about all records, for pages that people look at: lists a page at a time, sums in SQL.

A `Store` answers what a tuning asks. A reader answers what a person asks of hundreds of sessions and a million trials.
It never writes: the database itself refuses that on its connections.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Row, event, func, select

from ...errors import StoreError, one_line
from ..codec import clean, layers_of_method
from ..contract import Outcome, State, machine_alone
from ..place import Place
from ..sql import rows, schema
from ..sql.connection import connect, transaction
from .session_lines import (
    ORDERS,
    SessionFilter,
    SessionLine,
    TunedLine,
    conditions,
    line_of,
    select_lines,
    state_is,
    whose_writer_ended,
)
from .session_sums import Sum, Sums, added, newest_first

_OF_GROUPS = (
    *("number", "workload", "workload_name", "machine", "created"),
    *("state", "trials", "failed", "best_seconds"),
)
"""What of a session says to which line of `RecordsReader.tuned` it belongs, and what it adds."""

_MODEL = "model"  # among a session's method, see `tuning.reuse.MODEL`


@dataclass(frozen=True)
class SessionDetails:
    """A session with how it was tuned, and what came of it."""

    line: SessionLine
    sketches: Mapping[str, Any]
    options: Mapping[str, Any]
    method: Mapping[str, Any]
    versions: Mapping[str, Any]
    outcome: Outcome | None


@dataclass(frozen=True)
class Totals:
    """Counts over a whole database."""

    sessions: int
    running: int
    trials: int
    failed: int


@dataclass(frozen=True)
class MachineLine:
    """What was tuned on one machine."""

    machine: str
    target: str
    sessions: int
    trials: int
    failed: int
    last: str


@dataclass(frozen=True)
class ModelKernel:
    """The newest session of a kernel of a model.

    Attributes:
        calls: How often an execution of the model calls the kernel.
        together: How many kernels of the model were tuned together with it, itself included; 1 if that is not known.
        line: The session.
    """

    calls: int
    together: int
    line: SessionLine


class RecordsReader:
    """Reads a database of records. Several threads may use one reader, and tunings may write meanwhile.

    Every method raises `StoreError`, with a message of one line, if the database fails.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from stormdrop.records import open_store
        >>> with TemporaryDirectory() as folder:
        ...     open_store(f"{folder}/records.db").close()
        ...     reader = RecordsReader(f"{folder}/records.db")
        ...     print(reader.totals())
        ...     reader.close()
        Totals(sessions=0, running=0, trials=0, failed=0)
    """

    def __init__(self, place: str | Path | None = None) -> None:
        """Connects to a database.

        Args:
            place: A path or a URL; None for the default database.

        Raises:
            StoreError: The database does not exist, or holds something else than records.
        """
        self._given = place
        self._connecting = threading.Lock()
        self._models: dict[int, tuple[str, int, int]] = {}  # name, calls, kernels by the session's number
        self._newest_known = -1  # number of a session whose model is known
        self._learning = threading.Lock()
        self._finished: tuple[Sums, Sums] = ({}, {})  # the finished sessions in sums, see `_sums`
        self._finished_counts: tuple[Any, ...] = ()  # of these sessions
        self._connect()

    def _connect(self) -> None:
        engine, self._place = connect(self._given, create=False)
        self.identity = self._place.identity
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", _refuse_writes)
            engine.dispose()  # the connections that were made before
        elif engine.dialect.name == "postgresql":
            engine = engine.execution_options(postgresql_readonly=True)
        self._engine: Engine = engine
        self._models, self._newest_known = {}, -1
        self._finished, self._finished_counts = ({}, {}), ()

    @property
    def place(self) -> Place:
        """The database, for messages; it holds no password."""
        return self._place

    def close(self) -> None:
        """Closes the connections."""
        self._engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that reads. A file that was replaced is opened anew."""
        with self._connecting:
            if self._place.identity != self.identity:
                self._engine.dispose()
                self._connect()
        with transaction(self._engine, self._place) as connection:
            try:
                yield connection
            except (ValueError, LookupError, TypeError, RecursionError) as error:
                raise StoreError(f"{self._place} holds a damaged record: {one_line(error)}") from error

    # Sums

    def totals(self) -> Totals:
        """Counts over the whole database."""
        table = schema.session
        with self.reading() as connection:
            sums = select(func.count(), func.sum(table.c.trials), func.sum(table.c.failed))
            sessions, trials, failed = connection.execute(sums.select_from(table)).one()
            running = connection.execute(select(func.count()).where(state_is(connection, State.RUNNING))).scalar_one()
        return Totals(int(sessions), int(running), int(trials or 0), int(failed or 0))

    def stamp(self) -> str:
        """A text that changes whenever a trial, a session or a result is added."""
        table = schema.session
        sums = select(
            func.count(), func.max(table.c.number), func.sum(table.c.trials), func.count(table.c.outcome)
        ).select_from(table)
        with self.reading() as connection:
            counts = connection.execute(sums).one()
            states = connection.execute(select(table.c.state, func.count()).group_by(table.c.state)).all()
            dead = whose_writer_ended(connection)
        return json.dumps([list(map(str, counts)), sorted(map(list, states)), dead])

    def choices(self) -> dict[str, list[str]]:
        """The searches, machines and targets that there are, for filters."""
        columns = {name: schema.session.c[name] for name in ("search", "machine", "target")}
        with self.reading() as connection:
            return {
                name: sorted(connection.execute(select(column).distinct()).scalars())
                for name, column in columns.items()
            }

    def machines(self) -> list[MachineLine]:
        """What was tuned on each machine, the machine that was used last first."""
        table = schema.session
        last = func.max(table.c.created)
        sums = (func.count(), func.sum(table.c.trials), func.sum(table.c.failed), last)
        statement = select(table.c.machine, table.c.target, *sums).group_by(table.c.machine, table.c.target)
        with self.reading() as connection:
            return [
                MachineLine(row[0], row[1], int(row[2]), int(row[3] or 0), int(row[4] or 0), row[5])
                for row in connection.execute(statement.order_by(last.desc())).all()
            ]

    # Sessions

    def sessions(
        self, wanted: SessionFilter, sort: str = "newest", limit: int = 50, offset: int = 0
    ) -> list[SessionLine]:
        """The sessions that a filter selects, in one of the orders of `SORTS`."""
        with self.reading() as connection:
            statement = select_lines().where(*conditions(connection, wanted)).order_by(*ORDERS[sort])
            return [line_of(row) for row in connection.execute(statement.limit(limit).offset(offset)).all()]

    def count(self, wanted: SessionFilter) -> int:
        """How many sessions a filter selects."""
        with self.reading() as connection:
            statement = select(func.count()).select_from(schema.session).where(*conditions(connection, wanted))
            return int(connection.execute(statement).scalar_one())

    def tuned(self, limit: int = 50, offset: int = 0) -> list[TunedLine]:
        """What was tuned on each machine, in one line for each model and for each other function, the newest first."""
        with self.reading() as connection:
            by_line, _ = self._sums(connection)
            shown = newest_first(by_line)[offset : offset + limit]
            lines = _lines(connection, [sums.shown.number for _, sums in shown])
        return [
            TunedLine(
                name=name,
                machine=machine,
                is_model=workload is None,
                sessions=sums.sessions,
                running=sums.running,
                trials=sums.trials,
                failed=sums.failed,
                last=sums.newest.created,
                newest=lines[sums.shown.number],
            )
            for (workload, name, machine), sums in shown
        ]

    def session(self, session_id: str) -> SessionDetails | None:
        """A session; None if there is none with this id."""
        table = schema.session
        statement = select_lines(table.c.options, table.c.versions, table.c.sketches)
        with self.reading() as connection:
            row = connection.execute(statement.where(table.c.id == clean(session_id))).one_or_none()
            if row is None:
                return None
            return SessionDetails(
                line_of(row),
                json.loads(row.sketches),
                json.loads(row.options),
                json.loads(row.method),
                json.loads(row.versions),
                rows.outcome_of(row),
            )

    def layers_of(self, numbers: Collection[int]) -> dict[int, tuple[str, ...]]:
        """The layers that the kernel of each of these sessions computes, by the number of the session."""
        table = schema.session
        with self.reading() as connection:
            found = connection.execute(select(table.c.number, table.c.method).where(table.c.number.in_(numbers))).all()
        return {number: layers_of_method(method) for number, method in found}

    # Models

    def models(self) -> dict[str, dict[str, list[ModelKernel]]]:
        """The kernels of each model by its name and machine; of each kernel the newest session that has a time."""
        with self.reading() as connection:
            _, by_kernel = self._sums(connection)
            lines = _lines(connection, [sums.shown.number for sums in by_kernel.values()])
        found: dict[str, dict[str, list[ModelKernel]]] = {}
        for (name, machine, _), sums in newest_first(by_kernel):
            _, calls, together = self._models[sums.shown.number]
            kernels = found.setdefault(name, {}).setdefault(machine, [])
            kernels.append(ModelKernel(calls, together, lines[sums.shown.number]))
        return found

    def models_of(self, numbers: Sequence[int]) -> dict[int, str]:
        """The model whose kernel each of these sessions tunes, by the number of the session; others are left out."""
        with self.reading() as connection:
            self._learn_models(connection)
        return {number: self._models[number][0] for number in numbers if number in self._models}

    def _sums(self, connection: Connection) -> tuple[Sums, Sums]:
        """All sessions in sums: by line of `tuned`, and those of models by kernel.

        Pages ask for them every few seconds while something runs. Finished sessions stay as they are, so these are
        read and summed anew only if there are others than before.
        """
        table = schema.session
        light, finished = select(*(table.c[name] for name in _OF_GROUPS)), table.c.state == State.FINISHED.value
        sums = [func.sum(table.c[name]) for name in ("number", "trials", "failed")]
        counts = select(func.count(), func.max(table.c.number), *sums).where(finished)
        with self._learning:
            self._learn_models(connection)
            now = tuple(connection.execute(counts).one())
            if now != self._finished_counts:
                self._finished = self._summed(connection.execute(light.where(finished)).all(), ())
                self._finished_counts = now
            dead = whose_writer_ended(connection)
            others = self._summed(connection.execute(light.where(~finished)).all(), dead)
            by_line, by_kernel = map(added, self._finished, others)
        return by_line, by_kernel

    def _summed(self, sessions: Sequence[Row[Any]], dead: Collection[int]) -> tuple[Sums, Sums]:
        by_line: Sums = {}
        by_kernel: Sums = {}
        for row in sessions:
            running = row.state == State.RUNNING.value and row.number not in dead
            one = Sum(1, int(running), row.trials, row.failed, row, row if row.best_seconds else None)
            model, machine = self._models.get(row.number), machine_alone(row.machine)
            line = (row.workload, row.workload_name, machine) if model is None else (None, model[0], machine)
            by_line[line] = by_line[line] + one if line in by_line else one
            if model is not None:
                kernel = (model[0], machine, row.workload)
                by_kernel[kernel] = by_kernel[kernel] + one if kernel in by_kernel else one
        return by_line, by_kernel

    def _learn_models(self, connection: Connection) -> None:
        """Reads which model each new session is for. That never changes, so each session is read once."""
        table = schema.session
        statement = select(table.c.number, table.c.method).where(table.c.number > self._newest_known)
        for number, method in connection.execute(statement.order_by(table.c.number)).all():
            self._newest_known = max(self._newest_known, number)
            model = json.loads(method).get(_MODEL)
            if isinstance(model, dict) and isinstance(model.get("name"), str) and isinstance(model.get("calls"), int):
                self._models[number] = (model["name"], model["calls"], model.get("kernels", 1))


def _refuse_writes(connection: Any, _: Any) -> None:
    connection.execute("PRAGMA query_only = ON")


def _lines(connection: Connection, numbers: Sequence[int]) -> dict[int, SessionLine]:
    """The lines of sessions by their numbers."""
    wanted = select_lines().where(schema.session.c.number.in_(numbers))
    return {row.number: line_of(row) for row in connection.execute(wanted).all()}
