"""What people ask of all records: lists, sums, searches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Row, text

from stormdrop.errors import StoreError
from stormdrop.records import Outcome, Problem, Record, Setting, SqlStore, State, Store, StoredSession, open_store
from stormdrop.records.reading.reader import RecordsReader
from stormdrop.records.reading.session_document import session_document
from stormdrop.records.reading.session_lines import SessionFilter, SessionLine, line_of
from stormdrop.records.reading.session_progress import ProgressOfSessions
from stormdrop.records.reading.trial_search import Cursor, TrialFilter, all_trials, find_trials, trials_of
from stormdrop.trial import Measurement, Status


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "records.db") as opened:
        yield opened


@pytest.fixture
def reader(store: Store, tmp_path: Path) -> Iterator[RecordsReader]:
    opened = RecordsReader(tmp_path / "records.db")
    yield opened
    opened.close()


def session(store: Store, name: str, search: str = "storm", machine: str = "a CPU", **method: object) -> StoredSession:
    return store.open(Problem("5f2a", name, name, "llvm", machine), Setting(search, 0, {"tiled": "f"}, {}, method))


def trial(seconds: float | None, rows: int = 1, error: str = "", suspect: bool = False) -> Record:
    status = Status.RUNTIME if seconds is None else Status.OK
    samples = () if seconds is None else (seconds, 2 * seconds, 3 * seconds)
    return Record("tiled", {"rows": rows}, Measurement(status, samples, error, suspect=suspect), elapsed=float(rows))


def test_sums_and_filters(store: Store, reader: RecordsReader) -> None:
    first, second = session(store, "conv2d big"), session(store, "50%_conv2d", "droplet", "another CPU")
    store.append(first, 0, [trial(1e-3), trial(None, error="crashed")])
    store.append(second, 0, [trial(5e-4)])
    store.finish(second, Outcome("tiled", {"rows": 1}, 6e-4, baseline_seconds=1.0))
    totals = reader.totals()
    assert (totals.sessions, totals.running, totals.trials, totals.failed) == (2, 1, 3, 1)

    def names(wanted: SessionFilter, sort: str = "newest") -> list[str]:
        assert reader.count(wanted) == len(reader.sessions(wanted, sort))
        return [line.workload_name for line in reader.sessions(wanted, sort)]

    assert names(SessionFilter()) == ["50%_conv2d", "conv2d big"]
    assert names(SessionFilter(), "oldest") == names(SessionFilter(), "trials") == ["conv2d big", "50%_conv2d"]
    assert names(SessionFilter(), "fastest")[0] == "50%_conv2d"
    assert names(SessionFilter(text="CONV2D B")) == ["conv2d big"]
    assert names(SessionFilter(text="%_")) == ["50%_conv2d"]  # no pattern of SQL
    assert names(SessionFilter(search="droplet")) == names(SessionFilter(machine="another CPU")) == ["50%_conv2d"]
    assert names(SessionFilter(state=State.RUNNING)) == ["conv2d big"]
    assert names(SessionFilter(state=State.INTERRUPTED)) == []
    assert [line.best_seconds for line in reader.sessions(SessionFilter())] == [6e-4, 2e-3]
    assert len(reader.sessions(SessionFilter(), limit=1, offset=1)) == 1
    assert reader.choices()["search"] == ["droplet", "storm"]
    assert [(each.machine, each.trials) for each in reader.machines()] == [("another CPU", 1), ("a CPU", 2)]


def test_a_session_whose_writer_died_is_interrupted(store: Store, reader: RecordsReader) -> None:
    begun = session(store, "conv2d")
    assert reader.totals().running == 1
    assert isinstance(store, SqlStore)
    with store._engine.begin() as connection:
        name = connection.execute(text("select writer from stormdrop_session")).scalar_one()
        host, context, _, _, token = name.split("|")
        connection.execute(
            text("update stormdrop_session set writer = :name"), {"name": f"{host}|{context}|1|1|{token}"}
        )
    assert reader.totals().running == 0
    assert [line.id for line in reader.sessions(SessionFilter(state=State.INTERRUPTED))] == [begun.id]


def test_the_stamp_changes_with_every_write(store: Store, reader: RecordsReader) -> None:
    stamps = [reader.stamp()]
    begun = session(store, "conv2d")
    stamps.append(reader.stamp())
    store.append(begun, 0, [trial(1e-3)])
    stamps.append(reader.stamp())
    store.finish(begun, Outcome())
    stamps.append(reader.stamp())
    assert len(set(stamps)) == 4
    assert reader.stamp() == stamps[-1]


def test_the_database_refuses_to_be_written(store: Store, reader: RecordsReader) -> None:
    session(store, "conv2d")
    with pytest.raises(StoreError, match="readonly"), reader.reading() as connection:
        connection.execute(text("delete from stormdrop_session"))
    assert reader.totals().sessions == 1


def test_a_database_that_is_replaced_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    with open_store(path) as store:
        session(store, "conv2d", model={"name": "net", "calls": 2})
    reader = RecordsReader(path)
    progress = ProgressOfSessions(reader)
    assert progress.of(1).read == 0 and reader.models().keys() == {"net"}
    for part in tmp_path.iterdir():
        part.unlink()
    with open_store(path) as store:
        store.append(session(store, "matmul"), 0, [trial(1e-3)])
    assert [line.workload_name for line in reader.sessions(SessionFilter())] == ["matmul"]
    assert progress.of(1).read == 1 and reader.models() == {}
    reader.close()


def test_what_is_known_of_finished_sessions_follows_every_write(store: Store, reader: RecordsReader) -> None:
    def compared() -> tuple[object, object]:
        fresh = RecordsReader(reader.place.file)
        found = fresh.tuned(), fresh.models()
        fresh.close()
        assert (reader.tuned(), reader.models()) == found
        return found

    net = {"name": "net", "calls": 2}
    seen = [compared()]
    for name in ("matmul", "conv2d", "conv2d", "matmul"):
        begun = session(store, name, model=net if name == "conv2d" else None)
        seen.append(compared())
        store.append(begun, 0, [trial(1e-3), trial(None, 2)])
        seen.append(compared())
        store.finish(begun, Outcome("tiled", {"rows": 1}, 1e-3 / len(seen)))
        seen.append(compared())
    with open_store("sqlite://") as other:
        other.append(elsewhere := session(other, "matmul", machine="another CPU"), 0, [trial(5e-4)])
        other.finish(elsewhere, Outcome("tiled", {"rows": 1}, 5e-4))
        store.absorb(other.dump())
    seen.append(compared())
    assert all(before != after for before, after in pairwise(seen))


def test_a_look_reads_no_finished_session_again(
    store: Store, reader: RecordsReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        begun = session(store, f"kernel {number % 2}", model={"name": "net", "calls": 2})
        store.append(begun, 0, [trial(1e-3)])
        store.finish(begun, Outcome("tiled", {"rows": 1}, 1e-3))
    running = session(store, "matmul")
    reader.tuned()
    read: list[int] = []

    def counted(row: Row[Any]) -> SessionLine:
        read.append(row.number)
        return line_of(row)

    monkeypatch.setattr("stormdrop.records.reading.reader.line_of", counted)
    known = reader._finished
    for position in range(3):
        store.append(running, 0, [trial(1e-3, position)])
        assert [line.trials for line in reader.tuned()] == [position + 1, 20]
        assert len(reader.models()["net"]["a CPU"]) == 2
    assert reader._finished is known and len(read) == 3 * (2 + 2)  # two rows and two kernels
    store.finish(running, Outcome())
    reader.tuned()
    assert reader._finished is not known


def test_a_search_reads_a_bounded_number_of_rows(store: Store, reader: RecordsReader) -> None:
    begun = [session(store, f"kernel {number}") for number in range(4)]
    for number, each in enumerate(begun):
        store.append(each, 0, [trial(1e-3, rows=10 * number + position) for position in range(10)])
    pages, after = [], None
    while True:
        found = find_trials(reader, TrialFilter(text='"rows":3'), after, limit=3, rows=10)
        pages.append([line.config["rows"] for line in found.trials])
        if found.after is None:
            break
        after = Cursor.parse(str(found.after))
        assert after == found.after
    assert [rows for page in pages for rows in page] == [39, 38, 37, 36, 35, 34, 33, 32, 31, 30, 3]
    assert max(map(len, pages)) == 3
    everything = [line.config["rows"] for line in all_trials(reader, TrialFilter(), page=7)]
    assert everything == list(range(39, -1, -1))


def test_searches_combine(store: Store, reader: RecordsReader) -> None:
    store.append(
        session(store, "conv2d"), 0, [trial(1e-3, 1), trial(None, 2, "LLVM crashed"), trial(2e-3, 3, suspect=True)]
    )
    store.append(session(store, "matmul"), 0, [trial(None, 4, "llvm hangs")])

    def rows(wanted: TrialFilter) -> list[int]:
        return [line.config["rows"] for line in find_trials(reader, wanted).trials]

    assert rows(TrialFilter()) == [4, 3, 2, 1]
    assert rows(TrialFilter(text="llvm")) == rows(TrialFilter(status="runtime")) == [4, 2]
    assert rows(TrialFilter(SessionFilter(text="conv"), text="llvm")) == [2]
    assert rows(TrialFilter(suspect=True)) == [3]
    assert rows(TrialFilter(text="nothing holds this")) == []
    assert [line.position for line in trials_of(reader, 1, limit=2)] == [2, 1]
    assert [line.position for line in trials_of(reader, 1, before=2, status="ok")] == [0]


@pytest.mark.parametrize("text", ["", "1", "1.", ".1", "a.b", "1.-1", "1.2.3", "9" * 60 + ".1"])
def test_what_is_no_cursor(text: str) -> None:
    assert Cursor.parse(text) is None


def test_progress_reads_only_what_is_new(store: Store, reader: RecordsReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stormdrop.records.reading.session_progress._STEP", 2)
    begun = session(store, "conv2d")
    store.append(begun, 0, [trial(3e-3, 1), trial(None, 2, "crashed at 17"), trial(None, 3, "crashed at 18")])
    progress = ProgressOfSessions(reader)
    assert progress.of(1).read == 2
    assert progress.of(1).errors == {"crashed at #": 2}
    store.append(begun, 1, [trial(1e-3, 4, suspect=True), trial(2e-3, 5)])
    final = progress.of(1)
    assert (final.read, final.suspect, final.elapsed) == (5, 1, 5.0)
    assert final.curve == [(1.0, 6e-3), (4.0, 2e-3)]
    assert final.statuses == {"ok": 3, "runtime": 2}


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        ({"name": "net", "calls": 1, "layers": ["head.conv", "head.relu"]}, ("head.conv", "head.relu")),
        ({"name": "net", "calls": 1}, ()),
        ({"name": "net", "calls": 1, "layers": "head"}, ()),
        ({"name": "net", "calls": 1, "layers": [1]}, ()),
        ("no object", ()),
    ],
)
def test_sessions_know_the_layers_of_their_kernel(
    store: Store, reader: RecordsReader, model: object, layers: tuple[str, ...]
) -> None:
    kernel = session(store, "conv2d", model=model)
    session(store, "matmul")
    assert [each.layers for each in store.sessions()] == [(), layers]
    lines = reader.sessions(SessionFilter(), "oldest")
    assert [each.layers for each in lines] == [layers, ()]
    assert reader.layers_of([each.number for each in lines]) == dict(
        zip((each.number for each in lines), (layers, ()), strict=True)
    )
    details = reader.session(kernel.id)
    assert details is not None and details.line.layers == layers and details.method == {"model": model}
    assert session_document(kernel, [])["layers"] == list(layers)


def test_models_have_their_newest_sessions(store: Store, reader: RecordsReader) -> None:
    part_of = {"name": "net", "calls": 3}
    store.append(session(store, "conv2d", model=part_of), 0, [trial(1e-3)])
    session(store, "conv2d", model=part_of)  # it has no time yet
    session(store, "matmul", model=part_of)
    session(store, "softmax", model="no object")
    ((machine, kernels),) = reader.models()["net"].items()
    assert machine == "a CPU"
    assert {(each.line.workload_name, each.calls, each.line.best_seconds) for each in kernels} == {
        ("conv2d", 3, 2e-3),
        ("matmul", 3, None),
    }
    store.append(session(store, "conv2d", model=part_of), 0, [trial(1e-4)])
    times = {each.line.workload_name: each.line.best_seconds for each in reader.models()["net"]["a CPU"]}
    assert times["conv2d"] == 2e-4


def test_a_database_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        RecordsReader(tmp_path / "none.db")
