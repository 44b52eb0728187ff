"""Knobs whose values are listed one by one: `Ordinal` where their order means something, `Categorical` where not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import SpaceError
from .knob import Coords, Knob


class _Listed(Knob):
    """One coordinate: the index into the list of values."""

    def __init__(self, name: str, values: Sequence[int | float | str]) -> None:
        """Values must be distinct numbers or strings (True counts as 1)."""
        self.name = name
        self.values = tuple(v.item() if isinstance(v, np.generic) else v for v in values)
        self._index = {value: i for i, value in enumerate(self.values)}
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
        return ((i,) for i in range(len(self.values)))

    def contains(self, coords: Coords) -> bool:
        """Whether these are the coordinates of a valid value."""
        return len(coords) == 1 and 0 <= coords[0] < len(self.values)

    def value(self, coords: Coords) -> int | float | str:
        """The value in the list."""
        if not self.contains(coords):
            raise self._reject(coords)
        return self.values[coords[0]]

    def coordinates(self, value: Any) -> Coords:
        """The index of a value of the list."""
        index = self._index.get(value) if isinstance(value, (int, float, str)) else None
        if index is None:
            raise self._reject(value)
        return (index,)

    def sample(self, rng: np.random.Generator) -> Coords:
        """Uniform over the valid values."""
        return (int(rng.integers(len(self.values))),)

    def describe(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"kind": self.kind, "name": self.name, "values": list(self.values)}


class Ordinal(_Listed):
    """An ordered list of values, such as unroll 0 < 16 < 64 < 512; a step goes to the next value up or down.

    This is the parameter of Definition 2.5 of the Droplet Search paper. Encoded as the binary logarithm where
    all values are positive numbers, else as the rank.
    """

    kind = "ordinal"

    def __init__(self, name: str, values: Sequence[int | float | str]) -> None:
        super().__init__(name, values)
        numbers = [v for v in self.values if isinstance(v, (int, float)) and v > 0]
        self._codes = (
            [math.log2(v) for v in numbers] if len(numbers) == self.count else list(map(float, range(self.count)))
        )

    def directions(self, coords: Coords) -> Iterator[Iterator[Coords]]:
        """Up the list, and down the list."""
        yield ((i,) for i in range(coords[0] + 1, len(self.values)))
        yield ((i,) for i in range(coords[0] - 1, -1, -1))

    def encode(self, coords: Coords) -> tuple[float, ...]:
        """One float: the logarithm or the rank."""
        if not self.contains(coords):
            raise self._reject(coords)
        return (self._codes[coords[0]],)


class Categorical(_Listed):
    """Values without an order, such as a loop order: every other value is one hop away. Encoded one-hot."""

    kind = "categorical"

    def directions(self, coords: Coords) -> Iterator[Iterator[Coords]]:
        """One direction of one step for each other value."""
        for i in range(len(self.values)):
            if i != coords[0]:
                yield iter(((i,),))

    def encode(self, coords: Coords) -> tuple[float, ...]:
        """One float per value: 1 for this one."""
        if not self.contains(coords):
            raise self._reject(coords)
        return tuple(float(i == coords[0]) for i in range(len(self.values)))
