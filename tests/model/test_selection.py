from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from stormdrop.machine.cpu import Cpu
from stormdrop.model.building.builder import PLAIN, ModelBuilder
from stormdrop.model.building.tuned_task import TunedTask
from stormdrop.model.importer.any_model import import_model
from stormdrop.model.profile import KernelTime, Profile
from stormdrop.model.tuning import selection
from stormdrop.model.tuning.scheduler import tasks_of
from stormdrop.model.tuning.selection import Doubts, combinations_to_compare, fastest_combination, unproven
from stormdrop.tuning.options import TuneOptions
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


def test_winners_without_an_undisturbed_race_are_unproven() -> None:
    def task(index: int, baseline: float | None, disturbed: bool) -> Any:
        result = SimpleNamespace(best=best({"x": 0}, 1.0), proven=baseline is not None and not disturbed)
        return TunedTask(Task(index), None, result)  # type: ignore[arg-type]

    tasks = [task(0, 1.0, False), task(1, None, False), task(2, 1.0, True), TunedTask(Task(3), None, None)]  # type: ignore[arg-type]
    assert unproven(tasks) == [1, 2]


def test_a_winner_on_fewer_cores_proves_nothing_beside_other_load(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, {0: 1.0, 1: 2.0})
    models: Any = [Model(of(0)), Model(of(1))]
    doubts = Doubts([0], [0], disturbed=True)
    final, _ = fastest_combination([of(0), of(1)], models, Model, [{}], 15, doubts)  # type: ignore[arg-type]
    assert final == of(1)


def test_the_cores_that_a_schedule_keeps_busy(target: Cpu) -> None:
    square = "float[256,256] x) => (float[256,256] y) { y = MatMul(x, x) }"
    graph = import_model(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> squared ({square}'))
    for cores in (1, 2):
        of = replace(target, cores=cores)
        tasks = [task.untuned_task() for task in tasks_of(graph, of, TuneOptions())]
        builder = ModelBuilder(graph, tasks, of, TuneOptions(), {})
        assert [builder.cores(index, choice) for index, choice in builder.defaults.items()] == [cores]
        assert builder.cores(0, PLAIN) == 1
