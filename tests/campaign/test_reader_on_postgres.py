"""What people ask of all records, asked of PostgreSQL."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from stand_ins.postgresql import Unavailable, server
from stormdrop.errors import StoreError
from stormdrop.records import Problem, Record, Setting, State, open_store
from stormdrop.records.reading.reader import RecordsReader
from stormdrop.records.reading.session_lines import SORTS, SessionFilter
from stormdrop.records.reading.session_progress import ProgressOfSessions
from stormdrop.records.reading.trial_search import Cursor, TrialFilter, find_trials
from stormdrop.trial import Measurement, Status

pytestmark = pytest.mark.long


def test_a_reader_on_postgresql() -> None:
    try:
        with server() as running:
            check(running.url)
    except Unavailable as error:
        pytest.skip(str(error))


def check(url: str) -> None:
    with open_store(url) as store:
        for name in ("conv2d", "MatMul"):
            setting = Setting("storm", 0, {"tiled": "f"}, method={"model": {"name": "net", "calls": 2}})
            session = store.open(Problem("5f2a", name, name, "llvm", "a CPU"), setting)
            works = [Record("tiled", {"rows": rows}, Measurement(Status.OK, (rows * 1e-3,))) for rows in (3, 2, 1)]
            store.append(session, 0, [*works, Record("tiled", {"rows": 9}, Measurement(Status.RUNTIME, (), "Crashed"))])
    reader = RecordsReader(url)
    before = reader.stamp()
    totals = reader.totals()
    assert (totals.sessions, totals.running, totals.trials, totals.failed) == (2, 2, 8, 2)
    assert all(len(reader.sessions(SessionFilter(), sort)) == 2 for sort in SORTS)
    assert [line.workload_name for line in reader.sessions(SessionFilter(text="matmul"))] == ["MatMul"]
    assert reader.count(SessionFilter(state=State.INTERRUPTED)) == 0
    first = find_trials(reader, TrialFilter(text="crashed"), limit=1)
    second = find_trials(reader, TrialFilter(text="crashed"), Cursor.parse(str(first.after)), limit=1)
    assert [trial.workload_name for trial in (*first.trials, *second.trials)] == ["MatMul", "conv2d"]
    line = reader.sessions(SessionFilter(text="conv2d"))[0]
    assert ProgressOfSessions(reader).of(line.number).curve == [(0.0, 3e-3), (0.0, 2e-3), (0.0, 1e-3)]
    assert {each.calls for each in reader.models()["net"]["a CPU"]} == {2}
    with pytest.raises(StoreError, match="read-only transaction"), reader.reading() as connection:
        connection.execute(text("delete from stormdrop_trial"))
    assert reader.stamp() == before
    reader.close()
