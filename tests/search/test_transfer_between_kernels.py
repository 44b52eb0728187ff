"""AutoTVM's transfer from task to task: what a kernel's annealing takes from those before it in its network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.search import Knowledge, Network, Search, create, options_with
from stormdrop.search.common_model import CommonCostModel
from stormdrop.space import Ordinal, Space
from stormdrop.surrogate.boosted import BoostedTrees
from stormdrop.testing import SearchConformance, drive, objective_of
from stormdrop.trial import Candidate, Trial

FIRST = Space("first", [Ordinal(name, list(range(12))) for name in "abcd"])
SECOND = Space("second", [Ordinal(name, list(range(3, 15))) for name in "dcba"])  # other knobs in another order
Rows = list[NDArray[np.float64]]


def loops(space: Space) -> Callable[[Sequence[Candidate]], Rows]:
    """Features that mean the same for both kernels, as Ansor's do: the values by the knobs' names."""

    def rows(candidates: Sequence[Candidate]) -> Rows:
        configs = [space.config(candidate.point) for candidate in candidates]
        return [np.array([[config[name] for name in "abcd"]], float) for config in configs]

    return rows


def bowl(space: Space, unit: float, bottom: int) -> Callable[[Candidate], float]:
    def seconds(candidate: Candidate) -> float:
        config: Mapping[str, Any] = space.config(candidate.point)
        return unit * (1 + 0.2 * sum(abs(config[name] - bottom) for name in "abcd"))

    return seconds


def annealing(space: Space, others: CommonCostModel | None, trials: int | None = None, **options: Any) -> Search:
    knowledge = Knowledge(features=loops(space), network=Network(2, trials, others))
    return create("annealing", [space], np.random.default_rng(1), knowledge, **{"preset": "paper", **options})


def first_kernel(others: CommonCostModel) -> list[Trial]:
    search = annealing(FIRST, others, iterations=60)
    return drive(search, objective_of(bowl(FIRST, 1.0, 7), within=1e-3), 16, 512)


def batch_of(search: Search, seconds: Callable[[Candidate], float], n: int = 64) -> list[Trial]:
    return drive(search, objective_of(seconds, within=1e-3), 64, n)


def median(trials: Sequence[Trial]) -> float:
    return float(np.median([trial.median for trial in trials]))


@pytest.fixture(scope="module")
def first_trials() -> list[Trial]:
    return first_kernel(CommonCostModel(np.random.default_rng(0)))


@pytest.fixture
def taught(first_trials: list[Trial]) -> CommonCostModel:
    return taught_by(first_trials)


def taught_by(trials: Sequence[Trial]) -> CommonCostModel:
    others = CommonCostModel(np.random.default_rng(0))
    annealing(FIRST, others).tell(trials)
    return others


def test_the_first_batch_of_the_second_kernel_is_planned_by_the_base(taught: CommonCostModel) -> None:
    """The kernels have other knobs, other units, and optima that lie near each other."""
    seconds = bowl(SECOND, 1e-3, 8)
    planned = batch_of(annealing(SECOND, taught), seconds)
    at_random = batch_of(annealing(SECOND, taught, transfer=False), seconds)
    assert median(planned) < 0.6 * median(at_random)
    assert median(planned[:61]) < 0.6 * median(planned[61:])  # the last 5% are random


def test_the_batches_after_it_are_no_worse(taught: CommonCostModel) -> None:
    """The own trials correct the base, which has its optimum elsewhere."""
    seconds = bowl(SECOND, 1e-3, 8)
    trials = batch_of(annealing(SECOND, taught, iterations=60), seconds, 192)
    assert median(trials[128:]) < median(trials[:64])
    assert min(seconds(trial.candidate) for trial in trials) < 1.45e-3  # at most two steps from the optimum


@pytest.mark.parametrize("candidates", [499, 500])
def test_fewer_than_500_candidates_teach_nothing(
    candidates: int, first_trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = taught_by(first_trials[:candidates])
    fits: list[int] = []
    fit = BoostedTrees.fit

    def spy(self: BoostedTrees, features: Rows, *targets: Any) -> None:
        fits.append(len(features))
        fit(self, features, *targets)

    monkeypatch.setattr(BoostedTrees, "fit", spy)
    annealing(SECOND, others).ask(64)
    assert fits == ([candidates] if candidates == 500 else [])


def test_neither_kernels_that_never_worked_nor_the_kernel_itself_teach(taught: CommonCostModel) -> None:
    before = len(taught.training_set()[1])
    broken = annealing(FIRST, taught)
    drive(broken, objective_of(bowl(FIRST, 1.0, 7), fails=lambda candidate: True), 16, 32)
    assert len(taught.training_set()[1]) == before
    works = annealing(SECOND, taught)
    batch_of(works, bowl(SECOND, 1.0, 8), 32)
    assert len(taught.training_set()[1]) == before + 32
    assert len(taught.training_set(without=works._known)[1]) == before  # type: ignore[attr-defined]


def test_without_a_network_or_comparable_features_nothing_changes() -> None:
    runs = []
    for others, transfer in [(None, True), (None, False), (CommonCostModel(np.random.default_rng(0)), False)]:
        search = annealing(FIRST, others, 512, transfer=transfer, iterations=60)
        assert search.turn is None  # type: ignore[attr-defined]
        runs.append(drive(search, objective_of(bowl(FIRST, 1.0, 7), within=1e-3), 8, 160))
    assert runs[0] == runs[1] == runs[2]


def test_the_first_kernel_of_a_network_is_searched_as_if_it_were_alone() -> None:
    within, alone = (
        drive(annealing(FIRST, others, iterations=60), objective_of(bowl(FIRST, 1.0, 7), within=1e-3), 8, 160)
        for others in (CommonCostModel(np.random.default_rng(0)), None)
    )
    assert within == alone


def test_a_turn_is_a_kernel_s_whole_share() -> None:
    others = CommonCostModel(np.random.default_rng(0))
    assert annealing(FIRST, others, 301).turn == 150  # type: ignore[attr-defined]
    assert annealing(FIRST, others, 1).turn == 1  # type: ignore[attr-defined]
    assert annealing(FIRST, others).turn is None  # type: ignore[attr-defined]


def test_kernels_that_dpansor_explores_with_it_share_n() -> None:
    knowledge = Knowledge(features=loops(FIRST), network=Network(4, 1_000, CommonCostModel(np.random.default_rng(0))))
    options = {"explorer": "annealing", "explorer_options": (("preset", "paper"),), "N": 100}
    search = create("dpansor", [FIRST], np.random.default_rng(0), knowledge, **options)
    assert search.turn == 25  # type: ignore[attr-defined]


def test_the_same_measurements_of_all_kernels_give_the_same_candidates() -> None:
    seconds = bowl(SECOND, 1e-3, 8)
    runs = []
    for _ in range(2):
        others = CommonCostModel(np.random.default_rng(0))
        first_kernel(others)
        runs.append(batch_of(annealing(SECOND, others, iterations=60), seconds, 128))
    assert runs[0] == runs[1]


def test_a_resumed_search_learns_from_all_its_trials_and_asks_for_none_again(
    taught: CommonCostModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = bowl(SECOND, 1e-3, 8)
    before = batch_of(annealing(SECOND, taught, iterations=60), seconds, 70)
    fitted: list[int] = []
    fit = BoostedTrees.fit

    def spy(self: BoostedTrees, features: Rows, *targets: Any) -> None:
        fitted.append(len(features))
        fit(self, features, *targets)

    monkeypatch.setattr(BoostedTrees, "fit", spy)
    resumed = annealing(SECOND, CommonCostModel(np.random.default_rng(0)))
    resumed.tell(before)
    trials = batch_of(resumed, seconds)
    assert fitted[0] == 70
    assert len({trial.candidate for trial in [*before, *trials]}) == 134


def test_starts_come_before_what_the_base_plans(taught: CommonCostModel) -> None:
    starts = tuple(Candidate("second", (x,) * 4) for x in (1, 2, 3))
    knowledge = Knowledge(features=loops(SECOND), starts=starts, network=Network(2, None, taught))
    search = create("annealing", [SECOND], np.random.default_rng(0), knowledge, preset="paper")
    batch = [request.candidate for request in search.ask(100)]
    assert batch[:3] == list(starts)
    assert len(set(batch)) == 64


def test_the_paper_s_preset_has_it_and_the_default_records_as_before() -> None:
    assert options_with("annealing", {"preset": "paper"}).transfer  # type: ignore[attr-defined]
    assert "transfer" not in options_with("annealing", {}).recorded()


class TestPaperOfAKernelAlone(SearchConformance):
    def make(self, spaces: Sequence[Space], rng: np.random.Generator, knowledge: Knowledge | None = None) -> Search:
        return create("annealing", spaces, rng, knowledge, preset="paper", plan_size=16, chains=8, iterations=10)
