"""Records in PostgreSQL: the contract, several writers, and a server or a network that fails."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from stand_ins.network import Proxy
from stand_ins.postgresql import Server, Unavailable, server
from stormdrop.errors import StoreError
from stormdrop.records import BufferedStore, SqlStore, Store, open_store
from stormdrop.records import buffered_store as buffering
from stormdrop.records.sql import postgresql
from stormdrop.records.sql.connection import DatabaseFailure
from stormdrop.testing import stores
from stormdrop.testing.stores import PROBLEM, SETTING, timed

pytestmark = pytest.mark.long

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "store"


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    """A server, whose database is shared: tests use schemas of their own."""
    with ExitStack() as stack:
        try:
            started = stack.enter_context(server())
        except Unavailable as error:
            pytest.skip(str(error))
        yield started


@pytest.fixture
def opener(running: Server, request: pytest.FixtureRequest) -> Iterator[Callable[..., Store]]:
    """Opens the database of a name: a schema. Another port than the server's may be given."""
    with ExitStack() as stack:

        def opened(name: str, port: int | None = None) -> Store:
            return stack.enter_context(open_store(in_schema(running, f"{request.node.name} {name}", port)))

        yield opened


def in_schema(running: Server, name: str, port: int | None = None) -> str:
    """The URL of a schema with this name, which is created."""
    import psycopg
    from psycopg import sql

    name = "".join(letter if letter.isalnum() else "_" for letter in name)[-60:]
    with psycopg.connect(running.url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(name)))
    return f"{running.at(port or running.port)}?options=-csearch_path%3D{name}"


@pytest.mark.parametrize("check", [*stores.CHECKS, *stores.PERSISTENCE_CHECKS], ids=lambda check: check.__name__)
def test_postgresql_conforms(check: Callable[[stores.Factory], None], opener: Callable[..., Store]) -> None:
    check(opener)


def test_counts_are_exact_if_writers_are_killed_and_the_network_fails(
    running: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes write, are killed, and lose their network. benchmarks/store/writers.py does more of it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    writers = importlib.import_module("writers")
    counts = writers.disturb(running, writers=4, each=60, kills=2, cuts=2, retry=0.1)
    assert counts.exact(4, 240), counts
    assert (counts.killed, counts.cuts) == (2, 2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda url: url.rpartition("/")[0] + "/nosuch", "create it first"),
        (lambda url: url.replace("stormdrop:", "stormdrop:x"), "password authentication failed"),
        (lambda url: "postgresql://me:s3cr3t@127.0.0.1:1/records", "Connection refused"),
    ],
)
def test_a_server_that_lets_nobody_in_is_one_line(change: Callable[[str], str], says: str, running: Server) -> None:
    with pytest.raises(StoreError) as caught:
        open_store(change(running.url))
    message = str(caught.value)
    assert says in message
    assert "\n" not in message
    assert running.url.split(":")[2].partition("@")[0] not in message
    assert "s3cr3t" not in message


def test_a_connection_that_was_lost_between_two_records_costs_nothing(
    running: Server, opener: Callable[..., Store]
) -> None:
    with Proxy(running.port) as proxy:
        store = opener("cut", proxy.port)
        session = store.open(PROBLEM, SETTING)
        proxy.cut()
        with pytest.raises(DatabaseFailure) as caught:
            store.append(session, 0, [timed("packed", (1,), 1.0)])
        assert caught.value.passes
        proxy.mend()
        store.append(session, 0, [timed("packed", (2,), 1.0)])
        proxy.cut()
        proxy.mend()
        store.append(session, 1, [timed("packed", (3,), 1.0)])
        assert [trial.config["tile"] for trial in store.records(session)] == [(2,), (3,)]


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "SILENCE_SECONDS", 2)  # libpq's least for connecting


def test_a_server_that_says_nothing_costs_a_tuning_no_record(
    running: Server, opener: Callable[..., Store], short_silence: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffering, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(buffering, "PATIENCE", 0.1)
    said: list[str] = []
    store = opener("stopped")
    with BufferedStore(store, said.append) as buffered:
        session = buffered.open(PROBLEM, SETTING)
        running.stop()
        try:
            begin = time.monotonic()
            buffered.append(session, 0, [timed("packed", (1,), 1.0)])
            waited = time.monotonic() - begin
            buffered.append(session, 1, [timed("packed", (2,), 1.0)])  # too early for another attempt
            assert time.monotonic() - begin < waited + 1
        finally:
            running.go_on()
        assert (buffered.missing, len(said)) == (2, 1)
    assert [trial.position for trial in store.records(session)] == [0, 1]
    assert len(said) == 1


def test_whoever_holds_a_session_is_not_waited_for_without_end(opener: Callable[..., Store]) -> None:
    holder, other = opener("held"), opener("held")
    session = holder.open(PROBLEM, SETTING)
    assert isinstance(holder, SqlStore) and isinstance(other, SqlStore)
    other.patience = 0.1
    with holder._writing() as connection:
        connection.exec_driver_sql("SELECT * FROM stormdrop_session FOR UPDATE")
        with pytest.raises(DatabaseFailure, match="another process has held these records") as caught:
            other.resume(session)
        assert caught.value.passes
        other.open(PROBLEM, SETTING)  # a session of its own needs nobody's
    assert len(other.sessions()) == 2


def test_without_the_driver_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")

    monkeypatch.setattr("stormdrop.records.sql.connection.create_engine", missing)
    with pytest.raises(StoreError, match=r"pip install 'stormdrop\[postgresql\]'$"):
        open_store("postgresql://me@127.0.0.1/records")
