"""Which values an input of a model can take: they may index, divide, or go into a function that is partial."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Range = int | tuple[int, int] | tuple[float, float]
"""The number of values of an integer input, from 0; or the first one and the first after it; or the bounds of reals."""

Ranges = Mapping[str, Range]
"""The ranges of inputs, by name."""

UNBOUNDED = 3e38
"""Stands for infinity in the bounds of reals: JSON has no infinity."""


def is_range(found: Any) -> bool:
    """Whether a value from a saved model is one that `index_ranges` returns: JSON has lists for tuples."""
    bounds = [0, found] if isinstance(found, int) else found
    if not isinstance(bounds, list) or len(bounds) != 2:
        return False
    whole = all(isinstance(bound, int) and abs(bound) < 2**31 for bound in bounds)
    real = all(isinstance(bound, float) and math.isfinite(bound) for bound in bounds)
    return (whole or real) and bounds[0] < bounds[1]
