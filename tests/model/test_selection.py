from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stormdrop.model.building.tuned_task import TunedTask
from stormdrop.model.profile import KernelTime, Profile
from stormdrop.model.tuning import selection
from stormdrop.model.tuning.selection import combinations_to_compare, fastest_combination
from stormdrop.tuning.result import Best


def best(config: dict[str, int], seconds: float) -> Best:
    return Best("sketch", config, seconds, (seconds, seconds), None)


class Result:
    def __init__(self, *finalists: Best) -> None:
        self.best, self.finalists = finalists[0], finalists


class Task:
    def __init__(self, index: int) -> None:
        self.index = index


def test_each_combination_has_the_next_finalists_that_are_near() -> None:
    a, b, c, d, far = ({"x": value} for value in range(5))
    tasks: Any = [
        TunedTask(Task(0), None, Result(best(a, 1.0), best(b, 1.05), best(c, 1.1), best(d, 1.1), best(far, 2.0))),  # type: ignore[arg-type]
        TunedTask(Task(1), None, Result(best(a, 1.0), best(far, 1.2))),  # type: ignore[arg-type]
        TunedTask(Task(2), None, None),  # type: ignore[arg-type]
    ]
    chosen: Any = {0: ("sketch", a), 1: ("sketch", a), 2: ("sketch", a)}
    default: Any = {0: ("sketch", b), 1: ("sketch", a), 2: ("sketch", b)}
    combinations = combinations_to_compare(tasks, chosen, default)
    assert [combination[0][1] for combination in combinations] == [a, b, c, d]
    assert [combination[1][1] for combination in combinations] == [a, a, a, a]
    assert [combination[2][1] for combination in combinations] == [a, b, a, a]


class Model:
    def __init__(self, combination: Any) -> None:
        self.combination, self.symbols = combination, {"first": 0, "second": 1}


@pytest.mark.parametrize(("other", "wins"), [(0.9, True), (0.999, False), (1.2, False)])
def test_a_schedule_that_is_surely_faster_inside_replaces_the_winner(
    monkeypatch: pytest.MonkeyPatch, other: float, wins: bool
) -> None:
    rng = np.random.default_rng(0)

    def measured(models: Any, _: Any, rounds: int) -> list[Profile]:
        def times(factor: float) -> list[float]:
            return list(factor * (1 + 0.01 * rng.standard_normal(rounds)))

        return [
            Profile(3.0, [KernelTime("first", 1, times(other if index else 1)), KernelTime("second", 1, times(1))])
            for index, _ in enumerate(models)
        ]

    monkeypatch.setattr(selection, "profiles", measured)
    first: Any = {0: ("sketch", {"x": 0}), 1: ("sketch", {"x": 0})}
    second: Any = {0: ("sketch", {"x": 1}), 1: ("sketch", {"x": 0})}
    models: Any = [Model(first), Model(second)]
    final, model = fastest_combination([first, second], models, Model, [{}], 15)  # type: ignore[arg-type]
    assert final[0] == (second if wins else first)[0] and final[1] == first[1]
    assert model.combination == final  # type: ignore[attr-defined]
