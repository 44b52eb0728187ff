"""Lists of sessions: which of them are wanted, in which order, and what is shown of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, or_, select

from ..codec import clean, outcome_from_json
from ..contract import Outcome, State
from ..sql import schema
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

COLUMNS: tuple[Any, ...] = tuple(
    schema.session.c[name]
    for name in (
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
    )
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
class SessionLine:
    """One line of a list of sessions; the fields are those of `Summary`, and the number of its row."""

    number: int
    id: str
    workload_name: str
    target: str
    machine: str
    search: str
    seed: str
    created: str
    state: State
    trials: int
    failed: int
    best_seconds: float | None
    baseline_seconds: float | None


def lines(connection: Connection, statement: Any) -> list[SessionLine]:
    """The sessions that a query for `COLUMNS` finds."""
    return [line_of(row) for row in connection.execute(statement).all()]


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
    """The line of a session, from a row of `COLUMNS`."""
    outcome = outcome_of(row)
    state = State(row.state)
    if state is State.RUNNING and row.writer and is_dead(row.writer):
        state = State.INTERRUPTED
    has_result = outcome is not None and outcome.seconds is not None
    return SessionLine(
        row.number,
        row.id,
        row.workload_name,
        row.target,
        row.machine,
        row.search,
        row.seed,
        row.created,
        state,
        row.trials,
        row.failed,
        outcome.seconds if has_result and outcome is not None else row.best_seconds,
        None if outcome is None else outcome.baseline_seconds,
    )


def outcome_of(row: Row[Any]) -> Outcome | None:
    """What a session ended with; None if it has not ended."""
    return None if row.outcome is None else outcome_from_json(json.loads(row.outcome))
