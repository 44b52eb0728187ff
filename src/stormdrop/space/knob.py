"""A knob: one named decision of a schedule, and everything that depends on its kind.

A search never asks what kind a knob is: the knob itself knows its one-step neighbours, a uniform sample, a
mutation and a numeric encoding. A knob owns one or more integer coordinates; coordinate `i` runs from 0 to
`sizes[i] - 1`, and not every combination needs to be valid.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from ..errors import SpaceError

Coords = tuple[int, ...]
Value = int | float | str | tuple[int, ...]
"""What a configuration holds for a knob: JSON-able, and hashable; a tuple comes back from JSON as a list."""


class Knob(ABC):
    """One decision. Immutable; equal when their descriptions are equal.

    Raises `SpaceError` from the constructor when no value is possible, and from `value`, `coordinates` and
    `encode` for what is not one of its values.
    """

    kind: ClassVar[str]
    name: str
    sizes: tuple[int, ...]

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
        """The inverse of `value`; accepts a list for a tuple."""

    @abstractmethod
    def directions(self, coords: Coords) -> Iterator[Iterator[Coords]]:
        """The ways to leave `coords`: each yields the valid coordinates met by stepping on and on in one direction.

        If a direction of `a` reaches `b`, then one of `b` reaches `a`, past the same coordinates in between:
        this makes neighbourhoods symmetric, also where a constraint cuts some of these coordinates out.
        """

    @abstractmethod
    def encode(self, coords: Coords) -> tuple[float, ...]:
        """A fixed number of floats in which distance means something."""

    @abstractmethod
    def sample(self, rng: np.random.Generator) -> Coords:
        """One of the valid values, each with the same probability."""

    def mutate(self, coords: Coords, rng: np.random.Generator) -> Coords:
        """Another valid value, drawn uniformly; `coords` itself when it is the only one."""
        if self.count == 1:
            return coords
        while (other := self.sample(rng)) == coords:
            pass
        return other

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What makes this knob this knob, as JSON-able values: the stuff of a space's fingerprint."""

    def _reject(self, what: object) -> SpaceError:
        return SpaceError(f"knob {self.name!r} has no value {what!r}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Knob) and self.describe() == other.describe()

    def __hash__(self) -> int:
        return hash((self.kind, self.name, self.sizes))

    def __repr__(self) -> str:
        fields = ", ".join(f"{k}={v!r}" for k, v in self.describe().items() if k != "kind")
        return f"{type(self).__name__}({fields})"
