"""The budget of a model: what tasks can count on, and how long they race."""

from __future__ import annotations

from time import perf_counter

import pytest

from stormdrop.model.tuning.budget import Budget, race_share, shares
from stormdrop.tuning.race import RACE_SECONDS


@pytest.mark.parametrize(
    ("left", "tasks", "seconds"),
    [
        (100.0, 5, RACE_SECONDS),
        (10.0, 5, RACE_SECONDS),
        (6.0, 5, 0.5),
        (10.0, 20, 0.3),  # ten of them
        (0.9, 20, 0.2),
        (0.75, 1, 0.0),
        (-1.0, 3, 0.0),
    ],
)
def test_the_first_races_are_long_enough(left: float, tasks: int, seconds: float) -> None:
    assert race_share(left, tasks) == pytest.approx(seconds)


def test_a_budget_of_trials_does_not_shorten_races() -> None:
    assert Budget(10, None, perf_counter() - 1e6).race_seconds(100) == RACE_SECONDS


def test_guaranteed_parts_are_never_more_than_what_is_granted() -> None:
    parts = shares([100.0, 1.0, 1.0, 0.0])
    assert sum(parts) == pytest.approx(1.0)
    budget = Budget(11, 1000.0, perf_counter())
    guaranteed = [budget.guaranteed(position, parts) for position in range(len(parts))]
    assert [trials for trials, _ in guaranteed] == [2, 2, 2, 2]
    assert sum(seconds or 0.0 for _, seconds in guaranteed) <= budget.left
    assert [Budget(2, None, 0.0).guaranteed(position, parts)[0] for position in range(4)] == [1, 1, 1, 1]
    assert Budget(1000, None, 0.0).guaranteed(0, parts)[0] == 250


@pytest.mark.parametrize(("build", "verify", "kept"), [(None, 0.0, 15.0), (2.0, 1.0, 9.0), (90.0, 1.0, 30.0)])
def test_what_compiling_takes_is_kept_within_bounds(build: float | None, verify: float, kept: float) -> None:
    budget = Budget(None, 100.0, perf_counter(), build, verify)
    assert budget.left_to_measure == pytest.approx(100.0 - kept, abs=1.0)
    assert budget.left == pytest.approx(90.0 - kept, abs=1.0)


def test_what_comes_later_is_kept() -> None:
    budget = Budget(None, 100.0, perf_counter())
    assert budget.left < budget.left_to_measure < budget.left_before(0.0) <= 100.0
    assert Budget(5, None, 0.0).left == float("inf")
