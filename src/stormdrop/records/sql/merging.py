"""Takes sessions of another database in. Doing it a second time changes nothing.

A session is append-only and has one writer. One of two copies is therefore a prefix of the other, unless each was
resumed in its own database. A prefix is extended. If the copies diverged, the copy in this database is kept.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from sqlalchemy import Connection, Row

from ...errors import StoreError
from ..codec import clean_session, encode, outcome_to_json, trial_to_json
from ..contract import Absorbed, Dump, State, StoredSession, StoredTrial
from ..plausible import check_session, check_trial
from . import rows, schema
from .writer_process import IMPORTED, other_live_process

_Verdict = Literal["extended", "known", "diverged"]


def absorb(connection: Connection, dump: Dump, *, measured_here: bool) -> Absorbed:
    """Takes in every session of a dump.

    Args:
        connection: A connection in a transaction that writes.
        dump: The sessions.
        measured_here: Whether they may answer later tunings, because this machine's user measured them. Otherwise they
            are marked as imported.

    Returns:
        How many sessions and trials were new.

    Raises:
        StoreError: If a session holds what no tuning measures.
    """
    counts: Counter[str] = Counter()
    writer = None if measured_here else IMPORTED
    for session, trials in dump:
        _check(session, trials)
        session = clean_session(session)
        if session.state is State.RUNNING:  # in another database, and so not here
            session = dataclasses.replace(session, state=State.INTERRUPTED)
        row = connection.execute(
            rows.select_sessions(text=True).where(schema.session.c.id == session.id).with_for_update(of=schema.session)
        ).one_or_none()
        if row is None:
            number = rows.insert_session(connection, session, writer=None)
            _complete(connection, number, session, trials, known=0, writer=writer)
            counts.update(added=1, trials=len(trials))
            continue
        verdict = _verdict(connection, row, session, trials)
        if verdict == "extended":
            _complete(connection, row.number, session, trials, known=row.trials, writer=writer)
            counts.update(trials=len(trials) - row.trials)
        counts.update([verdict])
    return Absorbed(**counts)


def _check(session: StoredSession, trials: Sequence[StoredTrial]) -> None:
    try:
        check_session(session)
        for trial in trials:
            check_trial(trial)
    except ValueError as error:
        raise StoreError(f"session {session.id} cannot be taken in: {error}") from error


def _verdict(connection: Connection, row: Row[Any], theirs: StoredSession, trials: Sequence[StoredTrial]) -> _Verdict:
    """What another copy of a session brings to the one in this database.

    Args:
        connection: A connection in a transaction.
        row: The session in this database.
        theirs: The other copy.
        trials: The trials of the other copy.

    Returns:
        "extended" if the other copy has more, "known" if it brings nothing new, "diverged" if neither copy is a
        prefix of the other.
    """
    ours = rows.session(row)
    known = rows.trials(connection, row.number, ours.setting.sketches)
    if (ours.problem, ours.setting, ours.created) != (theirs.problem, theirs.setting, theirs.created):
        return "diverged"
    if any(_as_text(our_trial) != _as_text(their_trial) for our_trial, their_trial in zip(known, trials, strict=False)):
        return "diverged"
    ours_ended, theirs_ended = ours.state is State.FINISHED, theirs.state is State.FINISHED
    if (ours_ended and len(trials) > len(known)) or (theirs_ended and len(trials) < len(known)):
        return "diverged"
    if ours_ended or (not theirs_ended and len(trials) <= len(known)):
        return "known"
    if row.writer and other_live_process(row.writer):
        return "diverged"  # it was continued there, and a process is continuing it here
    return "extended"


def _as_text(trial: StoredTrial) -> str:
    return encode(trial_to_json(trial))


def _complete(
    connection: Connection,
    number: int,
    session: StoredSession,
    trials: Sequence[StoredTrial],
    *,
    known: int,
    writer: str | None,
) -> None:
    """Adds the trials after the first `known`, and brings the session's row to the state of the copy."""
    if len(trials) > known:
        values = [
            {"session": number, "position": trial.position, **rows.trial_values(trial.batch, trial)}
            for trial in trials[known:]
        ]
        connection.execute(schema.trial.insert(), values)
    connection.execute(
        schema.session.update()
        .where(schema.session.c.number == number)
        .values(
            state=session.state.value,
            writer=writer,
            outcome=None if session.outcome is None else encode(outcome_to_json(session.outcome)),
            trials=len(trials),
            failed=sum(not trial.measurement.ok for trial in trials),
            best_seconds=rows.lowest_median(trial.measurement for trial in trials),
            written=rows.now(),
        )
    )
