"""Requests: the setting that records are kept under, the default, and a search that begins elsewhere."""

from __future__ import annotations

from time import perf_counter

import pytest

from stormdrop.errors import InputError, SearchError
from stormdrop.records import Problem
from stormdrop.space import Ordinal, Space
from stormdrop.trial import Candidate
from stormdrop.tuning.options import TuneOptions
from stormdrop.tuning.request import BATCH, Reuse, TuningRequest

PROBLEM = Problem("key", "text", "name", "callable", "a machine")
SPACES = [Space("a", [Ordinal("x", [1, 2, 4])], origin={"x": 2}), Space("b", [Ordinal("y", [1, 2])])]


def request(options: TuneOptions | None = None, spaces: list[Space] | None = None) -> TuningRequest:
    return TuningRequest.create(
        PROBLEM,
        SPACES if spaces is None else spaces,
        options or TuneOptions(search="droplet", seed=7, search_options={"repeats": 5}),
        trials=30,
        seconds=12.0,
        begin=perf_counter(),
        versions={"python": "3"},
        reuse=Reuse(),
    )


def test_the_setting_says_all_that_trials_depend_on() -> None:
    setting = request().setting
    assert (setting.search, setting.seed, setting.versions) == ("droplet", 7, {"python": "3"})
    assert setting.sketches == {space.name: space.fingerprint for space in SPACES}
    assert setting.options["repeats"] == 5 and len(setting.options) > 1  # with the defaults of the others
    assert setting.method["batch"] == BATCH
    assert setting.method["spaces"] == {space.name: space.describe() for space in SPACES}


def test_the_default_is_the_origin_of_the_first_space() -> None:
    assert request().default == Candidate("a", SPACES[0].origin)


def test_a_request_that_starts_elsewhere_asks_there_first() -> None:
    start = Candidate("b", (1,))
    first = request().starting_at([start]).searcher.ask(BATCH)
    assert start in [asked.candidate for asked in first]
    assert start not in [asked.candidate for asked in request().searcher.ask(1)]


def test_bad_searches_and_spaces_are_refused() -> None:
    with pytest.raises(SearchError, match="unknown search 'dropplet'"):
        request(TuneOptions(search="dropplet"))
    with pytest.raises(SearchError, match=r"two spaces|same name"):
        request(spaces=[SPACES[0], SPACES[0]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trials": 0}, "trials=0 must be 1 or more"),
        ({"seed": -1}, "seed=-1 must be 0 or more"),
        ({"resume": True, "fresh": True}, "resume and fresh exclude each other"),
        ({"max_error": 1.0}, "max_error=1.0 must be from 0 to less than 1"),
    ],
)
def test_bad_options_are_one_line(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TuneOptions(**options)  # type: ignore[arg-type]


def test_a_budget_is_the_default_only_if_nothing_is_bounded() -> None:
    assert TuneOptions().budget(60.0) == 60.0
    assert TuneOptions(trials=5).budget(60.0) is None
    assert TuneOptions.of(time="1m30s").budget(60.0) == 90.0


@pytest.mark.parametrize(
    ("search", "width", "batch", "ahead"),
    [("random", 1, 8, False), ("random", 4, 8, True), ("random", 32, 32, True), ("droplet", 32, 64, False)],
)
def test_a_wide_fleet_has_wide_batches(search: str, width: int, batch: int, ahead: bool) -> None:
    made = TuningRequest.create(
        PROBLEM,
        [Space("a", [Ordinal("x", list(range(500)))])],
        TuneOptions(search=search),
        trials=30,
        seconds=12.0,
        begin=perf_counter(),
        versions={},
        reuse=Reuse(),
        width=width,
    )
    assert (made.batch, made.ahead, made.setting.method["batch"]) == (batch, ahead, batch)
    for each in (made, made.starting_at([Candidate("a", (3,))])):
        assert each.searcher.ask(batch) and bool(each.searcher.ask(batch)) == ahead
