"""The decisions of a schedule that Ansor mutates, and how it mutates each of them.

Source: Figure 6 of the DPAnsor paper, with the weights of TVM's auto-scheduler for CPUs: tile size 0.90, unrolling
0.04, compute location 0.05, parallelism 0.01. A mutation whose kind the schedule does not have is drawn again, so the
weights of the others grow in proportion. (TVM's for GPUs are 0.90 and 0.10. Where a space has tiles and unrolling only,
the proportion gives 0.957 and 0.043.)
"""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType

import numpy as np

from ..errors import SpaceError
from ..trial import Point
from .knob import Coords, Knob
from .space import Space
from .tile import proper_factors

WEIGHTS = MappingProxyType({"tile size": 0.90, "unroll": 0.04, "location": 0.05, "parallel": 0.01})
"""The probabilities of Ansor's mutations."""

_WORDS = {
    "unroll": ("unroll", "choice"),  # MetaSchedule's choices are unrolling factors
    "parallel": ("parallel", "parts"),
    "location": ("location", "_at", "prologue", "pack", "together"),
}
_DRAWS = 32  # mutations that are drawn until one is inside of the space


def decision_of(knob: Knob) -> str:
    """Which of Ansor's four kinds of decisions a knob is.

    A knob whose values are factors is a tile size. For the others the name decides. What no name tells is a size, too.

    Example:
        >>> from stormdrop.space import Ordinal, Tile
        >>> [decision_of(knob) for knob in (Tile("i_parts", 8, 2), Ordinal("unroll", [0, 16]), Ordinal("rows", [1, 2]))]
        ['tile size', 'unroll', 'tile size']
    """
    if not isinstance(knob.value(next(iter(knob))), tuple):
        for decision, words in _WORDS.items():
            if any(word in knob.name for word in words):
                return decision
    return "tile size"


def mutated_as_ansor(space: Space, point: Point, rng: np.random.Generator) -> Point:
    """The point after one of Ansor's mutations.

    - *Tile size*: a divisor moves from one level of a tile to another one. A size that is a number by itself takes
      another value.
    - *Unrolling, location, parallelism*: the knob takes another value, each with the same probability.

    Args:
        space: The space.
        point: A point of it.
        rng: The source of all randomness.

    Returns:
        Another point, or the point itself if no mutation that was drawn is inside of the space.
    """
    places, kinds = _by_decision(space)
    if not kinds:
        return point
    weights = np.array([WEIGHTS[kind] for kind in kinds])
    names = list(kinds)
    for _ in range(_DRAWS):
        of_kind = kinds[names[int(rng.choice(len(names), p=weights / weights.sum()))]]
        position = of_kind[int(rng.integers(len(of_kind)))]
        place = places[position]
        coords = _changed(space.knobs[position], point[place], rng)
        moved = (*point[: place.start], *coords, *point[place.stop :])
        if moved != point and space.contains(moved):
            return moved
    return point


@lru_cache(maxsize=64)
def _by_decision(space: Space) -> tuple[list[slice], dict[str, list[int]]]:
    """The place of each knob in a point, and for each kind of decision the positions of the knobs that can change."""
    kinds: dict[str, list[int]] = {kind: [] for kind in WEIGHTS}
    places, begin = [], 0
    for position, knob in enumerate(space.knobs):
        places.append(slice(begin, begin := begin + len(knob.sizes)))
        if knob.count > 1:
            kinds[decision_of(knob)].append(position)
    return places, {kind: positions for kind, positions in kinds.items() if positions}


def _changed(knob: Knob, coords: Coords, rng: np.random.Generator) -> Coords:
    factors = knob.value(coords)
    if not isinstance(factors, tuple):
        return knob.mutate(coords, rng)
    giver, taker = (int(level) for level in rng.choice(len(factors), size=2, replace=False))
    divisors = proper_factors(factors[giver])
    if not divisors:
        return coords
    divisor = divisors[int(rng.integers(len(divisors)))]
    moved = list(factors)
    moved[giver] //= divisor
    moved[taker] *= divisor
    try:
        return knob.coordinates(tuple(moved))
    except SpaceError:  # a limit of the knob, such as the largest innermost factor
        return coords
