from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tvm.script import tirx as T

from stormdrop.machine.sharing.foreign_load import Counters
from stormdrop.model.building.builder import busy_cores
from stormdrop.model.building.tuned_task import TunedTask
from stormdrop.model.profile import KernelTime, Profile
from stormdrop.model.tuning import selection
from stormdrop.model.tuning.selection import Doubts, combinations_to_compare, fastest_combination, unproven
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
    metadata, device, gpu = SimpleNamespace(target={"cores": 2}), "", None

    def __init__(self, combination: Any) -> None:
        self.combination, self.symbols = combination, {"first": 0, "second": 1}


def timed(monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float]) -> None:
    """Kernel "first" takes these seconds with the schedule of that x, and "second" one second, nearly."""
    rng = np.random.default_rng(0)

    def measured(models: Any, _: Any, rounds: int) -> list[Profile]:
        def times(factor: float) -> list[float]:
            return list(factor * (1 + 0.01 * rng.standard_normal(rounds)))

        first = [seconds[model.combination[0][1]["x"]] for model in models]
        return [Profile(3.0, [KernelTime("first", 1, times(x)), KernelTime("second", 1, times(1))]) for x in first]

    monkeypatch.setattr(selection, "profiles", measured)


def of(x: int) -> Any:
    return {0: ("sketch", {"x": x}), 1: ("sketch", {"x": 0})}


@pytest.mark.parametrize(("other", "wins"), [(0.9, True), (0.999, False), (1.2, False)])
def test_a_schedule_that_is_surely_faster_inside_replaces_the_winner(
    monkeypatch: pytest.MonkeyPatch, other: float, wins: bool
) -> None:
    timed(monkeypatch, {0: 1.0, 1: other})
    first, second = of(0), of(1)
    models: Any = [Model(first), Model(second)]
    final, model = fastest_combination([first, second], models, Model, [{}], 15)  # type: ignore[arg-type]
    assert final[0] == (second if wins else first)[0] and final[1] == first[1]
    assert model.combination == final  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("default", "third", "stands"),
    [
        pytest.param(1.2, 2.0, 0, id="the winner is faster"),
        pytest.param(1.0, 2.0, 1, id="it is not, so the default stands"),
        pytest.param(0.8, 2.0, 1, id="it is slower"),
        pytest.param(1.0, 0.8, 2, id="another finalist is faster than both"),
        pytest.param(1.2, 1.1, 0, id="another finalist is slower than the winner"),
    ],
)
def test_a_winner_that_has_not_raced_stands_only_if_it_is_faster_inside(
    monkeypatch: pytest.MonkeyPatch, default: float, third: float, stands: int
) -> None:
    timed(monkeypatch, {0: 1.0, 1: default, 2: third})
    combinations = [of(0), of(1), of(2)]
    models: Any = [Model(each) for each in combinations]
    final, model = fastest_combination(combinations, models, Model, [{}], 15, Doubts([0, 1]))  # type: ignore[arg-type]
    assert final == of(stands)
    assert model.combination == final  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("slowed", "comparisons", "other"),
    [
        ([False], 1, 1.5),
        ([True, False], 2, 1.5),
        ([True, True], 2, 1.5),
        pytest.param([False, True, False], 3, 0.5, id="the comparison that decides, too"),
    ],
)
def test_what_was_timed_by_a_slow_clock_is_timed_once_more(
    monkeypatch: pytest.MonkeyPatch, slowed: list[bool], comparisons: int, other: float
) -> None:
    timed(monkeypatch, {0: 1.0, 1: other})
    comparing, compare = [], selection._measured
    monkeypatch.setattr(selection, "_measured", lambda *given: comparing.append(given) or compare(*given))
    states = iter(slowed)
    monkeypatch.setattr(selection, "spent_since", lambda *_: Counters(1.0, slowed=next(states)))
    models: Any = [Model(of(0)), Model(of(1))]
    final, _ = fastest_combination([of(0), of(1)], models, Model, [{}], 15)  # type: ignore[arg-type]
    assert final[0] == of(0 if other > 1 else 1)[0]
    assert len(comparing) == comparisons and next(states, None) is None


def test_winners_without_an_undisturbed_race_are_unproven() -> None:
    def task(index: int, baseline: float | None, disturbed: bool) -> Any:
        result = SimpleNamespace(best=best({"x": 0}, 1.0), proven=baseline is not None and not disturbed)
        return TunedTask(Task(index), None, result)  # type: ignore[arg-type]

    tasks = [task(0, 1.0, False), task(1, None, False), task(2, 1.0, True), TunedTask(Task(3), None, None)]  # type: ignore[arg-type]
    assert unproven(tasks) == [1, 2]


def test_schedules_on_fewer_cores_prove_nothing_beside_other_load(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, {0: 1.0, 1: 2.0, 2: 0.9, 3: 1.5})

    def cores(_: int, choice: Any) -> int:
        return 2 if choice[1]["x"] in (1, 3) else 1

    doubts = Doubts([0], disturbed=True, cores=cores)
    for others, stands in (([of(1)], 1), ([of(1), of(2)], 1), ([of(1), of(0)], 1), ([of(1), of(3)], 3)):
        models: Any = [Model(each) for each in (of(0), *others)]
        final, model = fastest_combination([of(0), *others], models, Model, [{}], 15, doubts)  # type: ignore[arg-type]
        assert final == of(stands)
        assert model.combination == final  # type: ignore[attr-defined]


@T.prim_func(s_tir=True)
def on_one(y: T.Buffer((8,), "float32")) -> None:  # type: ignore[valid-type]
    for i in T.parallel(1):
        for j in T.serial(8):
            y[i + j] = 0.0


@T.prim_func(s_tir=True)
def on_three(y: T.Buffer((12,), "float32")) -> None:  # type: ignore[valid-type]
    for i in T.parallel(1):
        y[i] = 1.0
    for i in T.parallel(3):
        for j in T.serial(4):
            y[i * 4 + j] = 0.0


def test_the_cores_that_a_schedule_keeps_busy() -> None:
    assert [busy_cores(on_one, 2), busy_cores(on_three, 2), busy_cores(on_three, 8)] == [1, 2, 3]
