"""Where the time of a model goes, and what is faster inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import residual_model

from stormdrop.machine.peak import Peak
from stormdrop.model import load, tune_model
from stormdrop.model import selection as context
from stormdrop.model.artifact import CompiledModel
from stormdrop.model.profile import KernelTime, Profile, profile
from stormdrop.model.random_weights import seed_weights
from stormdrop.model.selection import fastest_inside, lineups
from stormdrop.model.sharing import TunedTask
from stormdrop.model.verify import random_feeds
from stormdrop.records import open_store
from stormdrop.tuning.result import Best


@pytest.fixture(scope="module")
def model() -> CompiledModel:
    with open_store("sqlite://") as store:
        return tune_model(seed_weights(residual_model(), seed=1), trials=1, store=store).model


def test_kernels_and_the_rest_are_all(model: CompiledModel) -> None:
    feeds = random_feeds(model.inputs)
    found = profile(model, feeds, rounds=5)
    names = [each.name for each in found.kernels]
    assert set(names) == set(model.symbols) and not any(name.startswith("vm.") for name in names)
    assert [each.seconds for each in found.kernels] == sorted((each.seconds for each in found.kernels), reverse=True)
    assert all(each.calls >= 1 and len(each.rounds) == 5 and each.seconds > 0 for each in found.kernels)
    document = found.to_json()
    assert document["outside"] == pytest.approx(max(0, found.seconds - sum(k["seconds"] for k in document["kernels"])))
    assert 0 < document["machine"] < found.seconds
    still = [k["seconds"] for k in document["kernels"] if k["flops"] == 0]
    assert still and document["moving"] == pytest.approx(sum(still))


def test_work_is_kept_with_the_model(model: CompiledModel, tmp_path: Path) -> None:
    model.save(tmp_path / "model.sd")
    loaded = load(tmp_path / "model.sd")
    assert set(loaded.metadata.kernels) == set(model.symbols)
    for each in profile(loaded, random_feeds(loaded.inputs), rounds=3).kernels:
        work = model.metadata.kernels[each.name]
        assert each.work == work and work.bytes > 0
        least = max(work.flops / 1e9, work.bytes / 1e8)
        assert each.of_roofline(Peak(1e9, 1e8)) == pytest.approx(each.calls * least / each.seconds)
    assert KernelTime("unknown", 1, [1.0]).of_roofline(Peak(1e9, 1e8)) is None


def test_a_watch_changes_nothing(model: CompiledModel) -> None:
    feeds = random_feeds(model.inputs)
    seen: list[str] = []

    def watch(_: Any, symbol: str, before: bool, *__: Any) -> int:
        seen.append(symbol)
        return 0

    watched = model.watched(watch).run(feeds)
    assert set(model.symbols) <= set(seen)
    count = len(seen)
    for name, value in model.run(feeds).items():
        np.testing.assert_array_equal(watched[name], value)
    assert len(seen) == count


def best(config: dict[str, int], seconds: float) -> Best:
    return Best("sketch", config, seconds, (seconds, seconds), None)


class Result:
    def __init__(self, *finalists: Best) -> None:
        self.best, self.finalists = finalists[0], finalists


class Task:
    def __init__(self, index: int) -> None:
        self.index = index


def test_each_form_has_the_next_finalists_that_are_near() -> None:
    a, b, c, d, far = ({"x": at} for at in range(5))
    tasks: Any = [
        TunedTask(Task(0), None, Result(best(a, 1.0), best(b, 1.05), best(c, 1.1), best(d, 1.1), best(far, 2.0))),  # type: ignore[arg-type]
        TunedTask(Task(1), None, Result(best(a, 1.0), best(far, 1.2))),  # type: ignore[arg-type]
        TunedTask(Task(2), None, None),  # type: ignore[arg-type]
    ]
    chosen: Any = {0: ("sketch", a), 1: ("sketch", a), 2: ("sketch", a)}
    default: Any = {0: ("sketch", b), 1: ("sketch", a), 2: ("sketch", b)}
    found = lineups(tasks, chosen, default)
    assert [form[0][1] for form in found] == [a, b, c, d]
    assert [form[1][1] for form in found] == [a, a, a, a]
    assert [form[2][1] for form in found] == [a, b, a, a]


class Model:
    def __init__(self, form: Any) -> None:
        self.form, self.symbols = form, {"first": 0, "second": 1}


@pytest.mark.parametrize(("other", "wins"), [(0.9, True), (0.999, False), (1.2, False)])
def test_what_is_surely_faster_inside_takes_the_place(
    monkeypatch: pytest.MonkeyPatch, other: float, wins: bool
) -> None:
    rng = np.random.default_rng(0)

    def measured(models: Any, _: Any, rounds: int) -> list[Profile]:
        def times(factor: float) -> list[float]:
            return list(factor * (1 + 0.01 * rng.standard_normal(rounds)))

        return [
            Profile(3.0, [KernelTime("first", 1, times(1.0 if at == 0 else other)), KernelTime("second", 1, times(1))])
            for at, _ in enumerate(models)
        ]

    monkeypatch.setattr(context, "profiles", measured)
    first: Any = {0: ("sketch", {"x": 0}), 1: ("sketch", {"x": 0})}
    second: Any = {0: ("sketch", {"x": 1}), 1: ("sketch", {"x": 0})}
    final, model = fastest_inside([first, second], [Model(first), Model(second)], Model, {}, 15)  # type: ignore[arg-type]
    assert final[0] == (second if wins else first)[0] and final[1] == first[1]
    assert model.form == final  # type: ignore[attr-defined]
