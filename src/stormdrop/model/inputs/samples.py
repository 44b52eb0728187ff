"""The inputs that a model is verified on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...runtime.sizes import TensorInfo
from ..artifact.metadata import Metadata
from .ranges import UNBOUNDED, Range, Ranges, is_range

Feeds = Mapping[str, NDArray[Any]]
"""Arrays by the name of an input or output."""

_BINARY = 2  # values of an integer input of which nothing is known: 0 and 1, as of a mask
STANDARD_NORMAL = "standard normal"
"""The name of samples of such numbers."""

_GIVEN = 3  # of the samples that the user gives, at most so many verify: NumPy computes each

Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[Any]]
"""Draws real numbers in a shape."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Inputs of a model.

    Attributes:
        name: Says in words what the values of its floating-point inputs are.
        feeds: The inputs by name.
        drawn: Whether the user gives none of them, so that more of the kind can be drawn.
    """

    name: str
    feeds: Feeds
    drawn: bool = False


def samples(inputs: Sequence[TensorInfo], ranges: Ranges, seed: int = 0, given: Sequence[Feeds] = ()) -> list[Sample]:
    """Makes inputs of different scales: a wrong kernel may be right for one of them, where another function saturates.

    Args:
        inputs: The inputs of the model.
        ranges: What `index_ranges` finds.
        seed: The same seed gives the same values.
        given: The samples that the user gives, which may lack inputs: these are drawn.

    Returns:
        Standard normal values; the values of an image in bytes; and values of both signs from 1e-6 to 1e3. If the user
        gives all inputs, the first of his samples only.
    """
    if given and all(info.name in given[0] for info in inputs):
        return [Sample(f"sample {index} of those given", feeds) for index, feeds in enumerate(given[:_GIVEN])]
    scales: list[tuple[str, Draw]] = [
        (STANDARD_NORMAL, lambda rng, shape: rng.standard_normal(shape)),
        ("0 to 255", lambda rng, shape: rng.uniform(0, 255, shape)),
        ("1e-6 to 1e3", _extremes),
    ]
    drawn = [
        Sample(name, _drawn(inputs, ranges, seed + index, reals), drawn=True)
        for index, (name, reals) in enumerate(scales)
    ]
    if not given:
        return drawn
    return [
        Sample(
            f"{sample.name} and sample {index % len(given)} of those given",
            {**sample.feeds, **given[index % len(given)]},
        )
        for index, sample in enumerate(drawn)
    ]


def feeds_in_turn(
    inputs: Sequence[TensorInfo], ranges: Ranges, seed: int, count: int, given: Sequence[Feeds] = ()
) -> list[Feeds]:
    """Makes inputs of one kind: those that the user gives, in turn, and standard normal values for the others.

    Args:
        inputs: The inputs of the model.
        ranges: What `index_ranges` finds.
        seed: The same seed gives the same values.
        count: How many to make, at most: no given one is there twice if all inputs are given.
        given: The samples that the user gives.
    """
    if given and all(info.name in given[0] for info in inputs):
        count = min(count, len(given))
    own = [given[index % len(given)] if given else {} for index in range(count)]
    return [{**random_feeds(inputs, seed + index, ranges), **feeds} for index, feeds in enumerate(own)]


def random_feeds(inputs: Sequence[TensorInfo], seed: int = 0, ranges: Ranges | None = None) -> dict[str, NDArray[Any]]:
    """Makes inputs for a model: standard normal values, and integers that the model takes.

    Args:
        inputs: The inputs of the model.
        seed: The same seed gives the same values.
        ranges: What is known of the values of inputs; see `index_ranges`. Other integers, and booleans, are 0 and 1.

    Returns:
        The arrays by input name, with the shapes and types of `inputs`.
    """
    return _drawn(inputs, ranges or {}, seed, lambda rng, shape: rng.standard_normal(shape))


def sample_feeds(metadata: Metadata, seed: int = 0) -> dict[str, NDArray[Any]]:
    """The first of the samples that a saved model was verified on, for this seed, as far as they were drawn.

    Args:
        metadata: What the model says about itself. Its provenance holds what `index_ranges` found.
        seed: The same seed gives the same values.

    Returns:
        The arrays by input name.
    """
    recorded = metadata.provenance.get("index_ranges")
    ranges = recorded if isinstance(recorded, dict) else {}
    known = {name: found for name, found in ranges.items() if is_range(found)}
    return random_feeds(metadata.inputs, seed, known)


def _extremes(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    magnitudes = 10.0 ** rng.uniform(-6, 3, shape)
    return np.where(rng.random(shape) < 0.5, magnitudes, -magnitudes)


def _drawn(inputs: Sequence[TensorInfo], ranges: Ranges, seed: int, reals: Draw) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    feeds: dict[str, NDArray[Any]] = {}
    for info in inputs:
        found = ranges.get(info.name)
        if np.issubdtype(np.dtype(info.dtype), np.floating):
            values = _within(reals(rng, info.shape), found, rng)
        else:
            values = _integers(rng, info.shape, _BINARY if found is None else found)
        feeds[info.name] = np.asarray(values, dtype=info.dtype)
    return feeds


def _integers(rng: np.random.Generator, shape: tuple[int, ...], found: Range) -> NDArray[Any]:
    """Integers of a range; if they have to be different, each once, or once along each axis, as far as it goes."""
    first, end, *different = (0, found) if isinstance(found, int) else found
    first, values, count = int(first), int(end) - int(first), math.prod(shape)
    if any(different) and count <= values:
        return first + rng.choice(values, count, replace=False).reshape(shape)
    if any(different) and max(shape) <= values:
        return np.asarray(first + rng.permutation(values)[np.indices(shape).sum(axis=0) % values])
    return rng.integers(first, first + values, shape)


def _within(values: NDArray[Any], found: Range | None, rng: np.random.Generator) -> NDArray[Any]:
    """Real numbers within their bounds: a single bound reflects them, between two they are drawn."""
    if not isinstance(found, Sequence):
        return values
    low, high, *_ = found
    if high >= UNBOUNDED:
        return low + np.abs(values - low)
    return rng.uniform(low, high, values.shape)
