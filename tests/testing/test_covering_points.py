"""Points that have every level of every knob, and every combination of levels."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from stormdrop.space import Categorical, Constraint, Ordinal, Space, Split, Tile
from stormdrop.testing.sketches import covering_points
from stormdrop.trial import Point

TIED = Space(
    "tied",
    [Ordinal("rows", [1, 2, 3, 4, 6, 8]), Ordinal("vectors", [1, 2, 4]), Categorical("order", ["rows", "columns"])],
    [Constraint(("rows", "vectors"), lambda rows, vectors: rows * vectors <= 8, "fits 8 registers")],
    {"rows": 2, "vectors": 4, "order": "columns"},
)
TILES = Space("tiles", [Tile("t", 24, 3), Split("s", 12, [[1, 2], [3, 4, 6]]), Ordinal("unroll", [0, 16])])
LARGE = Space("large", [Ordinal(f"k{number}", range(9)) for number in range(8)])


def levels(points: list[Point], together: int = 1) -> set[tuple[tuple[int, int], ...]]:
    """The combinations of coordinates that points have, each coordinate with its position."""
    return {some for point in points for some in combinations(enumerate(point), together)}


@pytest.mark.parametrize("together", [1, 2, 3])
@pytest.mark.parametrize("space", [TIED, TILES], ids=lambda space: space.name)
def test_each_level_of_the_space_is_among_few_points(space: Space, together: int) -> None:
    points = covering_points(space, together)
    assert levels(points, together) == levels(list(space.points()), together)
    assert points[0] == space.origin and all(map(space.contains, points))
    assert len(points) <= space.size if together == 3 else len(points) < space.size
    counts = [len(levels(points[:count], together)) for count in range(len(points) + 1)]
    brought = [after - before for before, after in pairwise(counts)]
    assert brought[1:] == sorted(brought[1:], reverse=True) and brought[-1] > 0, "the most comes first"


def test_a_large_space_is_covered_by_its_random_points() -> None:
    points = covering_points(LARGE)
    assert levels(points) == {((position, level),) for position in range(8) for level in range(9)}
    assert len(points) < 20


def test_a_seed_decides_the_points() -> None:
    assert covering_points(LARGE, seed=3) == covering_points(LARGE, seed=3) != covering_points(LARGE)


@pytest.mark.parametrize(("values", "points"), [([5], [(0,)]), ([5, 7], [(0,), (1,)])])
def test_a_knob_alone(values: list[int], points: list[Point]) -> None:
    assert covering_points(Space("one", [Ordinal("rows", values)]), together=2) == points


def test_a_space_without_knobs_has_one_point() -> None:
    assert covering_points(Space("none", [])) == [()]
