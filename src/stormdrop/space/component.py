"""Components: groups of knobs that constraints tie together, each enumerated, counted and sampled by itself.

A space is the Cartesian product of its components. So their counts multiply, and if each component is sampled
uniformly, the space is, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .constraint import Members
from .knob import Coords, Knob, Value

Test = tuple[Callable[..., bool], tuple[int, ...]]
"""A predicate, and the positions of the knobs whose values it takes."""


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


# Rejection sampling of a component with at most this many unconstrained combinations ends early, because listing all
# of them is cheap.
_SMALL = 100_000
_TRIES_SMALL, _TRIES_LARGE = 32, 10_000
_BATCH = 128  # combinations that a `Columnwise` tests at once


class Component:
    """Some knobs of a space, and the tests that concern these knobs only.

    Args:
        knobs: All knobs of the space.
        tests: The predicates over the component's knobs, with positions in the space.
        positions: The positions of the component's knobs in the space, in ascending order.
    """

    def __init__(self, knobs: Sequence[Knob], tests: Sequence[Test], positions: Sequence[int]) -> None:
        self.positions = tuple(positions)
        self._knobs = tuple(knobs[position] for position in self.positions)
        local = {position: index for index, position in enumerate(self.positions)}
        self._tests = tuple((predicate, tuple(local[position] for position in used)) for predicate, used in tests)
        # A test is due as soon as the last of its knobs is set.
        self._due = tuple(
            tuple(test for test in self._tests if max(test[1]) == depth) for depth in range(len(self._knobs))
        )

    def combinations(self) -> Iterator[tuple[Coords, ...]]:
        """All combinations that pass, as one tuple of coordinates per knob, in lexicographic order."""
        if self._members is not None:
            yield from self._members
            return
        if not self._knobs:
            yield ()
            return
        choices = [[(coords, knob.value(coords)) for coords in knob] for knob in self._knobs]
        combination: list[Coords] = [()] * len(self._knobs)
        values: list[Value] = [0] * len(self._knobs)

        def extend(depth: int) -> Iterator[tuple[Coords, ...]]:
            due, last = self._due[depth], depth == len(self._knobs) - 1
            for coords, value in choices[depth]:
                combination[depth], values[depth] = coords, value
                if all(predicate(*[values[index] for index in used]) for predicate, used in due):
                    if last:
                        yield tuple(combination)
                    else:
                        yield from extend(depth + 1)

        yield from extend(0)

    @cached_property
    def possible(self) -> bool:
        """Whether any combination passes."""
        return any(True for _ in self.combinations())

    @cached_property
    def count(self) -> int:
        """The number of combinations that pass."""
        if not self._tests:
            return self._bound
        if self._members is not None:
            return len(self._members)
        return sum(1 for _ in self.combinations())

    def sample(self, rng: np.random.Generator) -> tuple[Coords, ...]:
        """One of the combinations that pass, each with the same probability."""
        if self._members is not None:
            return self._members[int(rng.integers(len(self._members)))]
        tries = _TRIES_SMALL if self._bound <= _SMALL else _TRIES_LARGE
        for _ in range(-(-tries // _BATCH) if self._tables else tries):
            drawn = self._drawn(rng)
            if drawn is not None:
                return drawn
        return self._enumerated[int(rng.integers(len(self._enumerated)))]

    def _drawn(self, rng: np.random.Generator) -> tuple[Coords, ...] | None:
        """One random combination that passes, or None if none that was drawn does.

        If all tests are `Columnwise`, a batch of combinations is drawn, else a single one.
        """
        if not self._tables:
            drawn = tuple(knob.sample(rng) for knob in self._knobs)
            return drawn if not self._tests or self._passes(drawn) else None
        rows = rng.integers([len(coords) for coords, _ in self._tables], size=(_BATCH, len(self._tables)))
        for test, used in self._columnwise:
            rows = rows[test.columns(*(self._tables[knob][1][rows[:, knob]] for knob in used))]
            if not len(rows):
                return None
        return tuple(coords[row] for (coords, _), row in zip(self._tables, rows[0].tolist(), strict=True))

    @cached_property
    def _tables(self) -> list[tuple[list[Coords], NDArray[Any]]]:
        """Per knob all its coordinates and their values; empty if a test takes one combination at a time."""
        all_columnwise = self._tests and len(self._columnwise) == len(self._tests)
        if not all_columnwise or any(knob.count > _SMALL for knob in self._knobs):
            return []
        return [(list(knob), np.array([knob.value(coords) for coords in knob])) for knob in self._knobs]

    @cached_property
    def _columnwise(self) -> list[tuple[Columnwise, tuple[int, ...]]]:
        return [(predicate, used) for predicate, used in self._tests if isinstance(predicate, Columnwise)]

    @cached_property
    def _bound(self) -> int:
        """The number of combinations without the tests."""
        return math.prod(knob.count for knob in self._knobs)

    @cached_property
    def _enumerated(self) -> list[tuple[Coords, ...]]:
        return list(self.combinations())

    @cached_property
    def _members(self) -> list[tuple[Coords, ...]] | None:
        """All combinations that pass, if one of the tests is a list that covers every knob of the component."""
        for predicate, used in self._tests:
            if isinstance(predicate, Members) and len(set(used)) == len(self._knobs):
                order = [used.index(knob) for knob in range(len(self._knobs))]
                listed = sorted(
                    tuple(knob.coordinates(member[index]) for knob, index in zip(self._knobs, order, strict=True))
                    for member in predicate.all
                )
                if len(self._tests) == 1:
                    return listed
                return [combination for combination in listed if self._passes(combination)]
        return None

    def _passes(self, combination: tuple[Coords, ...]) -> bool:
        values = [knob.value(coords) for knob, coords in zip(self._knobs, combination, strict=True)]
        return all(predicate(*[values[index] for index in used]) for predicate, used in self._tests)


def connected_components(knobs: Sequence[Knob], tests: Sequence[Test]) -> tuple[Component, ...]:
    """The smallest groups of knobs such that every test concerns one group only, in the order of their first knobs."""
    group = list(range(len(knobs)))  # the first knob of each knob's group
    for _, used in tests:
        merged = {group[position] for position in used}
        for position in range(len(knobs)):
            if group[position] in merged:
                group[position] = min(merged)
    components = []
    for first in sorted(set(group)):
        positions = [position for position in range(len(knobs)) if group[position] == first]
        tests_of_group = [test for test in tests if group[test[1][0]] == first]
        components.append(Component(knobs, tests_of_group, positions))
    return tuple(components)
