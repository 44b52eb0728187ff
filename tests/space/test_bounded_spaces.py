"""Spaces of any size: each is counted, sampled and enumerated within bounds, or refused in one line."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stormdrop.errors import SpaceError
from stormdrop.space import (
    Categorical,
    Constraint,
    Knob,
    NoneFound,
    Ordinal,
    Space,
    Split,
    Tile,
    coordinate_hops,
    mutated_as_ansor,
    some_coords,
)
from stormdrop.space import component as component_module
from stormdrop.space import coordinates as coordinates_module
from stormdrop.space import tile as tile_module

EIGHT = tuple(f"k{i}" for i in range(8))


def of_eight(predicate: Callable[..., bool], origin: dict[str, Any] | None = None) -> Space:
    """Eight knobs of sixteen values each, under one constraint on all of them."""
    return Space("s", [Ordinal(name, range(16)) for name in EIGHT], [Constraint(EIGHT, predicate, "c")], origin)


def nines(*values: int) -> bool:
    return values == (9,) * 8


HUGE_TILE = Tile("t", 2**60, 8)


@pytest.fixture
def few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less is tried, so that a test takes no seconds."""
    monkeypatch.setattr(component_module, "FRUITLESS", 20_000)
    monkeypatch.setattr(component_module, "COUNTED", 20_000)
    monkeypatch.setattr(component_module, "_TESTED", 20_000)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Ordinal("x", range(10**12)), "'x' has too many values"),
        (lambda: Ordinal("x", itertools.count()), "'x' has too many values"),
        (lambda: Categorical("x", range(10**6)), "'x' has too many values"),
        (lambda: Split("x", 10**12, [range(1, 10**4)] * 3), "'x' has too many combinations"),
        (lambda: Tile("x", 2**30, 10**9), "'x' has 1000000000 levels; at most 64"),
        (lambda: Tile("x", (2**61 - 1) * 3, 2), "prime factors of the extent .* are too large"),
        (lambda: Space("s", [Ordinal(str(i), [1, 2]) for i in range(5_000)]), "has 5,000 coordinates; at most 4,096"),
    ],
)
def test_what_is_too_large_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(SpaceError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Ordinal("x", [(1, 2), (1, 2, 3)]), r"a value is a finite number or text, not \(1, 2\)"),  # type: ignore[list-item]
        (lambda: Ordinal("x", [[1], [2]]), r"a value is a finite number or text, not \[1\]"),  # type: ignore[list-item]
        (lambda: Categorical("x", [object()]), "a value is a finite number or text"),  # type: ignore[list-item]
        (lambda: Ordinal("x", [1, None]), "finite number or text, not None"),  # type: ignore[list-item]
        (lambda: Ordinal("x", [1.0, float("nan")]), "finite number or text, not nan"),
        (lambda: Ordinal("x", [1, float("inf")]), "finite number or text, not inf"),
        (lambda: Ordinal("x", [1j]), "finite number or text, not 1j"),  # type: ignore[list-item]
        (lambda: Ordinal("x", 5), "needs a list of values, not 5"),  # type: ignore[arg-type]
        (lambda: Ordinal(5, [1]), "name of a knob is text, not 5"),  # type: ignore[arg-type]
        (lambda: Tile("x", "8", 2), "the extent is a whole number, not '8'"),  # type: ignore[arg-type]
        (lambda: Tile("x", 8.0, 2), r"the extent is a whole number, not 8\.0"),  # type: ignore[arg-type]
        (lambda: Tile("x", 8, None), "levels is a whole number, not None"),  # type: ignore[arg-type]
        (lambda: Split("x", 8, [1, 2]), "needs one list of factors per level"),  # type: ignore[list-item]
        (lambda: Split("x", 8, [["a"]]), "a factor is a whole number, not 'a'"),  # type: ignore[list-item]
        (lambda: Space(None, []), "name of a space is text, not None"),  # type: ignore[arg-type]
        (lambda: Space("s", None), "needs a list of knobs, not None"),  # type: ignore[arg-type]
        (lambda: Space("s", ["x"]), "'x' is none of its knobs"),  # type: ignore[list-item]
        (lambda: Space("s", [Ordinal("x", [1])], [lambda x: True]), "is none of its constraints"),  # type: ignore[list-item]
        (lambda: Space("s", [Ordinal("x", [1])], [], 5), "a configuration is a value per knob, not 5"),  # type: ignore[arg-type]
        (lambda: Constraint.one_of(("x",), [5]), "one value for each of its knobs, not 5"),  # type: ignore[list-item]
        (lambda: Constraint.one_of(("x", "y"), [(1,)]), r"one value for each of its knobs, not \(1,\)"),
        (lambda: Constraint(5, bool, "c"), "constraint 'c' needs a list of the names of knobs, not 5"),  # type: ignore[arg-type]
        (lambda: Constraint(("x",), 5, "c"), "constraint 'c' needs a function, not 5"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_knob_or_space_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(SpaceError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_numbers_of_numpy_become_pythons() -> None:
    knob = Ordinal("x", [np.int8(1), np.float32(2.5), np.longdouble(4), np.array(8)])  # type: ignore[list-item]
    assert [type(value) for value in knob.values] == [int, float, float, int]


def test_a_constraint_that_raises_is_named() -> None:
    knobs = [Ordinal("a", [1, 2]), Ordinal("b", [0, 1])]
    with pytest.raises(SpaceError, match=r"'ratio' fails for \{'a': 1, 'b': 0\}: ZeroDivisionError"):
        Space("s", knobs, [Constraint(("a", "b"), lambda a, b: a / b > 1, "ratio")])
    with pytest.raises(SpaceError, match=r"'arity' fails for .*: TypeError"):
        Space("s", knobs, [Constraint(("a", "b"), lambda a: a > 1, "arity")])


def test_a_huge_tile_is_no_list() -> None:
    assert HUGE_TILE.count == 869_648_208
    space, rng = Space("s", [HUGE_TILE]), np.random.default_rng(0)
    point = space.sample(rng)
    tile: Any = space.config(point)["t"]
    assert np.prod(tile, dtype=object) == 2**60
    assert all(space.contains(near) for near in space.neighbours(point))
    assert space.contains(space.mutate(point, rng))
    assert space.contains(mutated_as_ansor(space, point, rng))
    assert next(space.points()) == space.origin == (0,) * 7
    assert space.listed(10**6) is None
    part = some_coords(HUGE_TILE)
    assert len(part) <= 10_000
    assert all(map(HUGE_TILE.contains, part))


def test_a_tile_whose_innermost_factor_is_rare_is_sampled_uniformly(monkeypatch: pytest.MonkeyPatch) -> None:
    tile = Tile("t", 2**4 * 3**3, 3, max_inner=4)
    monkeypatch.setattr(tile_module, "_RARE", 1)
    rng = np.random.default_rng(0)
    drawn = Counter(tile.sample(rng) for _ in range(100 * tile.count))
    assert set(drawn) == set(tile)
    assert 50 < min(drawn.values()) <= max(drawn.values()) < 160


def test_a_thousand_knobs(few_tries: None) -> None:
    rng = np.random.default_rng(0)
    names = [f"k{i}" for i in range(1_000)]
    rising = [Constraint((a, b), lambda a, b: a <= b, "rising") for a, b in itertools.pairwise(names)]
    for constraints in [], rising:
        space = Space("s", [Ordinal(name, range(8)) for name in names], constraints)
        assert "at most 10^903 points" in repr(space)
        assert len(list(itertools.islice(space.points(), 3))) == 3
        point = space.sample(rng)
        assert space.contains(point)
        assert len(space.neighbours(point)) <= 2_000
    with pytest.raises(SpaceError, match="too large to be counted"):
        _ = space.size


@pytest.mark.usefixtures("few_tries")
def test_one_point_of_four_billion() -> None:
    with pytest.raises(NoneFound, match=r"exclude 20,000 combinations of k0, .* in a row; give an origin"):
        of_eight(nines)
    space, rng = of_eight(nines, dict.fromkeys(EIGHT, 9)), np.random.default_rng(0)
    assert space.sample(rng) == space.origin
    assert space.mutate(space.origin, rng) == space.origin
    assert space.neighbours(space.origin) == []
    assert space.listed(100) is None
    with pytest.raises(SpaceError, match="too large to be counted"):
        _ = space.size
    with pytest.raises(NoneFound, match="in a row"):
        next(space.points())


@pytest.mark.usefixtures("few_tries")
def test_few_points_are_drawn_from_all_of_the_space() -> None:
    weights = [7, 31, 57, 13, 5, 3, 11, 1]
    space = of_eight(lambda *values: sum(w * v for w, v in zip(weights, values, strict=True)) % 101 == 0)
    rng = np.random.default_rng(0)
    points = np.array([space.sample(rng) for _ in range(2_000)])
    assert all(map(space.contains, map(tuple, points.tolist())))
    assert len(np.unique(points, axis=0)) > 100
    assert np.all(np.abs(points.mean(axis=0) - 7.5) < 1.2)  # as if drawn uniformly, which an enumeration's begin is not


@pytest.mark.usefixtures("few_tries")
def test_constraints_on_pairs_of_knobs_are_drawn_knob_by_knob() -> None:
    """Of 16^20 combinations one in 10^15 is sorted; each knob has about the mean of its order statistic."""
    names = [f"k{i}" for i in range(20)]
    rising = [Constraint((a, b), lambda a, b: a <= b, "rising") for a, b in itertools.pairwise(names)]
    space, rng = Space("s", [Ordinal(name, range(16)) for name in names], rising), np.random.default_rng(0)
    points = np.array([space.sample(rng) for _ in range(1_000)])
    assert np.all(np.diff(points, axis=1) >= 0)
    assert len(np.unique(points, axis=0)) > 500
    expected = 15 * np.arange(1, 21) / 21  # of 20 of the numbers 1 to 35, in order, without repeats
    assert np.all(np.abs(points.mean(axis=0) - expected) < 2)


@pytest.mark.usefixtures("few_tries")
def test_of_huge_knobs_that_are_tied_tightly_few_values_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    draws, sample = 0, Tile.sample

    def counted(self: Tile, rng: np.random.Generator) -> tuple[int, ...]:
        nonlocal draws
        draws += 1
        return sample(self, rng)

    monkeypatch.setattr(Tile, "sample", counted)
    huge = [Tile(name, 2**60, 8) for name in "ab"]
    same = dict.fromkeys("ab", (2**60, *[1] * 7))
    space = Space("s", huge, [Constraint(("a", "b"), lambda a, b: a == b, "same")], same)
    assert space.contains(space.sample(np.random.default_rng(0)))
    assert draws < 25_000


def test_small_spaces_are_sampled_as_ever() -> None:
    """Constraints by which one of 64 points or more passes leave the sequence of draws as it was."""
    space, rng = of_eight(lambda *values: sum(values) % 10 == 3), np.random.default_rng(5)
    assert not any(part._few for part in space._components)
    expected = np.random.default_rng(5)
    for _ in range(10):
        while sum(drawn := tuple(int(expected.integers(16)) for _ in EIGHT)) % 10 != 3:
            pass
        assert space.sample(rng) == drawn


def test_points_far_away_are_not_stepped_to() -> None:
    knob: Knob = Ordinal("x", range(300_000))
    space = Space("s", [knob], [Constraint(("x",), lambda x: x in (0, 250_000, 250_001), "ends")])
    assert space.neighbours((0,)) == []
    assert space.neighbours((250_000,)) == [(250_001,)]


def test_too_many_hops_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinates_module, "_MOST", 1_000)
    space = Space("s", [Ordinal(f"k{i}", range(3)) for i in range(30)])
    assert [len(points) for points in coordinate_hops(space, (1,) * 30, 3)] == [60]  # two hops are 1,740 combinations


def test_the_columns_of_a_category_are_no_square() -> None:
    knob = Categorical("x", range(5_000))
    assert knob.encode((7,)) == (7.0,)
    assert len(Categorical("x", range(200)).encode((7,))) == 200


@pytest.mark.usefixtures("few_tries")
def test_lists_are_what_the_points_are() -> None:
    tied = Constraint(("a", "c"), lambda a, c: a < c, "tied")
    space = Space("s", [Ordinal("a", range(5)), Tile("b", 12, 3), Ordinal("c", range(5))], [tied])
    assert space.listed(10**6) == list(space.points())
    assert space.listed(10) is None
