"""Taking in sessions from another database or a file, so that doing it again changes nothing.

A session is append-only and has one writer, so of two copies of it one is a prefix of the other, unless each was
resumed in its own place. The prefix is extended; of copies that went different ways ours is kept, and counted.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from sqlalchemy import Connection, Row

from . import rows, schema
from .codec import clean_session, encode, outcome_to_json, trial_to_json
from .contract import Absorbed, Dump, Session, State, StoredTrial
from .writer import is_other_live_process

_Verdict = Literal["extended", "known", "diverged"]


def absorb(connection: Connection, dump: Dump) -> Absorbed:
    """Takes in every session of a dump within the caller's transaction."""
    counts: Counter[str] = Counter()
    for session, trials in dump:
        session = clean_session(session)
        if session.state is State.RUNNING:  # by someone else, elsewhere
            session = dataclasses.replace(session, state=State.INTERRUPTED)
        row = connection.execute(
            rows.select_sessions(text=True).where(schema.session.c.id == session.id).with_for_update(of=schema.session)
        ).one_or_none()
        if row is None:
            number = rows.insert_session(connection, session, writer=None)
            _complete(connection, number, session, trials, known=0)
            counts.update(added=1, trials=len(trials))
            continue
        verdict = _verdict(connection, row, session, trials)
        if verdict == "extended":
            _complete(connection, row.number, session, trials, known=row.trials)
            counts.update(trials=len(trials) - row.trials)
        counts.update([verdict])
    return Absorbed(**counts)


def _verdict(connection: Connection, row: Row[Any], theirs: Session, trials: Sequence[StoredTrial]) -> _Verdict:
    """What the other copy of a session brings to ours."""
    ours = rows.session(row, State(row.state))
    known = rows.trials(connection, row.number, ours.setting.sketches)
    if (ours.problem, ours.setting, ours.created) != (theirs.problem, theirs.setting, theirs.created):
        return "diverged"
    if any(_line(mine) != _line(other) for mine, other in zip(known, trials, strict=False)):
        return "diverged"
    ends = State.FINISHED
    if (ours.state is ends and len(trials) > len(known)) or (theirs.state is ends and len(trials) < len(known)):
        return "diverged"
    if ours.state is ends or (theirs.state is not ends and len(trials) <= len(known)):
        return "known"
    if row.writer and is_other_live_process(row.writer):
        return "diverged"  # it went on there, and goes on here just now
    return "extended"


def _line(trial: StoredTrial) -> str:
    return encode(trial_to_json(trial))


def _complete(
    connection: Connection, number: int, session: Session, trials: Sequence[StoredTrial], *, known: int
) -> None:
    """Adds the trials after the first `known`, and brings the session's row to the state of the copy."""
    if len(trials) > known:
        values = [rows.trial_values(number, each.position, each.batch, each) for each in trials[known:]]
        connection.execute(schema.trial.insert(), values)
    connection.execute(
        schema.session.update()
        .where(schema.session.c.number == number)
        .values(
            state=session.state.value,
            writer=None,
            outcome=None if session.outcome is None else encode(outcome_to_json(session.outcome)),
            trials=len(trials),
            failed=sum(not each.measurement.ok for each in trials),
            best_seconds=rows.lowest(None, (each.measurement for each in trials)),
        )
    )
