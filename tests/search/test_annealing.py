"""Simulated annealing over boosted trees: known optima, and each of its mechanisms."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from stormdrop.errors import SearchError
from stormdrop.search import Knowledge, Search, create
from stormdrop.space import Categorical, Constraint, Ordinal, Space, Tile
from stormdrop.surrogate import knob_encodings
from stormdrop.testing import SearchConformance, drive, objective_of
from stormdrop.trial import Candidate, Trial

CUBE = Space("cube", [Ordinal(name, list(range(13))) for name in "abc"])  # 2,197 points
TILES = Space(
    "tiles",
    [Tile("t", 256, 3), Ordinal("u", list(range(6))), Categorical("c", list("abc"))],
    [Constraint(("t", "u"), lambda t, u: t[2] * (u + 1) <= 64, "at most 64")],
)


def annealed(
    spaces: Sequence[Space],
    seconds: Callable[[Candidate], float],
    budget: int = 200,
    seed: int = 0,
    knowledge: Knowledge | None = None,
    fails: Callable[[Candidate], bool] = lambda candidate: False,
    **options: Any,
) -> list[Trial]:
    search = create("annealing", spaces, np.random.default_rng(seed), knowledge, **options)
    return drive(search, objective_of(seconds, between=0.01, within=0.01, fails=fails), 8, budget)


def bowl(*bottom: int) -> Callable[[Candidate], float]:
    """1 ms at the bottom, and 4% more one step away."""
    return lambda c: 1e-3 * (1.0 + 0.04 * sum((x - b) ** 2 for x, b in zip(c.point, bottom, strict=True)))


def valley(candidate: Candidate) -> float:
    """1 ms at (9, 4, 6). The knobs a and b interact: away from the bottom, to change one of them alone gains little."""
    a, b, c = (x - bottom for x, bottom in zip(candidate.point, (9, 4, 6), strict=True))
    return 1e-3 * (1.0 + 0.1 * abs(a + b) + 0.03 * abs(a - b) + 0.05 * c**2)


@pytest.mark.parametrize(
    ("objective", "seconds"),
    [("rank", bowl(9, 4, 6)), ("rank", valley), ("regression", valley), ("pack-sum", valley)],
)
@pytest.mark.long
def test_it_comes_near_a_known_optimum(objective: str, seconds: Callable[[Candidate], float]) -> None:
    ends, at_random = [], []
    for seed in range(3):
        ends.append(min(seconds(t.candidate) for t in annealed([CUBE], seconds, seed=seed, objective=objective)))
        draws = drive(create("random", [CUBE], np.random.default_rng(seed)), objective_of(seconds), budget=200)
        at_random.append(min(seconds(t.candidate) for t in draws))
    assert max(ends) <= 1.02e-3  # of 2,197 points only the optimum
    assert np.mean(ends) < np.mean(at_random) - 0.05e-3


@pytest.mark.long
def test_features_are_used_and_are_knob_encodings_by_default() -> None:
    """The encodings that it computes for all chains at once are those of `knob_encodings`."""
    spaces = [TILES, Space("cube", CUBE.knobs), Space("point", [Ordinal("only", [3])])]

    def seconds(candidate: Candidate) -> float:
        return 1e-3 * (2.0 if candidate.sketch == "tiles" else 1.0) + bowl(*[2] * len(candidate.point))(candidate)

    by_default = annealed(spaces, seconds)
    assert annealed(spaces, seconds, knowledge=Knowledge(features=knob_encodings(spaces))) == by_default
    blind = Knowledge(features=lambda candidates: [np.zeros((1, 1)) for _ in candidates])
    assert annealed(spaces, seconds, knowledge=blind) != by_default


def test_it_moves_to_the_better_sketch() -> None:
    def seconds(candidate: Candidate) -> float:
        return 3e-3 if candidate.sketch == "slow" else bowl(9, 4, 6)(candidate)

    trials = annealed([Space("slow", CUBE.knobs), CUBE], seconds)
    sketches = [Counter(t.candidate.sketch for t in part) for part in (trials[:64], trials[128:192])]
    assert 20 < sketches[0]["cube"] < 44  # 32 expected, three standard deviations
    assert sketches[1]["cube"] > 55


def test_it_learns_what_fails() -> None:
    trials = annealed([CUBE], bowl(9, 4, 6), fails=lambda c: c.point[0] < 8)
    failed = [sum(not t.ok for t in part) for part in (trials[:64], trials[128:192])]
    assert failed[0] > 25
    assert failed[1] < 13


def test_chains_begin_at_the_starts() -> None:
    """With one chain and one step, the second batch begins one change away from the start."""
    start = Candidate("tiles", TILES.origin)
    trials = annealed(
        [TILES], bowl(1, 1, 1, 1), 9, knowledge=Knowledge(starts=(start,)), plan_size=8, chains=1, iterations=1
    )
    assert trials[0].candidate == start
    before, after = TILES.config(start.point), TILES.config(trials[8].candidate.point)
    assert sum(before[name] != after[name] for name in before) == 1


@pytest.mark.long
def test_a_share_of_each_batch_is_random() -> None:
    """With a share of 1 it is random search, and the measured times do not matter."""
    once, again = (annealed([CUBE], seconds, epsilon=1.0) for seconds in (valley, bowl(1, 1, 1)))
    assert [t.candidate for t in once[:64]] == [t.candidate for t in again[:64]]
    planned = annealed([CUBE], valley, epsilon=0.0)
    assert [t.candidate for t in once[:64]] == [t.candidate for t in planned[:64]]
    near = [sum(valley(t.candidate) < 1.5e-3 for t in trials[64:128]) for trials in (planned, once)]
    assert near[0] > 2 * near[1]


def test_the_diversity_filter_spreads_a_plan() -> None:
    def values(trials: list[Trial]) -> int:
        return len({(name, value) for t in trials[64:125] for name, value in CUBE.config(t.candidate.point).items()})

    plain, diverse = (annealed([CUBE], bowl(9, 4, 6), 128, diversity_filter_ratio=ratio) for ratio in (None, 4.0))
    assert plain[:64] == diverse[:64]
    assert values(diverse) > values(plain)


@pytest.mark.parametrize("members", [[(i, i) for i in range(40)], [(i, i // 2) for i in range(40)]])
def test_chains_move_if_hardly_any_change_fits(members: list[tuple[int, int]]) -> None:
    """At most one change of one knob leads from a point to another one, but all points are measured."""
    knobs = [Ordinal("a", list(range(40))), Ordinal("b", list(range(40)))]
    space = Space("sparse", knobs, [Constraint.one_of(("a", "b"), members)])
    trials = annealed([space], bowl(3, 3), plan_size=16, chains=8, iterations=20)
    assert sorted(t.candidate.point for t in trials) == members


def test_a_huge_space_is_no_problem() -> None:
    knobs = [Tile("t", 2**12, 4), *(Ordinal(f"k{i}", list(range(100))) for i in range(12))]
    even = Constraint(("k0", "k1"), lambda a, b: (a + b) % 2 == 0, "even")
    trials = annealed([Space("huge", knobs, [even])], bowl(*[5] * 15), 80, iterations=20)
    assert len({t.candidate for t in trials}) == 80


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "rang"}, "no objective 'rang'; did you mean 'rank'"),
        ({"objective": "xyz"}, "choose from rank, regression, pack-sum"),
        ({"plan_size": 0}, "plan_size"),
        ({"chains": 0}, "chains"),
        ({"iterations": 0}, "iterations"),
        ({"early_stop": 0}, "early_stop"),
        ({"repeats": 0}, "repeats"),
        ({"epsilon": 1.5}, "epsilon must be at least 0 and at most 1, not 1.5"),
        ({"temperature": 0.0}, "temperature must be above 0 and below inf, not 0.0"),
        ({"diversity_filter_ratio": 0.5}, "at least 1 and below inf, not 0.5"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SearchError, match=message):
        create("annealing", [CUBE], np.random.default_rng(0), **options)


class TestSmallPlans(SearchConformance):
    """With plans of 16, the model is trained several times even on the suite's small spaces."""

    def make(self, spaces: Sequence[Space], rng: np.random.Generator, knowledge: Knowledge | None = None) -> Search:
        return create("annealing", spaces, rng, knowledge, plan_size=16, chains=8, iterations=10)
