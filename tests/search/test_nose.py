"""NoSE against the steps of its paper, and landscapes whose optimum is known."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stormdrop.errors import SearchError
from stormdrop.search import Knowledge, create
from stormdrop.search.genetic import Breeder
from stormdrop.space import Categorical, Constraint, Ordinal, Space
from stormdrop.testing import drive, objective_of
from stormdrop.trial import Candidate, Trial

TEN = Space("ten", [Ordinal(name, list(range(10))) for name in "abcd"])


def bowl(candidate: Candidate) -> float:
    return 1e-3 * (1 + 0.05 * sum((x - t) ** 2 for x, t in zip(candidate.point, (8, 3, 9, 1), strict=False)))


Bred = tuple[dict[Candidate, float], list[Candidate]]


@pytest.fixture
def bred(monkeypatch: pytest.MonkeyPatch) -> list[Bred]:
    """The population that `Breeder.breed` receives and the offspring that it returns, one pair per generation."""
    calls: list[Bred] = []
    breed = Breeder.breed

    def spy(self: Breeder, population: dict[Candidate, float], n: int) -> list[Candidate]:
        offspring = breed(self, population, n)
        calls.append((population, offspring))
        return offspring

    monkeypatch.setattr(Breeder, "breed", spy)
    return calls


def f_hat(c: Candidate, measured: list[Trial], k: int = 9) -> float:
    """Equations 1 to 4 of the paper, on ranks counted from 1, within the candidate's sketch."""

    def d(trial: Trial) -> float:
        return sum(abs(x - z) / (x + z + 2) for x, z in zip(c.point, trial.candidate.point, strict=True))

    nearest = sorted((trial for trial in measured if trial.candidate.sketch == c.sketch), key=d)[:k]
    y = [1 / trial.median if trial.ok else 0.0 for trial in nearest]
    w = [1 / d(trial) for trial in nearest]
    return sum(a * b for a, b in zip(w, y, strict=True)) / sum(w)


def test_the_elite_is_what_the_papers_equations_estimate_best(bred: list[Bred]) -> None:
    """Some candidates fail, and two sketches of different dimensions compete for the elite."""
    other = Space("other", [Ordinal(name, list(range(20))) for name in "abc"])
    search = create("nose", [TEN, other], np.random.default_rng(0))
    objective = objective_of(bowl, fails=lambda c: c.point[0] == 2)
    trials = drive(search, objective, 7, 220)
    assert len(bred) == 4
    assert {c.sketch for c in bred[0][1]} == {"ten", "other"}
    for generation, (_, offspring) in enumerate(bred):
        measured = 100 + 30 * generation
        expected = sorted(f_hat(c, trials[:measured]) for c in offspring)[-30:]
        elite = [trial.candidate for trial in trials[measured : measured + 30]]
        assert set(elite) <= set(offspring)
        assert sorted(f_hat(c, trials[:measured]) for c in elite) == pytest.approx(expected)


def test_the_population_is_the_fittest_of_all_that_was_measured(bred: list[Bred]) -> None:
    """By step 5 the population is the N best so far, because a dropped member never returns. By step 1 M pairs mate."""
    search = create("nose", [TEN], np.random.default_rng(0))
    trials = drive(search, objective_of(bowl, fails=lambda c: c.point[0] == 2), 7, 220)
    for generation, (population, offspring) in enumerate(bred):
        speeds = [1 / trial.median if trial.ok else 0.0 for trial in trials[: 100 + 30 * generation]]
        assert sorted(population.values()) == sorted(speeds)[-100:]
        assert len(offspring) == len(set(offspring)) == 150


def test_the_sizes_of_the_paper_and_the_starts() -> None:
    starts = (Candidate("ten", (9, 9, 9, 9)), Candidate("ten", (0, 1, 2, 3)))
    search = create("nose", [TEN], np.random.default_rng(0), Knowledge(starts=starts))
    first = search.ask(1000)
    assert [request.candidate for request in first[:2]] == list(starts)
    assert len(first) == 100
    assert search.ask(1000) == []
    search.tell([Trial(r.candidate, objective_of(bowl)(r, 0)) for r in first])
    assert len(search.ask(1000)) == 30


def test_it_learns_to_avoid_failures() -> None:
    """Three quarters of the space fail, in one region, as in Figure 3 of the paper."""
    search = create("nose", [TEN], np.random.default_rng(0))
    trials = drive(search, objective_of(bowl, fails=lambda c: min(c.point[0], c.point[1]) < 5), 8, 400)
    assert np.mean([trial.ok for trial in trials[:100]]) < 0.4
    assert np.mean([trial.ok for trial in trials[200:]]) > 0.8


def test_every_point_is_measured_once_before_it_finishes() -> None:
    space = Space("s", [Ordinal("a", list(range(20))), Ordinal("b", list(range(15)))])
    search = create("nose", [space], np.random.default_rng(0), population=20)
    trials = drive(search, objective_of(bowl), 8, 1000)
    assert len(trials) == len({trial.candidate for trial in trials}) == 300
    assert search.finished


def test_a_bounded_archive_still_finds_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stormdrop.search.nose._REMEMBERED", 40)
    search = create("nose", [TEN], np.random.default_rng(0))
    assert min(trial.median for trial in drive(search, objective_of(bowl), 8, 400)) <= 1.05e-3


def entangled(candidate: Candidate) -> float:
    """Two knobs must agree, and a category decides which value of the third is best."""
    a, b, c, order = candidate.point
    return 1e-3 * (1 + 0.1 * abs(a - b) + 0.06 * abs(a + b - 8) + 0.1 * abs(c - (2, 6, 3, 5)[order]))


LANDSCAPES = [
    (Space("bowl", [Ordinal(n, list(range(12))) for n in "ab"] + [Ordinal("c", list(range(14)))]), bowl),
    (
        Space(
            "entangled",
            [Ordinal(n, list(range(8))) for n in "abc"] + [Categorical("order", list("wxyz"))],
            [Constraint(("a", "b"), lambda a, b: a + b <= 12, "registers")],
        ),
        entangled,
    ),
]


@pytest.mark.parametrize(("space", "seconds"), LANDSCAPES, ids=["bowl", "entangled"])
def test_it_is_near_the_optimum_of_two_thousand_points(space: Space, seconds: Callable[[Candidate], float]) -> None:
    """After 300 trials, on average of 8 seeds, it is within 2% of the optimum and at most a third as far as random."""

    def above(name: str) -> float:
        runs = [
            drive(create(name, [space], np.random.default_rng(seed)), objective_of(seconds), 8, 300)
            for seed in range(8)
        ]
        return float(np.mean([min(trial.median for trial in trials) / 1e-3 - 1 for trials in runs]))

    assert above("nose") <= min(0.02, above("random") / 3)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"population": 0}, "population must be at least 1, not 0"),
        ({"k": 0}, "k must be at least 1, not 0"),
        ({"repeats": 0}, "repeats must be at least 1, not 0"),
        ({"elite": 2.0}, "0 < elite <= offspring"),
        ({"elite": 0.0}, "0 < elite <= offspring"),
        ({"mutation": -0.1}, "mutation must be at least 0 and at most 1, not -0.1"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], line: str) -> None:
    with pytest.raises(SearchError, match=line):
        create("nose", [TEN], np.random.default_rng(0), **options)
