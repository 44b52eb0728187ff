"""Levels: the columns of small integers by which the Gaussian process sees points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..space import Coords, Knob, Space, Value, some_coords
from ..trial import Point
from .features import MOST_COLUMNS, too_wide

_CELLS = 2_000_000  # the sum of the squares of the sizes up to which no levels are merged
_MERGED = 1_000  # levels of a column beyond it


class Levels:
    """Columns of small integers that describe the points of a space.

    - There is one column for each column of the knobs' encodings, with the values replaced by their ranks. A knob's
      values are listed such that one step along the list means something, be they powers of two or multiples of 16.
    - For each knob of whole numbers that are not all powers of two there is a column of their *alignment*: how often
      two divides them. Vectors, warps, cache lines and banks come in powers of two, so 128 and 256 are similar in a
      way in which 144 is not.

    A knob with too many values to be listed is seen by its coordinates. If the columns are too large for tables of two
    levels each, neighbouring levels are merged until there are at most 1,000.

    Args:
        space: The space.
        alignments: Whether there are columns of alignments.

    Raises:
        SearchError: There are more than `MOST_COLUMNS` columns.

    Attributes:
        sizes: The number of levels of each column.
        merged: Whether levels were merged.
    """

    def __init__(self, space: Space, alignments: bool = True) -> None:
        # Per knob its place in a point, and the levels of each of its coordinates; None if these are the levels.
        self._tables: list[tuple[slice, dict[Coords, tuple[int, ...]] | None]] = []
        sizes: list[int] = []
        begin = 0
        for knob in space.knobs:
            place = slice(begin, begin := begin + len(knob.sizes))
            if len(sizes) > MOST_COLUMNS:
                raise too_wide(space.name)
            every = some_coords(knob, len(space.knobs))
            if len(every) < knob.count:
                sizes += knob.sizes
                self._tables.append((place, None))
                continue
            columns = list(np.array([knob.encode(coords) for coords in every]).T)
            if alignments:
                columns += map(np.array, _alignments(knob, every))
            ranks = [np.unique(column, return_inverse=True)[1].ravel().tolist() for column in columns]
            sizes += [max(column) + 1 for column in ranks]
            self._tables.append((place, dict(zip(every, zip(*ranks, strict=True), strict=True))))
        self.merged = sum(size**2 for size in sizes) > _CELLS
        self._widths = [-(-size // _MERGED) if self.merged else 1 for size in sizes]
        self.sizes = tuple((size - 1) // width + 1 for size, width in zip(sizes, self._widths, strict=True))

    def __call__(self, points: Iterable[Point]) -> NDArray[np.intp]:
        """The levels of points, shape `(points, columns)`. Column c holds integers from 0 to `sizes[c]` - 1."""
        rows = [
            [rank for place, table in self._tables for rank in (point[place] if table is None else table[point[place]])]
            for point in points
        ]
        return np.array(rows, dtype=np.intp).reshape(len(rows), len(self.sizes)) // np.array(
            self._widths, dtype=np.intp
        )


def _alignments(knob: Knob, every: Sequence[Coords]) -> list[list[int]]:
    """One column per number in the knob's values, if the alignment says more than the number's rank does."""
    columns = []
    for numbers in zip(*(_numbers(knob.value(coords)) for coords in every), strict=True):
        if all(isinstance(number, int) and number > 0 for number in numbers):
            powers = [number & -number for number in numbers]
            if powers != list(numbers) and len(set(powers)) > 1:
                columns.append(powers)
    return columns


def _numbers(value: Value) -> tuple[int | float | str, ...]:
    return value if isinstance(value, tuple) else (value,)
