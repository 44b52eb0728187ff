"""The parameters of an Optuna study as a space: each number takes one of a few values.

FloatDistribution(0.0, 1.0)              Ordinal of the numbers of `levels` values at equal distances
FloatDistribution(1e-6, 1.0, log=True)   the same at equal ratios
IntDistribution(1, 64)                   Ordinal of the values themselves, at most `levels` of them
CategoricalDistribution(["a", None])     Categorical of the numbers of the choices
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from ..errors import SearchError
from ..space import Categorical, Knob, Ordinal, Space
from ..trial import Point

SPACE = "study"
"""The name of the space."""


def space_of(distributions: Mapping[str, BaseDistribution], levels: int) -> Space:
    """The space of these parameters. Its origin is in the middle of each number, and at the first of the choices.

    Args:
        distributions: The parameters, by name.
        levels: The largest number of values of a number.

    Raises:
        SearchError: A parameter has a distribution of another kind.
    """
    knobs = [_knob(name, distribution, levels) for name, distribution in distributions.items()]
    middle = {knob.name: knob.value((0 if isinstance(knob, Categorical) else knob.count // 2,)) for knob in knobs}
    return Space(SPACE, knobs, origin=middle)


def values_of(space: Space, distributions: Mapping[str, BaseDistribution], point: Point, levels: int) -> dict[str, Any]:
    """The values of the parameters at a point."""
    values = {}
    for (name, distribution), index in zip(distributions.items(), point, strict=True):
        if isinstance(distribution, CategoricalDistribution):
            values[name] = distribution.choices[index]
        else:
            values[name] = _numbers(distribution, levels)[index]
    return values


def point_of(
    space: Space, distributions: Mapping[str, BaseDistribution], params: Mapping[str, Any], levels: int
) -> Point | None:
    """The point that is nearest to these values; None if a parameter is missing, or outside of its range."""
    point = []
    for name, distribution in distributions.items():
        if name not in params:
            return None
        value = params[name]
        if isinstance(distribution, CategoricalDistribution):
            if value not in distribution.choices:
                return None
            point.append(int(distribution.to_internal_repr(value)))
            continue
        numbers = np.array(_numbers(distribution, levels), dtype=float)
        if not numbers[0] <= value <= numbers[-1]:
            return None
        if getattr(distribution, "log", False):
            numbers, value = np.log(numbers), np.log(value)
        point.append(int(np.argmin(np.abs(numbers - value))))
    return tuple(point)


def _knob(name: str, distribution: BaseDistribution, levels: int) -> Knob:
    if isinstance(distribution, CategoricalDistribution):
        return Categorical(name, range(len(distribution.choices)))
    numbers = _numbers(distribution, levels)
    # The rank stands for a float: its logarithm, by which positive values are encoded, is not its scale.
    return Ordinal(name, numbers if isinstance(distribution, IntDistribution) else range(len(numbers)))


def _numbers(distribution: BaseDistribution, levels: int) -> list[Any]:
    """The values that a number may take, ascending. The first and the last are the ends of its range."""
    if not isinstance(distribution, IntDistribution | FloatDistribution):
        raise SearchError(f"StormSampler knows no parameters of type {type(distribution).__name__}")
    low, high, step = distribution.low, distribution.high, distribution.step
    if distribution.log:
        spread = np.geomspace(low, high, levels)
    elif step is None:
        spread = np.linspace(low, high, levels)
    else:
        count = round((high - low) / step) + 1
        indices = np.unique(np.linspace(0, count - 1, min(count, levels)).round())
        spread = low + indices * step
    if isinstance(distribution, IntDistribution):
        return sorted({min(max(round(float(value)), low), high) for value in spread})
    return [min(max(float(value), low), high) for value in spread]
