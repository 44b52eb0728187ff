"""Lists of sessions: which of them are wanted, in which order, and what is shown of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, or_, select

from ..codec import clean
from ..contract import State, Summary
from ..sql import rows, schema
from ..sql.writer_process import is_dead

ORDERS = {
    "newest": (schema.session.c.created.desc(), schema.session.c.number.desc()),
    "oldest": (schema.session.c.created, schema.session.c.number),
    "trials": (schema.session.c.trials.desc(), schema.session.c.number.desc()),
    "fastest": (schema.session.c.best_seconds.is_(None), schema.session.c.best_seconds, schema.session.c.number),
    "name": (schema.session.c.workload_name, schema.session.c.number.desc()),
}
"""The orders of a list of sessions, in SQL."""

SORTS = tuple(ORDERS)
"""Their names."""

_COLUMNS = (
    "number",
    "id",
    "workload_name",
    "target",
    "machine",
    "search",
    "seed",
    "created",
    "state",
    "writer",
    "trials",
    "failed",
    "best_seconds",
    "outcome",
    "written",
    "method",
)
"""What of a session a line needs."""


@dataclass(frozen=True)
class SessionFilter:
    """Selects sessions. A field that is empty selects all.

    Args:
        text: Is a part of the name of what was tuned, in any case.
        search: The name of the search.
        machine: The machine.
        target: The target.
        state: Where the sessions stand.
    """

    text: str = ""
    search: str = ""
    machine: str = ""
    target: str = ""
    state: State | None = None


@dataclass(frozen=True)
class SessionLine(Summary):
    """One line of a list of sessions.

    Attributes:
        number: The number of its row.
    """

    number: int = field(kw_only=True)


@dataclass(frozen=True)
class TunedLine:
    """What was tuned on one machine: a model with the sessions of its kernels, or an operator with its own.

    Attributes:
        name: Its name.
        machine: The machine.
        is_model: Whether it is a model.
        sessions: How many sessions have tuned it.
        running: How many of them run.
        trials: Their trials.
        failed: How many of these failed.
        last: When the newest of them was begun, in ISO 8601 and UTC.
        newest: The newest of them that has a time, or the newest if none has.
    """

    name: str
    machine: str
    is_model: bool
    sessions: int
    running: int
    trials: int
    failed: int
    last: str
    newest: SessionLine

    @property
    def state(self) -> State:
        """Running if any session is, else where the newest stands."""
        return State.RUNNING if self.running else self.newest.state


def select_lines(*further: ColumnElement[Any]) -> Select[Any]:
    """A query for lines of sessions, and for further columns of them or of their workloads."""
    columns = (schema.session.c[name] for name in _COLUMNS)
    selected = select(*columns, schema.workload.c.key.label("workload_key"), *further)
    return selected.join(schema.workload, schema.session.c.workload == schema.workload.c.id)


def conditions(connection: Connection, wanted: SessionFilter) -> Sequence[ColumnElement[bool]]:
    """A filter in SQL."""
    table = schema.session
    found: list[ColumnElement[bool]] = []
    for column, value in ((table.c.search, wanted.search), (table.c.machine, wanted.machine)):
        if value:
            found.append(column == clean(value))
    if wanted.target:
        found.append(table.c.target == clean(wanted.target))
    if wanted.text:
        found.append(table.c.workload_name.icontains(clean(wanted.text), autoescape=True))
    if wanted.state is not None:
        found.append(state_is(connection, wanted.state))
    return found


def state_is(connection: Connection, state: State) -> ColumnElement[bool]:
    """The condition that a session stands there. One that its dead writer left running is interrupted."""
    table = schema.session
    same: ColumnElement[bool] = table.c.state == state.value
    if state is State.FINISHED:
        return same
    dead = whose_writer_ended(connection)
    if state is State.RUNNING:
        return and_(same, table.c.number.not_in(dead))
    return or_(same, table.c.number.in_(dead))


def whose_writer_ended(connection: Connection) -> list[int]:
    """The numbers of sessions that count as running, and whose writer has ended."""
    table = schema.session
    running = select(table.c.number, table.c.writer).where(table.c.state == State.RUNNING.value)
    return [number for number, writer in connection.execute(running).all() if writer and is_dead(writer)]


def line_of(row: Row[Any]) -> SessionLine:
    """The line of a session, from a row of `select_lines`."""
    return SessionLine(**vars(rows.summary(row)), number=row.number)
