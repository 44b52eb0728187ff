"""Events: who is told what, and when."""

from __future__ import annotations

import threading

import pytest

from stormdrop import events
from stormdrop.events import Event, Kind


def test_a_span_is_told_when_it_begins() -> None:
    told: list[Event] = []
    with events.listening(told.append), events.span("build", "worker 1", kernel=3) as outcome:
        assert [event.kind for event in told] == [Kind.STARTED]  # so that a hang is seen
        outcome["status"] = "ok"
    begun, ended = told
    assert begun.number == ended.number > 0
    assert (begun.details, ended.details) == ({"kernel": 3}, {"status": "ok"})
    assert begun.seconds <= ended.seconds


def test_a_span_that_fails_says_so() -> None:
    told: list[Event] = []
    with events.listening(told.append), pytest.raises(KeyboardInterrupt), events.span("run", "worker 1"):
        raise KeyboardInterrupt
    assert told[-1].kind is Kind.FINISHED
    assert told[-1].details == {"error": "KeyboardInterrupt"}


def test_without_listeners_nothing_is_told_later() -> None:
    told: list[Event] = []
    number = events.started("build", "worker 1")
    with events.listening(told.append):
        events.finished(number, "build", "worker 1")
        events.happened("trial", "tuning")
        events.level("best seconds", "matmul", 1e-3)
    events.happened("trial", "tuning")
    assert [event.kind for event in told] == [Kind.HAPPENED, Kind.LEVEL]


def test_a_listener_may_hear_of_its_own_thread_only() -> None:
    told: dict[str, list[str]] = {"one": [], "two": [], "inner": []}
    both = threading.Barrier(2)

    def work(name: str) -> None:
        with events.listening(lambda event: told[name].append(event.what), here=True):
            both.wait()
            events.happened(f"first of {name}", "tuning")
            with events.listening(lambda event: told["inner"].append(event.what), here=True):
                events.level(f"second of {name}", "tuning", 1.0)
            both.wait()
        events.happened(f"third of {name}", "tuning")

    threads = [threading.Thread(target=work, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told["one"] == ["first of one", "second of one"]
    assert told["two"] == ["first of two", "second of two"]
    assert sorted(told["inner"]) == ["second of one", "second of two"]
    assert events.started("build", "worker 1") == 0, "nobody listens to this thread"
