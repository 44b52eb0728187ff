"""The conformance suite of stores: functions that take a factory and raise AssertionError if the store breaks a rule.

    @pytest.mark.parametrize("check", stores.CHECKS, ids=lambda check: check.__name__)
    def test_conformance(check, tmp_path):
        check(lambda name: MyStore(tmp_path / name))

The factory opens the database of a name, and a new name means an empty database. `PERSISTENCE_CHECKS` are for stores
whose records survive the object: they open a name a second time and expect its records.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import StoreError
from ..records.contract import (
    Absorbed,
    Filter,
    Outcome,
    Problem,
    Record,
    Setting,
    State,
    Store,
    StoredSession,
    StoredTrial,
)
from ..records.json_lines import read_lines, write_lines
from ..trial import Measurement, Phases, Status

Factory = Callable[[str], Store]
"""Opens the database of a name."""

PROBLEM = Problem("ab" * 32, '{"function": "main"}', "conv2d_relu", "llvm -num-cores 2", "A CPU, 2 cores")
SKETCHES = {"packed": "f1", "streaming": "f2"}
SETTING = Setting(
    search="droplet",
    seed=7,
    sketches=SKETCHES,
    options={"confidence": 0.95, "steps": [1, 2], "start": None},
    method={"repeats": 3},
    versions={"tvm": "0.27.0"},
)
OUTCOME = Outcome("packed", {"tile": (4, 2), "unroll": 16}, 1.5e-3, (1.4e-3, 1.6e-3), 3e-3, True, {"note": "é ☂"})


def timed(sketch: str, tile: tuple[int, ...], *seconds: float, elapsed: float = 0.0) -> Record:
    """A record of a candidate that worked.

    Args:
        sketch: The sketch of the candidate.
        tile: The value of the knob `tile`.
        seconds: The samples, in seconds.
        elapsed: Seconds from the beginning of the session.

    Returns:
        The record.
    """
    phases = Phases(0.005, 0.05, 0.02, 0.001)
    return Record(sketch, {"tile": tile, "unroll": 16}, Measurement(Status.OK, seconds, "", phases), elapsed)


def failed(sketch: str, status: Status, error: str) -> Record:
    """A record of a candidate that failed."""
    return Record(sketch, {"tile": (1, 1), "unroll": 0}, Measurement(status, (), error, suspect=True), 0.25)


def stored(records: Iterable[Record], batch: int, start: int = 0) -> list[StoredTrial]:
    """The trials as which records of one batch come back, the first of them at position `start`."""
    return [
        StoredTrial(
            batch, position, record.sketch, SKETCHES[record.sketch], record.config, record.measurement, record.elapsed
        )
        for position, record in enumerate(records, start)
    ]


def check_appended_records_come_back_in_order(factory: Factory) -> None:
    """Every field survives, for every status. Positions count on from batch to batch."""
    store = factory("order")
    session = store.open(PROBLEM, SETTING)
    first = [timed("packed", (4, 2), 0.1 + 0.2, 1e-9, elapsed=1.5), timed("streaming", (8,), 2e-3)]
    second = [failed("packed", status, f"{status.name}: é\tx") for status in Status if status is not Status.OK]
    store.append(session, 0, first)
    store.append(session, 1, [])
    store.append(session, 2, second)
    assert store.records(session) == stored(first, 0) + stored(second, 2, start=2)


def check_text_that_no_database_takes_is_escaped(factory: Factory) -> None:
    """A compiler's message may hold any characters, and its record must not be lost because of them."""
    store = factory("text")
    session = store.open(PROBLEM, SETTING)
    store.append(session, 0, [failed("packed", Status.COMPILE_HOST, "a\x00b\udc80c")])
    assert store.records(session)[0].measurement.error == "a\\x00b\\udc80c"


def check_sessions_come_back_as_opened(factory: Factory) -> None:
    """A session that is read is equal to the session that was opened, with a seed of any size."""
    store = factory("sessions")
    setting = dataclasses.replace(SETTING, seed=2**127 + 1)
    session = store.open(PROBLEM, setting)
    assert session.state is State.RUNNING
    assert (session.problem, session.setting) == (PROBLEM, setting)
    assert store.session(session.id) == session
    assert store.open(PROBLEM, setting).id != session.id
    _expect_store_error(lambda: store.session("00000000-0000-0000-0000-000000000000"))


def check_an_unknown_sketch_is_refused(factory: Factory) -> None:
    """A batch with a sketch that the session lacks is refused as a whole."""
    store = factory("unknown")
    session = store.open(PROBLEM, SETTING)
    try:
        store.append(session, 0, [timed("packed", (1,), 1.0), timed("winograd", (1,), 1.0)])
    except ValueError:
        assert store.records(session) == []
    else:
        raise AssertionError("a record of an unknown sketch was taken")


def check_finished_sessions_are_listed(factory: Factory) -> None:
    """Finished sessions in which a candidate worked are listed, newest first, whatever their sketches."""
    store = factory("finished")
    session = store.open(PROBLEM, SETTING)
    assert store.finished(PROBLEM) == []
    ended = store.finish(session, OUTCOME)
    assert (ended.state, ended.outcome) == (State.FINISHED, OUTCOME)
    assert store.finished(PROBLEM) == [ended]
    later = store.finish(store.open(PROBLEM, dataclasses.replace(SETTING, sketches={"winograd": "f3"})), OUTCOME)
    assert store.finished(PROBLEM) == [later, ended]
    store.finish(store.open(PROBLEM, SETTING), Outcome())
    assert store.finished(PROBLEM) == [later, ended], "a session in which no candidate worked must not be listed"


def check_a_problem_is_more_than_its_key(factory: Factory) -> None:
    """Another text under the same key, target or machine makes another problem. Another name does not."""
    store = factory("problem")
    session = store.open(PROBLEM, SETTING)
    store.append(session, 0, [timed("packed", (1,), 1.0)])
    for field in ("workload_key", "workload_text", "target", "machine"):
        other = dataclasses.replace(PROBLEM, **{field: "other"})
        assert store.unfinished(other, SETTING) == [], field
        store.open(other, SETTING)
    renamed = dataclasses.replace(PROBLEM, workload_name="conv2d_relu1")
    assert store.unfinished(renamed, SETTING) == [session]
    ended = store.finish(session, OUTCOME)
    assert store.finished(renamed) == [ended]
    assert store.finished(dataclasses.replace(PROBLEM, workload_text="other")) == []


def check_unfinished_matches_the_setting(factory: Factory) -> None:
    """Searches, options and seed must be equal. Sketches, method and versions may differ."""
    store = factory("unfinished")
    session = store.open(PROBLEM, SETTING)
    changes: list[dict[str, Any]] = [
        {"search": "random"},
        {"seed": 8},
        {"options": {**SETTING.options, "confidence": 0.9}},
    ]
    for change in changes:
        assert store.unfinished(PROBLEM, dataclasses.replace(SETTING, **change)) == [], change
    options = dict(reversed({**SETTING.options, "steps": (1, 2)}.items()))
    same = dataclasses.replace(SETTING, options=options, sketches={"packed": "f9"}, versions={"tvm": "0.28"}, method={})
    later = store.open(PROBLEM, same)
    assert store.unfinished(PROBLEM, same) == [later, session]
    store.finish(session, OUTCOME)
    assert store.unfinished(PROBLEM, SETTING) == [later]


def check_resume_goes_on_where_it_stopped(factory: Factory) -> None:
    """The recorded trials stay, positions count on, and an interrupted session takes no trials until it is resumed."""
    store = factory("resume")
    first, second = [timed("packed", (1,), 2.0)], [timed("packed", (2,), 1.0)]
    session = store.open(PROBLEM, SETTING)
    store.append(session, 0, first)
    stopped = store.interrupt(session, OUTCOME)
    assert (stopped.state, stopped.outcome) == (State.INTERRUPTED, OUTCOME)
    _expect_store_error(lambda: store.append(session, 1, second))
    assert store.unfinished(PROBLEM, SETTING) == [stopped]
    resumed = store.resume(stopped)
    assert (resumed.state, resumed.outcome) == (State.RUNNING, None)
    store.append(resumed, 1, second)
    assert store.records(resumed) == stored(first, 0) + stored(second, 1, start=1)
    store.finish(resumed, OUTCOME)
    _expect_store_error(lambda: store.append(resumed, 2, second))
    _expect_store_error(lambda: store.finish(resumed, OUTCOME))
    _expect_store_error(lambda: store.resume(resumed))


def check_sessions_are_listed(factory: Factory) -> None:
    """Sessions are listed newest first, with counts and times. Every field of a filter narrows the list."""
    store = factory("list")
    assert store.sessions() == []
    first = store.open(PROBLEM, SETTING)
    store.append(first, 0, [timed("packed", (1,), 3.0, 1.0, 2.0), failed("packed", Status.RUN_TIMEOUT, "x")])
    second = store.open(
        Problem("cd", "t", "matmul", "cuda", "another"), dataclasses.replace(SETTING, search="random", seed=1)
    )
    newest, oldest = store.sessions()
    assert (newest.id, oldest.id) == (second.id, first.id)
    assert (oldest.trials, oldest.failed, oldest.best_seconds, oldest.baseline_seconds) == (2, 1, 2.0, None)
    assert (newest.trials, newest.failed, newest.best_seconds) == (0, 0, None)
    assert (newest.workload_name, newest.target, newest.machine) == ("matmul", "cuda", "another")
    assert (newest.search, newest.seed, newest.created) == ("random", 1, second.created)
    store.finish(first, OUTCOME)
    (summary,) = store.sessions(Filter(state=State.FINISHED))
    assert (summary.id, summary.best_seconds, summary.baseline_seconds) == (
        first.id,
        OUTCOME.seconds,
        OUTCOME.baseline_seconds,
    )
    filters: list[dict[str, Any]] = [
        {"workload_name": "matmul"},
        {"workload_key": "cd"},
        {"target": "cuda"},
        {"machine": "another"},
        {"search": "random"},
    ]
    for fields in filters:
        assert [summary.id for summary in store.sessions(Filter(**fields))] == [second.id], fields
        assert [session.id for session, _ in store.dump(Filter(**fields))] == [second.id], fields
    assert store.sessions(Filter(workload_name="matmul", target="llvm")) == []


def check_absorbing_is_idempotent_and_extends(factory: Factory) -> None:
    """A session is added once, extended if it was continued, and left alone if both copies were continued."""
    source, copy = factory("source"), factory("copy")
    session = source.open(PROBLEM, SETTING)
    first, second = [timed("packed", (1,), 2.0)], [timed("packed", (2,), 1.0), failed("packed", Status.UNKNOWN, "?")]
    source.append(session, 0, first)
    assert copy.absorb(source.dump()) == Absorbed(added=1, trials=1)
    assert copy.session(session.id).state is State.INTERRUPTED
    assert copy.absorb(source.dump()) == Absorbed(known=1)
    source.append(session, 1, second)
    source.finish(session, OUTCOME)
    assert copy.absorb(source.dump()) == Absorbed(extended=1, trials=2)
    assert copy.absorb(source.dump()) == Absorbed(known=1)
    assert list(copy.dump()) == list(source.dump())
    assert copy.sessions() == source.sessions()
    assert copy.finished(PROBLEM) == source.finished(PROBLEM)

    third = factory("third")
    third.absorb([(dataclasses.replace(session, state=State.INTERRUPTED), stored(first, 0))])
    ours = third.resume(session)
    third.append(ours, 1, [timed("packed", (9,), 9.0)])
    assert third.absorb(source.dump()) == Absorbed(diverged=1)
    assert third.records(ours)[-1].config == {"tile": (9,), "unroll": 16}


def check_absorbing_takes_all_or_nothing(factory: Factory) -> None:
    """If the source fails before its end, nothing of it is kept."""
    source, copy = factory("whole"), factory("failing")
    for _ in range(2):
        source.append(source.open(PROBLEM, SETTING), 0, [timed("packed", (1,), 2.0)])

    def failing() -> Iterable[tuple[StoredSession, list[StoredTrial]]]:
        yield from list(source.dump())
        raise StoreError("the source failed")

    _expect_store_error(lambda: copy.absorb(failing()))
    assert copy.sessions() == []
    assert copy.absorb(source.dump()) == Absorbed(added=2, trials=2)


def check_lines_round_trip(factory: Factory) -> None:
    """An export that is imported gives the same sessions again."""
    source, copy = factory("lines"), factory("lines copy")
    session = source.open(PROBLEM, SETTING)
    source.append(session, 0, [timed("packed", (4, 2), 0.1 + 0.2), failed("streaming", Status.WRONG_ANSWER, "é\n☂")])
    source.finish(session, OUTCOME)
    source.interrupt(source.open(PROBLEM, SETTING))
    file = io.BytesIO()
    assert write_lines(source.dump(), file) == 2
    assert copy.absorb(read_lines(io.BytesIO(file.getvalue()), "file")) == Absorbed(added=2, trials=2)
    assert list(copy.dump()) == list(source.dump())


def check_a_reopened_store_remembers(factory: Factory) -> None:
    """A store that is opened again has what was committed, and a session has one writer."""
    first = factory("again")
    session = first.open(PROBLEM, SETTING)
    records = [timed("packed", (1,), 2.0)]
    first.append(session, 0, records)
    second = factory("again")
    assert second.session(session.id) == session
    assert second.records(session) == stored(records, 0)
    _expect_store_error(lambda: second.append(session, 1, records))
    resumed = second.resume(session)
    second.append(resumed, 1, records)
    _expect_store_error(lambda: first.append(session, 1, records))
    _expect_store_error(lambda: first.finish(session, OUTCOME))
    assert len(first.records(session)) == 2
    second.finish(resumed, OUTCOME)
    first.close()
    second.close()
    third = factory("again")
    (finished,) = third.finished(PROBLEM)
    assert (finished.id, finished.outcome) == (session.id, OUTCOME)
    third.close()


CHECKS: tuple[Callable[[Factory], None], ...] = (
    check_appended_records_come_back_in_order,
    check_text_that_no_database_takes_is_escaped,
    check_sessions_come_back_as_opened,
    check_an_unknown_sketch_is_refused,
    check_finished_sessions_are_listed,
    check_a_problem_is_more_than_its_key,
    check_unfinished_matches_the_setting,
    check_resume_goes_on_where_it_stopped,
    check_sessions_are_listed,
    check_absorbing_is_idempotent_and_extends,
    check_absorbing_takes_all_or_nothing,
    check_lines_round_trip,
)
"""The checks for every store."""

PERSISTENCE_CHECKS: tuple[Callable[[Factory], None], ...] = (check_a_reopened_store_remembers,)
"""The checks for stores whose records survive the object."""


def _expect_store_error(action: Callable[[], object]) -> None:
    message = None
    try:
        action()
    except StoreError as error:
        message = str(error)
    assert message is not None, "no StoreError was raised"
    assert "\n" not in message, "a message to users is one line"
