"""Knobs whose values are listed one by one: `Ordinal` if their order means something, `Categorical` if not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from ..errors import SpaceError, quoted
from .knob import Coords, Knob, checked_name


class _Listed(Knob):
    """A knob with one coordinate, the index into its list of values."""

    most: ClassVar[int]
    """The largest number of values."""

    def __init__(self, name: str, values: Iterable[int | float | str]) -> None:
        self.name = checked_name(name)
        self.values = tuple(_number_or_text(name, value) for value in islice(_iterator(name, values), self.most + 1))
        self._index = {value: index for index, value in enumerate(self.values)}
        if not self.values:
            raise SpaceError(f"knob {name!r} has no values")
        if len(self.values) > self.most:
            raise SpaceError(f"knob {name!r} has too many values: {self._limit()}")
        if len(self._index) != len(self.values):
            (twice, _), *_ = Counter(self.values).most_common(1)
            raise SpaceError(f"knob {name!r} lists a value twice: {quoted(twice)}")
        self.sizes = (len(self.values),)

    @classmethod
    def _limit(cls) -> str:
        return f"a knob of the kind {cls.kind!r} lists at most {cls.most:,}"

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
        values: Distinct finite numbers or strings, in the order of the steps; at most 1,000,000. True counts as 1.
        absent: The value in configurations that lack the knob, such as those of a version before it; by default a
            configuration has to have it.

    Raises:
        SpaceError: The list is empty or too long, or holds a value twice or something that is no number or text. Or
            `absent` is none of the values.

    Example:
        >>> unroll = Ordinal("unroll", [0, 16, 64, 512])
        >>> unroll.value((1,)), unroll.coordinates(64)
        (16, (2,))
    """

    kind = "ordinal"
    most = 1_000_000

    def __init__(self, name: str, values: Iterable[int | float | str], absent: int | float | str | None = None) -> None:
        super().__init__(name, values)
        self.absent = absent if absent is None else self.value(self.coordinates(absent))
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

    def describe(self) -> dict[str, Any]:
        """The kind and the constructor's arguments."""
        return super().describe() | ({} if self.absent is None else {"absent": self.absent})


_ONE_HOT = 256  # values up to which a categorical knob is encoded one-hot


class Categorical(_Listed):
    """Values without an order, such as loop orders: every other value is one step away.

    Values are encoded one-hot if there are at most 256 of them, because the columns of all values together are a square
    of their number. More of them are encoded as their index.

    Args:
        name: The knob's name.
        values: Distinct finite numbers or strings; at most 10,000. True counts as 1.

    Raises:
        SpaceError: The list is empty or too long, or holds a value twice or something that is no number or text.

    Example:
        >>> order = Categorical("order", ["ijk", "ikj", "kij"])
        >>> [list(direction) for direction in order.directions((0,))]
        [[(1,)], [(2,)]]
    """

    kind = "categorical"
    most = 10_000

    def directions(self, coords: Coords) -> Iterator[Iterator[Coords]]:
        """One direction, of a single step, for each other value."""
        for index in range(len(self.values)):
            if index != coords[0]:
                yield iter(((index,),))

    def encode(self, coords: Coords) -> tuple[float, ...]:
        """One float per value: 1 for the value at `coords`, 0 for the others; the index alone of many values."""
        if not self.contains(coords):
            raise self._reject(coords)
        if len(self.values) > _ONE_HOT:
            return (float(coords[0]),)
        return tuple(float(index == coords[0]) for index in range(len(self.values)))


def _iterator(name: str, values: Iterable[Any]) -> Iterator[Any]:
    try:
        return iter(values)
    except TypeError:
        raise SpaceError(f"knob {name!r} needs a list of values, not {quoted(values)}") from None


def _number_or_text(name: str, value: Any) -> int | float | str:
    """A value as Python's own number or text. Raises `SpaceError` if it is none."""
    if type(value) is int or type(value) is str:
        return value  # there may be a million of them
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = float(value) if value.dtype.char == "g" else value.item()  # `item` leaves a long double as it is
    if isinstance(value, float) and not math.isfinite(value):
        raise SpaceError(f"knob {name!r}: a value is a finite number or text, not {value}")
    if not isinstance(value, int | float | str):
        raise SpaceError(f"knob {name!r}: a value is a finite number or text, not {quoted(value)}")
    return value
