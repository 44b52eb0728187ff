"""Connecting to a database. A place or a database that is refused gets one clear line, and nothing is changed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Engine

from stormdrop.errors import StoreError
from stormdrop.records import default_path, open_store, why_no_default
from stormdrop.records.sql import connection as module
from stormdrop.records.sql.connection import BUSY_SECONDS
from stormdrop.records.sql.schema import VERSION
from stormdrop.testing.stores import OUTCOME, PROBLEM, SETTING, timed


def refusal(place: str | Path, *, create: bool = True) -> str:
    with pytest.raises(StoreError) as caught:
        open_store(place, create=create)
    message = str(caught.value)
    assert "\n" not in message
    return message


def execute(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_a_path_and_a_url_are_the_same_place(tmp_path: Path) -> None:
    path = tmp_path / "a b?#%é.db"
    with open_store(str(path)) as store:
        session = store.open(PROBLEM, SETTING)
    assert path.exists()
    with open_store(path, create=False) as store:
        assert store.session(session.id) == session
    plain = tmp_path / "plain.db"
    with open_store(f"sqlite:///{plain}") as store:
        session = store.open(PROBLEM, SETTING)
    with open_store(plain) as store:
        assert store.session(session.id) == session


def test_the_default_is_in_the_users_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_data_dir", lambda name, appauthor: str(tmp_path / "share" / name))
    assert default_path() == tmp_path / "share" / "stormdrop" / "records.db"
    assert "does not exist" in refusal_of_default(create=False)
    assert not (tmp_path / "share").exists()
    open_store().close()
    assert default_path().exists()


def refusal_of_default(*, create: bool) -> str:
    with pytest.raises(StoreError) as caught:
        open_store(create=create)
    return str(caught.value) + " does not exist" * ("no directory" in str(caught.value))


def test_a_file_is_in_write_ahead_mode(tmp_path: Path) -> None:
    open_store(tmp_path / "r.db").close()
    connection = sqlite3.connect(tmp_path / "r.db")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("", "no name"),
        ("  ", "no name"),
        ("missing/directory/r.db", "no directory"),
        (".", "is a directory"),
        ("://", "no database URL"),
        ("sqlite:///missing/r.db", "no directory"),
        ("nosuch://host/db", "nosuch"),
        ("postgresql://me:secret@host:port/db", "no database URL"),
        ("oracle+cx_oracle://me:secret@host/db", "needs cx_Oracle, which is not installed"),
    ],
)
def test_places_that_cannot_be(place: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    message = refusal(place)
    assert says in message
    assert "secret" not in message
    assert list(tmp_path.iterdir()) == []


def test_a_missing_database_is_not_made_where_one_is_expected(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "r.db", create=False)
    assert not (tmp_path / "r.db").exists()
    (tmp_path / "empty.db").touch()
    assert "holds no records" in refusal(tmp_path / "empty.db", create=False)
    assert (tmp_path / "empty.db").stat().st_size == 0


def test_something_else_than_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, and they are long enough to be no header of a database\n" * 20)
    before = path.read_bytes()
    message = refusal(path)
    assert "not a database" in message
    assert str(path) in message
    assert path.read_bytes() == before


def test_someone_elses_database(tmp_path: Path) -> None:
    path = tmp_path / "photos.db"
    execute(path, "CREATE TABLE photos (id INTEGER)")
    before = path.read_bytes()
    assert "table photos" in refusal(path)
    assert path.read_bytes() == before


def test_a_newer_version(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    open_store(path).close()
    execute(path, f"UPDATE stormdrop_meta SET value = '{VERSION + 1}'")
    message = refusal(path)
    assert f"version {VERSION + 1}" in message
    assert "upgrade" in message


@pytest.mark.parametrize(
    "damage",
    ["DELETE FROM stormdrop_meta", "UPDATE stormdrop_meta SET value = 'x'", "DROP TABLE stormdrop_trial"],
)
def test_a_damaged_database(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    open_store(path).close()
    execute(path, damage)
    assert "damaged" in refusal(path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_is_not_writable(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        assert "not readable and writable" in refusal(tmp_path / "r.db")
    finally:
        tmp_path.chmod(0o700)


def test_a_file_that_is_not_writable_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.db"
    open_store(path).close()
    monkeypatch.setattr(os, "access", lambda used_path, mode: Path(used_path) != path)
    assert "not readable and writable" in refusal(path)


def test_reports_of_the_database_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    store = open_store(path)
    session = store.open(PROBLEM, SETTING)
    execute(path, "DROP TABLE stormdrop_trial")
    with pytest.raises(StoreError, match=r"no such table: stormdrop_trial$"):
        store.append(session, 0, [timed("packed", (1,), 1.0)])
    store.close()


def test_a_full_disk_is_a_store_error_and_takes_nothing_of_the_batch(tmp_path: Path) -> None:
    script = """
import resource, signal, sys
from stormdrop.errors import StoreError
from stormdrop.records import open_store
from stormdrop.testing.stores import OUTCOME, PROBLEM, SETTING, timed
store = open_store(sys.argv[1])
session = store.open(PROBLEM, SETTING)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
for batch in range(10_000):
    try:
        store.append(session, batch, [timed("packed", (batch, i), 1.0) for i in range(4)])
    except StoreError as error:
        print(batch, error)
        break
"""
    path = tmp_path / "r.db"
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    batches, message = done.stdout.rstrip("\n").split(" ", 1)
    assert "--db" in message
    assert "\n" not in message
    with open_store(path) as store:
        (summary,) = store.sessions()
        assert summary.trials == 4 * int(batches) > 0
        assert len(store.records(store.session(summary.id))) == summary.trials


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cr3t@127.0.0.1:1/db",
        "postgresql://me:s3cr3t@tail@127.0.0.1:1/db",
        "postgresql://127.0.0.1:1/db?user=me&password=s3cr3t",
        "postgresql://127.0.0.1:1/db?user=me&sslpassword=s3cr3t%40",
        "mysql+pymysql://127.0.0.1:1/db?passwd=s3cr3t",
    ],
)
def test_no_message_holds_a_password(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def engine(given: URL, **_: object) -> Engine:
        echo = f"cannot connect as {given.password} to {given.host} with {dict(given.query)}\nmore"
        raise ValueError(echo)

    monkeypatch.setattr("stormdrop.records.sql.connection.create_engine", engine)
    message = refusal(url)
    for secret in ("s3cr3t", "tail"):
        assert secret not in message
    assert "***" in message
    assert "127.0.0.1" in message


def test_without_a_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("platformdirs.user_data_dir", lambda name, appauthor: f"~/.local/share/{name}")
    assert "there is no home directory" in refusal_of_default(create=True)
    assert why_no_default() == "there is no home directory"
    assert list(tmp_path.iterdir()) == [], "no folder of the name ~"
    (tmp_path / "file").touch()
    monkeypatch.setattr("platformdirs.user_data_dir", lambda name, appauthor: str(tmp_path / "file" / name))
    assert "cannot be opened" in str(why_no_default())


def test_a_wait_for_another_writer_ends_with_a_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.db"
    with open_store(path) as store, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
        set_busy_seconds = module._set_busy_seconds

        def set_and_start(*arguments: Any) -> None:
            set_busy_seconds(*arguments)
            if not timer.ident:  # the wait begins
                timer.start()

        monkeypatch.setattr(module, "_set_busy_seconds", set_and_start)
        begin = time.perf_counter()
        with pytest.raises(KeyboardInterrupt):
            store.open(PROBLEM, SETTING)
        assert time.perf_counter() - begin < BUSY_SECONDS / 2
        other.rollback()
        assert store.open(PROBLEM, SETTING).problem == PROBLEM


def test_a_file_that_was_deleted_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with open_store(path) as store:
        session = store.open(PROBLEM, SETTING)
        path.unlink()
        with pytest.raises(StoreError, match="there is no session"):
            store.append(session, 0, [timed("packed", (1,), 1.0)])
        assert path.exists()


@pytest.mark.parametrize(
    "damage",
    [
        "outcome = '{'",
        "outcome = '[]'",
        "outcome = '" + "[" * 100_000 + "'",
        "best_seconds = 'fast', outcome = NULL",
        "trials = 'some'",
        "created = x'00ff'",
        "state = 'asleep'",
        "writer = 'somebody', state = 'running'",
        "seed = 'seven'",
    ],
    ids=lambda damage: damage[:16],
)
def test_a_damaged_row_is_one_line(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    with open_store(path) as store:
        session = store.open(PROBLEM, SETTING)
        store.append(session, 0, [timed("packed", (4, 2), 1.0)])
        store.finish(session, OUTCOME)
    execute(path, f"UPDATE stormdrop_session SET {damage}")
    with open_store(path) as store, pytest.raises(StoreError, match="holds a damaged record") as caught:
        store.sessions()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", ["options = '{'", "sketches = '[]'", "trials = 'some'", "seed = 'seven'"])
def test_a_damaged_row_of_a_session_that_is_written_is_one_line(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    with open_store(path) as store:
        session = store.open(PROBLEM, SETTING)
        execute(path, f"UPDATE stormdrop_session SET {damage}")
        writes = [
            lambda: store.append(session, 0, [timed("packed", (4, 2), 1.0)]),
            lambda: store.resume(session),
            lambda: store.interrupt(session),
        ]
        refused = []
        for write in writes:
            try:
                write()
            except StoreError as error:
                refused.append(str(error))
    assert refused
    assert all("damaged record" in line and "\n" not in line for line in refused)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system does not list open files in /proc")
def test_closing_closes_connections_that_an_interruption_has_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened() -> list[str]:
        names = [str(entry.readlink()) for entry in list(Path("/proc/self/fd").iterdir()) if entry.is_symlink()]
        return [name for name in names if name.startswith(str(tmp_path))]

    store = open_store(tmp_path / "records.db")
    engine = store._engine  # type: ignore[attr-defined]

    def interrupted(entry: object) -> None:
        raise KeyboardInterrupt

    connection = engine.connect()
    monkeypatch.setattr(engine.pool, "_do_return_conn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        connection.close()
    assert opened()
    store.close()
    assert opened() == []
