"""AutoTVM's genetic algorithm: its operators, and landscapes whose optimum is known."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stormdrop.errors import SearchError
from stormdrop.search import Knowledge, create
from stormdrop.search.genetic import Breeder
from stormdrop.space import Categorical, Constraint, Ordinal, Space, Tile
from stormdrop.testing import drive, objective_of
from stormdrop.trial import Candidate

TEN = Space("ten", [Ordinal(name, list(range(10))) for name in "abcd"])


def ten(*point: int) -> Candidate:
    return Candidate("ten", point)


def children(population: dict[Candidate, float], mutation: float, *spaces: Space) -> list[Candidate]:
    """For each of 400 seeds the first child that it breeds."""
    bred = [Breeder(spaces or [TEN], np.random.default_rng(seed), mutation).breed(population, 1) for seed in range(400)]
    assert all(len(offspring) == 1 for offspring in bred)
    return [child for (child,) in bred]


def test_crossover_has_one_point_and_all_points_are_equally_likely() -> None:
    counts = Counter(child.point for child in children({ten(0, 0, 0, 0): 1.0, ten(9, 9, 9, 9): 1.0}, 0.0))
    mixed = [(0, 9, 9, 9), (0, 0, 9, 9), (0, 0, 0, 9), (9, 0, 0, 0), (9, 9, 0, 0), (9, 9, 9, 0)]
    assert set(counts) == {(0, 0, 0, 0), (9, 9, 9, 9), *mixed}
    assert all(25 <= count <= 80 for count in counts.values())  # 50 expected


def test_crossover_keeps_a_tile_in_one_piece() -> None:
    space = Space("tiles", [Tile("t", 64, 3), Tile("u", 64, 3)])
    first, second = ({"t": t, "u": u} for t, u in [((64, 1, 1), (1, 64, 1)), ((2, 4, 8), (8, 4, 2))])
    population = {Candidate("tiles", space.point(config)): 1.0 for config in (first, second)}
    for child in children(population, 0.0, space):
        config = space.config(child.point)
        assert all(config[name] in (first[name], second[name]) for name in "tu")


def test_mutation_gives_each_knob_another_value_with_its_probability() -> None:
    parent = ten(4, 4, 4, 4)
    assert all(4 not in child.point for child in children({parent: 1.0}, 1.0))
    changed = [sum(x != 4 for x in child.point) for child in children({parent: 1.0}, 0.1)]
    assert 0.25 < np.mean(changed) < 0.55  # 0.4 expected
    assert max(changed) > 1


def test_the_roulette_follows_fitness_and_failures_have_no_share() -> None:
    population = {ten(1, 1, 1, 1): 3.0, ten(2, 2, 2, 2): 1.0, ten(3, 3, 3, 3): 0.0}
    genes = Counter(child.point[3] for child in children(population, 0.0))
    assert set(genes) == {1, 2}
    fast = {ten(1, 1, 1, 1): 8.0, **{ten(2, 2, 2, x): 1.0 for x in range(8)}}
    assert 160 < sum(1 in child.point[3:] or 1 in child.point[:1] for child in children(fast, 0.0)) < 400
    assert {child.point[0] for child in children(dict.fromkeys(population, 0.0), 0.0)} == {1, 2, 3}


def test_the_share_of_a_sketch_is_its_share_of_the_fitness() -> None:
    """Crossover stays within a sketch, even if a sketch has a single member."""
    other = Space("other", [Ordinal("a", list(range(10))), Categorical("b", list("xyz"))])
    population = {ten(0, 0, 0, 0): 1.0, ten(9, 9, 9, 9): 1.0, Candidate("other", (5, 1)): 6.0}
    share = np.mean([child.sketch == "other" for child in children(population, 0.3, TEN, other)])
    assert 0.68 < share < 0.82


def test_offspring_are_new_different_and_inside() -> None:
    space = Space("tight", TEN.knobs, [Constraint(tuple("abcd"), lambda *v: sum(v) % 7 == 0, "a seventh of them")])
    points = list(space.points())
    breeder = Breeder([space], np.random.default_rng(0), 0.1)
    population = {Candidate("tight", point): 1.0 for point in points[::50]}
    breeder.fill(population, len(population))
    offspring = breeder.breed(population, 200)
    assert len(offspring) == len(set(offspring)) == 200
    assert not population.keys() & set(offspring)
    assert all(space.contains(child.point) for child in offspring)


def test_a_known_offspring_is_mutated_further_by_single_knobs() -> None:
    parent = ten(4, 4, 4, 4)
    breeder = Breeder([TEN], np.random.default_rng(0), 0.0)
    breeder.fill([parent], 1)
    offspring = breeder.breed({parent: 1.0}, 20)
    assert len(offspring) == 20
    assert all(sum(x != 4 for x in child.point) in (1, 2) for child in offspring)


def test_generations_are_full_and_begin_with_the_starts() -> None:
    starts = (ten(9, 9, 9, 9), ten(0, 1, 2, 3), ten(9, 9, 9, 9))
    search = create("genetic", [TEN], np.random.default_rng(0), Knowledge(starts=starts))
    assert [request.candidate for request in search.ask(2)] == list(starts[:2])
    assert len(search.ask(1000)) == 98
    assert search.ask(1000) == []
    assert not search.finished


def test_the_parents_are_the_last_generation_and_the_best_three_before(monkeypatch: pytest.MonkeyPatch) -> None:
    populations: list[dict[Candidate, float]] = []
    breed = Breeder.breed

    def spy(self: Breeder, population: dict[Candidate, float], n: int) -> list[Candidate]:
        populations.append(population)
        return breed(self, population, n)

    monkeypatch.setattr(Breeder, "breed", spy)
    search = create("genetic", [TEN], np.random.default_rng(0), population=20)
    seconds = {t.candidate: t.median for t in drive(search, objective_of(lambda c: 1.0 + sum(c.point)), 7, 100)}
    measured = list(seconds)
    assert len(populations) == 5 - 1  # bred for each generation but the first
    for generation, population in enumerate(populations):
        before, last = measured[: 20 * generation], measured[20 * generation : 20 * (generation + 1)]
        elite = sorted(before, key=seconds.__getitem__)[:3]
        assert sorted(seconds[c] for c in population.keys() - set(last)) == [seconds[c] for c in elite]
        assert population == {c: 1 / seconds[c] for c in population}
        assert set(last) < set(population) or generation == 0


def test_every_point_is_measured_once_before_it_finishes() -> None:
    space = Space("s", [Ordinal("a", list(range(20))), Ordinal("b", list(range(15)))])
    search = create("genetic", [space], np.random.default_rng(0), population=20)
    trials = drive(search, objective_of(lambda c: 1.0 + sum(c.point)), 8, 1000)
    assert len(trials) == len({trial.candidate for trial in trials}) == 300
    assert search.finished


def bowl(candidate: Candidate) -> float:
    return 1e-3 * (1 + 0.05 * sum((x - t) ** 2 for x, t in zip(candidate.point, (8, 3, 9), strict=True)))


def entangled(candidate: Candidate) -> float:
    """Two knobs must agree, and a category decides which value of the third is best."""
    a, b, c, order = candidate.point
    return 1e-3 * (1 + 0.1 * abs(a - b) + 0.06 * abs(a + b - 8) + 0.1 * abs(c - (2, 6, 3, 5)[order]))


LANDSCAPES = [
    (Space("bowl", [Ordinal(n, list(range(12))) for n in "ab"] + [Ordinal("c", list(range(14)))]), bowl),
    (Space("entangled", [Ordinal(n, list(range(8))) for n in "abc"] + [Categorical("order", list("wxyz"))]), entangled),
]


@pytest.mark.parametrize(("space", "seconds"), LANDSCAPES, ids=["bowl", "entangled"])
def test_it_is_better_than_random_on_two_thousand_points(space: Space, seconds: Callable[[Candidate], float]) -> None:
    """After 300 trials, on average of 12 seeds, it is within 4% of the optimum, and 0.7 times as far as random."""

    def above(name: str, **options: Any) -> float:
        runs = [
            drive(create(name, [space], np.random.default_rng(seed), **options), objective_of(seconds), 8, 300)
            for seed in range(12)
        ]
        return float(np.mean([min(trial.median for trial in trials) / 1e-3 - 1 for trials in runs]))

    assert above("genetic", population=30) <= min(0.04, 0.7 * above("random"))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"population": 0}, "population must be at least 1, not 0"),
        ({"elite": 101}, "elite must be at most its population, not 101"),
        ({"repeats": 0}, "repeats must be at least 1, not 0"),
        ({"mutation": 1.5}, "mutation must be at least 0 and at most 1, not 1.5"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], line: str) -> None:
    with pytest.raises(SearchError, match=line):
        create("genetic", [TEN], np.random.default_rng(0), **options)
