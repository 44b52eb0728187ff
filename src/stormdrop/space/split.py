"""`Split`: factors that need not divide the extent, for extents such as 7, 17, 149 or 1000."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from ..errors import SpaceError, quoted
from .knob import Coords, Knob, checked_name, whole_number

_MOST = 1_000_000
"""The largest number of values: they are listed."""


class Split(Knob):
    """Factors (outermost, ..., innermost) that cover the extent. The sketch pads or overlaps the tail.

    The outermost factor is implied: it is what remains, rounded up.

        extent 17, choices [[1, 2], [4, 8]]   (3, 2, 4): 5 tiles of 4, grouped by 2, which makes 3 groups

    A value is valid if no group is wider than what it groups. With t_1 = ceil(extent / innermost) tiles, the
    next factor is at most t_1 and leaves t_2 = ceil(t_1 / factor) groups, and so on. The innermost factor may exceed
    the extent (a vector of 16 for an extent of 7), because its list is the sketch's decision.

    Args:
        name: The knob's name.
        extent: The extent of the loop that is split.
        choices: One list of factors for each inner level, the innermost level last. A step moves along its list.

    Raises:
        SpaceError: The extent or a factor is not positive, a list is empty or holds a factor twice, or no combination
            of factors is valid, or more than 1,000,000 are.

    Example:
        >>> split = Split("rows", 17, [[1, 2], [4, 8]])
        >>> [split.value(coords) for coords in split]
        [(5, 1, 4), (3, 1, 8), (3, 2, 4), (2, 2, 8)]
    """

    kind = "split"

    def __init__(self, name: str, extent: int, choices: Sequence[Sequence[int]]) -> None:
        self.name, self.extent = checked_name(name), whole_number(name, "the extent", extent)
        try:
            self.choices = tuple(tuple(islice(level, _MOST + 1)) for level in choices)
        except TypeError:
            raise SpaceError(f"knob {name!r} needs one list of factors per level, not {quoted(choices)}") from None
        self.choices = tuple(tuple(whole_number(name, "a factor", f) for f in level) for level in self.choices)
        if extent < 1:
            raise SpaceError(f"knob {name!r} needs a positive extent, not {extent}")
        for level in self.choices:
            if not level or len(set(level)) != len(level) or min(level) < 1:
                raise SpaceError(
                    f"knob {name!r} needs distinct positive factors for every level, not {quoted(list(level))}"
                )
        self.sizes = tuple(len(level) for level in self.choices)
        if not self._all:
            raise SpaceError(f"knob {name!r} has no values: no choice fits the extent {extent}")

    @cached_property
    def _all(self) -> tuple[Coords, ...]:
        """All valid coordinates. They are built from the innermost level outwards, the way validity is defined."""
        partial: list[tuple[Coords, int]] = [((), self.extent)]
        for depth, level in enumerate(reversed(self.choices)):
            extended = (
                ((index, *coords), -(-tiles // factor))
                for coords, tiles in partial
                for index, factor in enumerate(level)
                if factor <= tiles or depth == 0
            )
            partial = list(islice(extended, _MOST + 1))
            if len(partial) > _MOST:
                raise SpaceError(
                    f"knob {self.name!r} has too many combinations of factors: at most {_MOST:,} are possible"
                )
        return tuple(sorted(coords for coords, _ in partial))

    @cached_property
    def _valid(self) -> frozenset[Coords]:
        return frozenset(self._all)

    @property
    def count(self) -> int:
        """The number of valid values."""
        return len(self._all)

    def __iter__(self) -> Iterator[Coords]:
        return iter(self._all)

    def contains(self, coords: Coords) -> bool:
        """Whether these are the coordinates of a valid value."""
        return tuple(coords) in self._valid

    def value(self, coords: Coords) -> tuple[int, ...]:
        """All factors, the outermost first."""
        if not self.contains(coords):
            raise self._reject(coords)
        inner = tuple(level[index] for level, index in zip(self.choices, coords, strict=True))
        tiles = self.extent
        for factor in reversed(inner):
            tiles = -(-tiles // factor)
        return (tiles, *inner)

    def coordinates(self, value: Any) -> Coords:
        """The coordinates of a full tuple of factors, the outermost included."""
        if not isinstance(value, (list, tuple)) or len(value) != len(self.choices) + 1:
            raise self._reject(value)
        if not all(isinstance(factor, int | np.integer) for factor in value):
            raise self._reject(value)
        if any(factor not in level for level, factor in zip(self.choices, value[1:], strict=True)):
            raise self._reject(value)
        coords = tuple(level.index(factor) for level, factor in zip(self.choices, value[1:], strict=True))
        if not self.contains(coords) or self.value(coords) != tuple(value):
            raise self._reject(value)
        return coords

    def directions(self, coords: Coords) -> Iterator[Iterator[Coords]]:
        """Each inner factor up and down its list; factors that do not fit are stepped over."""
        for level, size in enumerate(self.sizes):
            yield self._steps(coords, level, range(coords[level] + 1, size))
            yield self._steps(coords, level, range(coords[level] - 1, -1, -1))

    def _steps(self, coords: Coords, level: int, indices: range) -> Iterator[Coords]:
        for index in indices:
            stepped = (*coords[:level], index, *coords[level + 1 :])
            if stepped in self._valid:
                yield stepped

    def sample(self, rng: np.random.Generator) -> Coords:
        """Uniform over the valid values."""
        return self._all[int(rng.integers(len(self._all)))]

    def encode(self, coords: Coords) -> tuple[float, ...]:
        """The binary logarithms of all factors, the outermost first."""
        return tuple(math.log2(factor) for factor in self.value(coords))

    def describe(self) -> dict[str, Any]:
        """The kind and the constructor's arguments."""
        return {
            "kind": self.kind,
            "name": self.name,
            "extent": self.extent,
            "choices": [list(level) for level in self.choices],
        }
