"""Spaces: named knobs, constraints over them, and an origin. Each sketch has one space.

A point is the concatenation of the coordinates of its knobs. A neighbourhood steps over the points that the
constraints exclude, so that no constraint leaves a gap in which a descent gets stuck.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice, pairwise, product
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import SpaceError, hint, quoted
from ..trial import Point
from .component import Component, connected_components
from .constraint import Constraint
from .knob import LISTED, Coords, Knob, Value, some_coords

COORDINATES = 4_096
"""The largest number of coordinates of a space's points."""

Part = TypeVar("Part")


class Space:
    """The points at which a sketch can be scheduled. A space is immutable, and searches may share it.

    Args:
        name: The space's name, which is the name of its sketch.
        knobs: What may vary. The names of the knobs must be distinct.
        constraints: The conditions that every point satisfies.
        origin: The configuration of the canonical schedule (Definition 2.5 of the Droplet Search paper); by default
            the first point in lexicographic order.
        revision: A text that identifies what a sketch schedules at the points. It changes if the same values begin to
            mean another schedule. It is part of the fingerprint; see `with_revision`.

    Raises:
        SpaceError: Two knobs have the same name. There are more than 4,096 coordinates. A constraint names no knob or
            an unknown one, or raises an exception. The origin is outside of the space. The space is empty. Or no
            origin is given, and the constraints exclude the first 500,000 combinations of the knobs that they tie
            together.

    Example:
        >>> from stormdrop.space import Constraint, Ordinal, Space
        >>> fits = Constraint(("rows", "vectors"), lambda rows, vectors: rows * vectors <= 12, "fits 12 registers")
        >>> space = Space("tiles", [Ordinal("rows", [1, 2, 4, 6]), Ordinal("vectors", [1, 2, 4])], [fits])
        >>> space.size
        10
        >>> point = space.point({"rows": 4, "vectors": 2})
        >>> point
        (2, 1)
        >>> [space.config(neighbour) for neighbour in space.neighbours(point)]
        [{'rows': 6, 'vectors': 2}, {'rows': 2, 'vectors': 2}, {'rows': 4, 'vectors': 1}]
    """

    def __init__(
        self,
        name: str,
        knobs: Sequence[Knob],
        constraints: Sequence[Constraint] = (),
        origin: Mapping[str, Any] | None = None,
        *,
        revision: str = "",
    ) -> None:
        if not isinstance(name, str):
            raise SpaceError(f"the name of a space is text, not {quoted(name)}")
        self.name = name
        self.knobs = _all_of(name, Knob, "knobs", knobs)  # type: ignore[type-abstract]
        self.constraints = _all_of(name, Constraint, "constraints", constraints)
        self._revision: str | Callable[[], str] = revision
        self._former_revision: Callable[[], str | None] | None = None
        self._position = {knob.name: i for i, knob in enumerate(self.knobs)}
        if len(self._position) != len(self.knobs):
            names = quoted([knob.name for knob in self.knobs])
            raise SpaceError(f"space {name!r} has two knobs of the same name: {names}")
        for constraint in self.constraints:
            if not constraint.knobs:
                raise SpaceError(f"space {name!r}: constraint {constraint.description!r} is on no knob")
            for unknown in [knob_name for knob_name in constraint.knobs if knob_name not in self._position]:
                raise SpaceError(f"space {name!r}: constraint {constraint.description!r} uses unknown knob {unknown!r}")
        ends = np.cumsum([0, *(len(knob.sizes) for knob in self.knobs)]).tolist()
        self._slices = tuple(slice(begin, end) for begin, end in pairwise(ends))  # of each knob in a point
        self._length: int = ends[-1]
        if self._length > COORDINATES:
            raise SpaceError(f"space {name!r} has {self._length:,} coordinates; at most {COORDINATES:,} are possible")
        self._tests = tuple(
            (constraint.test, tuple(self._position[knob_name] for knob_name in constraint.knobs))
            for constraint in self.constraints
        )
        self._tests_of = tuple(
            tuple(test for test in self._tests if position in test[1]) for position in range(len(self.knobs))
        )
        self.origin: Point = self._first() if origin is None else self.point(origin)

    # Points and configurations

    def contains(self, point: Point) -> bool:
        """Whether a point has the right length, valid coordinates, and satisfies every constraint."""
        return not isinstance(self._values_or_reason(point), str)

    def config(self, point: Point) -> dict[str, Value]:
        """The values at a point, by knob name. Raises `SpaceError` if the point is outside of the space."""
        return dict(zip(self._position, self._values_inside(point), strict=True))

    def columns(self, points: Sequence[Point]) -> dict[str, NDArray[Any]]:
        """The values at n points, which must be inside of the space.

        Returns:
            An array per knob, by the knob's name: of shape `(n,)`, or `(n, factors)` for a `Tile` or a `Split`.
        """
        columns = {}
        for knob, distinct, index in self._distinct_coords(points):
            values = [knob.value(coords) for coords in distinct]
            mixed = len({type(value) for value in values}) > 1
            columns[knob.name] = np.array(values, dtype=object if mixed else None)[index]
        return columns

    def encodings(self, points: Sequence[Point]) -> NDArray[np.float64]:
        """What `encode` returns for each of n points, which must be inside of the space: shape `(n, d)`."""
        codes = [
            np.array([knob.encode(coords) for coords in distinct])[index]
            for knob, distinct, index in self._distinct_coords(points)
        ]
        return np.hstack([np.zeros((len(points), 0)), *codes])

    def _distinct_coords(self, points: Sequence[Point]) -> Iterator[tuple[Knob, list[Coords], NDArray[np.intp]]]:
        """For each knob the distinct coordinates that it has at the points, and the index among them of each point."""
        table = np.array(points, dtype=np.intp).reshape(len(points), self._length)
        for knob, place in zip(self.knobs, self._slices, strict=True):
            distinct, index = _distinct_rows(table[:, place])
            yield knob, [tuple(coords) for coords in distinct.tolist()], index

    def point(self, config: Mapping[str, Any]) -> Point:
        """The point of a configuration, given as values by knob name. A missing one has its `absent` value, if any.

        Raises:
            SpaceError: A knob is missing or unknown, a knob does not have this value, or the point is outside.
        """
        if not isinstance(config, Mapping):
            raise SpaceError(f"space {self.name!r}: a configuration is a value per knob, not {quoted(config)}")
        for name in config:
            if name not in self._position:
                raise SpaceError(f"space {self.name!r} has no knob {quoted(name)}; {hint(name, self._position)}")
        coords: list[int] = []
        for knob in self.knobs:
            if knob.name not in config and knob.absent is None:
                raise SpaceError(f"space {self.name!r}: the configuration lacks knob {knob.name!r}")
            coords += knob.coordinates(config.get(knob.name, knob.absent))
        point = tuple(coords)
        self._values_inside(point)
        return point

    def encode(self, point: Point) -> NDArray[np.float64]:
        """The knobs' encodings one after the other, shape `(d,)`. Raises `SpaceError` if the point is outside."""
        self._values_inside(point)
        return np.array(
            [code for knob, place in zip(self.knobs, self._slices, strict=True) for code in knob.encode(point[place])],
            dtype=np.float64,
        )

    # Steps

    def neighbours(self, point: Point) -> list[Point]:
        """The nearest point in every direction of every knob, without repeats, in a fixed order.

        This is Definition 3.2 of the Droplet Search paper, applied to the values that are valid together with the
        other knobs' values: two neighbours differ in one knob, and no point of the space lies between them in that
        direction. The relation is symmetric.

        Raises:
            SpaceError: The point is outside of the space.
        """
        values = self._values_inside(point)
        neighbours: dict[Point, None] = {}
        for position, (knob, place) in enumerate(zip(self.knobs, self._slices, strict=True)):
            for direction in knob.directions(point[place]):
                neighbour = self._first_inside(point, values, position, direction)
                if neighbour is not None:
                    neighbours[neighbour] = None
        return list(neighbours)

    def hops(self, point: Point, n: int) -> list[Point]:
        """The n-hop neighbourhood: the points within n steps without the point itself, the nearest first."""
        seen = {point: None}
        rim = [point]
        for _ in range(n):
            reached = dict.fromkeys(neighbour for inner in rim for neighbour in self.neighbours(inner))
            rim = [outer for outer in reached if outer not in seen]
            seen.update(dict.fromkeys(rim))
        return list(seen)[1:]

    def beyond(self, previous: Point, point: Point) -> Point | None:
        """The next point of the space if the move from `previous` to `point` is continued, or None at the end.

        If the two differ in several knobs, the move is continued in the first of them in which this is possible.
        """
        self._values_inside(previous)
        values = self._values_inside(point)
        for position, (knob, place) in enumerate(zip(self.knobs, self._slices, strict=True)):
            if previous[place] == point[place]:
                continue
            for direction in knob.directions(previous[place]):
                # The test consumes `direction` up to and including point[place], so `direction` goes on just after it.
                if point[place] not in direction:
                    continue
                further = self._first_inside(point, values, position, direction)
                if further is not None:
                    return further
        return None

    def mutate(self, point: Point, rng: np.random.Generator) -> Point:
        """A point with one knob changed, or a random point if no knob can be changed alone."""
        values = self._values_inside(point)
        order = rng.permutation(len(self.knobs)).tolist()
        for position in order:
            place, knob = self._slices[position], self.knobs[position]
            for _ in range(8):
                coords = knob.mutate(point[place], rng)
                if coords != point[place] and self._fits(values, position, coords):
                    return _replaced(point, place, coords)
        # The constraints are tight: look at all values of each knob before giving up.
        for position in order:
            place, knob = self._slices[position], self.knobs[position]
            fitting = [
                coords
                for coords in some_coords(knob, len(order))
                if coords != point[place] and self._fits(values, position, coords)
            ]
            if fitting:
                return _replaced(point, place, fitting[int(rng.integers(len(fitting)))])
        return self.sample(rng)

    # The space as a whole

    @property
    def bound(self) -> int:
        """The number of points without the constraints: an upper bound of `size` that is known at once."""
        return math.prod(knob.count for knob in self.knobs)

    @cached_property
    def size(self) -> int:
        """The exact number of points. Its first use enumerates each group of knobs that constraints tie together.

        Raises:
            SpaceError: More than 10,000,000 combinations must be tried.
        """
        return math.prod(component.count for component in self._components)

    def points(self) -> Iterator[Point]:
        """All points in lexicographic order. Combinations that a constraint excludes are dropped early.

        Raises:
            NoneFound: While the points are taken: 500,000 combinations in a row are excluded.
        """
        return (tuple(chain.from_iterable(coords)) for coords in self._whole.combinations())

    def listed(self, most: int) -> list[Point] | None:
        """All points in lexicographic order; None if there are more than `most`, or too many to be tested."""
        every = []
        for component in self._components:
            part = component.all()
            if part is None:
                return None
            every.append(part)
        if math.prod(map(len, every)) > most:
            return None
        return sorted(self._joined(parts) for parts in product(*every))

    def sample(self, rng: np.random.Generator) -> Point:
        """One of the points, each with the same probability.

        Knobs that constraints tie together are drawn together: by rejection, or from their enumeration if few of their
        combinations pass. If there are too many to enumerate, they are drawn from a random part of a few to some ten
        thousand combinations, which is always the same part. All this depends on the space alone, so a seed always
        gives the same points.

        Raises:
            NoneFound: Of 500,000 random combinations none passes.
        """
        return self._joined([component.sample(rng) for component in self._components])

    def with_revision(self, revision: Callable[[], str], former: Callable[[], str | None]) -> Space:
        """The same space with a revision that is computed at its first use.

        Args:
            revision: Computes the revision.
            former: Computes the revision that an earlier version of stormdrop had for the same meaning, or None if
                there is none. Records that carry it are valid as well.
        """
        space = copy.copy(self)
        for name in ("revision", "fingerprint"):
            space.__dict__.pop(name, None)
        space._revision, space._former_revision = revision, former
        return space

    @cached_property
    def revision(self) -> str:
        """A few characters that stand for what the points mean besides their values."""
        return self._revision if isinstance(self._revision, str) else self._revision()

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with anything that `describe` returns.

        For the space of a sketch, `sketches.fingerprint` computes the revision that enters.
        """
        return _digest(self.describe())

    def recognises(self, fingerprint: str | None) -> bool:
        """Whether records with this fingerprint are records of this space, perhaps of an earlier version."""
        if fingerprint == self.fingerprint:
            return True
        former = None if self._former_revision is None else self._former_revision()
        return former is not None and fingerprint == _digest({**self.describe(), "revision": former})

    def __getstate__(self) -> dict[str, Any]:
        # Pickles hold the computed revision, because the functions that compute revisions need not be picklable.
        return {**self.__dict__, "_revision": self.revision, "_former_revision": None}

    def describe(self) -> dict[str, Any]:
        """The knobs, the constraints' descriptions, the origin and the revision, ready for JSON."""
        origin = self.config(self.origin)
        return {
            "name": self.name,
            "knobs": [knob.describe() for knob in self.knobs],
            "constraints": [
                {"knobs": list(constraint.knobs), "description": constraint.description}
                for constraint in self.constraints
            ],
            "origin": {name: list(value) if isinstance(value, tuple) else value for name, value in origin.items()},
            "revision": self.revision,
        }

    def __repr__(self) -> str:
        return f"Space({self.name!r}, {len(self.knobs)} knobs, at most {_rounded(self.bound)} points)"

    # Helpers

    def _first(self) -> Point:
        # The first point of the product is made of the first one of each factor.
        for component in self._components:
            component.member = component.first()
        return self._joined([component.member for component in self._components])

    def _joined(self, parts: Sequence[tuple[Coords, ...] | None]) -> Point:
        """The point that consists of a combination of each component."""
        coords_of_knobs: list[Coords] = [()] * len(self.knobs)
        for component, part in zip(self._components, parts, strict=True):
            if part is None:
                raise SpaceError(f"space {self.name!r} is empty: no point satisfies its constraints")
            for position, coords in zip(component.positions, part, strict=True):
                coords_of_knobs[position] = coords
        return tuple(chain.from_iterable(coords_of_knobs))

    @cached_property
    def _components(self) -> tuple[Component, ...]:
        components = connected_components(self.name, self.knobs, self._tests)
        if hasattr(self, "origin"):
            for component in components:
                component.member = tuple(self.origin[self._slices[position]] for position in component.positions)
        return components

    @cached_property
    def _whole(self) -> Component:
        """All knobs as one component, which enumerates the points in lexicographic order."""
        if len(self._components) == 1:
            return self._components[0]
        return Component(self.name, self.knobs, self._tests, range(len(self.knobs)))

    def _values_or_reason(self, point: Point) -> list[Value] | str:
        """The values at a point, or the reason why it is outside of the space."""
        if len(point) != self._length:
            return f"it has {len(point)} coordinates, not {self._length}"
        for knob, place in zip(self.knobs, self._slices, strict=True):
            if not knob.contains(point[place]):
                return f"knob {knob.name!r} has no value there"
        values = [knob.value(point[place]) for knob, place in zip(self.knobs, self._slices, strict=True)]
        for (predicate, positions), constraint in zip(self._tests, self.constraints, strict=True):
            if not predicate(*(values[position] for position in positions)):
                return f"it violates {constraint.description!r}"
        return values

    def _values_inside(self, point: Point) -> list[Value]:
        """The values at a point. Raises `SpaceError` if the point is outside."""
        values = self._values_or_reason(point)
        if isinstance(values, str):
            raise SpaceError(f"{quoted(point)} is outside space {self.name!r}: {values}")
        return values

    def _first_inside(
        self, point: Point, values: list[Value], position: int, direction: Iterator[Coords]
    ) -> Point | None:
        """The first point inside that the knob at `position` reaches in a direction; `values` are those at `point`.

        No more than `LISTED` points are stepped over, in both directions alike, so that neighbours remain symmetric.
        """
        for coords in islice(direction, LISTED):
            if self._fits(values, position, coords):
                return _replaced(point, self._slices[position], coords)
        return None

    def _fits(self, values: list[Value], position: int, coords: Coords) -> bool:
        """Whether the point with these values stays inside if the knob at `position` moves to `coords`."""
        tests = self._tests_of[position]
        if not tests:
            return True
        before, values[position] = values[position], self.knobs[position].value(coords)
        try:
            return all(predicate(*(values[index] for index in positions)) for predicate, positions in tests)
        finally:
            values[position] = before


def _all_of(name: str, kind: type[Part], what: str, given: Iterable[Part]) -> tuple[Part, ...]:
    """The parts of a space. Raises `SpaceError` if one is of another kind."""
    try:
        parts = tuple(given)
    except TypeError:
        raise SpaceError(f"space {name!r} needs a list of {what}, not {quoted(given)}") from None
    for part in parts:
        if not isinstance(part, kind):
            raise SpaceError(f"space {name!r}: {quoted(part)} is none of its {what}")
    return parts


def _rounded(number: int) -> str:
    """A whole number in full, or its order of magnitude if it has more than 20 digits."""
    return str(number) if number < 10**20 else f"10^{math.floor(math.log10(number))}"


def _replaced(point: Point, place: slice, coords: Coords) -> Point:
    return (*point[: place.start], *coords, *point[place.stop :])


def _distinct_rows(rows: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The distinct rows of a table in their order, and the index among them of each row.

    `np.unique(axis=0)` is up to ten times slower, and turns a Ctrl-C that arrives inside of it into a TypeError.
    """
    order = np.lexsort(rows.T[::-1]) if rows.shape[1] else np.arange(len(rows))
    ordered = rows[order]
    differs = np.ones(len(rows), dtype=bool)
    differs[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    index = np.empty(len(rows), dtype=np.intp)
    index[order] = np.cumsum(differs) - 1
    return ordered[differs], index


def _digest(description: Mapping[str, Any]) -> str:
    canonical = json.dumps(description, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
