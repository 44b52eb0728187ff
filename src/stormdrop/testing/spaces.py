"""The conformance suite of knobs and spaces. It enumerates: give it spaces of at most some thousands of points."""

from __future__ import annotations

import itertools
import json
from abc import ABC, abstractmethod

import numpy as np

from ..space import Knob, Space
from ..trial import Point


def check_knob(knob: Knob, rng: np.random.Generator) -> None:
    """Checks the contract of `Knob`: enumeration, round trips, symmetric directions, samples and encodings.

    Args:
        knob: The knob.
        rng: The source of random samples.

    Raises:
        AssertionError: If the knob breaks a rule.

    Example:
        >>> from stormdrop.space import Tile
        >>> check_knob(Tile("tile", 24, 3), np.random.default_rng(0))
    """
    listed = list(knob)
    assert len(listed) == knob.count == len(set(listed))
    assert listed == sorted(listed)
    box = itertools.product(*(range(size) for size in knob.sizes))
    assert listed == [coords for coords in box if knob.contains(coords)]
    values = [knob.value(coords) for coords in listed]
    assert len(set(values)) == len(values)
    for coords, value in zip(listed, values, strict=True):
        assert knob.coordinates(json.loads(json.dumps(value))) == coords
    paths = {coords: [list(direction) for direction in knob.directions(coords)] for coords in listed}
    for coords, directions in paths.items():
        for path in directions:
            assert coords not in path
            for index, reached in enumerate(path):
                assert knob.contains(reached)
                # The way back passes the same coordinates in reverse.
                between = list(reversed(path[:index]))
                assert any(back[: index + 1] == [*between, coords] for back in paths[reached]), (coords, reached)
    assert len({len(knob.encode(coords)) for coords in listed}) == 1
    assert len({knob.encode(coords) for coords in listed}) == len(listed)
    for _ in range(20):
        drawn = knob.sample(rng)
        assert knob.contains(drawn)
        mutated = knob.mutate(drawn, rng)
        assert knob.contains(mutated)
        assert (mutated != drawn) == (knob.count > 1)
    json.dumps(knob.describe())


def check_space(space: Space, rng: np.random.Generator, checked: int = 200) -> None:
    """Checks the contract of `Space`: counts, membership, round trips and neighbourhoods.

    Args:
        space: The space. All its points are enumerated.
        rng: The source of random samples.
        checked: At how many points the rules about single points are checked.

    Raises:
        AssertionError: If the space breaks a rule.

    Example:
        >>> from stormdrop.space import Ordinal
        >>> check_space(Space("small", [Ordinal("unroll", [0, 16, 64])]), np.random.default_rng(0))
    """
    points = list(space.points())
    inside = set(points)
    assert points == sorted(inside), "points come in lexicographic order, each once"
    assert len(points) == space.size <= space.bound
    assert space.origin in inside
    assert space.contains(space.origin)
    picked = (
        points
        if len(points) <= checked
        else [points[index] for index in rng.choice(len(points), checked, replace=False)]
    )
    for point in picked:
        assert all(type(coordinate) is int for coordinate in point)
        assert space.contains(point)
        assert space.point(json.loads(json.dumps(space.config(point)))) == point
        _check_neighbours(space, point, inside)
    assert len({space.encode(point).shape for point in picked}) == 1
    assert len({space.encode(point).tobytes() for point in picked}) == len(picked)
    for _ in range(30):
        assert space.sample(rng) in inside
        mutated = space.mutate(picked[0], rng)
        assert mutated in inside
        assert (mutated != picked[0]) or _one_knob_changes(space, picked[0], inside) == 0
    assert len(space.fingerprint) == 16
    json.dumps(space.describe())


def _check_neighbours(space: Space, point: Point, inside: set[Point]) -> None:
    neighbours = space.neighbours(point)
    assert len(set(neighbours)) == len(neighbours)
    assert neighbours == space.neighbours(point)
    for neighbour in neighbours:
        assert neighbour in inside
        assert knobs_that_differ(space, point, neighbour) == 1
        assert point in space.neighbours(neighbour)


def knobs_that_differ(space: Space, a: Point, b: Point) -> int:
    """The number of knobs in which two points differ."""
    config_a, config_b = space.config(a), space.config(b)
    return sum(config_a[name] != config_b[name] for name in config_a)


def _one_knob_changes(space: Space, point: Point, inside: set[Point]) -> int:
    """The number of points that differ from this one in one knob."""
    return sum(knobs_that_differ(space, point, other) == 1 for other in inside)


class SpaceConformance(ABC):
    """The rules of spaces, each in one test. Inherit, and return spaces from `make_spaces`.

    A sketch is tested with its spaces for some workloads.
    """

    @abstractmethod
    def make_spaces(self) -> list[Space]:
        """Spaces small enough to enumerate."""

    def test_spaces_conform(self) -> None:
        """Every space passes `check_space`."""
        for space in self.make_spaces():
            check_space(space, np.random.default_rng(0))

    def test_knobs_conform(self) -> None:
        """Every knob passes `check_knob`."""
        for space in self.make_spaces():
            for knob in space.knobs:
                check_knob(knob, np.random.default_rng(0))

    def test_fingerprints_are_reproducible(self) -> None:
        """The same spaces, made again, have the same fingerprints. Different spaces have different ones."""
        first, again = self.make_spaces(), self.make_spaces()
        assert [space.fingerprint for space in first] == [space.fingerprint for space in again]
        assert len({space.fingerprint for space in first}) == len(first)
