"""Winners that have not raced: the model with default schedules decides, even if no time is left."""

from __future__ import annotations

from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest

from stormdrop.model.tuning import choice
from stormdrop.model.tuning.baseline import Baseline
from stormdrop.model.tuning.budget import Budget
from stormdrop.model.tuning.selection import Doubts
from stormdrop.model.tuning.tuning_run import TuningRun
from stormdrop.tuning.result import Best, SearchResult

WINNER, DEFAULT = ("sketch", {"x": 1}), ("sketch", {"x": 0})


def searched(baseline: float | None, disturbed: bool) -> Any:
    best = Best("sketch", {"x": 1}, 1e-3, (1e-3, 1e-3), None)
    proven = SearchResult.proven.fget  # type: ignore[attr-defined]
    result = SimpleNamespace(best=best, finalists=[best], baseline=baseline, disturbed=disturbed)
    return SimpleNamespace(**vars(result), proven=proven(result))


@pytest.mark.parametrize(
    ("baseline", "disturbed", "seconds", "quiet", "compared"),
    [
        pytest.param(None, False, 1e-3, True, [0], id="it has not raced"),
        pytest.param(2e-3, True, 1e-3, True, [0], id="it has raced beside other load"),
        pytest.param(2e-3, True, 1e-3, False, [0], id="which goes on"),
        pytest.param(2e-3, False, 1e-3, True, None, id="it has raced"),
        pytest.param(None, False, 10.0, True, None, id="the model is too slow for what is left"),
    ],
)
def test_the_model_with_defaults_decides_without_a_race(
    monkeypatch: pytest.MonkeyPatch,
    baseline: float | None,
    disturbed: bool,
    seconds: float,
    quiet: bool,
    compared: list[int] | None,
) -> None:
    model, untuned = object(), object()
    asked: list[Doubts] = []

    def fastest(combinations: Any, models: Any, build: Any, feeds: Any, rounds: int, doubts: Doubts) -> Any:
        assert combinations == [{0: WINNER}, {0: DEFAULT}] and models == [model, untuned] and rounds >= 3
        asked.append(doubts)
        return {0: DEFAULT}, untuned

    monkeypatch.setattr(choice, "execution_seconds", lambda *_: seconds)
    monkeypatch.setattr(choice, "is_quiet", lambda: quiet)
    monkeypatch.setattr(choice, "fastest_combination", fastest)
    builder: Any = SimpleNamespace(
        winners={0: WINNER}, defaults={0: DEFAULT}, build=lambda _: model, cores=lambda index, choice: 1
    )
    task = SimpleNamespace(task=SimpleNamespace(index=0, name="conv"), result=searched(baseline, disturbed))
    tuned: Any = SimpleNamespace(tasks=[task])
    late = perf_counter() - 60.0
    before: Any = Baseline(untuned, {0: DEFAULT})  # type: ignore[arg-type]
    chosen = choice.choose(builder, tuned, Budget(None, 1.0, late), [{}], TuningRun(late, 1.0, None), before)
    assert [list(doubts.tasks) for doubts in asked] == ([] if compared is None else [compared])
    assert all(doubts.disturbed is not quiet for doubts in asked)
    assert chosen.model is (model if compared is None else untuned) and chosen.untuned is untuned
    assert list(chosen.replaced) == ([] if compared is None else ["conv"])
