"""Steps along single coordinates and Ansor's mutations, against definitions that are written out here."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from stormdrop.errors import SpaceError
from stormdrop.space import (
    Categorical,
    Constraint,
    Ordinal,
    Space,
    Split,
    Tile,
    coordinate_beyond,
    coordinate_hops,
    coordinate_neighbours,
    first_fastest,
    lowest,
    mutated_as_ansor,
)
from stormdrop.space.decisions import decision_of

SPACE = Space(
    "s",
    [
        Tile("t", 24, 3),
        Categorical("order", list("abcd")),
        Ordinal("unroll", [0, 16, 64]),
        Split("r", 17, [[1, 2], [4, 8]]),
    ],
    [Constraint(("t", "unroll"), lambda t, unroll: t[1] * t[2] + unroll <= 70, "fits")],
)


def test_neighbours_are_those_of_definition_3_2() -> None:
    """Two points are neighbours if they differ in one coordinate and no point of the space lies between them."""
    points = list(SPACE.points())
    lines: dict[tuple[int, tuple[int, ...]], list[tuple[int, ...]]] = {}
    for point in points:
        for axis in range(len(point)):
            lines.setdefault((axis, point[:axis] + point[axis + 1 :]), []).append(point)
    expected: dict[tuple[int, ...], set[tuple[int, ...]]] = {point: set() for point in points}
    for line in lines.values():
        for one, other in itertools.pairwise(sorted(line)):
            expected[one].add(other)
            expected[other].add(one)
    for point in points:
        assert set(coordinate_neighbours(SPACE, point)) == expected[point]


def test_it_differs_from_the_default_neighbourhood() -> None:
    """Tiles exchange no factors, and a category is one step, not any step, away."""
    point = SPACE.point({"t": (2, 4, 3), "order": "a", "unroll": 16, "r": (3, 1, 8)})
    ours, papers = set(SPACE.neighbours(point)), set(coordinate_neighbours(SPACE, point))
    assert papers < ours
    left_out: list[Mapping[str, Any]] = [SPACE.config(other) for other in ours - papers]
    assert any(config["order"] in ("c", "d") for config in left_out)
    assert any(config["t"][1] * config["t"][2] == 12 and config["t"] != (2, 4, 3) for config in left_out)


def test_a_point_outside_is_refused() -> None:
    with pytest.raises(SpaceError):
        coordinate_neighbours(SPACE, (0,) * 99)


def test_a_move_is_continued() -> None:
    before, now = (SPACE.point({"t": (24 // f, 1, f), "order": "a", "unroll": 0, "r": (5, 1, 4)}) for f in (2, 3))
    beyond = coordinate_beyond(SPACE, before, now)
    assert beyond is not None
    assert SPACE.config(beyond)["t"] == (6, 1, 4)
    back = coordinate_beyond(SPACE, now, before)
    assert back is not None
    assert SPACE.config(back)["t"] == (24, 1, 1)
    assert coordinate_beyond(SPACE, before, back) is None  # the end of the list


def test_hops_change_so_many_coordinates() -> None:
    """C(m, n) 2^n candidates at exactly n hops, where nothing bounds them (AF-DS paper, section 5.2)."""
    space = Space("box", [Ordinal(name, [0, 1, 2]) for name in "abcde"])
    middle = (1,) * 5
    found = list(coordinate_hops(space, middle, 3))
    at = [len(within) - before for within, before in zip(found, [0, *map(len, found)], strict=False)]
    assert at == [math.comb(5, n) * 2**n for n in (1, 2, 3)] == [10, 40, 80]
    for n, within in enumerate(found, start=1):
        assert len(set(within)) == len(within)
        assert all(1 <= sum(x != 1 for x in point) <= n for point in within)


def test_hops_stay_inside_but_may_pass_through_what_is_not() -> None:
    only_together = Constraint(("a", "b"), lambda a, b: a == b, "equal")
    space = Space("diagonal", [Ordinal("a", [0, 1, 2]), Ordinal("b", [0, 1, 2])], [only_together])
    one, two = coordinate_hops(space, (0, 0), 2)
    assert one == []
    assert two == [(1, 1)]


def test_the_lowest_point_is_not_tiled() -> None:
    assert SPACE.config(lowest(SPACE)) == {"t": (24, 1, 1), "order": "a", "unroll": 0, "r": (5, 1, 4)}


def test_autotvms_order_counts_like_its_configuration_space() -> None:
    """`index % len(knob)` of the first knob, then `index // len(knob)` for the rest; a split lists its innermost factor
    as the slowest."""
    tile, unroll = Tile("t", 8, 3), Ordinal("unroll", [0, 16])
    space = Space("s", [tile, unroll])
    splits = [
        (8 // (inner * innermost), inner, innermost)
        for innermost in (1, 2, 4, 8)
        for inner in (1, 2, 4, 8)
        if 8 % (inner * innermost) == 0
    ]
    numbered = [
        {"t": splits[index % len(splits)], "unroll": (0, 16)[index // len(splits)]} for index in range(2 * len(splits))
    ]
    assert [space.config(point) for point in first_fastest(space)] == numbered
    assert sorted(first_fastest(SPACE)) == list(SPACE.points())


@pytest.mark.parametrize("given", [True, False])
def test_autotvms_order_holds_the_origin_of_a_knob_that_is_too_long_to_be_sorted(given: bool) -> None:
    only = Constraint(("x",), lambda x: x == 123_456, "only")
    space = Space("s", [Ordinal("x", range(200_000))], [only], {"x": 123_456} if given else None)
    assert list(first_fastest(space)) == [space.origin]


def test_ansors_mutations_have_tvms_weights() -> None:
    knobs = [Tile("i", 64, 3), Ordinal("unroll", [0, 16, 64]), Ordinal("c_at", [0, 1, 2]), Ordinal("parallel", [1, 2])]
    assert [decision_of(knob) for knob in knobs] == ["tile size", "unroll", "location", "parallel"]
    space = Space("s", knobs)
    rng, point = np.random.default_rng(0), space.point({"i": (4, 4, 4), "unroll": 0, "c_at": 1, "parallel": 1})
    changed = dict.fromkeys(("i", "unroll", "c_at", "parallel"), 0)
    draws = 2_000
    for _ in range(draws):
        other = space.config(mutated_as_ansor(space, point, rng))
        (name,) = [name for name, value in space.config(point).items() if other[name] != value]
        changed[name] += 1
        # A divisor moves from one level to another: two of three factors change.
        assert sum(a != b for a, b in zip(other["i"], (4, 4, 4), strict=True)) in (0, 2)  # type: ignore[arg-type]
    shares = [count / draws for count in changed.values()]
    assert np.allclose(shares, [0.90, 0.04, 0.05, 0.01], atol=0.02)


def test_a_mutation_without_a_place_to_go_changes_nothing() -> None:
    space = Space("one", [Ordinal("only", [1]), Tile("t", 1, 2)])
    assert mutated_as_ansor(space, (0, 0), np.random.default_rng(0)) == (0, 0)
