"""Dynamic gradient descent: known optima, and each of its mechanisms."""

from collections.abc import Callable, Sequence
from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.errors import SearchError
from stormdrop.search import Knowledge, Steps, create
from stormdrop.search.gradient import Gradient
from stormdrop.search.parts.cost_model import CostModel
from stormdrop.space import Categorical, Constraint, Ordinal, Space, Tile
from stormdrop.surrogate.boosted import BoostedTrees
from stormdrop.testing import drive, objective_of
from stormdrop.trial import Candidate, Measurement, Status, Trial

PLANE = Space("plane", [Ordinal(name, list(range(9))) for name in "xy"])
CUBE = Space("cube", [Ordinal(name, list(range(9))) for name in "xyz"])
HUGE = Space("huge", [Ordinal(name, list(range(10))) for name in "abcdefgh"])
BOWL = Space("bowl", [Ordinal(name, list(range(size))) for name, size in zip("abcd", (8, 8, 8, 4), strict=True)])
INTERACTING = Space(
    "interacting",
    [Tile("t", 32, 3), Ordinal("a", list(range(8))), Ordinal("b", list(range(8))), Categorical("c", list("xy"))],
    [Constraint(("t", "c"), lambda t, c: t[1] * t[2] <= 16 or c == "x", "registers")],
)

Seconds = Callable[[Candidate], float | None]
"""The seconds of a candidate, None for a failure."""


def bowl(candidate: Candidate) -> float:
    """1 ms at one of 2,048 points, and at least 8% more at the others."""
    return 1e-3 * (1 + 0.08 * sum((x - t) ** 2 for x, t in zip(candidate.point, (6, 2, 5, 1), strict=True)))


def interacting(candidate: Candidate) -> float:
    """1 ms at two of 2,304 points, at least 30% more at the others. The best value of a knob depends on the others."""
    x, y, a, b, c = candidate.point
    off = 0.5 * abs(x + y - 3) + 0.3 * abs(x - y - 1 + 2 * c) + 0.4 * abs(a - b - 1)
    return 1e-3 * (1 + off + 0.15 * abs(a + b - 9 - 2 * c * (x - 1)))


def gradient(*spaces: Space, seed: int = 0, starts: Sequence[Candidate] = (), **options: Any) -> Gradient:
    search = create("gradient", spaces, np.random.default_rng(seed), Knowledge(starts=tuple(starts)), **options)
    assert isinstance(search, Gradient)
    return search


def descent(
    start: tuple[int, ...], seconds: Seconds, n: int, space: Space = PLANE, **options: Any
) -> list[list[tuple[int, ...]]]:
    """The points of the first n batches after the start, which is the only candidate of the first model."""
    steps = gradient(space, starts=[Candidate(space.name, start)], **{"samples": 1, **options}).steps()
    batches, trials = [], None
    for _ in range(n + 1):
        requests = next(steps) if trials is None else steps.send(trials)
        batches.append([request.candidate.point for request in requests])
        trials = [Trial(request.candidate, measured(seconds(request.candidate))) for request in requests]
    return batches[1:]


def measured(seconds: float | None) -> Measurement:
    return Measurement(Status.RUNTIME, error="failed") if seconds is None else Measurement(Status.OK, (seconds,))


def score_by(monkeypatch: pytest.MonkeyPatch, score: Callable[[Candidate], float]) -> list[list[Candidate]]:
    """Replace the cost model by a function. Returns the candidates that it scores, one list per call."""
    calls: list[list[Candidate]] = []

    def scores(self: CostModel, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        calls.append(list(candidates))
        return np.array([score(candidate) for candidate in candidates])

    monkeypatch.setattr(CostModel, "scores", scores)
    monkeypatch.setattr(CostModel, "train", lambda self: None)
    return calls


@pytest.mark.parametrize(("space", "seconds"), [(BOWL, bowl), (INTERACTING, interacting)], ids=["bowl", "interacting"])
@pytest.mark.long
def test_it_finds_known_optima_that_random_search_misses(space: Space, seconds: Callable[[Candidate], float]) -> None:
    """There are 200 trials, which is a tenth of the points, with noise of 0.5%."""

    def ends(name: str) -> list[float]:
        runs = []
        for seed in range(5):
            trials = drive(
                create(name, [space], np.random.default_rng(seed)),
                objective_of(seconds, within=0.005, seed=seed),
                8,
                200,
            )
            runs.append(min(seconds(trial.candidate) for trial in trials))
        return runs

    assert max(ends("gradient")) < 1.01e-3
    assert np.mean(ends("random")) > 1.05e-3


def test_a_descent_measures_windows_of_three_and_moves_to_the_best_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model knows the truth: faster along x, half as much along y. A descent never returns to a point it left."""
    score_by(monkeypatch, lambda c: 1.0 + 2 * c.point[0] + c.point[1])
    batches = descent((2, 2), lambda c: 1 / (1.0 + 2 * c.point[0] + c.point[1]), 3)
    assert batches == [[(3, 2), (2, 3), (2, 1)], [(4, 2), (3, 3), (3, 1)], [(5, 2), (4, 3), (4, 1)]]


def test_the_window_slides_down_the_ranking_until_one_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is wrong: the faster neighbour is in the last window, which holds what remains."""
    score_by(monkeypatch, lambda c: 10.0 - c.point[0])
    batches = descent((2, 2), lambda c: 1.0 - 0.1 * c.point[0], 3)
    assert batches == [[(1, 2), (2, 3), (2, 1)], [(3, 2)], [(3, 3), (3, 1), (4, 2)]]


@pytest.mark.parametrize(("share", "measures"), [(0.59, 0), (0.61, 4)])
def test_candidates_below_a_share_of_the_current_score_are_not_measured(
    monkeypatch: pytest.MonkeyPatch, share: float, measures: int
) -> None:
    """The first early stop. If no candidate passes it, the next request is for a random point."""
    score_by(monkeypatch, lambda c: 1.0 if c.point == (4, 4) else share)
    batches = descent((4, 4), lambda c: 1.0 if c.point == (4, 4) else 1.1, 4, hops=1)
    near = [[point for point in batch if point in PLANE.neighbours((4, 4))] for batch in batches[:2]]
    assert sum(map(len, near)) == measures
    if not measures:
        assert len(batches[0]) == 1


@pytest.mark.parametrize(("neighbours", "windows"), [(0.59, 1), (0.61, 2)])
def test_a_window_below_a_share_of_the_best_throughput_is_the_last(
    monkeypatch: pytest.MonkeyPatch, neighbours: float, windows: int
) -> None:
    """The second early stop. Six neighbours make two windows."""
    score_by(monkeypatch, lambda c: 1.0)
    batches = descent((4, 4, 4), lambda c: 1.0 if c.point == (4, 4, 4) else 1 / neighbours, 4, CUBE, hops=1)
    around = CUBE.neighbours((4, 4, 4))
    assert [len(batch) for batch in batches[: windows + 1]] == [3] * windows + [1]
    assert all(set(batch) <= set(around) for batch in batches[:windows])
    assert batches[windows][0] not in around


def test_more_hops_are_tried_only_if_fewer_find_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a diagonal valley, only a step in both knobs is faster."""
    score_by(monkeypatch, lambda c: 1.0)

    def valley(candidate: Candidate) -> float:
        x, y = candidate.point
        return 1.0 + abs(x - y) - 0.05 * (x + y)

    near = PLANE.neighbours((4, 4))
    batches = descent((4, 4), valley, 8, measure_threshold=0.0)
    assert sorted(batches[0] + batches[1]) == sorted(near)
    moved = next(i for i, batch in enumerate(batches) if (5, 5) in batch)
    assert {p for batch in batches[2 : moved + 1] for p in batch} <= {*PLANE.hops((4, 4), 2)} - {*near}
    assert set(batches[moved + 1]) <= set(PLANE.neighbours((5, 5)))
    batches = descent((4, 4), valley, 3, measure_threshold=0.0, hops=1)
    assert sorted(batches[0] + batches[1]) == sorted(near)
    assert len(batches[2]) == 1  # a new origin


def test_descents_begin_at_the_five_best_and_then_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every trial is slower than all before it, so the first are the best, and no descent leaves its origin."""
    origins: list[Candidate] = []
    descend = Gradient._descend

    def spy(self: Gradient, origin: Candidate) -> Steps:
        origins.append(origin)
        return descend(self, origin)

    monkeypatch.setattr(Gradient, "_descend", spy)
    score_by(monkeypatch, lambda c: 1.0)
    order = count()
    trials = drive(gradient(HUGE), objective_of(lambda c: 1e-3 * 2.0 ** next(order)), 1, 200)
    measured_candidates = [trial.candidate for trial in trials]
    assert origins[:5] == measured_candidates[:5]
    assert [measured_candidates.index(origin) for origin in origins[5:8]] == [
        109,
        119,
        129,
    ]  # a window of three for each n


def test_known_points_compete_but_are_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A faster neighbour that is known takes its place in the window, and the descent moves to it."""
    score_by(monkeypatch, lambda c: 1.0 + c.point[0])
    slow, fast = Candidate("plane", (2, 2)), Candidate("plane", (3, 2))
    search = gradient(PLANE)
    search._model.record([Trial(slow, measured(1.0)), Trial(fast, measured(0.9))])
    steps = search._descend(slow)
    requests = next(steps)
    assert [request.candidate.point for request in requests] == [(2, 3), (2, 1)]
    requests = steps.send([Trial(request.candidate, measured(1.1)) for request in requests])
    assert [request.candidate.point for request in requests] == [(4, 2), (3, 3), (3, 1)]


def test_a_descent_does_not_follow_an_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two origins are neighbours, all else is slow: each has its window of three, then a descent begins elsewhere."""
    score_by(monkeypatch, lambda c: 1.0 - 0.1 * abs(c.point[0] - 4))
    fast, slow = Candidate("cube", (4, 4, 4)), Candidate("cube", (4, 5, 4))
    steps = gradient(CUBE, starts=[fast, slow], samples=2, hops=1).steps()
    batches = [next(steps)]
    for _ in range(3):
        candidates = [request.candidate for request in batches[-1]]
        times = {fast: 1.0, slow: 1.1}
        batches.append(steps.send([Trial(candidate, measured(times.get(candidate, 2.0))) for candidate in candidates]))
    assert [len(batch) for batch in batches] == [2, 3, 3, 1]
    for origin, batch in zip((fast, slow), batches[1:3], strict=True):
        assert {request.candidate.point for request in batch} <= set(CUBE.neighbours(origin.point))


def test_failures_are_never_moved_to() -> None:
    rng = np.random.default_rng(5)
    bad = {point for point in BOWL.points() if rng.random() < 0.3}
    search = gradient(BOWL)
    drive(search, objective_of(bowl, fails=lambda c: c.point in bad), 8, 200)
    assert len(search._left) > 5
    assert not {candidate.point for candidate in search._left} & bad


def test_it_waits_for_something_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first 70 trials fail, so until then there is no model and no descent."""
    fitted: list[int] = []
    monkeypatch.setattr(BoostedTrees, "fit", lambda self, features, targets: fitted.append(len(targets)))
    monkeypatch.setattr(BoostedTrees, "predict", lambda self, features: np.ones(len(features)))
    order = count()
    drive(gradient(CUBE), objective_of(lambda c: 1.0, fails=lambda c: next(order) < 70), 4, 80)
    assert fitted[0] == 71


def test_the_model_is_trained_after_windows_but_not_more_often_than_the_trials_grow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fitted: list[int] = []
    fit = BoostedTrees.fit

    def spy(self: BoostedTrees, features: Sequence[NDArray[np.float64]], targets: NDArray[np.float64]) -> None:
        fitted.append(len(targets))
        fit(self, features, targets)

    monkeypatch.setattr(BoostedTrees, "fit", spy)

    def rough(candidate: Candidate) -> float:
        return 1e-3 * float(np.exp(0.3 * sum(abs(x - 4) for x in candidate.point)))

    drive(gradient(HUGE, hops=1), objective_of(rough, within=0.01), 3, 600)
    growth = [b / a for a, b in pairwise(fitted)]
    assert fitted[0] == 64
    assert fitted[1] == 67
    assert min(growth) >= 1.02
    assert np.median(growth) < 1.06


def test_a_descent_stays_in_its_sketch_and_the_first_batch_is_of_all() -> None:
    twin = Space("twin", [Ordinal(name, list(range(10))) for name in "abcdefgh"])
    target = np.arange(8)

    def seconds(candidate: Candidate) -> float:
        return (1e-3 if candidate.sketch == "huge" else 2e-3) * (1 + float(np.abs(candidate.point - target).sum()))

    trials = drive(gradient(HUGE, twin, hops=1), objective_of(seconds), 8, 120)
    sketches = [trial.candidate.sketch for trial in trials]
    assert 15 < sketches[:64].count("twin") < 49
    assert sketches[64:100].count("huge") >= 33  # the best of the first batch is of the faster sketch


def test_a_round_scores_at_most_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """It scores the current point with its sixteen neighbours, and with a hundred of the points further away."""
    calls = score_by(monkeypatch, lambda c: 1.0)
    descent((5,) * 8, lambda c: 1.0 if c.point == (5,) * 8 else 1.5, 120, HUGE, candidates=100)
    sizes = [len(call) for call in calls]
    assert sizes[0] == 17
    assert max(sizes) == 101
    assert all(len(set(call)) == len(call) for call in calls)


def test_all_within_three_hops_are_scored_if_they_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = score_by(monkeypatch, lambda c: 1.0 if c.point == (4, 4, 4) else 0.5)
    descent((4, 4, 4), lambda c: 1.0, 1, CUBE)
    for hops, call in enumerate(calls[:3], start=1):
        assert {candidate.point for candidate in call[1:]} == set(CUBE.hops((4, 4, 4), hops))


@pytest.mark.parametrize("cut", [64, 65, 90, 149])
def test_a_descent_is_resumed_in_the_middle(cut: int) -> None:
    objective = objective_of(interacting, within=0.01)
    trials = drive(gradient(INTERACTING), objective, 2, 150)
    assert drive(gradient(INTERACTING), objective, 2, 150 - cut, trials[:cut]) == trials[cut:]


def test_everything_is_measured_once_in_the_end() -> None:
    small = Space("small", [Ordinal(name, list(range(5))) for name in "xyz"])
    search = gradient(PLANE, small, samples=10)
    trials = drive(search, objective_of(lambda c: 1e-3 * (1 + sum(c.point))), 7)
    assert len(trials) == len({trial.candidate for trial in trials}) == 81 + 125
    assert search.finished
    assert not search.converged


@pytest.mark.parametrize(
    "options",
    [{"samples": 0}, {"hops": 0}, {"window": 0}, {"candidates": 0}, {"score_threshold": 1.1}, {"origins": -1}],
)
def test_nonsense_is_refused_in_one_line(options: dict[str, Any]) -> None:
    with pytest.raises(SearchError) as refused:
        gradient(PLANE, **options)
    assert next(iter(options)) in str(refused.value)
    assert "\n" not in str(refused.value)
