"""The values of the contract as rows of the tables, and rows as values."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

import msgspec
from sqlalchemy import Connection, CursorResult, Row, Select, select
from sqlalchemy.exc import IntegrityError

from ...trial import Measurement, Phases, Status
from ..codec import clean, decode_config, encode, layers_of_method, outcome_from_json, outcome_to_json
from ..contract import Outcome, Problem, Record, Setting, State, StoredSession, StoredTrial, Summary
from . import schema
from .writer_process import IMPORTED, is_dead


def select_sessions(*, text: bool, newest_first: bool = False) -> Select[Any]:
    """A query for sessions with their workload's key.

    Args:
        text: Whether the workload's text, which may be long, comes along as `workload_text`.
        newest_first: Whether the newest session comes first instead of the oldest.

    Returns:
        The query, to which a condition can be added.
    """
    columns = [*schema.session.c, schema.workload.c.key.label("workload_key")]
    if text:
        columns.append(schema.workload.c.text.label("workload_text"))
    order = (schema.session.c.created, schema.session.c.number)
    return (
        select(*columns)
        .join(schema.workload, schema.session.c.workload == schema.workload.c.id)
        .order_by(*(column.desc() if newest_first else column for column in order))
    )


def state_of(row: Row[Any]) -> State:
    """Where a session stands. One that its dead writer left running is interrupted."""
    state = State(row.state)
    if state is State.RUNNING and row.writer and is_dead(row.writer):
        return State.INTERRUPTED
    return state


def outcome_of(row: Row[Any]) -> Outcome | None:
    """What a session ended with; None if it has no result yet."""
    return None if row.outcome is None else outcome_from_json(json.loads(row.outcome))


def session(row: Row[Any]) -> StoredSession:
    """A session from a row of `select_sessions(text=True)`."""
    return StoredSession(
        id=row.id,
        problem=Problem(row.workload_key, row.workload_text, row.workload_name, row.target, row.machine),
        setting=Setting(
            search=row.search,
            seed=int(row.seed),
            sketches=msgspec.convert(_object(row.sketches), dict[str, str]),
            options=_object(row.options),
            method=_object(row.method),
            versions=msgspec.convert(_object(row.versions), dict[str, str]),
        ),
        created=row.created,
        state=state_of(row),
        outcome=outcome_of(row),
        imported=row.writer == IMPORTED,
    )


def summary(row: Row[Any]) -> Summary:
    """One line of a list of sessions, from a row of `select_sessions`."""
    outcome = outcome_of(row)
    best = row.best_seconds if outcome is None or outcome.seconds is None else outcome.seconds
    values = {
        "id": row.id,
        "workload_name": row.workload_name,
        "workload_key": row.workload_key,
        "target": row.target,
        "machine": row.machine,
        "search": row.search,
        "seed": int(row.seed),
        "created": row.created,
        "state": state_of(row),
        "trials": row.trials,
        "failed": row.failed,
        "best_seconds": best,
        "baseline_seconds": None if outcome is None else outcome.baseline_seconds,
        "written": row.written,
        "layers": layers_of_method(row.method),
    }
    return msgspec.convert(values, Summary)  # checks the types, because SQLite keeps values of any type in a column


def _object(text: str) -> dict[str, Any]:
    """A JSON object. Numbers that JSON lacks (NaN, infinities) are read as well."""
    return msgspec.convert(json.loads(text), dict[str, Any])


def insert_session(connection: Connection, session: StoredSession, *, writer: str | None) -> int:
    """Writes a session without trials, and its workload if that is new.

    Args:
        connection: A connection in a transaction that writes.
        session: A session that `codec.clean_session` returned.
        writer: The name of the writer, or None if nobody writes the session.

    Returns:
        The number of the session's row.
    """
    problem, setting = session.problem, session.setting
    inserted = connection.execute(
        schema.session.insert().values(
            id=session.id,
            workload=_workload(connection, problem.workload_key, problem.workload_text),
            workload_name=problem.workload_name,
            target=problem.target,
            machine=problem.machine,
            search=setting.search,
            seed=str(setting.seed),
            options=encode(setting.options),
            method=encode(setting.method),
            versions=encode(setting.versions),
            sketches=encode(setting.sketches),
            created=session.created,
            state=session.state.value,
            writer=writer,
            outcome=None if session.outcome is None else encode(outcome_to_json(session.outcome)),
            trials=0,
            failed=0,
            written=now(),
        )
    )
    return _key(inserted)


def now() -> str:
    """The time as rows hold it: ISO 8601 in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")


def _workload(connection: Connection, key: str, text: str) -> int:
    """The id of a workload's row, which is added if it is new. Two texts under one key are two workloads."""
    table = schema.workload
    query = select(table.c.id).where(table.c.key == key, table.c.text == text)
    known = connection.execute(query).scalar()
    if known is not None:
        return int(known)
    digest = hashlib.sha256(text.encode()).hexdigest()
    try:
        with connection.begin_nested():
            return _key(connection.execute(table.insert().values(key=key, digest=digest, text=text)))
    except IntegrityError:  # on a server, another run may have written it since
        return int(connection.execute(query).scalar_one())


def _key(inserted: CursorResult[Any]) -> int:
    key = inserted.inserted_primary_key
    assert key is not None
    return int(key[0])


def trial_values(batch: int, record: Record | StoredTrial) -> dict[str, Any]:
    """A trial as a row.

    Args:
        batch: The number of the search's `ask` that the trial belongs to.
        record: The trial.

    Returns:
        The value of each column, besides those that say where the trial belongs: `session` and `position`.
    """
    measurement, phases = record.measurement, record.measurement.phases
    return {
        "batch": batch,
        "sketch": record.sketch,
        "config": encode(record.config),
        "status": measurement.status.value,
        "seconds": encode(measurement.seconds),
        "error": clean(measurement.error),
        "schedule_seconds": float(phases.schedule),
        "build_seconds": float(phases.build),
        "run_seconds": float(phases.run),
        "check_seconds": float(phases.check),
        "suspect": bool(measurement.suspect),
        "elapsed": float(record.elapsed),
    }


def trials(connection: Connection, number: int, sketches: Mapping[str, str]) -> list[StoredTrial]:
    """The trials of the session with this number and these sketches, in order."""
    table = schema.trial
    trial_rows = connection.execute(select(table).where(table.c.session == number).order_by(table.c.position))
    return [_trial(row, sketches) for row in trial_rows]


def _trial(row: Row[Any], sketches: Mapping[str, str]) -> StoredTrial:
    return StoredTrial(
        batch=row.batch,
        position=row.position,
        sketch=row.sketch,
        fingerprint=sketches[row.sketch],
        config=decode_config(row.config),
        measurement=Measurement(
            status=Status(row.status),
            seconds=msgspec.json.decode(row.seconds, type=tuple[float, ...]),
            error=row.error,
            phases=Phases(*map(float, (row.schedule_seconds, row.build_seconds, row.run_seconds, row.check_seconds))),
            suspect=row.suspect,
        ),
        elapsed=float(row.elapsed),
    )


def lowest_median(measurements: Iterable[Measurement], best: float | None = None) -> float | None:
    """The lowest time of a session.

    Args:
        measurements: New measurements. Those that failed are passed over.
        best: The lowest time so far, in seconds, or None if there is none yet.

    Returns:
        The lowest of `best` and the medians of the measurements, in seconds, or None if nothing worked.
    """
    medians = [statistics.median(measurement.seconds) for measurement in measurements if measurement.ok]
    return min([*medians, *([] if best is None else [best])], default=None)
