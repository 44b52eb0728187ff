"""A database of an older version is upgraded to what this version would make, and keeps its records.

`version_0_1/` holds dumps of databases that stormdrop 0.1 has made: a finished session of three trials, and an
interrupted one with a single trial.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from stand_ins.postgresql import Unavailable, server
from stormdrop.errors import StoreError
from stormdrop.records import State, Store, open_store, upgrade_database
from stormdrop.records.place import url_of
from stormdrop.records.sql import schema
from stormdrop.records.sql.postgresql import with_driver
from stormdrop.testing.stores import PROBLEM, SETTING, timed

DUMPS = Path(__file__).with_name("version_0_1")


def old_file(path: Path) -> Path:
    """A database of version 0.1 in a file."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((DUMPS / "sqlite.sql").read_text())
    return path


@pytest.fixture
def old_server() -> Iterator[str]:
    """The URL of a database of version 0.1 on a server."""
    with ExitStack() as stack:
        try:
            running = stack.enter_context(server())
        except Unavailable as error:
            pytest.skip(str(error))
        import psycopg

        with psycopg.connect(running.url, autocommit=True) as connection:
            connection.execute((DUMPS / "postgresql.sql").read_text())
        yield running.url


def check_whole(store: Store) -> None:
    """The records of version 0.1 are all there, and can be added to."""
    newest, oldest = store.sessions()
    assert [(each.state, each.trials, each.written) for each in (newest, oldest)] == [
        (State.INTERRUPTED, 1, None),
        (State.FINISHED, 3, None),
    ]
    (finished,) = store.finished(PROBLEM)
    assert finished.outcome is not None
    assert finished.outcome.config == {"tile": (4, 2), "unroll": 16}
    trials = store.records(finished)
    assert trials[0].measurement.seconds == (0.1 + 0.2, 1e-9)
    assert (trials[2].measurement.error, trials[2].measurement.suspect) == ("é\tx", True)
    session = store.resume(store.session(newest.id))
    store.append(session, 1, [timed("packed", (1,), 1.0)])
    changed, _ = store.sessions()
    assert changed.trials == 2
    assert changed.written is not None
    assert changed.written > changed.created
    assert store.open(PROBLEM, SETTING).id != session.id


def differences(place: str | Path) -> list[object]:
    """What the tables of a database lack or have too much, compared with those that this version creates."""
    engine = create_engine(with_driver(url_of(place)))
    try:
        with engine.connect() as connection:
            return list(compare_metadata(MigrationContext.configure(connection), schema._metadata))
    finally:
        engine.dispose()


def version(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        return str(connection.execute("SELECT value FROM stormdrop_meta").fetchone()[0])


def test_a_file_is_upgraded_as_soon_as_it_is_written_to(tmp_path: Path) -> None:
    path = old_file(tmp_path / "r.db")
    assert differences(path), "version 0.1 had other tables"
    with open_store(path) as store:
        check_whole(store)
    assert version(path) == str(schema.VERSION)
    assert differences(path) == []
    with open_store(path, create=False) as store:
        assert len(store.sessions()) == 3


def test_whoever_only_reads_a_file_changes_nothing(tmp_path: Path) -> None:
    path = old_file(tmp_path / "r.db")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=rf"version 1, .* needs {schema.VERSION}: `stormdrop db upgrade --db {path}`"):
        open_store(path, create=False)
    assert path.read_bytes() == before
    assert upgrade_database(path) == (1, schema.VERSION)
    assert upgrade_database(path) == (schema.VERSION, schema.VERSION)
    with open_store(path, create=False) as store:
        check_whole(store)


def test_an_upgrade_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stormdrop.records.sql.migrations import version_2

    path = old_file(tmp_path / "r.db")
    whole = version_2.upgrade

    def half() -> None:
        whole()
        raise StoreError("the power fails")

    monkeypatch.setattr(version_2, "upgrade", half)
    with pytest.raises(StoreError, match="the power fails"):
        open_store(path)
    monkeypatch.undo()
    assert version(path) == "1"
    with open_store(path) as store:
        check_whole(store)


@pytest.mark.parametrize("make", [lambda path: path.touch(), lambda path: None], ids=["empty", "absent"])
def test_there_must_be_something_to_upgrade(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "r.db")
    with pytest.raises(StoreError, match=r"holds no records yet|does not exist"):
        upgrade_database(tmp_path / "r.db")


@pytest.mark.long
def test_a_server_is_upgraded_by_command_only(old_server: str) -> None:
    for create in (True, False):
        with pytest.raises(StoreError, match="`stormdrop db upgrade --db postgresql://") as caught:
            open_store(old_server, create=create)
        assert old_server not in str(caught.value), "it holds a password"
    assert upgrade_database(old_server) == (1, schema.VERSION)
    assert differences(old_server) == []
    with open_store(old_server) as store:
        check_whole(store)
