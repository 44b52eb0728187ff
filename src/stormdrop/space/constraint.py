"""Constraints: predicates over the values of a few knobs, among them lists of allowed combinations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from .knob import Value


@dataclass(frozen=True)
class Constraint:
    """A condition on a few knobs.

    Args:
        knobs: The names of the knobs.
        predicate: A pure function of the knobs' values, which it takes as positional arguments in the order of
            `knobs`. If few combinations pass, a predicate that is also a `Columnwise` makes sampling fast.
        description: What the predicate says. It is part of the space's fingerprint, so it must change if the
            predicate changes.

    Example:
        >>> fits = Constraint(("rows", "vectors"), lambda rows, vectors: rows * vectors <= 28, "fits 28 registers")
        >>> fits.predicate(6, 4), fits.predicate(8, 4)
        (True, False)
    """

    knobs: tuple[str, ...]
    predicate: Callable[..., bool]
    description: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "knobs", tuple(self.knobs))

    @classmethod
    def one_of(cls, knobs: Sequence[str], members: Iterable[Sequence[Value]]) -> Constraint:
        """The constraint that the values are one of the listed combinations, such as those that were recorded.

        If the list covers all knobs that are tied together, the space enumerates, counts and samples them from the
        list, however few of their combinations it holds. All listed values must then be values of the knobs. The
        description holds a digest of the list.

        Args:
            knobs: The names of the knobs.
            members: The combinations, one value per knob in the order of `knobs`. Their own order does not matter.

        Example:
            >>> recorded = Constraint.one_of(("rows", "vectors"), [(6, 4), (12, 2)])
            >>> recorded.predicate(6, 4), recorded.predicate(6, 2)
            (True, False)
        """
        listed = Members(members)
        return cls(tuple(knobs), listed, f"one of {len(listed.all)} combinations, {listed.digest}")


class Members:
    """A predicate that holds for the listed combinations, one value per knob; see `Constraint.one_of`."""

    def __init__(self, members: Iterable[Sequence[Value]]) -> None:
        self.all = frozenset(map(tuple, members))

    def __call__(self, *values: Value) -> bool:
        return values in self.all

    @cached_property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that depend on the members but not on their order."""
        lines = sorted(json.dumps(member, separators=(",", ":")) for member in self.all)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
