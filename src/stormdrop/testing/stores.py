"""What every store must do: functions that take a factory and raise AssertionError where the store does not.

    @pytest.mark.parametrize("check", stores.CHECKS, ids=lambda check: check.__name__)
    def test_conformance(check, tmp_path):
        check(lambda name: MyStore(tmp_path / name))

The factory opens the database of a name. A new name means an empty database; `PERSISTENCE_CHECKS`, for stores
that outlive their object, open a name a second time and expect what was there.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import StoreError
from ..records.contract import Absorbed, Filter, Outcome, Problem, Record, Session, Setting, State, Store, StoredTrial
from ..records.json_lines import read_lines, write_lines
from ..trial import Measurement, Phases, Status

Factory = Callable[[str], Store]

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
GOOD = Outcome("packed", {"tile": (4, 2), "unroll": 16}, 1.5e-3, (1.4e-3, 1.6e-3), 3e-3, True, {"note": "é ☂"})


def timed(sketch: str, tile: tuple[int, ...], *seconds: float, elapsed: float = 0.0) -> Record:
    """A record of a candidate that ran."""
    phases = Phases(0.005, 0.05, 0.02, 0.001)
    return Record(sketch, {"tile": tile, "unroll": 16}, Measurement(Status.OK, seconds, "", phases), elapsed)


def failed(sketch: str, status: Status, error: str) -> Record:
    """A record of a candidate that failed."""
    return Record(sketch, {"tile": (1, 1), "unroll": 0}, Measurement(status, (), error, suspect=True), 0.25)


def stored(records: Iterable[Record], batch: int, start: int = 0) -> list[StoredTrial]:
    """What records of one batch come back as."""
    return [
        StoredTrial(batch, position, r.sketch, SKETCHES[r.sketch], r.config, r.measurement, r.elapsed)
        for position, r in enumerate(records, start)
    ]


def check_appended_records_come_back_in_order(factory: Factory) -> None:
    """Every field of every status survives, batches and positions count on."""
    store = factory("order")
    session = store.open(PROBLEM, SETTING)
    first = [timed("packed", (4, 2), 0.1 + 0.2, 1e-9, elapsed=1.5), timed("streaming", (8,), 2e-3)]
    second = [failed("packed", status, f"{status.name}: é\tx") for status in Status if status is not Status.OK]
    store.append(session, 0, first)
    store.append(session, 1, [])
    store.append(session, 2, second)
    assert store.records(session) == stored(first, 0) + stored(second, 2, start=2)


def check_text_that_no_database_takes_is_escaped(factory: Factory) -> None:
    """A compiler's message may hold anything; it must not cost the record."""
    store = factory("text")
    session = store.open(PROBLEM, SETTING)
    store.append(session, 0, [failed("packed", Status.COMPILE_HOST, "a\x00b\udc80c")])
    assert store.records(session)[0].measurement.error == "a\\x00b\\udc80c"


def check_sessions_come_back_as_opened(factory: Factory) -> None:
    """Whatever is read is equal to what was opened, with seeds of any size."""
    store = factory("sessions")
    setting = dataclasses.replace(SETTING, seed=2**127 + 1)
    session = store.open(PROBLEM, setting)
    assert session.state is State.RUNNING
    assert (session.problem, session.setting) == (PROBLEM, setting)
    assert store.session(session.id) == session
    assert store.open(PROBLEM, setting).id != session.id
    _expect_store_error(lambda: store.session("00000000-0000-0000-0000-000000000000"))


def check_a_strange_sketch_is_refused(factory: Factory) -> None:
    """A batch with a sketch that the session does not have is refused as a whole."""
    store = factory("strange")
    session = store.open(PROBLEM, SETTING)
    try:
        store.append(session, 0, [timed("packed", (1,), 1.0), timed("winograd", (1,), 1.0)])
    except ValueError:
        assert store.records(session) == []
    else:
        raise AssertionError("a record of an unknown sketch was taken")


def check_finished_sessions_are_listed(factory: Factory) -> None:
    """Those that found something, newest first, whatever their sketches."""
    store = factory("finished")
    session = store.open(PROBLEM, SETTING)
    assert store.finished(PROBLEM) == []
    ended = store.finish(session, GOOD)
    assert (ended.state, ended.outcome) == (State.FINISHED, GOOD)
    assert store.finished(PROBLEM) == [ended]
    later = store.finish(store.open(PROBLEM, dataclasses.replace(SETTING, sketches={"winograd": "f3"})), GOOD)
    assert store.finished(PROBLEM) == [later, ended]
    store.finish(store.open(PROBLEM, SETTING), Outcome())
    assert store.finished(PROBLEM) == [later, ended], "a session that found nothing is no answer"


def check_a_problem_is_more_than_its_key(factory: Factory) -> None:
    """Another text under the same key, another target or machine is another problem; another name is not."""
    store = factory("problem")
    session = store.open(PROBLEM, SETTING)
    store.append(session, 0, [timed("packed", (1,), 1.0)])
    for field in ("workload_key", "workload_text", "target", "machine"):
        other = dataclasses.replace(PROBLEM, **{field: "other"})
        assert store.unfinished(other, SETTING) == [], field
        store.open(other, SETTING)
    renamed = dataclasses.replace(PROBLEM, workload_name="conv2d_relu1")
    assert store.unfinished(renamed, SETTING) == [session]
    ended = store.finish(session, GOOD)
    assert store.finished(renamed) == [ended]
    assert store.finished(dataclasses.replace(PROBLEM, workload_text="other")) == []


def check_unfinished_matches_the_setting(factory: Factory) -> None:
    """Search, options and seed must agree; sketches, method and versions may not."""
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
    store.finish(session, GOOD)
    assert store.unfinished(PROBLEM, SETTING) == [later]


def check_resume_goes_on_where_it_stopped(factory: Factory) -> None:
    """The recorded prefix stays, positions count on, and an interrupted session takes nothing until it is resumed."""
    store = factory("resume")
    first, second = [timed("packed", (1,), 2.0)], [timed("packed", (2,), 1.0)]
    session = store.open(PROBLEM, SETTING)
    store.append(session, 0, first)
    stopped = store.interrupt(session, GOOD)
    assert (stopped.state, stopped.outcome) == (State.INTERRUPTED, GOOD)
    _expect_store_error(lambda: store.append(session, 1, second))
    assert store.unfinished(PROBLEM, SETTING) == [stopped]
    going = store.resume(stopped)
    assert (going.state, going.outcome) == (State.RUNNING, None)
    store.append(going, 1, second)
    assert store.records(going) == stored(first, 0) + stored(second, 1, start=1)
    store.finish(going, GOOD)
    _expect_store_error(lambda: store.append(going, 2, second))
    _expect_store_error(lambda: store.finish(going, GOOD))
    _expect_store_error(lambda: store.resume(going))


def check_sessions_are_listed(factory: Factory) -> None:
    """Newest first, with counts and times, narrowed by every field of a filter."""
    store = factory("list")
    assert store.sessions() == []
    one = store.open(PROBLEM, SETTING)
    store.append(one, 0, [timed("packed", (1,), 3.0, 1.0, 2.0), failed("packed", Status.RUN_TIMEOUT, "x")])
    two = store.open(
        Problem("cd", "t", "matmul", "cuda", "another"), dataclasses.replace(SETTING, search="random", seed=1)
    )
    newest, oldest = store.sessions()
    assert (newest.id, oldest.id) == (two.id, one.id)
    assert (oldest.trials, oldest.failed, oldest.best_seconds, oldest.baseline_seconds) == (2, 1, 2.0, None)
    assert (newest.trials, newest.failed, newest.best_seconds) == (0, 0, None)
    assert (newest.workload_name, newest.target, newest.machine) == ("matmul", "cuda", "another")
    assert (newest.search, newest.seed, newest.created) == ("random", 1, two.created)
    store.finish(one, GOOD)
    (line,) = store.sessions(Filter(state=State.FINISHED))
    assert (line.id, line.best_seconds, line.baseline_seconds) == (one.id, GOOD.seconds, GOOD.baseline_seconds)
    filters: list[dict[str, Any]] = [
        {"workload_name": "matmul"},
        {"workload_key": "cd"},
        {"target": "cuda"},
        {"machine": "another"},
        {"search": "random"},
    ]
    for narrow in filters:
        assert [each.id for each in store.sessions(Filter(**narrow))] == [two.id], narrow
        assert [session.id for session, _ in store.dump(Filter(**narrow))] == [two.id], narrow
    assert store.sessions(Filter(workload_name="matmul", target="llvm")) == []


def check_absorbing_is_idempotent_and_extends(factory: Factory) -> None:
    """A copy is taken once; one that has gone on since is extended; one that went another way is left alone."""
    source, copy = factory("source"), factory("copy")
    session = source.open(PROBLEM, SETTING)
    first, second = [timed("packed", (1,), 2.0)], [timed("packed", (2,), 1.0), failed("packed", Status.UNKNOWN, "?")]
    source.append(session, 0, first)
    assert copy.absorb(source.dump()) == Absorbed(added=1, trials=1)
    assert copy.session(session.id).state is State.INTERRUPTED
    assert copy.absorb(source.dump()) == Absorbed(known=1)
    source.append(session, 1, second)
    source.finish(session, GOOD)
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
    """A source that breaks off leaves no trace."""
    source, copy = factory("whole"), factory("broken")
    for _ in range(2):
        source.append(source.open(PROBLEM, SETTING), 0, [timed("packed", (1,), 2.0)])

    def broken() -> Iterable[tuple[Session, list[StoredTrial]]]:
        yield from list(source.dump())
        raise StoreError("the source broke off")

    _expect_store_error(lambda: copy.absorb(broken()))
    assert copy.sessions() == []
    assert copy.absorb(source.dump()) == Absorbed(added=2, trials=2)


def check_lines_round_trip(factory: Factory) -> None:
    """Export and import give the same sessions again."""
    source, copy = factory("lines"), factory("lines copy")
    session = source.open(PROBLEM, SETTING)
    source.append(session, 0, [timed("packed", (4, 2), 0.1 + 0.2), failed("streaming", Status.WRONG_ANSWER, "é\n☂")])
    source.finish(session, GOOD)
    source.interrupt(source.open(PROBLEM, SETTING))
    file = io.BytesIO()
    assert write_lines(source.dump(), file) == 2
    assert copy.absorb(read_lines(io.BytesIO(file.getvalue()), "file")) == Absorbed(added=2, trials=2)
    assert list(copy.dump()) == list(source.dump())


def check_a_reopened_store_remembers(factory: Factory) -> None:
    """What was committed is there for the next process, and a session has one writer."""
    first = factory("again")
    session = first.open(PROBLEM, SETTING)
    records = [timed("packed", (1,), 2.0)]
    first.append(session, 0, records)
    second = factory("again")
    assert second.session(session.id) == session
    assert second.records(session) == stored(records, 0)
    _expect_store_error(lambda: second.append(session, 1, records))
    going = second.resume(session)
    second.append(going, 1, records)
    _expect_store_error(lambda: first.append(session, 1, records))
    _expect_store_error(lambda: first.finish(session, GOOD))
    assert len(first.records(session)) == 2
    second.finish(going, GOOD)
    first.close()
    second.close()
    third = factory("again")
    (found,) = third.finished(PROBLEM)
    assert (found.id, found.outcome) == (session.id, GOOD)
    third.close()


CHECKS: tuple[Callable[[Factory], None], ...] = (
    check_appended_records_come_back_in_order,
    check_text_that_no_database_takes_is_escaped,
    check_sessions_come_back_as_opened,
    check_a_strange_sketch_is_refused,
    check_finished_sessions_are_listed,
    check_a_problem_is_more_than_its_key,
    check_unfinished_matches_the_setting,
    check_resume_goes_on_where_it_stopped,
    check_sessions_are_listed,
    check_absorbing_is_idempotent_and_extends,
    check_absorbing_takes_all_or_nothing,
    check_lines_round_trip,
)
"""For every store."""

PERSISTENCE_CHECKS: tuple[Callable[[Factory], None], ...] = (check_a_reopened_store_remembers,)
"""For stores that outlive their object."""


def _expect_store_error(action: Callable[[], object]) -> None:
    message = None
    try:
        action()
    except StoreError as error:
        message = str(error)
    assert message is not None, "no StoreError was raised"
    assert "\n" not in message, "a message to users is one line"
