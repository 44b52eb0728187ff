"""storm: landscapes whose optimum is known, and each of its mechanisms."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.errors import SearchError
from stormdrop.search import Knowledge, create
from stormdrop.search.parts.proposer import log_expected_improvement
from stormdrop.search.storm import Storm
from stormdrop.space import Categorical, Constraint, Ordinal, Space
from stormdrop.testing import drive, objective_of
from stormdrop.trial import Candidate, Trial

SPACE = Space(
    "s",
    [
        Ordinal("x", list(range(16, 257, 16))),
        Ordinal("y", [1, 2, 4, 8, 16]),
        Ordinal("u", [0, 16, 64, 512]),
        Categorical("order", ["ij", "ji", "tiled"]),
    ],
    [Constraint(("x", "y"), lambda x, y: x * y <= 1024, "at most 1024 threads")],
)


def storm(*spaces: Space, seed: int = 0, knowledge: Knowledge | None = None, **options: object) -> Storm:
    search = create("storm", spaces or [SPACE], np.random.default_rng(seed), knowledge, **options)
    assert isinstance(search, Storm)
    return search


def bowl(candidate: Candidate) -> float:
    x, y, u, order = candidate.point
    return 1e-3 * (1 + 0.02 * (x - 6) ** 2 + 0.1 * (y - 2) ** 2 + 0.1 * (u - 1) ** 2 + 0.2 * (order != 1))


def aligned(candidate: Candidate) -> float:
    """Fast only if x is a multiple of 64, best at 192 (rank 11), and in one order, so that descents get stuck."""
    x, y, _, order = candidate.point
    value = 16 * (x + 1)
    return 1e-3 * (1 + 1.0 * (value % 64 != 0) + 0.03 * abs(x - 11) + 0.2 * abs(y - 2) + 0.5 * (order != 2))


def new(trials: Sequence[Trial]) -> int:
    return len({trial.candidate for trial in trials})


@pytest.mark.parametrize("n", [1, 8])
@pytest.mark.parametrize("landscape", [bowl, aligned])
def test_it_reaches_the_optimum_and_converges(landscape: object, n: int) -> None:
    """There are 900 points. Random search finds the optimum within 60 trials with a probability of 7%."""
    assert callable(landscape)
    optimum = min((Candidate("s", point) for point in SPACE.points()), key=landscape)
    for seed in range(4):
        search = storm(seed=seed)
        trials = drive(search, objective_of(landscape, within=0.003, seed=seed), n)
        assert search.best is not None
        assert landscape(search.best) <= 1.02 * landscape(optimum), seed
        assert search.converged
        assert new(trials) < 150


@pytest.mark.long
def test_alignments_find_what_ranks_alone_find_late() -> None:
    optimum = min((Candidate("s", point) for point in SPACE.points()), key=aligned)

    def effort(alignments: bool) -> float:
        efforts = []
        for seed in range(6):
            trials = drive(storm(seed=seed, alignments=alignments), objective_of(aligned), 1, budget=150)
            candidates = list(dict.fromkeys(trial.candidate for trial in trials))
            efforts.append(candidates.index(optimum) if optimum in candidates else 150)
        return float(np.mean(efforts))

    assert effort(True) < effort(False)


def test_the_opening_is_the_starts_the_origin_and_points_far_apart() -> None:
    starts = (Candidate("s", (3, 1, 1, 1)), Candidate("s", (9, 0, 2, 2)))
    search = storm(knowledge=Knowledge(starts=starts))
    opening = [request.candidate for request in search.ask(64)]
    assert opening[:3] == [*starts, Candidate("s", SPACE.origin)]
    assert len(opening) == 3 + search.options.opening
    far = [candidate.point for candidate in opening[3:]]
    assert {point[0] for point in far} >= {0, 14} or {point[0] for point in far} >= {0, 15}
    assert {point[3] for point in far} == {0, 1, 2}


def test_an_opening_is_chosen_from_what_the_prior_favours() -> None:
    def small_first(candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        return np.array([candidate.point[0] for candidate in candidates], dtype=np.float64)

    ranks = sorted(point[0] for point in SPACE.points() if point != SPACE.origin)
    for share in (0.1, 0.3):
        requests = storm(knowledge=Knowledge(prior=small_first, favoured=share)).ask(64)
        opening = [request.candidate.point[0] for request in requests if request.candidate.point != SPACE.origin]
        assert len(opening) == 10 and max(opening) <= ranks[int(share * len(ranks)) - 1]


def test_a_prior_chooses_the_opening() -> None:
    def small_first(candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        return np.array([float(candidate.point[0]) for candidate in candidates])

    with_prior = [r.candidate.point[0] for r in storm(knowledge=Knowledge(prior=small_first)).ask(64)]
    without = [r.candidate.point[0] for r in storm().ask(64)]
    assert max(with_prior) < max(without)


def test_the_best_is_measured_until_it_is_known() -> None:
    search = storm()
    trials = drive(search, objective_of(bowl, between=0.02, within=0.01), 8)
    times = Counter(trial.candidate for trial in trials)
    assert search.best is not None
    assert times[search.best] >= 5
    assert sum(times.values()) < 2.5 * len(times)


def test_one_bad_measurement_does_not_hide_the_optimum() -> None:
    """The first measurements of the optimum and of every fifth point are three times too slow."""
    optimum = min((Candidate("s", point) for point in SPACE.points()), key=bowl)
    first: Counter[Candidate] = Counter()

    def unlucky(candidate: Candidate) -> float:
        first[candidate] += 1
        bad = first[candidate] == 1 and (candidate == optimum or sum(candidate.point) % 5 == 0)
        return bowl(candidate) * (3.0 if bad else 1.0)

    search = storm()
    drive(search, objective_of(unlucky, within=0.003), 4)
    assert search.best is not None
    assert bowl(search.best) <= 1.05 * bowl(optimum)


def test_a_candidate_that_fails_later_is_given_up() -> None:
    measured: Counter[Candidate] = Counter()

    def fails(candidate: Candidate) -> bool:
        measured[candidate] += 1
        return candidate.point[0] == 6 and measured[candidate] > 1

    search = storm()
    trials = drive(search, objective_of(bowl, within=0.003, fails=fails), 4, budget=150)
    failed = {trial.candidate for trial in trials if not trial.ok}
    assert failed
    assert search.best not in failed
    assert all(measured[candidate] == 2 for candidate in failed)


def test_the_better_sketch_gets_the_trials() -> None:
    slow = Space("slow", SPACE.knobs, SPACE.constraints)

    def seconds(candidate: Candidate) -> float:
        return bowl(candidate) * (3.0 if candidate.sketch == "slow" else 1.0)

    search = storm(slow, SPACE)
    trials = drive(search, objective_of(seconds, within=0.003), 4, budget=200)
    share = Counter(trial.candidate.sketch for trial in trials)
    assert share["s"] > 3 * share["slow"]
    assert search.best is not None and search.best.sketch == "s"


def test_it_goes_on_if_most_candidates_fail() -> None:
    """One point in twenty works. Failures do not count as proposals that were not worth their trials."""
    rng = np.random.default_rng(3)
    works = {point for point in SPACE.points() if rng.random() < 0.05}
    best = min(bowl(Candidate("s", point)) for point in works)
    ends = []
    for seed in range(4):
        search = storm(seed=seed)
        trials = drive(search, objective_of(bowl, fails=lambda c: c.point not in works), 8, budget=300)
        tried = sum(trial.candidate.point in works for trial in trials)
        assert search.finished <= (tried > 10)
        ends.append(bowl(search.best) / best if search.best else 10.0)
    assert np.mean(ends) < 1.5


def test_while_nothing_works_all_sketches_are_tried_equally() -> None:
    working = Candidate("s", (7, 2, 1, 2))
    broken = Space("broken", SPACE.knobs, SPACE.constraints)
    search = storm(broken, SPACE)
    trials = drive(search, objective_of(bowl, fails=lambda c: c != working), 8, budget=10_000)
    counts = Counter(trial.candidate.sketch for trial in trials)
    assert search.best == working
    first = next(index for index, trial in enumerate(trials) if trial.candidate == working)
    before = Counter(trial.candidate.sketch for trial in trials[:first])
    assert abs(before["s"] - before["broken"]) <= 2
    assert counts["s"] + counts["broken"] <= 2 * SPACE.size + 5


def test_it_remembers_a_bounded_number_of_points() -> None:
    search = storm(memory=40, worth=0.0)
    trials = drive(search, objective_of(bowl, within=0.01), 8, budget=200)
    assert len(search._times) <= 40
    assert search.best is not None
    measured = min(bowl(trial.candidate) for trial in trials)
    assert bowl(search.best) <= 1.03 * measured
    assert search.best in search._times


def test_large_spaces_are_drawn_from_not_listed() -> None:
    """The space has 10^12 combinations, half of which are excluded."""
    knobs = [Ordinal(f"k{i}", [2**j for j in range(10)]) for i in range(12)]
    space = Space("large", knobs, [Constraint(("k0", "k1"), lambda a, b: a * b <= 512, "fits")])

    def seconds(candidate: Candidate) -> float:
        return 1e-3 * (1 + 0.05 * sum((x - 4) ** 2 for x in candidate.point))

    ends = []
    for seed in range(2):
        search = storm(space, seed=seed)
        drive(search, objective_of(seconds), 8, budget=150)
        assert search.best is not None
        ends.append(seconds(search.best))
    assert np.mean(ends) < 1.4e-3  # the best of 150 random points: 2.0e-3 or more


def test_the_expected_improvement_agrees_with_sampling_and_does_not_underflow() -> None:
    rng = np.random.default_rng(0)
    mean, deviation = np.array([-0.5, 0.0, 1.0]), np.array([1.0, 0.2, 0.8])
    sampled = np.maximum(-rng.normal(mean, deviation, (400_000, 3)), 0).mean(axis=0)
    assert np.exp(log_expected_improvement(mean, deviation, 0.0)) == pytest.approx(sampled, rel=0.02)
    far = log_expected_improvement(np.array([4.99, 5.01, 40.0]), np.ones(3), 0.0)
    assert far[0] - far[1] == pytest.approx(5 * 0.02, rel=1.2)
    assert far[0] > far[1] > far[2] > -np.inf


@pytest.mark.parametrize(
    "options",
    [
        {"opening": 0},
        {"soft": 0.0},
        {"soft": float("nan")},
        {"length": float("inf")},
        {"worth": 1.0},
        {"memory": 5},
        {"floor": 1.0},
        {"length": 0.0},
    ],
)
def test_options_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(SearchError, match=r"storm's .* must be"):
        storm(**options)
