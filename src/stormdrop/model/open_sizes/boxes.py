"""Boxes: all values of a few variables between two corners."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

Point = tuple[int, ...]
"""A value of each variable."""

_CLOSE = 12  # values of a variable behind the least one that are all looked at
_DISTANT = 24  # more points, in the whole box
_ROUND = (16, 48, 64, 256)  # extents that tiles divide, of which few points at random would be multiples


@dataclass(frozen=True)
class Box:
    """All points between two corners, both included.

    Attributes:
        least: The corner with the least values.
        most: The corner with the largest ones.
    """

    least: Point
    most: Point

    @property
    def count(self) -> int:
        """The number of its points."""
        return math.prod(high - low + 1 for low, high in zip(self.least, self.most, strict=True))

    @property
    def corners(self) -> tuple[Point, ...]:
        """Its corners, the least one first."""
        return tuple(dict.fromkeys(itertools.product(*zip(self.least, self.most, strict=True))))

    def __contains__(self, point: Point) -> bool:
        return all(low <= value <= high for low, value, high in zip(self.least, point, self.most, strict=True))

    def to(self, axis: int, value: int) -> Box:
        """The part up to a value of a variable."""
        return Box(self.least, replaced(self.most, axis, value))

    def neighbour(self, point: Point) -> Point:
        """A point beside another one, along all variables if possible."""
        further = tuple(min(value + 1, high) for value, high in zip(point, self.most, strict=True))
        before = tuple(max(value - 1, low) for value, low in zip(point, self.least, strict=True))
        return before if further == point else further

    def points(self, most: int) -> list[Point]:
        """All of its points, or those that tell most about what may differ between them.

        These are the corners; the first values of each variable, with the least and the largest ones of the others;
        multiples of what tiles divide by; and others at random.

        Args:
            most: If it has more points than so many, some are chosen.
        """
        if self.count <= most:
            return list(itertools.product(*(range(low, high + 1) for low, high in self._bounds)))
        rng = np.random.default_rng(0)
        chosen = dict.fromkeys([*self.corners, *self.close()])
        for step in _ROUND:
            chosen.update(dict.fromkeys(self._random(rng, step) for _ in range(4)))
        while len(chosen) < most:
            chosen[self._random(rng, 1)] = None
        return sorted(point for point in chosen if point in self)

    def close(self) -> list[Point]:
        """The first values of each variable, with the least ones and the largest ones of the others."""
        found: dict[Point, None] = {}
        for axis, (low, high) in enumerate(self._bounds):
            for corner in self.corners:
                values = range(low, min(high, low + _CLOSE - 1) + 1)
                found.update(dict.fromkeys(replaced(corner, axis, value) for value in values))
        return list(found)

    def spread(self) -> list[Point]:
        """Points from which what happens at all of them is to be found: the first values, and others in between."""
        rng = np.random.default_rng(1)
        found = {*self.close(), *self.corners}
        if len(self.least) == 1:
            found.update((int(value),) for value in np.linspace(self.least[0], self.most[0], _DISTANT))
        else:
            found.update(self._random(rng, 1) for _ in range(_DISTANT))
        return sorted(found)

    def without(self, part: Box) -> Iterator[Box]:
        """Boxes of the points that a part of it does not have.

        Args:
            part: A part that has its least corner.
        """
        least, most = list(self.least), list(self.most)
        for axis, last in enumerate(part.most):
            if last < self.most[axis]:
                yield Box(tuple(replaced(tuple(least), axis, last + 1)), tuple(most))
            most[axis] = last

    @property
    def longest(self) -> int:
        """The variable whose largest value is the most times its least one."""
        return max(range(len(self.least)), key=lambda axis: self.most[axis] / self.least[axis])

    def end(self, axis: int, holds: Callable[[Point], bool], known: int) -> int:
        """The last value of a variable, with the least ones of the others, at which a statement holds.

        It is searched by halves: as if the statement held up to a value and no further.

        Args:
            axis: The variable.
            holds: The statement.
            known: A value at which it holds.
        """
        good, bad = known, self.most[axis]
        if holds(replaced(self.least, axis, bad)):
            return bad
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if holds(replaced(self.least, axis, middle)) else (good, middle)
        return good

    @property
    def _bounds(self) -> list[tuple[int, int]]:
        return list(zip(self.least, self.most, strict=True))

    def _random(self, rng: np.random.Generator, step: int) -> Point:
        values = [int(rng.integers(low, high, endpoint=True)) for low, high in self._bounds]
        rounded = [value // step * step for value in values]
        return tuple(low if value < low else value for value, low in zip(rounded, self.least, strict=True))


def replaced(point: Point, axis: int, value: int) -> Point:
    """A point with another value of one variable."""
    return (*point[:axis], value, *point[axis + 1 :])
