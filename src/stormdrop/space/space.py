"""A space: named knobs, constraints over them, and an origin. One per sketch.

A point is the concatenation of the coordinates of its knobs. Constraints are predicates over the values of a
few knobs; neighbourhoods step over what they exclude, so that a constraint never leaves a gap in which a
descent is caught.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SpaceError
from ..trial import Point
from .component import Component, connected
from .knob import Coords, Knob, Value
from .members import Members


@dataclass(frozen=True)
class Constraint:
    """A condition on a few knobs: `predicate` takes their values, positionally, in the order of `knobs`.

    It must be a pure function of the values; where few combinations pass, one that is also a `Columnwise` makes
    drawing fast. `description` is part of the space's fingerprint: it must change when the predicate does.
    """

    knobs: tuple[str, ...]
    predicate: Callable[..., bool]
    description: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "knobs", tuple(self.knobs))

    @classmethod
    def one_of(cls, knobs: Sequence[str], members: Iterable[Sequence[Value]]) -> Constraint:
        """The values are one of the combinations in a list, such as those that were recorded.

        Where it concerns all knobs that are tied together, they are enumerated, counted and sampled from the list,
        however few of their combinations it holds; all values must then be values of the knobs. The description
        holds a digest of the list.
        """
        listed = Members(members)
        return cls(tuple(knobs), listed, f"one of {len(listed.all)} combinations, {listed.digest}")


class Space:
    """The points that a sketch can be scheduled at. Immutable; shared freely between searches.

    `origin` is the configuration of the canonical schedule (Definition 2.5 of the Droplet Search paper), by
    default the first point in lexicographic order. `revision` enters the fingerprint: it stands for what the points
    mean beside their values, such as what a sketch schedules at them (see `with_revision`).

    Raises `SpaceError` for duplicate or unknown knob names, for an origin outside, and for an empty space.
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
        self.name = name
        self.knobs = tuple(knobs)
        self.constraints = tuple(constraints)
        self._revision: str | Callable[[], str] = revision
        self._former_revision: Callable[[], str | None] | None = None
        self._position = {knob.name: i for i, knob in enumerate(self.knobs)}
        if len(self._position) != len(self.knobs):
            raise SpaceError(f"space {name!r} has two knobs of the same name: {[knob.name for knob in self.knobs]}")
        for constraint in self.constraints:
            if not constraint.knobs:
                raise SpaceError(f"space {name!r}: constraint {constraint.description!r} is on no knob")
            for unknown in [n for n in constraint.knobs if n not in self._position]:
                raise SpaceError(f"space {name!r}: constraint {constraint.description!r} uses unknown knob {unknown!r}")
        ends = np.cumsum([0, *(len(knob.sizes) for knob in self.knobs)]).tolist()
        self._slices = tuple(slice(a, b) for a, b in pairwise(ends))
        self._length: int = ends[-1]
        self._tests = tuple((c.predicate, tuple(self._position[n] for n in c.knobs)) for c in self.constraints)
        self._tests_of = tuple(tuple(test for test in self._tests if at in test[1]) for at in range(len(self.knobs)))
        self.origin: Point = self._first() if origin is None else self.point(origin)

    def _first(self) -> Point:
        for point in self.points():
            return point
        raise SpaceError(f"space {self.name!r} is empty: no point satisfies its constraints")

    # Points and configurations

    def contains(self, point: Point) -> bool:
        """Whether a point has the right length, valid coordinates, and satisfies every constraint."""
        return self._why_not(point) is None

    def config(self, point: Point) -> dict[str, Value]:
        """The values at a point, by knob name. Raises `SpaceError` for a point outside."""
        self._require(point)
        return dict(zip(self._position, self._values(point), strict=True))

    def columns(self, points: Sequence[Point]) -> dict[str, NDArray[Any]]:
        """The values at n points inside, by knob name: one array of n entries per knob, of `(n, parts)` for a tile."""
        columns = {}
        for knob, coords, row in self._occurring(points):
            values = [knob.value(each) for each in coords]
            mixed = len({type(value) for value in values}) > 1
            columns[knob.name] = np.array(values, dtype=object if mixed else None)[row]
        return columns

    def encodings(self, points: Sequence[Point]) -> NDArray[np.float64]:
        """As `encode`, of n points inside: shape `(n, d)`."""
        codes = [np.array([knob.encode(each) for each in coords])[row] for knob, coords, row in self._occurring(points)]
        return np.hstack([np.zeros((len(points), 0)), *codes])

    def _occurring(self, points: Sequence[Point]) -> Iterator[tuple[Knob, list[Coords], NDArray[np.intp]]]:
        """Of each knob the coordinates that occur, and which of them each point has."""
        table = np.array(points, dtype=np.intp).reshape(len(points), self._length)
        for knob, at in zip(self.knobs, self._slices, strict=True):
            coords, row = np.unique(table[:, at], axis=0, return_inverse=True)
            yield knob, [tuple(each) for each in coords.tolist()], row.reshape(-1)

    def point(self, config: Mapping[str, Any]) -> Point:
        """The point of a configuration. Raises `SpaceError` for a missing or unknown knob, or a point outside."""
        for name in config:
            if name not in self._position:
                raise SpaceError(f"space {self.name!r} has no knob {name!r}; it has {', '.join(self._position)}")
        coords: list[int] = []
        for knob in self.knobs:
            if knob.name not in config:
                raise SpaceError(f"space {self.name!r}: the configuration lacks knob {knob.name!r}")
            coords += knob.coordinates(config[knob.name])
        point = tuple(coords)
        self._require(point)
        return point

    def encode(self, point: Point) -> NDArray[np.float64]:
        """The knobs' encodings one after the other, shape `(d,)`."""
        self._require(point)
        return np.array(
            [code for knob, at in zip(self.knobs, self._slices, strict=True) for code in knob.encode(point[at])],
            dtype=np.float64,
        )

    # Steps

    def neighbours(self, point: Point) -> list[Point]:
        """The first point inside in every direction of every knob, without repeats, in a fixed order.

        Definition 3.2 of the Droplet Search paper, read on the values that are valid beside the other knobs'
        values: two neighbours differ in one knob, and no point inside lies between them in that direction.
        The relation is symmetric. Raises `SpaceError` for a point outside.
        """
        values = self._inside_values(point)
        found: dict[Point, None] = {}
        for at, (knob, where) in enumerate(zip(self.knobs, self._slices, strict=True)):
            for direction in knob.directions(point[where]):
                stepped = self._first_inside(point, values, at, direction)
                if stepped is not None:
                    found[stepped] = None
        return list(found)

    def hops(self, point: Point, n: int) -> list[Point]:
        """The points within n steps, the point itself left out, the nearest first (the n-hop neighbourhood)."""
        seen = {point: None}
        rim = [point]
        for _ in range(n):
            rim = [p for p in dict.fromkeys(s for r in rim for s in self.neighbours(r)) if p not in seen]
            seen.update(dict.fromkeys(rim))
        return list(seen)[1:]

    def beyond(self, previous: Point, point: Point) -> Point | None:
        """The first point inside after `point` when the step from `previous` to it is continued, if there is one.

        Where the two differ in several knobs, the first of them in which there is such a point decides.
        """
        self._require(previous)
        values = self._inside_values(point)
        for at, (knob, where) in enumerate(zip(self.knobs, self._slices, strict=True)):
            if previous[where] == point[where]:
                continue
            for direction in knob.directions(previous[where]):
                # consuming up to and including point[where] leaves the iterator just after it
                if point[where] not in direction:
                    continue
                further = self._first_inside(point, values, at, direction)
                if further is not None:
                    return further
        return None

    def mutate(self, point: Point, rng: np.random.Generator) -> Point:
        """A point with one knob changed; a random point where none can be changed alone."""
        values = self._inside_values(point)
        order = rng.permutation(len(self.knobs)).tolist()
        for at in order:
            where, knob = self._slices[at], self.knobs[at]
            for _ in range(8):
                coords = knob.mutate(point[where], rng)
                if coords != point[where] and self._fits(values, at, coords):
                    return (*point[: where.start], *coords, *point[where.stop :])
        # Tight constraints: look at all values of each knob before giving up.
        for at in order:
            where, knob = self._slices[at], self.knobs[at]
            fitting = [c for c in knob if c != point[where] and self._fits(values, at, c)]
            if fitting:
                coords = fitting[int(rng.integers(len(fitting)))]
                return (*point[: where.start], *coords, *point[where.stop :])
        return self.sample(rng)

    # The space as a whole

    @property
    def bound(self) -> int:
        """The number of points if there were no constraints: an upper bound of `size`, known at once."""
        return math.prod(knob.count for knob in self.knobs)

    @cached_property
    def size(self) -> int:
        """The exact number of points. Enumerates each group of knobs that constraints tie together, once."""
        return math.prod(component.count for component in self._components)

    def points(self) -> Iterator[Point]:
        """All points in lexicographic order; a constraint prunes as soon as all its knobs are set."""
        return (tuple(chain.from_iterable(coords)) for coords in self._whole.walk())

    def sample(self, rng: np.random.Generator) -> Point:
        """One of the points, each with the same probability.

        Knobs that constraints tie together are drawn together, by rejection, and from their enumeration where
        few tries hit; the number of tries depends on the space alone, so a seed always gives the same points.
        """
        drawn: list[tuple[int, ...]] = [()] * len(self.knobs)
        for component in self._components:
            for at, coords in zip(component.positions, component.sample(rng), strict=True):
                drawn[at] = coords
        return tuple(chain.from_iterable(drawn))

    def with_revision(self, revision: Callable[[], str], former: Callable[[], str | None]) -> Space:
        """The same space with a revision that is computed when it is first needed.

        `former` gives the revision that an earlier version had for the same meaning, or None: records that were
        taken under it are valid as well.
        """
        space = copy.copy(self)
        for name in ("revision", "fingerprint"):
            space.__dict__.pop(name, None)
        space._revision, space._former_revision = revision, former
        return space

    @cached_property
    def revision(self) -> str:
        """What the points mean beside their values, in a few characters."""
        return self._revision if isinstance(self._revision, str) else self._revision()

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with anything that `describe` tells."""
        return _digest(self.describe())

    def recognises(self, fingerprint: str | None) -> bool:
        """Whether records with this fingerprint are records of this space."""
        if fingerprint == self.fingerprint:
            return True
        former = None if self._former_revision is None else self._former_revision()
        return former is not None and fingerprint == _digest({**self.describe(), "revision": former})

    def __getstate__(self) -> dict[str, Any]:
        # How revisions are computed stays in this process.
        return {**self.__dict__, "_revision": self.revision, "_former_revision": None}

    def describe(self) -> dict[str, Any]:
        """The knobs, the constraints' descriptions, the origin and the revision, as JSON-able values."""
        return {
            "name": self.name,
            "knobs": [knob.describe() for knob in self.knobs],
            "constraints": [{"knobs": list(c.knobs), "description": c.description} for c in self.constraints],
            "origin": {k: list(v) if isinstance(v, tuple) else v for k, v in self.config(self.origin).items()},
            "revision": self.revision,
        }

    def __repr__(self) -> str:
        return f"Space({self.name!r}, {len(self.knobs)} knobs, at most {self.bound} points)"

    # Helpers

    @cached_property
    def _components(self) -> tuple[Component, ...]:
        components = connected(self.knobs, self._tests)
        if not all(component.possible for component in components):
            raise SpaceError(f"space {self.name!r} is empty: no point satisfies its constraints")
        return components

    @cached_property
    def _whole(self) -> Component:
        """All knobs as one component, in whose order the points come."""
        if len(self._components) == 1:
            return self._components[0]
        return Component(self.knobs, self._tests, range(len(self.knobs)))

    def _values(self, point: Point) -> list[Value]:
        return [knob.value(point[at]) for knob, at in zip(self.knobs, self._slices, strict=True)]

    def _why_not(self, point: Point) -> str | None:
        if len(point) != self._length:
            return f"it has {len(point)} coordinates, not {self._length}"
        for knob, at in zip(self.knobs, self._slices, strict=True):
            if not knob.contains(point[at]):
                return f"knob {knob.name!r} has no value there"
        values = self._values(point)
        for (predicate, positions), constraint in zip(self._tests, self.constraints, strict=True):
            if not predicate(*(values[at] for at in positions)):
                return f"it violates {constraint.description!r}"
        return None

    def _require(self, point: Point) -> None:
        reason = self._why_not(point)
        if reason is not None:
            raise SpaceError(f"{point} is outside space {self.name!r}: {reason}")

    def _inside_values(self, point: Point) -> list[Value]:
        self._require(point)
        return self._values(point)

    def _first_inside(
        self, point: Point, values: list[Value], at: int, direction: Iterator[tuple[int, ...]]
    ) -> Point | None:
        where = self._slices[at]
        for coords in direction:
            if self._fits(values, at, coords):
                return (*point[: where.start], *coords, *point[where.stop :])
        return None

    def _fits(self, values: list[Value], at: int, coords: tuple[int, ...]) -> bool:
        """Whether the point with these values stays inside when knob `at` moves to `coords`."""
        tests = self._tests_of[at]
        if not tests:
            return True
        before, values[at] = values[at], self.knobs[at].value(coords)
        try:
            return all(predicate(*(values[i] for i in positions)) for predicate, positions in tests)
        finally:
            values[at] = before


def _digest(description: Mapping[str, Any]) -> str:
    canonical = json.dumps(description, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
