"""The parts of a range."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from stormdrop.model.open_sizes.alike import Extents, parts, points_of

ONE_KIND: dict[Extents, tuple[int, ...]] = {(n,): (0, 1, 2, 3) for n in (2, 5, 18, 40)}


def covered(alike: dict[Extents, tuple[int, ...]], steps: Sequence[int]) -> list[Extents]:
    """The sizes of all parts."""
    return [point for part in parts(alike, steps) for point in points_of(part.box, steps)]


def test_they_go_from_one_compiled_size_to_the_next() -> None:
    found = [(each.box.least, each.box.most, each.base) for each in parts(ONE_KIND, [1])]
    assert found == [((2,), (4,), (2,)), ((5,), (17,), (5,)), ((18,), (40,), (18,))]


def test_a_size_with_kernels_of_its_own_is_a_part_for_itself() -> None:
    """The sizes behind it have the schedules of the next one."""
    alike: dict[Extents, tuple[int, ...]] = {(1,): (0,), (4,): (1, 2, 3), (19,): (1, 2, 3), (40,): (1, 2, 3)}
    found = [(each.box.least, each.box.most, each.base) for each in parts(alike, [1])]
    assert found == [((2,), (3,), (4,)), ((4,), (18,), (4,)), ((19,), (40,), (19,))]


def test_the_largest_size_may_be_another_one() -> None:
    alike: dict[Extents, tuple[int, ...]] = {(n,): (0, 1, 2) for n in (2, 5, 18)}
    alike[40,] = (3,)
    assert [each.base for each in parts(alike, [1])] == [(2,), (5,), (18,)]


def test_sizes_that_are_all_compiled_are_no_part() -> None:
    alike: dict[Extents, tuple[int, ...]] = {(n,): (0, 1, 2) for n in (4, 8, 12)}
    assert parts(alike, [4]) == [] and [each.base for each in parts(alike, [2])] == [(4,), (8,)]


@pytest.mark.parametrize("special", [(), ((1, 2),), ((1, 2), (1, 9), (1, 30))])
def test_parts_of_two_ranges_cover_each_size_once(special: tuple[Extents, ...]) -> None:
    points: list[Extents] = list(itertools.product((1, 4, 10), (2, 9, 30)))
    others = tuple(at for at, point in enumerate(points) if point not in special)
    alike = {point: (tuple(map(points.index, special)) if point in special else others) for point in points}
    everything = set(itertools.product(range(1, 11), range(2, 31)))
    found = covered(alike, [1, 1])
    assert len(set(found)) == len(found) and everything - set(found) <= set(points)
    for part in parts(alike, [1, 1]):
        if part.box.count > 1 and part.base in special:
            assert part.box.least[0] == part.box.most[0] == 1
