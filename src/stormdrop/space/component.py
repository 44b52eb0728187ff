"""A group of knobs that constraints tie together: enumerated, counted and sampled independently of the rest.

A space is the Cartesian product of its components, so counts multiply, and drawing each component uniformly
draws the space uniformly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .knob import Coords, Knob, Value
from .members import Members

Test = tuple[Callable[..., bool], tuple[int, ...]]
"""A predicate, and the positions (in the space) of the knobs whose values it takes."""


@runtime_checkable
class Columnwise(Protocol):
    """A predicate that can also be asked of many combinations at once, where few of them pass."""

    def __call__(self, *values: Value) -> bool:
        """Whether one combination passes."""

    def columns(self, *values: NDArray[Any]) -> NDArray[np.bool_]:
        """Which of n pass, shape (n,), given n values of each knob as `Space.columns` has them."""


# Components with at most this many unconstrained combinations are listed at once; they give up rejection early.
_SMALL = 100_000
_TRIES_SMALL, _TRIES_LARGE = 32, 10_000
_BATCH = 128  # combinations that are asked of at once


class Component:
    """Some knobs of a space (at `positions` in it), and the tests that concern these knobs only."""

    def __init__(self, knobs: Sequence[Knob], tests: Sequence[Test], positions: Sequence[int]) -> None:
        """`knobs` are all knobs of the space; `positions` picks those of the component, in ascending order."""
        self.positions = tuple(positions)
        self._knobs = tuple(knobs[at] for at in self.positions)
        local = {at: i for i, at in enumerate(self.positions)}
        self._tests = tuple((predicate, tuple(local[at] for at in used)) for predicate, used in tests)
        # A test is due as soon as the last of its knobs is set.
        self._due = tuple(
            tuple(test for test in self._tests if max(test[1]) == depth) for depth in range(len(self._knobs))
        )

    def walk(self) -> Iterator[tuple[Coords, ...]]:
        """All combinations that pass, one tuple of coordinates per knob, in lexicographic order."""
        if self._members is not None:
            yield from self._members
            return
        if not self._knobs:
            yield ()
            return
        listed = [[(coords, knob.value(coords)) for coords in knob] for knob in self._knobs]
        coords: list[Coords] = [()] * len(self._knobs)
        values: list[Value] = [0] * len(self._knobs)

        def descend(depth: int) -> Iterator[tuple[Coords, ...]]:
            due, last = self._due[depth], depth == len(self._knobs) - 1
            for here, value in listed[depth]:
                coords[depth], values[depth] = here, value
                if all(predicate(*[values[i] for i in used]) for predicate, used in due):
                    if last:
                        yield tuple(coords)
                    else:
                        yield from descend(depth + 1)

        yield from descend(0)

    @cached_property
    def possible(self) -> bool:
        """Whether any combination passes."""
        return any(True for _ in self.walk())

    @cached_property
    def count(self) -> int:
        """The number of combinations that pass."""
        if not self._tests:
            return self._bound
        if self._members is not None:
            return len(self._members)
        return sum(1 for _ in self.walk())

    def sample(self, rng: np.random.Generator) -> tuple[Coords, ...]:
        """One of the combinations that pass, each with the same probability."""
        if self._members is not None:
            return self._members[int(rng.integers(len(self._members)))]
        tries = _TRIES_SMALL if self._bound <= _SMALL else _TRIES_LARGE
        for _ in range(-(-tries // _BATCH) if self._tables else tries):
            drawn = self._drawn(rng)
            if drawn is not None:
                return drawn
        return self._listed[int(rng.integers(len(self._listed)))]

    def _drawn(self, rng: np.random.Generator) -> tuple[Coords, ...] | None:
        """The first that passes of a batch where the tests can be asked of one, else of one; None where none does."""
        if not self._tables:
            drawn = tuple(knob.sample(rng) for knob in self._knobs)
            return drawn if not self._tests or self._passes(drawn) else None
        rows = rng.integers([len(coords) for coords, _ in self._tables], size=(_BATCH, len(self._tables)))
        for test, used in self._columnwise:
            rows = rows[test.columns(*(self._tables[at][1][rows[:, at]] for at in used))]
            if not len(rows):
                return None
        return tuple(coords[row] for (coords, _), row in zip(self._tables, rows[0].tolist(), strict=True))

    @cached_property
    def _tables(self) -> list[tuple[list[Coords], NDArray[Any]]]:
        """All coordinates of each knob, with their values; none where a test takes one combination at a time."""
        every_test = self._tests and len(self._columnwise) == len(self._tests)
        if not every_test or any(knob.count > _SMALL for knob in self._knobs):
            return []
        return [(list(knob), np.array([knob.value(coords) for coords in knob])) for knob in self._knobs]

    @cached_property
    def _columnwise(self) -> list[tuple[Columnwise, tuple[int, ...]]]:
        return [(predicate, used) for predicate, used in self._tests if isinstance(predicate, Columnwise)]

    @cached_property
    def _bound(self) -> int:
        return math.prod(knob.count for knob in self._knobs)

    @cached_property
    def _listed(self) -> list[tuple[Coords, ...]]:
        return list(self.walk())

    @cached_property
    def _members(self) -> list[tuple[Coords, ...]] | None:
        """All combinations that pass, where one of the tests lists the values of every knob of the component."""
        for predicate, used in self._tests:
            if isinstance(predicate, Members) and len(set(used)) == len(self._knobs):
                at = [used.index(i) for i in range(len(self._knobs))]
                listed = sorted(
                    tuple(knob.coordinates(member[i]) for knob, i in zip(self._knobs, at, strict=True))
                    for member in predicate.all
                )
                return listed if len(self._tests) == 1 else [coords for coords in listed if self._passes(coords)]
        return None

    def _passes(self, drawn: tuple[Coords, ...]) -> bool:
        values = [knob.value(coords) for knob, coords in zip(self._knobs, drawn, strict=True)]
        return all(predicate(*[values[i] for i in used]) for predicate, used in self._tests)


def connected(knobs: Sequence[Knob], tests: Sequence[Test]) -> tuple[Component, ...]:
    """The finest components such that every test concerns one of them only, in the order of their first knobs."""
    group = list(range(len(knobs)))
    for _, used in tests:
        merged = {group[at] for at in used}
        for at in range(len(knobs)):
            if group[at] in merged:
                group[at] = min(merged)
    components = []
    for representative in sorted(set(group)):
        positions = [at for at in range(len(knobs)) if group[at] == representative]
        own = [test for test in tests if group[test[1][0]] == representative]
        components.append(Component(knobs, own, positions))
    return tuple(components)
