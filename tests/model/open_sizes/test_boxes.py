"""Boxes of points."""

from __future__ import annotations

import itertools

import pytest

from stormdrop.model.open_sizes.boxes import Box

BOX = Box((1, 5), (4, 40))


def test_its_points() -> None:
    assert BOX.count == 4 * 36 and BOX.corners == ((1, 5), (1, 40), (4, 5), (4, 40))
    assert BOX.points(200) == list(itertools.product(range(1, 5), range(5, 41)))
    chosen = BOX.points(60)
    assert len(chosen) >= 60 and set(chosen) > set(BOX.corners) and all(point in BOX for point in chosen)
    assert (5, 5) not in BOX and {(1, 5), (4, 40), (2, 5), (4, 9)} <= set(BOX.spread())


@pytest.mark.parametrize("part", [Box((1, 5), (1, 5)), Box((1, 5), (2, 30)), Box((1, 5), (4, 39)), BOX])
def test_what_is_left_of_it(part: Box) -> None:
    points = list(itertools.chain(part.points(200), *(each.points(200) for each in BOX.without(part))))
    assert sorted(points) == BOX.points(200)


@pytest.mark.parametrize("last", range(7, 41))
def test_the_last_value_at_which_something_holds(last: int) -> None:
    assert BOX.end(1, lambda point: point[0] == 1 and point[1] <= last, 7) == last


def test_neighbours() -> None:
    assert BOX.neighbour((1, 5)) == (2, 6) and BOX.neighbour((4, 6)) == (4, 7) and BOX.neighbour((4, 40)) == (3, 39)
