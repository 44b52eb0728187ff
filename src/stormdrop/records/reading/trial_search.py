"""Finds trials among all records, a bounded number of rows at a time: a page is fast, however rare what it looks for.

No index helps to find a part of a configuration. So a search reads the sessions from the newest to the oldest, and
stops when its page is full or when it has read enough rows. It then says where to go on.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, or_, select

from ..codec import clean, decode_config
from ..sql import schema
from .reader import RecordsReader
from .session_lines import SessionFilter, conditions

_ROWS = 40_000
"""Trials that one page reads at most: about a tenth of a second."""

_MOST_DIGITS = 18  # of a number that every database holds
_FIRST_WINDOW = 4  # times as many trials as a page holds
_GROWTH = 8


@dataclass(frozen=True)
class TrialFilter:
    """Selects trials. A field that is empty selects all.

    Args:
        sessions: The sessions that they belong to.
        status: How the measurement ended, such as "ok".
        text: Is a part of the configuration, of the sketch or of the error, in any case.
        suspect: Only trials during which something else used the machine.
    """

    sessions: SessionFilter = field(default_factory=SessionFilter)
    status: str = ""
    text: str = ""
    suspect: bool = False


@dataclass(frozen=True)
class TrialLine:
    """One trial. `seconds` is the median of its samples; None if it failed."""

    session_id: str
    workload_name: str
    session: int
    position: int
    batch: int
    sketch: str
    config: Mapping[str, Any]
    status: str
    seconds: float | None
    samples: int
    error: str
    suspect: bool
    elapsed: float


@dataclass(frozen=True)
class Cursor:
    """Where a search goes on: behind this trial, the newest session and its last trial first.

    Args:
        session: The number of the session.
        position: The position of the trial in it.
    """

    session: int
    position: int

    def __str__(self) -> str:
        return f"{self.session}.{self.position}"

    @classmethod
    def parse(cls, text: str) -> Cursor | None:
        """The inverse of `str`. None if the text is none."""
        session, dot, position = text.partition(".")
        digits = all(part.isascii() and part.isdigit() and len(part) <= _MOST_DIGITS for part in (session, position))
        return cls(int(session), int(position)) if dot and digits else None


@dataclass(frozen=True)
class Found:
    """A page of a search.

    Args:
        trials: What was found, the newest session first.
        after: Where the search goes on; None if everything was read.
    """

    trials: list[TrialLine]
    after: Cursor | None


def find_trials(
    reader: RecordsReader, wanted: TrialFilter, after: Cursor | None = None, limit: int = 50, rows: int = _ROWS
) -> Found:
    """A page of the trials that a filter selects.

    Args:
        reader: The records.
        wanted: The filter.
        after: Where an earlier page ended.
        limit: The most trials of the page.
        rows: The most trials that are read for it, except that one session is always read.
    """
    with reader.reading() as connection:
        of_sessions = conditions(connection, wanted.sessions)
        found: list[TrialLine] = []
        window_rows = _FIRST_WINDOW * limit  # what is frequent is found in the first windows, which are small
        while rows > 0:
            window, read = _window(connection, of_sessions, after, min(window_rows, rows))
            if not window:
                return Found(found, None)
            found += _in_window(connection, wanted, window, after, limit - len(found))
            if len(found) == limit:
                return Found(found, Cursor(found[-1].session, found[-1].position))
            after = Cursor(window[-1], 0)
            rows, window_rows = rows - read, _GROWTH * window_rows
        return Found(found, after if _window(connection, of_sessions, after, 1)[0] else None)


def all_trials(reader: RecordsReader, wanted: TrialFilter, page: int = 5000) -> Iterator[TrialLine]:
    """Every trial that a filter selects, for a download. What is written meanwhile may be missing."""
    after: Cursor | None = None
    while True:
        found = find_trials(reader, wanted, after, page)
        yield from found.trials
        if found.after is None:
            return
        after = found.after


def trials_of(
    reader: RecordsReader, session: int, status: str = "", limit: int = 50, before: int | None = None
) -> list[TrialLine]:
    """The last trials of a session, the newest first.

    Args:
        reader: The records.
        session: The number of the session.
        status: How they ended; empty for all.
        limit: How many.
        before: Only trials before this position.
    """
    table = schema.trial
    statement = _select().where(table.c.session == session)
    if before is not None:
        statement = statement.where(table.c.position < before)
    if status:
        statement = statement.where(table.c.status == clean(status))
    with reader.reading() as connection:
        return [_line(row) for row in connection.execute(statement.order_by(table.c.position.desc()).limit(limit))]


def _window(
    connection: Connection, of_sessions: Sequence[ColumnElement[bool]], after: Cursor | None, rows: int
) -> tuple[list[int], int]:
    """The next sessions, the newest first, until they have `rows` trials together.

    Returns:
        The numbers of the sessions, and how many trials they have.
    """
    table = schema.session
    statement = select(table.c.number, table.c.trials).where(*of_sessions, table.c.trials > 0)
    if after is not None:
        within = table.c.number <= after.session if after.position else table.c.number < after.session
        statement = statement.where(within)
    numbers: list[int] = []
    total = 0
    for number, trials in connection.execute(statement.order_by(table.c.number.desc())):
        numbers.append(number)
        total += trials
        if total >= rows:
            break
    return numbers, total


def _in_window(
    connection: Connection, wanted: TrialFilter, window: list[int], after: Cursor | None, limit: int
) -> list[TrialLine]:
    table = schema.trial
    statement = _select().where(table.c.session.in_(window))
    if after is not None and after.session == window[0]:
        statement = statement.where(or_(table.c.session < after.session, table.c.position < after.position))
    if wanted.status:
        statement = statement.where(table.c.status == clean(wanted.status))
    if wanted.suspect:
        statement = statement.where(table.c.suspect.is_(True))
    if wanted.text:
        statement = statement.where(_contains(clean(wanted.text)))
    ordered = statement.order_by(table.c.session.desc(), table.c.position.desc()).limit(limit)
    return [_line(row) for row in connection.execute(ordered)]


def _contains(text: str) -> ColumnElement[bool]:
    table = schema.trial
    in_config = table.c.config.icontains(text, autoescape=True)
    return in_config | table.c.sketch.icontains(text, autoescape=True) | table.c.error.icontains(text, autoescape=True)


def _select() -> Any:
    table, session = schema.trial, schema.session
    columns = [column for column in table.c if not column.name.endswith("_seconds")]
    joined = select(*columns, session.c.id.label("session_id"), session.c.workload_name)
    return joined.join(session, table.c.session == session.c.number)


def _line(row: Row[Any]) -> TrialLine:
    samples = msgspec.json.decode(row.seconds, type=tuple[float, ...])
    return TrialLine(
        row.session_id,
        row.workload_name,
        row.session,
        row.position,
        row.batch,
        row.sketch,
        decode_config(row.config),
        row.status,
        statistics.median(samples) if samples else None,
        len(samples),
        row.error,
        bool(row.suspect),
        float(row.elapsed),
    )
