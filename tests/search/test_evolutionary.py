"""Ansor's evolutionary search: known optima, and each of its mechanisms."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.errors import SearchError
from stormdrop.search import Knowledge, create
from stormdrop.search.evolutionary import Evolutionary, crossed
from stormdrop.search.parts.cost_model import CostModel
from stormdrop.space import Categorical, Constraint, Ordinal, Space, Tile
from stormdrop.surrogate.boosted import BoostedTrees
from stormdrop.testing import drive, objective_of
from stormdrop.trial import Candidate, Trial

HUGE = Space("huge", [Ordinal(name, list(range(10))) for name in "abcdefgh"])
BOWL = Space("bowl", [Ordinal(name, list(range(size))) for name, size in zip("abcd", (8, 8, 8, 4), strict=True)])
INTERACTING = Space(
    "interacting",
    [Tile("t", 32, 3), Ordinal("a", list(range(8))), Ordinal("b", list(range(8))), Categorical("c", list("xy"))],
    [Constraint(("t", "c"), lambda t, c: t[1] * t[2] <= 16 or c == "x", "registers")],
)


def bowl(candidate: Candidate) -> float:
    """1 ms at one of 2,048 points, and at least 8% more at the others."""
    return 1e-3 * (1 + 0.08 * sum((x - t) ** 2 for x, t in zip(candidate.point, (6, 2, 5, 1), strict=True)))


def interacting(candidate: Candidate) -> float:
    """1 ms at two of 2,304 points, at least 30% more at the others. The best value of a knob depends on the others."""
    x, y, a, b, c = candidate.point
    off = 0.5 * abs(x + y - 3) + 0.3 * abs(x - y - 1 + 2 * c) + 0.4 * abs(a - b - 1)
    return 1e-3 * (1 + off + 0.15 * abs(a + b - 9 - 2 * c * (x - 1)))


def flat(candidate: Candidate) -> float:
    return 1e-3


def search(*spaces: Space, seed: int = 0, knowledge: Knowledge | None = None, **options: object) -> Evolutionary:
    created = create("evolutionary", spaces or [HUGE], np.random.default_rng(seed), knowledge, **options)
    assert isinstance(created, Evolutionary)
    return created


def score_by(monkeypatch: pytest.MonkeyPatch, score: Callable[[Candidate], float]) -> list[list[Candidate]]:
    """Replace the cost model by a function. Returns the candidates that it scores, one list per call."""
    calls: list[list[Candidate]] = []

    def scores(self: CostModel, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        calls.append(list(candidates))
        return np.array([score(candidate) for candidate in candidates])

    monkeypatch.setattr(CostModel, "scores", scores)
    monkeypatch.setattr(CostModel, "train", lambda self: None)
    return calls


def batches(trials: Sequence[Trial], size: int = 64) -> list[list[Candidate]]:
    """The batches after the first one, which is random."""
    return [[trial.candidate for trial in trials[i : i + size]] for i in range(size, len(trials), size)]


@pytest.mark.parametrize(
    ("space", "seconds", "options"),
    [(BOWL, bowl, {}), (INTERACTING, interacting, {"population": 256})],
    ids=["bowl, all scored", "interacting, bred"],
)
def test_it_finds_known_optima_that_random_search_misses(
    space: Space, seconds: Callable[[Candidate], float], options: dict[str, int]
) -> None:
    """There are 200 trials, which is a tenth of the points, with noise of 0.5%."""

    def ends(name: str, **options: Any) -> list[float]:
        runs = []
        for seed in range(5):
            compared = create(name, [space], np.random.default_rng(seed), **options)
            trials = drive(compared, objective_of(seconds, within=0.005, seed=seed), 8, 200)
            runs.append(min(seconds(trial.candidate) for trial in trials))
        return runs

    assert max(ends("evolutionary", **options)) < 1.01e-3
    assert np.mean(ends("random")) > 1.05e-3


def test_batches_of_64_hold_three_random_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model prefers one value of a knob: 61 of a batch have it, and a tenth of the three others by chance."""
    score_by(monkeypatch, lambda candidate: float(candidate.point[0] == 0))
    trials = drive(search(population=256), objective_of(flat), 8, 6 * 64)
    others = [sum(candidate.point[0] != 0 for candidate in batch) for batch in batches(trials)]
    assert len(others) == 5
    assert max(others) == 3
    assert sum(others) > 8
    trials = drive(search(population=256, epsilon=0.0), objective_of(flat), 8, 2 * 64)
    assert all(candidate.point[0] == 0 for candidate in batches(trials)[0])


def test_the_model_is_trained_anew_with_everything_per_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = []
    fit = BoostedTrees.fit

    def spy(self: BoostedTrees, features: Sequence[NDArray[np.float64]], targets: NDArray[np.float64]) -> None:
        fitted.append((len(features), features[0].shape[1], int((targets == 0).sum())))
        fit(self, features, targets)

    monkeypatch.setattr(BoostedTrees, "fit", spy)

    def seven(candidates: Sequence[Candidate]) -> list[NDArray[np.float64]]:
        return [np.array([candidate.point[:7]], dtype=float) for candidate in candidates]

    objective = objective_of(flat, fails=lambda candidate: candidate.point[0] == 1)
    trials = drive(search(population=64, knowledge=Knowledge(seven)), objective, 8, 4 * 64)
    failed = np.cumsum([not trial.ok for trial in trials]).tolist()
    assert fitted == [(n, 7, failed[n - 1]) for n in (64, 128, 192)]


def test_no_model_until_something_works(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = score_by(monkeypatch, lambda candidate: 1.0)
    order = count()
    evolutionary, objective = search(population=64), objective_of(flat, fails=lambda candidate: next(order) < 100)
    drive(evolutionary, objective, 8, 128)
    assert not calls
    drive(evolutionary, objective, 8, 1)
    assert calls


def test_a_round_scores_no_more_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five populations and a fifth of one are scored, each candidate once."""
    calls = score_by(monkeypatch, lambda candidate: 1.0)
    drive(search(population=200), objective_of(flat), 8, 65)
    scored = [candidate for call in calls for candidate in call]
    assert len(calls) == 5
    assert len(scored) == len(set(scored))
    assert 700 < len(scored) <= 5 * 200 + 40


def test_the_best_measured_seed_the_population(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = score_by(monkeypatch, lambda candidate: 1.0)
    objective = objective_of(lambda c: 1e-3 * (1 + sum(c.point)), fails=lambda c: c.point[0] == 1)
    trials = drive(search(population=100, measured=0.2), objective, 8, 65)[:64]
    best = sorted((trial for trial in trials if trial.ok), key=lambda trial: trial.median)
    first = calls[0]
    assert {trial.candidate for trial in best[:18]} <= set(first)
    assert sum(trial.candidate in first for trial in trials) == 20


def test_parents_are_picked_by_score_and_change_one_knob() -> None:
    evolutionary = search(population=1_000, mutation=1.0)
    good, fair, none = (Candidate("huge", (value,) * 8) for value in (2, 5, 9))
    offspring = evolutionary._bred([good, fair, none], [0.8, 0.2, -1.0])
    parents = Counter(
        parent
        for child in offspring
        for parent in (good, fair, none)
        if sum(x != y for x, y in zip(child.point, parent.point, strict=True)) == 1
    )
    assert parents.total() == 1_000
    assert 730 < parents[good] < 870  # 800 expected, five standard deviations
    assert not parents[none]


def test_failures_are_no_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model prefers candidates that fail, and a single member of the population did not fail."""
    calls = score_by(monkeypatch, lambda candidate: 1.0 if candidate.point[0] == 1 else 0.01)
    starts = (
        Candidate("huge", (5,) * 8),
        *(Candidate("huge", (1, *point)) for point in np.ndindex((2,) * 5 + (1,) * 2)),
    )
    monkeypatch.setattr(Evolutionary, "_sampled", lambda self, n: list(starts))
    evolutionary = search(knowledge=Knowledge(starts=starts), batch=33, population=50, generations=1, mutation=1.0)
    drive(evolutionary, objective_of(flat, fails=lambda candidate: candidate.point[0] == 1), 8, 34)
    assert set(calls[0]) == set(starts)
    assert all(sum(x != 5 for x in candidate.point) == 1 for candidate in calls[1])


def test_a_crossing_takes_each_knob_from_either_parent() -> None:
    rng = np.random.default_rng(0)
    first = INTERACTING.point({"t": (2, 4, 4), "a": 1, "b": 1, "c": "x"})
    second = INTERACTING.point({"t": (1, 16, 2), "a": 5, "b": 6, "c": "x"})
    children = {crossed(INTERACTING, first, second, rng) for _ in range(200)}
    assert children == {(*t, a, b, 0) for t in (first[:2], second[:2]) for a in (1, 5) for b in (1, 6)}
    low = INTERACTING.point({"t": (2, 4, 4), "a": 1, "b": 1, "c": "y"})
    assert crossed(INTERACTING, low, low, rng) == low
    assert None in {
        crossed(INTERACTING, low, second, rng) for _ in range(50)
    }  # the tile of `second` is not allowed with "y"


def test_a_crossing_stays_within_a_sketch() -> None:
    """Without mutation, an offspring has every knob from a parent of its own sketch."""
    other = Space("other", [Ordinal(name, list(range(10))) for name in "xyz"])
    evolutionary = search(HUGE, other, population=500, mutation=0.0)
    parents = [Candidate("huge", (1,) * 8), Candidate("huge", (2,) * 8), Candidate("other", (3,) * 3)]
    offspring = evolutionary._bred(parents, [1.0, 1.0, 1.0])
    assert {child.sketch for child in offspring} == {"huge", "other"}
    assert all(set(child.point) <= ({1, 2} if child.sketch == "huge" else {3}) for child in offspring)
    assert len({child.point for child in offspring}) > 100


def test_sketches_are_sampled_alike() -> None:
    """Their sizes do not matter, and a sketch that is exhausted leaves the rest to the others."""
    small = Space("small", [Ordinal("a", list(range(40)))])
    tiny = Space("tiny", [Ordinal("a", [1, 2])])
    trials = drive(search(HUGE, small, tiny, batch=60), objective_of(flat), 8, 60)
    counts = Counter(trial.candidate.sketch for trial in trials)
    assert counts["tiny"] == 2
    assert 14 < counts["small"] < 40


def test_everything_is_measured_once_in_the_end() -> None:
    """The population is smaller than the space, so it is not simply enumerated."""
    space = Space("s", [Ordinal(name, list(range(8))) for name in "abc"])
    evolutionary = search(space, population=32, batch=48)
    trials = drive(evolutionary, objective_of(bowl_of_three), 7)
    assert len(trials) == len({trial.candidate for trial in trials}) == 512
    assert evolutionary.finished
    assert not evolutionary.converged


def bowl_of_three(candidate: Candidate) -> float:
    return 1e-3 * (1 + sum((x - 3) ** 2 for x in candidate.point))


def test_starts_lead_the_first_batch_and_more_than_a_batch_are_measured() -> None:
    starts = tuple(Candidate("huge", (0,) * 6 + point) for point in np.ndindex(10, 10))
    trials = drive(search(knowledge=Knowledge(starts=starts), population=64), objective_of(flat), 8, 110)
    assert [trial.candidate for trial in trials[:100]] == list(starts)
    trials = drive(search(knowledge=Knowledge(starts=starts[:3]), population=64), objective_of(flat), 8, 64)
    assert [trial.candidate for trial in trials[:3]] == list(starts[:3])


@pytest.mark.parametrize("cut", [70, 128, 150])
def test_a_bred_batch_is_resumed_in_the_middle(cut: int) -> None:
    objective = objective_of(lambda c: 1e-3 * (1 + sum(c.point)), within=0.01)
    trials = drive(search(population=64), objective, 8, 192)
    assert drive(search(population=64), objective, 8, 192 - cut, trials[:cut]) == trials[cut:]


@pytest.mark.parametrize(
    "options",
    [{"batch": 0}, {"population": 0}, {"generations": -1}, {"repeats": 0}, {"epsilon": 1.5}, {"mutation": -0.1}],
)
def test_nonsense_is_refused_in_one_line(options: dict[str, Any]) -> None:
    with pytest.raises(SearchError) as refused:
        search(**options)
    assert next(iter(options)) in str(refused.value)
    assert "\n" not in str(refused.value)
