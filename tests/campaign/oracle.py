"""What must be true of the records and of a saved model, by witnesses outside of the program.

The log of the launcher says which trials were committed and which began. The database is read with SQLite itself.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contract import Kind, Outcome
from sandbox import LIMIT, Sandbox

from stormdrop.machine.process.child_process import ChildProcess

Row = tuple[Any, ...]

_TRIALS = """
    select session.id, trial.position, workload.key, trial.sketch, trial.config, trial.status, trial.seconds,
           trial.error, trial.batch, trial.elapsed, trial.schedule_seconds, trial.build_seconds, trial.run_seconds,
           trial.check_seconds, trial.suspect
    from stormdrop_trial trial
    join stormdrop_session session on trial.session = session.number
    join stormdrop_workload workload on session.workload = workload.id
    order by session.number, trial.position
"""


def trials(database: Path) -> list[Row]:
    """All stored trials with all their columns, session by session; none if there is no database."""
    if not database.exists():
        return []
    with contextlib.closing(sqlite3.connect(database, timeout=10)) as connection:
        try:
            return connection.execute(_TRIALS).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):  # the process was killed before its first transaction
                return []
            raise


def check_integrity(outcome: Outcome, database: Path) -> None:
    """Checks the database's own structure."""
    if not database.exists():
        return
    try:
        with contextlib.closing(sqlite3.connect(database, timeout=10)) as connection:
            found = [row[0] for row in connection.execute("pragma integrity_check").fetchall()]
            found += [str(row) for row in connection.execute("pragma foreign_key_check").fetchall()]
    except sqlite3.DatabaseError as error:
        found = [str(error)]
    outcome.require(found == ["ok"], Kind.LOST, f"the database is damaged: {found[:3]}")


def check_acknowledged(
    outcome: Outcome, log: Sequence[dict[str, Any]], rows: Sequence[Row], since: float = 0.0
) -> None:
    """Checks that each trial which was committed is there, with the very values that were measured.

    Args:
        outcome: Takes the findings.
        log: The lines of the launcher.
        rows: The stored trials.
        since: A time of the log. Earlier acknowledgements do not count.
    """
    stored = Counter(
        _content(workload, sketch, json.loads(config), status, json.loads(seconds), error)
        for _, _, workload, sketch, config, status, seconds, error, *_ in rows
    )
    for line in log:
        if line["event"] == "ack" and line["time"] >= since:
            wanted = _content(*(line[name] for name in ("workload", "sketch", "config", "status", "seconds", "error")))
            outcome.require(stored[wanted] > 0, Kind.LOST, f"an acknowledged trial is not stored: {wanted}")
            stored[wanted] -= 1


def check_prefix(outcome: Outcome, before: Sequence[Row], after: Sequence[Row]) -> None:
    """Checks that stored trials stay as they were, byte by byte, in the order of their sessions."""
    sessions: dict[str, list[Row]] = {}
    for row in after:
        sessions.setdefault(row[0], []).append(row)
    for row in before:
        later = sessions.get(row[0], [])
        kept = row[1] < len(later) and later[row[1]] == row
        outcome.require(kept, Kind.LOST, f"a stored trial has changed: {row[:6]}")


def check_measured_once(outcome: Outcome, log: Sequence[dict[str, Any]], kills: int = 0) -> None:
    """Checks that nothing was measured again that was committed before, but for one trial in flight per kill.

    Args:
        outcome: Takes the findings.
        log: The lines of the launcher, of all runs.
        kills: How many runs were ended, or lost a worker, in the midst of a measurement.
    """
    acknowledged: set[str] = set()
    begun: Counter[str] = Counter()
    for line in log:
        if line["event"] not in ("begin", "ack"):
            continue
        candidate = json.dumps([line["workload"], line["sketch"], line["config"]], sort_keys=True)
        if line["event"] == "ack":
            acknowledged.add(candidate)
        else:
            outcome.require(candidate not in acknowledged, Kind.LOST, f"measured again: {candidate}")
            begun[candidate] += 1
    again = sum(count - 1 for count in begun.values())
    outcome.require(again <= kills, Kind.LOST, f"{again} trials in flight were measured again after {kills} kills")


def check_statuses(outcome: Outcome, rows: Sequence[Row], failures: int = 0) -> None:
    """Checks that no more trials failed than faults that cost a trial were injected."""
    failed = [(row[5], row[7]) for row in rows if row[5] != "ok"]
    outcome.require(len(failed) <= failures, Kind.WRONG, f"{len(failed)} trials failed, not {failures}: {failed[:3]}")


def check_artifact(outcome: Outcome, sandbox: Sandbox, expected: Path, *, required: bool, digest: str = "") -> None:
    """Checks in another process that a saved model is one complete generation and computes what it should.

    Args:
        outcome: Takes the findings.
        sandbox: Holds the artifact.
        expected: A file with inputs and outputs of three seeds.
        required: Whether the artifact must be there.
        digest: The digest that it must have, if that is known.
    """
    if not sandbox.artifact.exists():
        outcome.require(not required, Kind.LOST, "there is no artifact")
        return
    with contextlib.closing(
        ChildProcess(
            "inside.check_artifact:serve",
            (str(sandbox.artifact), str(expected), digest),
            environment=sandbox.environment,
            loads=("stormdrop.model",),
        )
    ) as child:
        try:
            wrong = child.answer(LIMIT)
        except TimeoutError:
            outcome.add(Kind.HUNG, "the check of the artifact ran into the hard limit")
            return
        if wrong is None:
            wrong = f"{child.wait()}: {child.last_line()}"
    outcome.require(not wrong, Kind.WRONG, f"the artifact is not right: {wrong}")


def _content(workload: str, sketch: str, config: Any, status: str, seconds: Any, error: str) -> str:
    return json.dumps([workload, sketch, config, status, seconds, error], sort_keys=True)
