"""Constraints: predicates over the values of a few knobs, among them lists of allowed combinations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..errors import SpaceError, one_line, quoted
from .knob import Value


@runtime_checkable
class Columnwise(Protocol):
    """A predicate that can also test many combinations at once. It pays off if few combinations pass."""

    def __call__(self, *values: Value) -> bool:
        """Whether one combination passes."""

    def columns(self, *values: NDArray[Any]) -> NDArray[np.bool_]:
        """Which of n combinations pass.

        Args:
            values: One array per knob, with n values in the form of `Space.columns`.

        Returns:
            A mask of shape `(n,)`.
        """


@dataclass(frozen=True)
class Constraint:
    """A condition on a few knobs.

    Args:
        knobs: The names of the knobs.
        predicate: A pure function of the knobs' values, which it takes as positional arguments in the order of
            `knobs`. If few combinations pass, it is called up to a million times, before a tuning looks at its clock;
            a predicate that is also a `Columnwise` makes sampling fast.
        description: What the predicate says. It is part of the space's fingerprint, so it must change if the
            predicate changes.

    Raises:
        SpaceError: `knobs` is no list of names, or the predicate cannot be called.

    Example:
        >>> fits = Constraint(("rows", "vectors"), lambda rows, vectors: rows * vectors <= 28, "fits 28 registers")
        >>> fits.predicate(6, 4), fits.predicate(8, 4)
        (True, False)
    """

    knobs: tuple[str, ...]
    predicate: Callable[..., bool]
    description: str

    def __post_init__(self) -> None:
        given: Any = self.knobs
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise SpaceError(f"constraint {self.description!r} needs a list of the names of knobs, not {quoted(given)}")
        if not callable(self.predicate):
            raise SpaceError(f"constraint {self.description!r} needs a function, not {quoted(self.predicate)}")
        object.__setattr__(self, "knobs", tuple(self.knobs))

    @property
    def test(self) -> Callable[..., bool]:
        """The predicate as spaces call it: what it raises becomes a `SpaceError` that names the constraint."""
        if isinstance(self.predicate, Members):
            return self.predicate
        return (_TestOfColumns if isinstance(self.predicate, Columnwise) else _Test)(self)

    @classmethod
    def one_of(cls, knobs: Sequence[str], members: Iterable[Sequence[Value]]) -> Constraint:
        """The constraint that the values are one of the listed combinations, such as those that were recorded.

        If the list covers all knobs that are tied together, the space enumerates, counts and samples them from the
        list, however few of their combinations it holds. All listed values must then be values of the knobs. The
        description holds a digest of the list.

        Args:
            knobs: The names of the knobs.
            members: The combinations, one value per knob in the order of `knobs`. Their own order does not matter.

        Raises:
            SpaceError: A member is no combination of one value per knob.

        Example:
            >>> recorded = Constraint.one_of(("rows", "vectors"), [(6, 4), (12, 2)])
            >>> recorded.predicate(6, 4), recorded.predicate(6, 2)
            (True, False)
        """
        combinations = []
        for member in members:
            if not isinstance(member, list | tuple) or len(member) != len(knobs):
                raise SpaceError(f"a list of combinations needs one value for each of its knobs, not {quoted(member)}")
            combinations.append([tuple(value) if isinstance(value, list) else value for value in member])
        listed = Members(combinations)
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


class _Test:
    """A constraint's predicate, whose errors name the constraint and the values."""

    def __init__(self, constraint: Constraint) -> None:
        self._constraint, self._predicate = constraint, constraint.predicate

    def __call__(self, *values: Value) -> bool:
        try:
            return bool(self._predicate(*values))
        except Exception as error:
            given = dict(zip(self._constraint.knobs, values, strict=True))
            raise SpaceError(
                f"constraint {self._constraint.description!r} fails for {quoted(given)}: {one_line(error)}"
            ) from error


class _TestOfColumns(_Test):
    def columns(self, *values: NDArray[Any]) -> NDArray[np.bool_]:
        passes: NDArray[np.bool_] = self._predicate.columns(*values)  # type: ignore[attr-defined]
        return passes
