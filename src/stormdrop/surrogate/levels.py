"""Points as levels: what the Gaussian process sees of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..space import Knob, Space, Value
from ..trial import Point


class Levels:
    """Columns of small integers that describe the points of a space.

    - Each column of the knobs' encodings, its values replaced by their ranks. A list of values is chosen so that a
      step of it means something, be they powers of two or multiples of 16.
    - For each knob of whole numbers that are not all powers of two, their *alignment*: how often two divides them.
      Vectors, warps, cache lines and banks come in powers of two, so 128 and 256 are alike where 144 is not.
    """

    def __init__(self, space: Space, alignments: bool = True) -> None:
        self._tables: list[tuple[slice, dict[tuple[int, ...], tuple[int, ...]]]] = []
        sizes: list[int] = []
        begin = 0
        for knob in space.knobs:
            here = slice(begin, begin := begin + len(knob.sizes))
            coords = list(knob)
            columns = list(np.array([knob.encode(each) for each in coords]).T)
            if alignments:
                columns += map(np.array, _alignments(knob, coords))
            ranks = [np.unique(column, return_inverse=True)[1].ravel().tolist() for column in columns]
            sizes += [max(column) + 1 for column in ranks]
            self._tables.append((here, dict(zip(coords, zip(*ranks, strict=True), strict=True))))
        self.sizes = tuple(sizes)

    def __call__(self, points: Iterable[Point]) -> NDArray[np.intp]:
        """Shape `(points, columns)`; column c holds integers from 0 to `sizes[c]` - 1."""
        rows = [[rank for at, table in self._tables for rank in table[point[at]]] for point in points]
        return np.array(rows, dtype=np.intp).reshape(len(rows), len(self.sizes))


def _alignments(knob: Knob, coords: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """One column per number in the knob's values, where it says more than the number's rank does."""
    found = []
    for numbers in zip(*(_numbers(knob.value(each)) for each in coords), strict=True):
        if all(isinstance(number, int) and number > 0 for number in numbers):
            powers = [number & -number for number in numbers]
            if powers != list(numbers) and len(set(powers)) > 1:
                found.append(powers)
    return found


def _numbers(value: Value) -> tuple[int | float | str, ...]:
    return value if isinstance(value, tuple) else (value,)
