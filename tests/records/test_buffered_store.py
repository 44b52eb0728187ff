"""A database that fails under way costs no record: the records wait in memory, and a file takes them in the end."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stormdrop.errors import StoreError
from stormdrop.records import BufferedStore, SqlStore, State, Store, StoredSession, import_file, open_store
from stormdrop.records import buffered_store as module
from stormdrop.testing import stores
from stormdrop.testing.stores import OUTCOME, PROBLEM, SETTING, timed
from stormdrop.trial import Measurement, Phases, Status


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(module, "RETRY_FACTOR", 0.0)
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    monkeypatch.setattr(module, "LAST_SECONDS", 0.3)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "records.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with open_store(path) as opened:
        yield opened


def tiles(store: Store, session: StoredSession | str) -> list[tuple[int, ...]]:
    found = store.session(session) if isinstance(session, str) else session
    return [trial.config["tile"] for trial in store.records(found)]


def only_session(path: Path) -> tuple[StoredSession, list[tuple[int, ...]]]:
    with open_store(path) as store:
        (summary,) = store.sessions()
        return store.session(summary.id), tiles(store, summary.id)


@pytest.mark.parametrize("check", stores.CHECKS, ids=lambda check: check.__name__)
def test_while_the_database_works_it_is_a_store_like_any_other(
    check: Callable[[stores.Factory], None], tmp_path: Path
) -> None:
    check(lambda name: BufferedStore(open_store(tmp_path / name)))


def test_a_locked_database_is_written_to_when_it_is_free_again(store: Store, path: Path, said: list[str]) -> None:
    with BufferedStore(store, said.append) as buffered:
        session = buffered.open(PROBLEM, SETTING)
        buffered.append(session, 0, [timed("packed", (0,), 1.0)])
        with closing(sqlite3.connect(path)) as other:
            other.execute("BEGIN IMMEDIATE")
            begin = time.perf_counter()
            for position in (1, 2):
                buffered.append(session, position, [timed("packed", (position,), 1.0)])
            second = buffered.open(PROBLEM, SETTING)
            assert time.perf_counter() - begin < 5, "nobody waits for the lock"
            assert tiles(store, session) == [(0,)]
            other.rollback()
        buffered.append(second, 0, [timed("packed", (7,), 1.0)])
        assert tiles(store, session) == [(0,), (1,), (2,)]
        assert store.session(session.id).state is State.RUNNING
        assert buffered.finish(session, OUTCOME).state is State.FINISHED
        buffered.interrupt(second)
    assert [len(said), "locked" in said[0], "\n" in said[0]] == [1, True, False]
    assert tiles(store, second) == [(7,)]
    assert store.finished(PROBLEM) == [store.session(session.id)]
    assert not store.session(session.id).imported
    assert {trial.batch for trial in store.records(session)} == {0, 1, 2}


def test_records_that_come_late_are_those_that_come_in_time(store: Store, path: Path, said: list[str]) -> None:
    record = timed("packed", (4, 2), 1, elapsed=2)  # whole numbers
    failure = Measurement(Status.RUNTIME, (), "a\x00b", Phases(0, 1, 2, 3), True)
    records = [record, type(record)("streaming", {"tile": [1, (2, 3)], "on": True}, failure, 3)]
    with BufferedStore(store, said.append) as buffered:
        early, late = buffered.open(PROBLEM, SETTING), buffered.open(PROBLEM, SETTING)
        buffered.append(early, 0, records)
        with closing(sqlite3.connect(path)) as other:
            other.execute("BEGIN IMMEDIATE")
            buffered.append(late, 0, records)
        buffered.append(late, 1, records)
        assert store.records(late)[:2] == store.records(early)
        assert len(store.sessions()) == 2, "the records of a session stay together"


def test_a_database_that_is_deleted_is_made_again(store: Store, path: Path, said: list[str]) -> None:
    with BufferedStore(store, said.append) as buffered:
        session = buffered.open(PROBLEM, SETTING)
        buffered.append(session, 0, [timed("packed", (0,), 1.0)])
        for file in path.parent.glob("records.db*"):
            file.unlink()
        buffered.append(session, 1, [timed("packed", (1,), 1.0)])
        buffered.finish(session, OUTCOME)
    kept, found = only_session(path)
    assert (kept.id, kept.state, kept.outcome) == (session.id, State.FINISHED, OUTCOME)
    assert found == [(0,), (1,)]


def test_a_full_database_ends_in_a_file_that_can_be_imported(store: Store, path: Path, said: list[str]) -> None:
    with BufferedStore(store, said.append) as buffered:
        session = buffered.open(PROBLEM, SETTING)
        buffered.append(session, 0, [timed("packed", (0,), 1.0)])
        assert isinstance(store, SqlStore)
        with closing(store._engine.raw_connection()) as connection:
            connection.cursor().execute("PRAGMA max_page_count = 1")
        for position in range(1, 200):
            buffered.append(session, position, [timed("packed", (position,), 1.0)])
        committed = len(tiles(store, session))
        buffered.finish(session, OUTCOME)
    assert len(said) == 2
    assert "disk is full" in said[0]
    (file,) = Path.cwd().iterdir()
    assert said[1].startswith(f"{200 - committed} records could not be written")
    assert f"`stormdrop db import --trusted {file} --db {path}`" in said[1]
    with open_store("sqlite://") as other:
        assert import_file(other, file).trials == 200
        assert tiles(other, session.id) == [(position,) for position in range(200)]
        assert other.session(session.id).outcome == OUTCOME


def test_without_any_place_for_a_file_the_loss_is_said(
    store: Store, path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with BufferedStore(store, said.append) as buffered, closing(sqlite3.connect(path)) as other:
        session = buffered.open(PROBLEM, SETTING)
        other.execute("BEGIN IMMEDIATE")
        buffered.append(session, 0, [timed("packed", (0,), 1.0)])
        Path.cwd().rmdir()
        monkeypatch.setattr("tempfile.gettempdir", lambda: str(path.parent / "missing"))
        buffered.settle()
    assert said[1].startswith("1 record could not be written")
    assert said[1].endswith("they are lost")


def test_a_session_that_is_taken_over_goes_on_under_another_id(store: Store, path: Path, said: list[str]) -> None:
    with BufferedStore(store, said.append) as buffered, open_store(path) as other:
        session = buffered.open(PROBLEM, SETTING)
        buffered.append(session, 0, [timed("packed", (0,), 1.0)])
        theirs = other.resume(session)
        other.append(theirs, 1, [timed("packed", (9,), 1.0)])
        buffered.append(session, 1, [timed("packed", (1,), 1.0)])
        ours = buffered.finish(session, OUTCOME)
        assert tiles(other, theirs) == [(0,), (9,)]
        assert tiles(other, ours) == [(0,), (1,)]
    assert len(said) == 1


def test_a_database_that_fails_before_the_first_record_is_the_users_to_replace(store: Store, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE stormdrop_trial")
        connection.execute("DROP TABLE stormdrop_session")
    with BufferedStore(store) as buffered, pytest.raises(StoreError, match="no such table"):
        buffered.finished(PROBLEM)


def test_without_a_listener_the_line_is_a_warning(store: Store, path: Path) -> None:
    with closing(sqlite3.connect(path)) as other, BufferedStore(store) as buffered:
        session = buffered.open(PROBLEM, SETTING)
        other.execute("BEGIN IMMEDIATE")
        with pytest.warns(RuntimeWarning, match="the tuning goes on"):
            buffered.append(session, 0, [timed("packed", (0,), 1.0)])
        other.rollback()


def test_what_is_resumed_while_the_database_is_locked_is_whole_in_the_end(
    store: Store, path: Path, said: list[str]
) -> None:
    session = store.open(PROBLEM, SETTING)
    store.append(session, 0, [timed("packed", (0,), 1.0)])
    store.interrupt(session)
    with BufferedStore(store, said.append) as buffered, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        (found,) = buffered.unfinished(PROBLEM, SETTING)
        resumed = buffered.resume(found)
        buffered.append(resumed, 1, [timed("packed", (1,), 1.0)])
        other.rollback()
        buffered.finish(resumed, OUTCOME)
    kept, found_tiles = only_session(path)
    assert (kept.id, kept.state) == (session.id, State.FINISHED)
    assert found_tiles == [(0,), (1,)]


@pytest.mark.parametrize(
    "damage",
    [
        "ALTER TABLE stormdrop_session RENAME TO gone",
        "UPDATE stormdrop_session SET options = '{', state = 'interrupted'",
    ],
)
def test_what_cannot_be_read_under_way_is_as_if_it_were_not_there(
    damage: str, store: Store, path: Path, said: list[str]
) -> None:
    store.interrupt(store.open(PROBLEM, SETTING))
    with BufferedStore(store, said.append) as buffered:
        (earlier,) = buffered.unfinished(PROBLEM, SETTING)
        session = buffered.open(PROBLEM, SETTING)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(damage)
        assert buffered.finished(PROBLEM) == []
        assert buffered.unfinished(PROBLEM, SETTING) == []
        assert buffered.records(earlier) == []
        resumed = buffered.resume(earlier)
        buffered.append(resumed, 0, [timed("packed", (1,), 1.0)])
        buffered.append(session, 0, [timed("packed", (0,), 1.0)])
        buffered.finish(resumed, OUTCOME)
        buffered.finish(session, OUTCOME)
    (file,) = Path.cwd().iterdir()
    with open_store("sqlite://") as other:
        assert import_file(other, file).trials == 2


def test_a_session_that_another_run_resumes_first_ends_no_tuning(
    store: Store, path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = store.open(PROBLEM, SETTING)
    store.append(earlier, 0, [timed("packed", (0,), 1.0)])
    store.interrupt(earlier)
    with BufferedStore(store, said.append) as buffered, open_store(path) as other:
        (found,) = buffered.unfinished(PROBLEM, SETTING)
        assert len(buffered.records(found)) == 1
        buffered.open(PROBLEM, SETTING)
        theirs = other.resume(found)
        for room in ("sql_store", "merging"):
            monkeypatch.setattr(f"stormdrop.records.sql.{room}.other_live_process", lambda _: 4711)
        resumed = buffered.resume(found)
        buffered.append(resumed, 1, [timed("packed", (1,), 1.0)])
        ours = buffered.finish(resumed, OUTCOME)
        assert tiles(other, theirs) == [(0,)]
        assert tiles(other, ours) == [(0,), (1,)]
    assert ours.id != found.id
    assert "is being tuned by process 4711" in said[0]


class OfAPlugin:
    """A store that is none of ours, which waits for other writers."""

    def __init__(self, store: Store) -> None:
        self._store, self.patience, self.given = store, 60.0, "mine://records"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_store_of_a_plugin_waits_no_longer_than_one_of_ours() -> None:
    with open_store("sqlite://") as inner:
        store = OfAPlugin(inner)
        with BufferedStore(store) as buffered:
            assert store.patience == module.PATIENCE
            buffered.open(PROBLEM, SETTING)
        assert store.patience == 60.0
        assert "--db mine://records" in buffered._import_command(Path("kept.jsonl"))
