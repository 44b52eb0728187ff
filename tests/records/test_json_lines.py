"""Export and import: random sessions come back equal; a malformed line is named and nothing of its file is taken in."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import sqlite3
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormdrop.errors import StoreError
from stormdrop.records import (
    Absorbed,
    Filter,
    Outcome,
    Problem,
    Setting,
    State,
    StoredSession,
    StoredTrial,
    export_file,
    import_file,
    merge_database,
    open_store,
    read_lines,
    write_lines,
)
from stormdrop.testing.stores import OUTCOME, PROBLEM, SETTING, failed, timed
from stormdrop.trial import Measurement, Phases, Status

times = st.floats(0, 1e6)
samples = st.floats(1e-12, 1e6)
text = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=12)
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | text
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3))
configs = st.dictionaries(text, scalars | st.lists(st.integers(1, 4096), max_size=4).map(tuple), max_size=5)
objects = st.dictionaries(text, values, max_size=4)


@st.composite
def outcomes(draw: st.DrawFn, sketches: Sequence[str]) -> Outcome:
    interval = draw(st.none() | st.tuples(samples, samples))
    base, converged, extra = draw(st.none() | samples), draw(st.booleans()), draw(objects)
    if draw(st.booleans()):
        return Outcome(None, None, None, interval, base, converged, extra)
    return Outcome(draw(st.sampled_from(sketches)), draw(configs), draw(samples), interval, base, converged, extra)


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    status = draw(st.sampled_from(Status))
    seconds = tuple(draw(st.lists(samples, min_size=1, max_size=5))) if status is Status.OK else ()
    phases = Phases(*(draw(times) for _ in range(4)))
    return Measurement(status, seconds, draw(text), phases, draw(st.booleans()))


@st.composite
def sessions(draw: st.DrawFn) -> tuple[StoredSession, list[StoredTrial]]:
    sketches = draw(st.dictionaries(text, text, min_size=1, max_size=3))
    state = draw(st.sampled_from([State.FINISHED, State.INTERRUPTED]))
    session = StoredSession(
        id=str(uuid.UUID(int=draw(st.integers(0, 2**128 - 1)))),
        problem=Problem(draw(st.sampled_from(["ab", "cd"])), draw(text), draw(text), draw(text), draw(text)),
        setting=Setting(
            search=draw(text),
            seed=draw(st.integers(0, 2**130)),
            sketches=sketches,
            options=draw(objects),
            method=draw(objects),
            versions=draw(st.dictionaries(text, text, max_size=3)),
        ),
        created=draw(st.datetimes()).isoformat(timespec="microseconds") + "+00:00",
        state=state,
        outcome=draw(outcomes(sorted(sketches))) if state is State.FINISHED else None,
    )
    trials = []
    for position in range(draw(st.integers(0, 4))):
        sketch = draw(st.sampled_from(sorted(sketches)))
        trials.append(
            StoredTrial(
                batch=draw(st.integers(0, 2**31 - 1)),
                position=position,
                sketch=sketch,
                fingerprint=sketches[sketch],
                config=draw(configs),
                measurement=draw(measurements()),
                elapsed=draw(times),
            )
        )
    return session, trials


@settings(max_examples=60, deadline=None)
@given(st.lists(sessions(), max_size=3, unique_by=lambda entry: entry[0].id))
def test_random_sessions_survive_lines_and_databases(dump: list[tuple[StoredSession, list[StoredTrial]]]) -> None:
    dump.sort(key=lambda entry: entry[0].created)
    file = io.BytesIO()
    assert write_lines(dump, file) == len(dump)
    assert file.getvalue().isascii()
    assert list(read_lines(io.BytesIO(file.getvalue()), "file")) == dump
    with open_store("sqlite://") as store:
        expected = Absorbed(added=len(dump), trials=sum(len(trials) for _, trials in dump))
        assert store.absorb(read_lines(io.BytesIO(file.getvalue()), "file")) == expected
        assert store.absorb(dump) == Absorbed(known=len(dump))
        assert list(store.dump()) == dump
        again = io.BytesIO()
        write_lines(store.dump(), again)
        assert again.getvalue() == file.getvalue()


@pytest.fixture
def exported() -> list[bytes]:
    with open_store("sqlite://") as store:
        for _ in range(2):
            session = store.open(PROBLEM, SETTING)
            store.append(session, 0, [timed("packed", (4, 2), 1.0), failed("packed", Status.RUNTIME, "x")])
            store.finish(session, OUTCOME)
        file = io.BytesIO()
        write_lines(store.dump(), file)
        return file.getvalue().splitlines(keepends=True)


def refusal(lines: list[bytes]) -> str:
    with open_store("sqlite://") as store:
        with pytest.raises(StoreError) as caught:
            store.absorb(read_lines(lines, "r.jsonl"))
        assert store.sessions() == [], "nothing is half-imported"
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_layout_of_an_export(exported: list[bytes]) -> None:
    kinds = [next(iter(json.loads(line))) for line in exported]
    assert kinds == ["header", "workload", "session", "trial", "trial", "session", "trial", "trial", "end"]


def test_every_truncation_is_noticed(exported: list[bytes]) -> None:
    for count in range(len(exported)):
        message = refusal(exported[:count])
        assert f"r.jsonl, line {count + 1}: " in message
        assert "cut off" in message
        half = refusal([*exported[:count], exported[count][: len(exported[count]) // 2]])
        assert f"r.jsonl, line {count + 1}: " in half
        assert "cut off" in half


def edit(kind: str, **changes: Any) -> Callable[[dict[str, Any]], None]:
    def apply(line: dict[str, Any]) -> None:
        assert all(name in line[kind] for name in changes), "a change must hit something"
        line[kind].update(changes)

    return apply


@pytest.mark.parametrize(
    ("number", "change", "says"),
    [
        (1, edit("header", version=2), "version 2 is unknown"),
        (1, edit("header", format="other"), "other"),
        (2, edit("workload", text="changed"), "digest"),
        (3, edit("session", workload_digest="0"), "no line before"),
        (3, edit("session", id="x"), "UUID"),
        (3, edit("session", state="asleep"), "asleep"),
        (3, edit("session", seed=True), "`$.seed`"),
        (3, edit("session", created="yesterday"), "yesterday"),
        (3, edit("session", created="2026-01-01T00:00:00+01:00"), "UTC"),
        (3, edit("session", trials=-1), "`$.trials`"),
        (3, edit("session", sketches={"packed": 1}), "`$.sketches[...]`"),
        (3, edit("session", outcome=[]), "expected a JSON object, found []"),
        (3, lambda line: line["session"]["outcome"].update(sketch=None), "none of the three"),
        (3, lambda line: line["session"]["outcome"].update(interval=[1]), "length 2, got 1 - at `$.interval`"),
        (3, lambda line: line["session"].pop("search"), "'search' is missing"),
        (4, edit("trial", sketch="winograd"), "winograd"),
        (4, edit("trial", status="fine"), "fine"),
        (4, edit("trial", status="runtime"), "samples exactly when"),
        (4, edit("trial", sketch=[]), "`$.sketch`"),
        (4, edit("trial", seconds=["1"]), "Expected `float`, got `str` - at `$.seconds[0]`"),
        (4, edit("trial", seconds=[float("nan")]), "'seconds' holds NaN"),
        (4, edit("trial", seconds=[0.0]), "'seconds' holds 0.0, which is no finite number above 0"),
        (4, edit("trial", seconds=[-1e-3]), "'seconds' holds -0.001"),
        (4, edit("trial", elapsed=-1.0), "'elapsed' holds -1.0"),
        (4, edit("trial", phases=[0, 0, -1, 0]), "'phases' holds -1.0"),
        (4, edit("trial", config={"tile": {"a": 1}}), "'config' holds no value of a knob for \"tile\""),
        (4, edit("trial", config={"tile": [[[[[1]]]]]}), "'config' holds no value of a knob"),
        (4, edit("trial", config={str(name): 1 for name in range(1001)}), "'config' has 1001 knobs"),
        (3, edit("session", machine="x" * 1001), "'machine' has 1001 characters"),
        (3, lambda line: line["session"]["outcome"].update(seconds=0.0), "'seconds' holds 0.0"),
        (3, lambda line: line["session"]["outcome"].update(sketch="winograd"), "sketch 'winograd', which the session"),
        (4, edit("trial", seconds=[10**400]), "out of range - at `$.seconds[0]`"),
        (4, edit("trial", batch=2**31), "`$.batch`"),
        (4, edit("trial", phases=[1, 2]), "length 4, got 2 - at `$.phases`"),
        (4, edit("trial", config=None), "`$.config`"),
        (4, edit("trial", suspect=0), "`$.suspect`"),
        (9, edit("end", sessions=3), "should hold 3"),
    ],
)
def test_malformed_lines(
    number: int, change: Callable[[dict[str, Any]], None], says: str, exported: list[bytes]
) -> None:
    line = json.loads(exported[number - 1])
    change(line)
    exported[number - 1] = json.dumps(line).encode() + b"\n"
    message = refusal(exported)
    assert message.startswith(f"r.jsonl, line {number}: ")
    assert says in message


@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.long
def test_no_value_of_a_field_is_more_than_a_store_error(number: int, exported: list[bytes]) -> None:
    """Whatever a field holds: the file is taken in, or it is refused with one line that names the line."""
    line = json.loads(exported[number - 1])
    ((kind, body),) = line.items()
    junk = [None, True, -1, 2**70, 0.5, float("inf"), "", "x", "\ud800", [], [[1]], ["\ud800"], {}, {"x": [None]}]
    for name in body:
        for value in junk:
            changed = json.dumps({kind: {**body, name: value}}).encode() + b"\n"
            message = ""
            with open_store("sqlite://") as store:
                try:
                    store.absorb(read_lines([*exported[: number - 1], changed, *exported[number:]], "r.jsonl"))
                except StoreError as error:
                    message = str(error)
                if message:
                    assert re.fullmatch(r"r\.jsonl, line \d+: .+", message), (name, value)
                    assert store.sessions() == []


@pytest.mark.parametrize(
    "junk",
    [b"\n", b"[]\n", b"{}\n", b"\xff\xfe\x00\n", b"[" * 100_000 + b"\n", b'{"trial": 1, "end": 2}\n', b"9" * 9999],
)
def test_junk_lines(junk: bytes, exported: list[bytes]) -> None:
    exported[3] = junk
    assert refusal(exported).startswith("r.jsonl, line 4: ")


def test_lines_too_few_or_too_many(exported: list[bytes]) -> None:
    assert "line 5: expected a line of kind trial" in refusal(exported[:3] + exported[4:])
    assert "line 10: something follows" in refusal([*exported, exported[0]])


def test_files(tmp_path: Path) -> None:
    with open_store(tmp_path / "a.db") as store, open_store(tmp_path / "b.db") as other:
        session = store.open(PROBLEM, SETTING)
        store.append(session, 0, [timed("packed", (4, 2), 1.0)])
        store.finish(session, OUTCOME)
        store.open(PROBLEM, Setting("random", 0, {"packed": "f1"}))
        out = tmp_path / "records.jsonl"
        assert export_file(store, out, Filter(search="droplet")) == 1
        assert import_file(other, out) == Absorbed(added=1, trials=1)
        assert export_file(store, out) == 2, "an existing file is replaced"
        assert import_file(other, out) == Absorbed(added=1, known=1)
        assert merge_database(other, tmp_path / "a.db") == Absorbed(known=2)
        assert merge_database(store, tmp_path / "b.db") == Absorbed(known=2)
        for missing in (tmp_path / "no.jsonl", tmp_path):
            with pytest.raises(StoreError, match="cannot be read"):
                import_file(store, missing)
        with pytest.raises(StoreError, match="cannot be written"):
            export_file(store, tmp_path / "missing" / "x.jsonl")
        with pytest.raises(StoreError, match="does not exist"):
            merge_database(store, tmp_path / "c.db")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.db", "b.db", "records.jsonl"]


def test_files_that_would_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stormdrop.records.import_export.LONGEST_LINE", 1 << 20)
    (tmp_path / "long.jsonl").write_bytes(b"[" * (1 << 22))
    (tmp_path / "bomb.jsonl.gz").write_bytes(gzip.compress(b"0" * (1 << 22)))
    with open_store("sqlite://") as store:
        with pytest.raises(StoreError, match="line 1: longer than 1 MiB; no export of stormdrop"):
            import_file(store, tmp_path / "long.jsonl")
        with pytest.raises(StoreError, match="is compressed: unpack it first"):
            import_file(store, tmp_path / "bomb.jsonl.gz")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("UPDATE stormdrop_trial SET seconds = '[-1.0]'", "'seconds' holds -1.0"),
        ("UPDATE stormdrop_trial SET status = 'fine'", "damaged record"),
        ("UPDATE stormdrop_trial SET config = '[1'", "damaged record"),
        ("UPDATE stormdrop_trial SET sketch = 'other'", "damaged record"),
        ("UPDATE stormdrop_session SET outcome = json_set(outcome, '$.seconds', 1e-400)", "'seconds' holds 0.0"),
    ],
)
def test_a_database_of_somebody_else_is_checked_too(damage: str, says: str, tmp_path: Path) -> None:
    with open_store(tmp_path / "theirs.db") as store:
        session = store.open(PROBLEM, SETTING)
        store.append(session, 0, [timed("packed", (4, 2), 1.0)])
        store.finish(session, OUTCOME)
    with contextlib.closing(sqlite3.connect(tmp_path / "theirs.db")) as connection, connection:
        connection.execute(damage)
    with open_store(tmp_path / "ours.db") as store:
        with pytest.raises(StoreError, match=re.escape(says)) as caught:
            merge_database(store, tmp_path / "theirs.db")
        assert "\n" not in str(caught.value)
        assert store.sessions() == []


def test_what_was_imported_is_known_as_such_until_a_run_goes_on_with_it(tmp_path: Path) -> None:
    with open_store(tmp_path / "a.db") as theirs, open_store(tmp_path / "b.db") as store:
        ended = theirs.finish(theirs.open(PROBLEM, SETTING), OUTCOME)
        begun = theirs.interrupt(theirs.open(PROBLEM, SETTING))
        assert not ended.imported and not begun.imported
        merge_database(store, tmp_path / "a.db")
        assert [session.imported for session in store.finished(PROBLEM)] == [True]
        (session,) = store.unfinished(PROBLEM, SETTING)
        assert session.imported
        resumed = store.resume(session)
        assert not resumed.imported
        assert not store.finish(resumed, OUTCOME).imported
        export_file(store, tmp_path / "all.jsonl")
        assert import_file(theirs, tmp_path / "all.jsonl") == Absorbed(known=1, extended=1)


def test_an_export_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "records.jsonl"
    with open_store("sqlite://") as store:
        export_file(store, out)
    old = out.read_text()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stormdrop.records.import_export.write_lines", full)
    with open_store("sqlite://") as store, pytest.raises(StoreError, match="No space left"):
        export_file(store, out)
    assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]
    assert out.read_text() == old


def test_an_export_replaces_nothing_but_exports(tmp_path: Path) -> None:
    database, notes = tmp_path / "records.sqlite", tmp_path / "notes.txt"
    notes.write_text("mine\n")
    with open_store(f"sqlite:///{database}") as store:
        for path in (database, notes):
            before = path.read_bytes()
            with pytest.raises(StoreError, match="exists and is no export of records; it is left as it is"):
                export_file(store, path)
            assert path.read_bytes() == before
        (tmp_path / "empty").touch()
        assert export_file(store, tmp_path / "empty") == 0
        assert export_file(store, tmp_path / "empty") == 0
