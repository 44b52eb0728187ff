"""Random and grid search: every point once, uniformly or in order."""

from collections import Counter

import numpy as np
import pytest

from stormdrop.search import Knowledge, create
from stormdrop.search.random import draws
from stormdrop.space import Constraint, Ordinal, Space
from stormdrop.testing import drive, objective_of
from stormdrop.trial import Candidate

BIG = Space("big", [Ordinal("a", list(range(9)))])
SMALL = Space("small", [Ordinal("a", list(range(3)))])
objective = objective_of(lambda c: 1.0)


@pytest.mark.parametrize("name", ["random", "grid"])
def test_all_points_are_visited_once(name: str) -> None:
    trials = drive(create(name, [BIG, SMALL], np.random.default_rng(0)), objective, 5)
    assert len(trials) == len({t.candidate for t in trials}) == 12


def test_grid_takes_turns() -> None:
    trials = drive(create("grid", [BIG, SMALL], np.random.default_rng(0)), objective, 5)
    assert [t.candidate.sketch for t in trials] == ["big", "small"] * 3 + ["big"] * 6
    assert [t.candidate.point for t in trials if t.candidate.sketch == "big"] == [(i,) for i in range(9)]


@pytest.mark.parametrize("listed", [20_000, 0])
def test_random_is_uniform_over_the_union(listed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stormdrop.search.random._LISTED", listed)
    firsts = Counter(
        drive(create("random", [BIG, SMALL], np.random.default_rng(seed)), objective, 1, budget=1)[0].candidate
        for seed in range(2400)
    )
    assert len(firsts) == 12
    assert all(130 < count < 270 for count in firsts.values())  # 200 expected, five standard deviations


def test_random_by_drawing_is_exhaustive_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stormdrop.search.random._LISTED", 0)
    monkeypatch.setattr("stormdrop.search.random._REDRAWS", 2)
    trials = drive(create("random", [BIG, SMALL], np.random.default_rng(0)), objective, 5)
    assert len(trials) == len({t.candidate for t in trials}) == 12


@pytest.mark.parametrize("listed", [20_000, 0])
def test_draws_pass_over_what_others_take_meanwhile(listed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stormdrop.search.random._LISTED", listed)
    taken: set[Candidate] = set()
    drawn: list[Candidate] = []
    others = iter([Candidate("big", (i,)) for i in range(9)])
    for candidate in draws([BIG, SMALL], np.random.default_rng(0), taken):
        assert candidate not in drawn
        drawn.append(candidate)
        other = next(c for c in others if c not in taken)
        taken.add(other)
        drawn.append(other)
        if len(drawn) >= 8:
            break
    rest = list(draws([BIG, SMALL], np.random.default_rng(1), taken))
    assert len({*drawn, *rest}) == len(drawn) + len(rest) == len(taken) == 12


@pytest.mark.parametrize("name", ["random", "grid"])
def test_starts_come_first_and_once(name: str) -> None:
    starts = (Candidate("small", (2,)), Candidate("big", (8,)), Candidate("small", (2,)))
    search = create(name, [BIG, SMALL], np.random.default_rng(0), Knowledge(starts=starts))
    trials = drive(search, objective, 5)
    assert [t.candidate for t in trials[:2]] == [*starts[:2]]
    assert len(trials) == len({t.candidate for t in trials}) == 12


def test_random_starts_at_once_on_a_huge_constrained_space() -> None:
    knobs = [Ordinal(f"k{i}", list(range(100))) for i in range(8)]
    constraint = Constraint(tuple(k.name for k in knobs), lambda *v: sum(v) % 2 == 0, "even")
    trials = drive(create("random", [Space("huge", knobs, [constraint])], np.random.default_rng(0)), objective, 8, 64)
    assert len({t.candidate for t in trials}) == 64
