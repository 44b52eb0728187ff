"""A knob: one named decision of a schedule, and everything that depends on its kind.

A search never asks what kind a knob is: the knob itself knows its one-step neighbours, a uniform sample, a
mutation and a numeric encoding. A knob owns one or more integer coordinates. Coordinate `i` runs from 0 to
`sizes[i] - 1`, and not every combination of coordinates needs to be valid.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from ..errors import SpaceError, quoted

Coords = tuple[int, ...]
"""The coordinates of one knob."""

Value = int | float | str | tuple[int, ...]
"""What a configuration holds for a knob. It is hashable and can be written as JSON, where a tuple becomes a list."""


class Knob(ABC):
    """One decision of a schedule. Knobs are immutable, and equal if their descriptions are equal.

    The constructors raise `SpaceError` if no value is possible. `value`, `coordinates` and `encode` raise it for an
    argument that is not one of the knob's values.

    Attributes:
        kind: The name of the knob's class in descriptions.
        name: The knob's name, unique in its space.
        sizes: The number of settings of each coordinate.
        absent: The value in configurations that lack the knob, such as those of a version before it; None if a
            configuration has to have it.
    """

    kind: ClassVar[str]
    name: str
    sizes: tuple[int, ...]
    absent: Value | None = None

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of valid values."""

    @abstractmethod
    def __iter__(self) -> Iterator[Coords]:
        """All valid coordinates, in lexicographic order."""

    @abstractmethod
    def contains(self, coords: Coords) -> bool:
        """Whether these are the coordinates of a valid value."""

    @abstractmethod
    def value(self, coords: Coords) -> Value:
        """What a configuration holds for these coordinates."""

    @abstractmethod
    def coordinates(self, value: Any) -> Coords:
        """The inverse of `value`. A list is accepted in place of a tuple."""

    @abstractmethod
    def directions(self, coords: Coords) -> Iterator[Iterator[Coords]]:
        """The directions in which a search can leave `coords`.

        If a direction of `a` reaches `b`, then a direction of `b` reaches `a` and passes the same coordinates in
        between. So neighbourhoods are symmetric, even if a constraint excludes some of these coordinates.

        Returns:
            One iterator per direction, over the valid coordinates that repeated steps in this direction meet.
        """

    @abstractmethod
    def encode(self, coords: Coords) -> tuple[float, ...]:
        """A fixed number of floats in which distance means something."""

    @abstractmethod
    def sample(self, rng: np.random.Generator) -> Coords:
        """One of the valid values, each with the same probability."""

    def mutate(self, coords: Coords, rng: np.random.Generator) -> Coords:
        """Another valid value, drawn uniformly; `coords` itself if it is the only one."""
        if self.count == 1:
            return coords
        while (other := self.sample(rng)) == coords:
            pass
        return other

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The kind and the constructor's arguments, ready for JSON. A space's fingerprint is computed from it."""

    def _reject(self, value: object) -> SpaceError:
        return SpaceError(f"knob {self.name!r} has no value {quoted(value)}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Knob) and self.describe() == other.describe()

    def __hash__(self) -> int:
        return hash((self.kind, self.name, self.sizes))

    def __repr__(self) -> str:
        fields = ", ".join(f"{k}={v!r}" for k, v in self.describe().items() if k != "kind")
        return f"{type(self).__name__}({fields})"


LISTED = 100_000
"""Nothing lists the values of a knob that has more than these; see `some_coords`."""

_LISTED_TOGETHER, _FEWEST, _DRAWN = 4_000_000, 256, 10_000


def some_coords(knob: Knob, knobs: int = 1, together: int = _LISTED_TOGETHER) -> list[Coords]:
    """The coordinates of a knob in lexicographic order: all of them, or a part if there are too many.

    The part holds up to 10,000 random ones, always the same.

    Args:
        knob: The knob.
        knobs: How many knobs are listed.
        together: How many values they may have together, if each has as many. By default, fewer values of a knob than
            `LISTED` are too many from 40 knobs on.
    """
    most = max(_FEWEST, min(LISTED, together // knobs))
    if knob.count <= most:
        return list(knob)
    rng = np.random.default_rng(0)
    return sorted({knob.sample(rng) for _ in range(min(most, _DRAWN))})


def checked_name(name: object) -> str:
    """The name of a knob. Raises `SpaceError` if it is no text."""
    if not isinstance(name, str):
        raise SpaceError(f"the name of a knob is text, not {quoted(name)}")
    return name


def whole_number(name: str, what: str, value: Any) -> int:
    """A number of a knob's constructor, for instance NumPy's, as Python's. Raises `SpaceError` if it is not whole.

    Args:
        name: The knob's name.
        what: What the number is, for the message.
        value: The number.
    """
    try:
        return int(operator.index(value))
    except TypeError:
        raise SpaceError(f"knob {name!r}: {what} is a whole number, not {quoted(value)}") from None
