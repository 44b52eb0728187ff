"""Steps along single coordinates, as the papers define them, and the orders of a space's points.

`Space.neighbours` is richer: its tiles also exchange factors between levels, and its categories have no order. Here
each coordinate of a point is one parameter of a transformation, whose values are ordered as they are listed. That is
Definition 3.2 of the Droplet Search paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import numpy as np

from ..trial import Point
from .knob import Coords, Knob, Value, some_coords
from .space import Space

_MOST = 1_000_000  # combinations of hops


def coordinate_neighbours(space: Space, point: Point) -> list[Point]:
    """The neighbourhood of Definition 3.2 of the Droplet Search paper, in a fixed order.

    Two neighbours differ in one coordinate, and no value of that coordinate lies between theirs. A value belongs to the
    coordinate if the space holds it together with the other coordinates, because a space consists of valid vectors
    (Definition 2.5 and the text after Example 2.6). So there are at most two neighbours per coordinate.

    Args:
        space: The space.
        point: A point of it.

    Raises:
        SpaceError: The point is outside of the space.

    Example:
        >>> from stormdrop.space import Categorical, Tile
        >>> space = Space("s", [Tile("t", 8, 3), Categorical("order", ["ij", "ji", "k"])])
        >>> around = coordinate_neighbours(space, space.point({"t": (2, 2, 2), "order": "ij"}))
        >>> [list(space.config(neighbour).values()) for neighbour in around]
        [[(1, 4, 2), 'ij'], [(4, 1, 2), 'ij'], [(1, 2, 4), 'ij'], [(4, 2, 1), 'ij'], [(2, 2, 2), 'ji']]
    """
    space.config(point)  # refuses a point outside
    around = []
    for axis, size in enumerate(_sizes(space)):
        for direction in (1, -1):
            neighbour = _next(space, point, axis, direction, size)
            if neighbour is not None:
                around.append(neighbour)
    return around


def coordinate_beyond(space: Space, previous: Point, point: Point) -> Point | None:
    """The vector v_s of section 3.4 of the Droplet Search paper: the move from `previous` to `point`, continued.

    If the two differ in several coordinates, as they may after a move to a point that was measured by speculation, the
    move is continued in the first of them in which this is possible.

    Returns:
        The point whose coordinate has the value that follows, or None if there is none.
    """
    sizes = _sizes(space)
    for axis, (before, now) in enumerate(zip(previous, point, strict=True)):
        if before != now:
            further = _next(space, point, axis, 1 if now > before else -1, sizes[axis])
            if further is not None:
                return further
    return None


def coordinate_hops(space: Space, point: Point, hops: int) -> Iterator[list[Point]]:
    """The candidates within 1, 2, ... hops of a point (AF-DS paper, section 5.1).

    A hop changes one coordinate to the next value up or down in its list, and each hop another coordinate. There are
    C(m, n) 2^n combinations at exactly n hops in m dimensions; those that are in the space are listed. A combination
    may be inside although its single hops are not (section 5.2). The list ends before the first n with more than
    1,000,000 combinations.

    Args:
        space: The space.
        point: A point of it.
        hops: The largest number of hops.

    Returns:
        For each n from 1 on all candidates within n hops, the nearest first.
    """
    sizes = _sizes(space)
    within: list[Point] = []
    for n in range(1, hops + 1):
        if math.comb(len(point), n) * 2**n > _MOST:
            return
        for axes in combinations(range(len(point)), n):
            for steps in product((1, -1), repeat=n):
                moved = list(point)
                for axis, step in zip(axes, steps, strict=True):
                    moved[axis] += step
                if all(0 <= moved[axis] < sizes[axis] for axis in axes) and space.contains(tuple(moved)):
                    within.append(tuple(moved))
        yield list(within)


def lowest(space: Space) -> Point:
    """The first point in lexicographic order: every parameter as low as the constraints allow.

    It stands for the unoptimised kernel, the origin of Definition 2.5 of the Droplet Search paper: nothing is tiled
    (all inner factors are 1), unrolled or vectorised, as far as the sketch has such a point. `Space.origin` is a good
    default schedule instead, which a cost model may have chosen.

    Raises:
        NoneFound: There are too many combinations before it that the constraints exclude.
    """
    return next(space.points())


def first_fastest(space: Space) -> Iterator[Point]:
    """All points in the order of AutoTVM's configuration space, in which the first knob varies fastest.

    Of a knob with more than 100,000 values, which must be sorted, there are points with 10,000 random ones and that of
    the origin only.

    AutoTVM numbers the configurations so, and lists a split such that the factor next to the outermost one varies
    fastest. That is the lexicographic order of the reversed points.

    Example:
        >>> from stormdrop.space import Ordinal
        >>> list(first_fastest(Space("s", [Ordinal("a", [1, 2]), Ordinal("b", [3, 4])])))
        [(0, 0), (1, 0), (0, 1), (1, 1)]
    """
    origin = space.config(space.origin)
    knobs = [_Mirrored(knob, knob.coordinates(origin[knob.name])) for knob in reversed(space.knobs)]
    mirrored = Space(space.name, knobs, space.constraints, origin)
    return (point[::-1] for point in mirrored.points())


def _sizes(space: Space) -> list[int]:
    return [size for knob in space.knobs for size in knob.sizes]


def _next(space: Space, point: Point, axis: int, direction: int, size: int) -> Point | None:
    """The first point inside that differs in this coordinate only, up (1) or down (-1)."""
    for value in range(point[axis] + 1, size) if direction > 0 else range(point[axis] - 1, -1, -1):
        moved = (*point[:axis], value, *point[axis + 1 :])
        if space.contains(moved):
            return moved
    return None


class _Mirrored(Knob):
    """A knob whose coordinates are in the opposite order; those of the origin are listed in any case."""

    kind = "mirrored"

    def __init__(self, knob: Knob, origin: Coords) -> None:
        self._knob, self.name, self.sizes = knob, knob.name, knob.sizes[::-1]
        self._origin = origin

    @property
    def count(self) -> int:
        return self._knob.count

    def __iter__(self) -> Iterator[Coords]:  # in this order the knob must be listed, so of a huge one it is a part
        return iter(sorted(coords[::-1] for coords in {*some_coords(self._knob), self._origin}))

    def contains(self, coords: Coords) -> bool:
        return self._knob.contains(coords[::-1])

    def value(self, coords: Coords) -> Value:
        return self._knob.value(coords[::-1])

    def coordinates(self, value: Any) -> Coords:
        return self._knob.coordinates(value)[::-1]

    def directions(self, coords: Coords) -> Iterator[Iterator[Coords]]:
        return ((reached[::-1] for reached in direction) for direction in self._knob.directions(coords[::-1]))

    def encode(self, coords: Coords) -> tuple[float, ...]:
        return self._knob.encode(coords[::-1])

    def sample(self, rng: np.random.Generator) -> Coords:
        return self._knob.sample(rng)[::-1]

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "knob": self._knob.describe()}
