from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

import pytest
from contenders import Sleeper, contender

from stormdrop.bench import service
from stormdrop.bench.closed_loop import LoopTimes
from stormdrop.bench.contender import ContenderSpec, Unavailable
from stormdrop.bench.contender_process import ContenderProcess
from stormdrop.bench.service import (
    Load,
    Services,
    _best_forms,
    calls_at_a_time,
    serve,
    service_of,
    take_service_turns,
)
from stormdrop.errors import InputError, MeasureError
from stormdrop.measure.timing import Call


class Server(Sleeper):
    """Serves several calls in two forms, of which the second takes longer."""

    def forms(self, at_a_time: int) -> Mapping[str, Sequence[Call]]:
        if at_a_time > 4:
            raise Unavailable("serves four calls at most")
        return {"quick": [self.run] * at_a_time, "slow": [lambda: time.sleep(3 * self._seconds)] * at_a_time}


def test_numbers_of_calls() -> None:
    assert calls_at_a_time(1) == (1, 2, 4)
    for calls in ((), (0,), (1, 257)):
        with pytest.raises(InputError, match="is not a number from 1 to 256"):
            Load(1.0, calls)
    assert (Load(0.5, (1,)).turns, Load(60.0, (1,)).turns) == (5, 30)


def test_a_service_has_percentiles_as_far_as_its_calls_know_them() -> None:
    few = service_of([LoopTimes([0.01] * 5, 100.0), LoopTimes([0.01] * 5, 100.0)], 1)
    median = few.percentiles[50]
    assert median is not None and median.estimate == 0.01
    assert (few.percentiles[90], few.percentiles[99], few.calls) == (None, None, 10)
    many = service_of([LoopTimes([0.01] * 97 + [0.5] * 3, 70.0) for _ in range(10)], 1)
    tail = many.percentiles[99]
    assert tail is not None and tail.estimate == 0.5
    document = many.to_json()
    assert document["percentiles"]["50"] == {"seconds": 0.01, "interval": [0.01, 0.01]}
    assert (document["calls"], document["ratio"], document["forms"]) == (1000, None, {"": 70.0})


def test_contenders_serve_in_turns_and_the_best_form_counts() -> None:
    specs = [
        contender(Sleeper, "stormdrop", seconds=2e-3),
        ContenderSpec("server", f"{__name__}:Server", {"seconds": 4e-3}),
    ]
    processes = [ContenderProcess(spec, 1) for spec in specs]
    try:
        services = take_service_turns(processes, Load(0.3, (1, 2, 8)))
    finally:
        for process in processes:
            process.close()
    ours, theirs = services.by_contender
    assert [service.at_a_time for service in ours] == [1], "it has no form for several calls"
    assert [service.at_a_time for service in theirs] == [1, 2]
    assert services.missing == {
        "stormdrop": "is timed with one call at a time only",
        "server": "serves four calls at most",
    }
    assert ours[0].ratio is not None and ours[0].ratio.estimate == 1.0
    assert theirs[0].ratio is not None and theirs[0].ratio.estimate > 0
    assert ours[0].per_second <= 500 and theirs[0].per_second <= 250, "no call sleeps for less"
    assert theirs[1].form == "quick" and theirs[1].ratio is None
    assert set(theirs[1].forms) == {"quick", "slow"}
    assert theirs[1].forms["quick"] > theirs[1].forms["slow"]
    assert theirs[1].calls >= 10 and theirs[1].per_second <= 500
    assert 0.0 <= services.disturbed <= 1.0


class Failing(Server):
    """Fails, or ends its process, when it serves two calls at a time."""

    def __init__(self, threads: int, dies: bool) -> None:
        super().__init__(threads)
        self._dies = dies

    def forms(self, at_a_time: int) -> Mapping[str, Sequence[Call]]:
        return {**super().forms(at_a_time), **({"bad": [self._fail] * at_a_time} if at_a_time > 1 else {})}

    def _fail(self) -> None:
        if self._dies:
            os._exit(3)
        raise ValueError("out of memory")


class Unprepared(Server):
    """Fails when it is prepared for two calls at a time."""

    def forms(self, at_a_time: int) -> Mapping[str, Sequence[Call]]:
        if at_a_time > 1:
            raise ValueError("out of memory")
        return super().forms(at_a_time)


def services_of(ours: ContenderSpec, theirs: ContenderSpec) -> Services:
    processes = [ContenderProcess(spec, 1) for spec in (ours, theirs)]
    try:
        return take_service_turns(processes, Load(0.1, (1, 2, 3)))
    finally:
        for process in processes:
            process.close()


@pytest.mark.parametrize(
    ("kind", "arguments", "reason"),
    [
        (Failing, {"dies": False}, "peer failed: .*out of memory"),
        (Failing, {"dies": True}, "peer: its process ended"),
        (Unprepared, {}, "peer failed: .*out of memory"),
    ],
)
def test_a_peer_that_fails_costs_no_other_timing(kind: type[Server], arguments: Any, reason: str) -> None:
    server = ContenderSpec("stormdrop", f"{__name__}:Server", {})
    failing = ContenderSpec("peer", f"{__name__}:{kind.__name__}", arguments)
    services = services_of(server, failing)
    ours, theirs = services.by_contender
    assert [service.at_a_time for service in ours] == [1, 2, 3]
    assert [service.at_a_time for service in theirs] == [1], "what it served before it failed"
    assert list(services.missing) == ["peer"] and re.match(reason, services.missing["peer"])
    with pytest.raises(MeasureError, match=r"failed|ended"):
        services_of(replace(failing, name="stormdrop"), server)


def test_something_in_this_process_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, float]] = []

    def loop(calls: Sequence[Call], seconds: float, executor: Executor) -> LoopTimes:
        assert all(call is answer for call in calls)
        asked.append((len(calls), seconds))
        return LoopTimes([0.25] * 4, 4.0 * len(calls))

    def answer() -> None:
        raise AssertionError("the loop calls it")

    monkeypatch.setattr(service, "closed_loop", loop)
    told: list[str] = []
    services, disturbed = serve(answer, 1, Load(0.5, (1, 3)), told.append)
    assert asked == [(1, 0.1)] * 5 + [(3, 0.1)] * 5
    assert [(each.at_a_time, each.calls, each.per_second) for each in services] == [(1, 20, 4.0), (3, 20, 12.0)]
    assert told[3:6] == [
        "1 call at a time, turn 4 of 5",
        "1 call at a time, turn 5 of 5",
        "3 calls at a time, turn 1 of 5",
    ]
    assert 0.0 <= disturbed <= 1.0


def test_ratios_are_those_of_the_turns() -> None:
    ours, theirs = ([LoopTimes([0.01] * 5, rate * factor) for rate in (100.0, 200.0, 300.0)] for factor in (1.0, 0.5))
    best = _best_forms([(0, ""), (1, "one"), (1, "two")], [ours, theirs, ours], 1)
    assert best[1].form == "two" and best[1].forms == {"one": 100.0, "two": 200.0}
    assert best[1].ratio is not None and best[1].ratio.estimate == 1.0
    worse = _best_forms([(0, ""), (1, "")], [ours, theirs], 1)[1].ratio
    assert worse is not None and worse.estimate == 0.5
    assert _best_forms([(1, "")], [theirs], 1)[1].ratio is None, "ours does not serve so many calls"
