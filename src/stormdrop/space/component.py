"""Components: groups of knobs that constraints tie together, each enumerated, counted and sampled by itself.

A space is the Cartesian product of its components. So their counts multiply, and if each component is sampled
uniformly, the space is, too.

How much is tried is bounded everywhere, by numbers and not by seconds, so that a seed always gives the same points. A
predicate that takes a millisecond may therefore cost minutes, whatever time a tuning has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SpaceError
from .constraint import Columnwise, Members
from .knob import Coords, Knob, Value, some_coords

Test = tuple[Callable[..., bool], tuple[int, ...]]
"""A predicate, and the positions of the knobs whose values it takes."""

FRUITLESS = 500_000
"""The number of values that an enumeration tries in a row before it gives up to find a combination that passes."""

COUNTED = 10_000_000
"""The number of values that an enumeration tries to count all combinations that pass."""

# Rejection sampling of a component with at most this many unconstrained combinations ends early, because listing all
# of them is cheap.
_SMALL = 100_000
_TRIES_SMALL, _TRIES_LARGE = 32, 10_000
_BATCH = 128  # combinations that a `Columnwise` tests at once

# There is no rejection sampling if fewer than the first number of so many single tries, or batches, succeed.
_FEWEST, _PROBES, _PROBED_BATCHES = 16, 1_024, 128
_PROBED = 16_384  # values of knobs that the single tries draw at most, if there are many knobs

# The random part of a component: the combinations drawn at once (as values of all knobs together), the number that is
# enough, and the number of tests after which no more are drawn.
_CELLS, _ENOUGH, _TESTED = 400_000, 1_000, 500_000


class Component:
    """Some knobs of a space, and the tests that concern these knobs only.

    Args:
        space: The name of the space, for messages.
        knobs: All knobs of the space.
        tests: The predicates over the component's knobs, with positions in the space.
        positions: The positions of the component's knobs in the space, in ascending order.

    Attributes:
        member: A combination that passes, if one is known.
    """

    def __init__(self, space: str, knobs: Sequence[Knob], tests: Sequence[Test], positions: Sequence[int]) -> None:
        self.positions = tuple(positions)
        self.member: tuple[Coords, ...] | None = None
        self._space = space
        self._knobs = tuple(knobs[position] for position in self.positions)
        local = {position: index for index, position in enumerate(self.positions)}
        self._tests = tuple((predicate, tuple(local[position] for position in used)) for predicate, used in tests)
        # A test is due as soon as the last of its knobs is set.
        self._due: tuple[list[Test], ...] = tuple([] for _ in self._knobs)
        for test in self._tests:
            self._due[max(test[1])].append(test)

    def combinations(self) -> Iterator[tuple[Coords, ...]]:
        """All combinations that pass, as one tuple of coordinates per knob, in lexicographic order.

        Raises:
            NoneFound: `FRUITLESS` values were tried in a row, and no combination passed.
        """
        try:
            yield from self._walk(FRUITLESS) if self._members is None else self._members
        except _GivenUp:
            names = [knob.name for knob in self._knobs]
            tied = ", ".join(names[:8]) + ", ..." * (len(names) > 8)
            raise NoneFound(
                f"space {self._space!r}: its constraints exclude {FRUITLESS:,} combinations of {tied} in a row; "
                "give an origin, or list what is allowed by Constraint.one_of"
            ) from None

    def _walk(self, fruitless: int, most: float = math.inf) -> Iterator[tuple[Coords, ...]]:
        """What passes. Raises `_GivenUp` after `most` tried values, or `fruitless` ones since the last that passed."""
        if not self._knobs:
            yield ()
            return
        last = len(self._knobs) - 1
        choices = self._choices()
        combination: list[Coords] = [()] * len(self._knobs)
        values: list[Value] = [0] * len(self._knobs)
        # What each of the first knobs has left to try. It is no recursion, because there may be a thousand knobs.
        untried = [iter(choices[0]())]
        tried, limit = 0, min(fruitless, most)
        while untried:
            depth = len(untried) - 1
            due = self._due[depth]
            for combination[depth], values[depth] in untried[-1]:
                tried += 1
                for predicate, used in due:
                    if not predicate(*[values[index] for index in used]):
                        break
                else:
                    if depth < last:
                        untried.append(iter(choices[depth + 1]()))
                        break
                    yield tuple(combination)
                    limit = min(tried + fruitless, most)
                if tried >= limit:
                    raise _GivenUp
            else:
                untried.pop()

    def _choices(self) -> list[Callable[[], Iterable[tuple[Coords, Value]]]]:
        """Per knob its coordinates and values. They are listed as long as the lists of all knobs are not too long."""

        def one_by_one(knob: Knob) -> Iterator[tuple[Coords, Value]]:
            return ((coords, knob.value(coords)) for coords in knob)

        choices: list[Callable[[], Iterable[tuple[Coords, Value]]]] = []
        room = FRUITLESS
        for knob in self._knobs:
            if knob.count <= room:
                room -= knob.count
                choices.append(partial(iter, list(one_by_one(knob))))
            else:
                choices.append(partial(one_by_one, knob))
        return choices

    def first(self) -> tuple[Coords, ...] | None:
        """The first combination in lexicographic order; None if none passes. Raises as `combinations` does."""
        return next(self.combinations(), None)

    @cached_property
    def count(self) -> int:
        """The number of combinations that pass. Raises `SpaceError` if `COUNTED` tried values are not enough."""
        if not self._tests:
            return self._bound
        if self._members is not None:
            return len(self._members)
        try:
            return sum(1 for _ in self._walk(COUNTED, COUNTED))
        except _GivenUp:
            raise SpaceError(
                f"space {self._space!r} is too large to be counted; without its constraints it has `bound` points"
            ) from None

    def all(self) -> list[tuple[Coords, ...]] | None:
        """All combinations that pass, in lexicographic order; None if `FRUITLESS` tried values are not enough."""
        if self._members is not None:
            return self._members
        if not self._tests and self._bound > FRUITLESS:
            return None
        known, complete = self._known
        return known if complete else None

    def sample(self, rng: np.random.Generator) -> tuple[Coords, ...]:
        """One of the combinations that pass, each with the same probability.

        If few pass, it is one of `_known`.
        """
        if self._members is not None:
            return self._members[int(rng.integers(len(self._members)))]
        if not self._few:
            tries = _TRIES_SMALL if self._bound <= _SMALL else _TRIES_LARGE
            for _ in range(-(-tries // _BATCH) if self._tables else tries):
                drawn = self._drawn(rng)
                if drawn is not None:
                    return drawn
        known, _ = self._known
        return known[int(rng.integers(len(known)))]

    @cached_property
    def _few(self) -> bool:
        """Whether so few combinations pass that rejection sampling would take too long."""
        if not self._tests or self._bound <= _SMALL:
            return False
        rng = np.random.default_rng(0)
        probes = _PROBED_BATCHES if self._tables else min(_PROBES, max(2 * _FEWEST, _PROBED // len(self._knobs)))
        passing = (1 for _ in range(probes) if self._drawn(rng) is not None)
        return sum(islice(passing, _FEWEST)) < _FEWEST

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
    def _known(self) -> tuple[list[tuple[Coords, ...]], bool]:
        """Combinations that pass, in lexicographic order, and whether they are all of them."""
        try:
            return list(self._walk(FRUITLESS, FRUITLESS)), True
        except _GivenUp:
            return self._random_part(), False

    def _random_part(self) -> list[tuple[Coords, ...]]:
        """Random combinations that pass, always the same ones; at least `member`.

        Many are drawn at once, knob by knob. As soon as a test is due, those that fail are replaced by copies of those
        that pass (sequential importance resampling). So the more are drawn, the closer each combination's probability
        comes to that of the others, and constraints on a few knobs each cost little, however many there are.
        """
        rng, number = np.random.default_rng(0), max(1, _CELLS // len(self._knobs))
        tables = [some_coords(knob, len(self._knobs), _CELLS) for knob in self._knobs]
        values = [[knob.value(coords) for coords in table] for knob, table in zip(self._knobs, tables, strict=True)]
        found = {} if self.member is None else {self.member: None}
        tested = 0
        while len(found) < _ENOUGH and tested < _TESTED:
            rows = np.zeros((number, len(tables)), dtype=np.intp)
            for depth, table in enumerate(tables):
                if len(rows) < number:
                    rows = rows[rng.integers(len(rows), size=number)]
                rows[:, depth] = rng.integers(len(table), size=number)
                for predicate, used in self._due[depth]:
                    columns = [map(values[knob].__getitem__, rows[:, knob].tolist()) for knob in used]
                    tested += len(rows)
                    rows = rows[np.fromiter(map(predicate, *columns), dtype=bool, count=len(rows))]
                if not len(rows):
                    break
            for row in rows.tolist():
                found[tuple(table[index] for table, index in zip(tables, row, strict=True))] = None
        if not found:
            raise NoneFound(
                f"space {self._space!r}: none of {tested:,} random combinations satisfies its constraints; "
                "give an origin, or list what is allowed by Constraint.one_of"
            )
        return sorted(found)

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


class NoneFound(SpaceError):
    """So few combinations of knobs pass their constraints that none was found among those that may be tried."""


class _GivenUp(Exception):
    """An enumeration has tried as many values as it may. It never leaves this module."""


def connected_components(space: str, knobs: Sequence[Knob], tests: Sequence[Test]) -> tuple[Component, ...]:
    """The smallest groups of knobs such that every test concerns one group only, in the order of their first knobs.

    `space` is the name of the space, for messages.
    """
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
        components.append(Component(space, knobs, tests_of_group, positions))
    return tuple(components)
