"""The origin of a space whose sketch knows what to expect of each point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...space import Space

Cost = Callable[[Mapping[str, NDArray[Any]]], NDArray[np.float64]]
"""The expected cost of n configurations, given as n values of each knob."""


def with_cheapest_origin(space: Space, cost: Cost) -> Space:
    """The space with the point of the least expected cost as its origin.

    Args:
        space: A space. All of its points are compared.
        cost: What to expect of configurations.
    """
    points = list(space.points())
    cheapest = points[int(np.argmin(cost(space.columns(points))))]
    return Space(space.name, space.knobs, space.constraints, origin=space.config(cheapest))
