"""Knobs whose values are listed one by one: `Ordinal` if their order means something, `Categorical` if not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import SpaceError
from .knob import Coords, Knob


class _Listed(Knob):
    """A knob with one coordinate, the index into its list of values."""

    def __init__(self, name: str, values: Sequence[int | float | str]) -> None:
        self.name = name
        self.values = tuple(value.item() if isinstance(value, np.generic) else value for value in values)
        self._index = {value: index for index, value in enumerate(self.values)}
        if not self.values:
            raise SpaceError(f"knob {name!r} has no values")
        if len(self._index) != len(self.values):
            raise SpaceError(f"knob {name!r} lists a value twice: {list(self.values)}")
        self.sizes = (len(self.values),)

    @property
    def count(self) -> int:
        """The number of valid values."""
        return len(self.values)

    def __iter__(self) -> Iterator[Coords]:
        return ((index,) for index in range(len(self.values)))

    def contains(self, coords: Coords) -> bool:
        """Whether these are the coordinates of a valid value."""
        return len(coords) == 1 and 0 <= coords[0] < len(self.values)

    def value(self, coords: Coords) -> int | float | str:
        """The value at this index of the list."""
        if not self.contains(coords):
            raise self._reject(coords)
        return self.values[coords[0]]

    def coordinates(self, value: Any) -> Coords:
        """The index of this value in the list."""
        index = self._index.get(value) if isinstance(value, (int, float, str)) else None
        if index is None:
            raise self._reject(value)
        return (index,)

    def sample(self, rng: np.random.Generator) -> Coords:
        """Uniform over the valid values."""
        return (int(rng.integers(len(self.values))),)

    def describe(self) -> dict[str, Any]:
        """The kind and the constructor's arguments."""
        return {"kind": self.kind, "name": self.name, "values": list(self.values)}


class Ordinal(_Listed):
    """An ordered list of values, such as unroll 0 < 16 < 64 < 512. A step goes to the next value up or down.

    This is the parameter of Definition 2.5 of the Droplet Search paper. A value is encoded as its binary logarithm if
    all values are positive numbers, else as its rank.

    Args:
        name: The knob's name.
        values: Distinct numbers or strings, in the order of the steps. True counts as 1.

    Raises:
        SpaceError: The list is empty, or holds a value twice.

    Example:
        >>> unroll = Ordinal("unroll", [0, 16, 64, 512])
        >>> unroll.value((1,)), unroll.coordinates(64)
        (16, (2,))
    """

    kind = "ordinal"

    def __init__(self, name: str, values: Sequence[int | float | str]) -> None:
        super().__init__(name, values)
        positive = [value for value in self.values if isinstance(value, (int, float)) and value > 0]
        self._codes = list(map(math.log2, positive) if len(positive) == self.count else map(float, range(self.count)))

    def directions(self, coords: Coords) -> Iterator[Iterator[Coords]]:
        """Up the list, and down the list."""
        yield ((index,) for index in range(coords[0] + 1, len(self.values)))
        yield ((index,) for index in range(coords[0] - 1, -1, -1))

    def encode(self, coords: Coords) -> tuple[float, ...]:
        """One float: the logarithm or the rank."""
        if not self.contains(coords):
            raise self._reject(coords)
        return (self._codes[coords[0]],)


class Categorical(_Listed):
    """Values without an order, such as loop orders: every other value is one step away. Values are encoded one-hot.

    Args:
        name: The knob's name.
        values: Distinct numbers or strings. True counts as 1.

    Raises:
        SpaceError: The list is empty, or holds a value twice.

    Example:
        >>> order = Categorical("order", ["ijk", "ikj", "kij"])
        >>> [list(direction) for direction in order.directions((0,))]
        [[(1,)], [(2,)]]
    """

    kind = "categorical"

    def directions(self, coords: Coords) -> Iterator[Iterator[Coords]]:
        """One direction, of a single step, for each other value."""
        for index in range(len(self.values)):
            if index != coords[0]:
                yield iter(((index,),))

    def encode(self, coords: Coords) -> tuple[float, ...]:
        """One float per value: 1 for the value at `coords`, 0 for the others."""
        if not self.contains(coords):
            raise self._reject(coords)
        return tuple(float(index == coords[0]) for index in range(len(self.values)))
