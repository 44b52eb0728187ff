"""Our searches as a sampler of Optuna: Optuna's own tests of samplers, and what is ours."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest

optuna = pytest.importorskip("optuna", reason="Optuna is not installed: pip install 'stormdrop[optuna]'")

from optuna.testing.pytest_samplers import (  # noqa: E402
    BasicSamplerTestCase,
    MultiObjectiveSamplerTestCase,
    RelativeSamplerTestCase,
    SingleOnlySamplerTestCase,
)

from stormdrop.errors import SearchError  # noqa: E402
from stormdrop.integrations.optuna_sampler import StormSampler  # noqa: E402

optuna.logging.set_verbosity(optuna.logging.WARNING)
assert MultiObjectiveSamplerTestCase  # does not apply: a search has one objective


class TestStormSampler(BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase):
    """Optuna's tests of a sampler with one objective."""

    @pytest.fixture
    def sampler(self) -> Callable[[], StormSampler]:
        return lambda: StormSampler(seed=0)


def valley(trial: Any) -> float:
    x, y = trial.suggest_float("x", -4.0, 4.0), trial.suggest_int("y", 1, 1024, log=True)
    kind = trial.suggest_categorical("kind", [None, "good", "bad"])
    return (x - 1.5) ** 2 + (math.log2(y) - 5) ** 2 / 4 + {None: 1.0, "good": 0.0, "bad": 4.0}[kind]


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_it_finds_the_optimum_that_random_trials_miss(direction: str) -> None:
    def objective(trial: Any) -> float:
        return valley(trial) if direction == "minimize" else 5 - valley(trial)

    def best(sampler: Any) -> float:
        study = optuna.create_study(direction=direction, sampler=sampler)
        study.optimize(objective, n_trials=60)
        return study.best_value if direction == "minimize" else 5 - study.best_value

    assert best(StormSampler(seed=1)) < 0.1 < best(optuna.samplers.RandomSampler(seed=1))


@pytest.mark.parametrize("search", ["random", "droplet"])
def test_any_search_is_a_sampler_and_a_seed_decides_everything(search: str) -> None:
    def params() -> list[dict[str, object]]:
        study = optuna.create_study(sampler=StormSampler(search, seed=3))
        study.optimize(valley, n_trials=12)
        return [trial.params for trial in study.trials]

    assert params() == params()


def test_no_point_is_tried_twice_and_failures_are_learned() -> None:
    def objective(trial: Any) -> float:
        x, y = trial.suggest_int("x", 0, 5), trial.suggest_int("y", 0, 5)
        if x == 3:
            raise ArithmeticError("made to fail")
        return 1.0 + (x - 2) ** 2 + (y - 4) ** 2

    study = optuna.create_study(sampler=StormSampler(seed=0))
    study.optimize(objective, n_trials=20, catch=ArithmeticError)
    assert study.best_params == {"x": 2, "y": 4}
    points = [tuple(trial.params.values()) for trial in study.trials]
    assert len(set(points)) == len(points) == 20


def test_a_study_is_continued_by_another_sampler() -> None:
    study = optuna.create_study(sampler=StormSampler(seed=0))
    study.optimize(valley, n_trials=25)
    tried = {tuple(trial.params.values()) for trial in study.trials}
    study.sampler = pickle.loads(pickle.dumps(StormSampler(seed=5)))
    study.optimize(valley, n_trials=15)
    later = {tuple(trial.params.values()) for trial in study.trials[25:]}
    assert not tried & later
    assert study.best_value < 0.2


def test_workers_side_by_side_try_different_points() -> None:
    study = optuna.create_study(sampler=StormSampler(seed=0, width=4))
    study.optimize(valley, n_trials=2)
    running = [study.ask() for _ in range(2)]
    values = [valley(trial) for trial in running]
    assert running[0].params != running[1].params
    for trial, value in zip(reversed(running), reversed(values), strict=True):
        study.tell(trial, value)
    study.optimize(valley, n_trials=24, n_jobs=2)
    assert len({tuple(trial.params.values()) for trial in study.trials}) == 28


def test_bad_settings_are_refused_in_one_line() -> None:
    with pytest.raises(SearchError, match="unknown search 'strom'; did you mean 'storm'"):
        StormSampler("strom")
    with pytest.raises(SearchError, match="has no option 'lok'; did you mean 'look'"):
        StormSampler(options={"lok": 3})
    with pytest.raises(SearchError, match="levels >= 2"):
        StormSampler(levels=1)
