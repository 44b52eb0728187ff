"""Ansor's cost model: what it learns from, of one kernel and of all kernels of a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.search import Knowledge, Network, create
from stormdrop.search.common_model import CommonCostModel
from stormdrop.search.evolutionary import Evolutionary
from stormdrop.search.parts.cost_model import CostModel
from stormdrop.space import Ordinal, Space
from stormdrop.surrogate.boosted import BoostedTrees
from stormdrop.testing import drive, objective_of
from stormdrop.trial import Candidate, Measurement, Status, Trial

SPACE = Space("s", [Ordinal(name, list(range(10))) for name in "abcd"])
Rows = list[NDArray[np.float64]]


def digits(candidates: Sequence[Candidate]) -> Rows:
    return [np.array([candidate.point], float) for candidate in candidates]


def trial(x: int, seconds: float | None) -> Trial:
    if seconds is None:
        return Trial(Candidate("s", (x,) * 4), Measurement(Status.RUNTIME, error="it failed"))
    return Trial(Candidate("s", (x,) * 4), Measurement(Status.OK, (seconds,)))


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Rows, list[float]]]:
    """What trees are fitted to."""
    calls: list[tuple[Rows, list[float]]] = []
    fit = BoostedTrees.fit

    def spy(self: BoostedTrees, features: Rows, targets: NDArray[np.float64]) -> None:
        calls.append((list(features), targets.tolist()))
        fit(self, features, targets)

    monkeypatch.setattr(BoostedTrees, "fit", spy)
    return calls


def kernels(number: int) -> list[CostModel]:
    common = CommonCostModel(np.random.default_rng(0))
    return [CostModel(digits, np.random.default_rng(0), common=common) for _ in range(number)]


def test_each_kernel_is_normalised_by_its_own_best(fitted: list[tuple[Rows, list[float]]]) -> None:
    slow, fast = kernels(2)
    slow.record([trial(1, 4.0), trial(2, 2.0), trial(3, None)])
    fast.record([trial(1, 1e-3), trial(4, 4e-3)])
    slow.train()
    ((rows, targets),) = fitted
    assert targets == [0.5, 1.0, 0.0, 1.0, 0.25]
    assert [row[0, 0] for row in rows] == [1, 2, 3, 1, 4]


def test_a_kernel_whose_candidates_all_failed_teaches_nothing(fitted: list[tuple[Rows, list[float]]]) -> None:
    broken, works = kernels(2)
    broken.record([trial(1, None), trial(2, None)])
    assert not broken.trainable
    works.record([trial(5, 1.0)])
    assert broken.trainable
    broken.train()  # type: ignore[unreachable]
    assert fitted[0][1] == [1.0]
    assert broken.scores([Candidate("s", (5,) * 4)])[0] > 0.5


def test_kernels_that_are_tuned_alone_know_nothing_of_each_other() -> None:
    one, other = (CostModel(digits, np.random.default_rng(0)) for _ in range(2))
    one.record([trial(1, 1.0)])
    assert one.trainable
    assert not other.trainable


def bowl(unit: float) -> Callable[[Candidate], float]:
    return lambda candidate: unit * (1 + 0.2 * sum(abs(x - 7) for x in candidate.point))


def tuned(model: CommonCostModel | None, unit: float, budget: int, **options: object) -> list[Trial]:
    search = evolutionary(model, **options)
    return drive(search, objective_of(bowl(unit), within=1e-3), 8, budget)


def evolutionary(model: CommonCostModel | None, **options: object) -> Evolutionary:
    knowledge = Knowledge(features=digits, network=Network(2, 128, model))
    given = {"preset": "paper", "population": 128, **options}
    search = create("evolutionary", [SPACE], np.random.default_rng(1), knowledge, **given)
    assert isinstance(search, Evolutionary)
    return search


def test_the_second_kernel_begins_with_what_the_first_has_taught() -> None:
    """Both have their optimum at the same point, and one takes a thousand times as long."""
    common = CommonCostModel(np.random.default_rng(0))
    tuned(common, 1.0, 128)
    taught, alone, own = (
        tuned(model, 1e-3, 64, common=shared) for model, shared in [(common, True), (None, True), (common, False)]
    )
    assert [t.candidate for t in alone] == [t.candidate for t in own]
    medians = [float(np.median([t.median for t in trials])) for trials in (taught, alone)]
    assert medians[0] < 0.7 * medians[1]


def test_a_resumed_search_learns_from_all_its_trials_and_asks_for_none_again(
    fitted: list[tuple[Rows, list[float]]],
) -> None:
    before = tuned(CommonCostModel(np.random.default_rng(0)), 1.0, 70)
    fitted.clear()
    resumed = evolutionary(CommonCostModel(np.random.default_rng(0)))
    resumed.tell(before)
    trials = drive(resumed, objective_of(bowl(1.0), within=1e-3), 8, 64)
    assert len(fitted[0][1]) == 70
    assert len({t.candidate for t in [*before, *trials]}) == 134


def test_a_resumed_search_still_measures_the_starts_that_are_missing() -> None:
    starts = tuple(Candidate("s", (x,) * 4) for x in (1, 2, 3))
    knowledge = Knowledge(
        features=digits, starts=starts, network=Network(1, None, CommonCostModel(np.random.default_rng(0)))
    )
    search = create("evolutionary", [SPACE], np.random.default_rng(0), knowledge, preset="paper", population=64)
    search.tell([trial(1, 1.0)])
    assert [request.candidate for request in search.ask(2)] == list(starts[1:])
