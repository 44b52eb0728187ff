"""Which values an input of a model can take: they may index, divide, or go into a function that is partial."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Range = int | tuple[int, int] | tuple[int, int, bool] | tuple[float, float]
"""The number of values of an integer input, from 0; or the first one and the first after it, perhaps with whether all
of its values are different; or the bounds of reals."""

Ranges = Mapping[str, Range]
"""The ranges of inputs, by name."""

UNBOUNDED = 3e38
"""Stands for infinity in the bounds of reals: JSON has no infinity."""


def as_places(found: Range | None, first: int, end: int, sums: bool = False) -> Range:
    """The range of an integer input whose values are places of an axis that is written to, one for each value.

    What two values write to one place depends on their order, so all are different, unless what is written is summed
    up there.

    Args:
        found: What is known of the input otherwise.
        first: The least value with which something is written inside of the axis.
        end: The first value after the largest one.
        sums: Whether it is summed up, or reduced in another way.

    Example:
        >>> as_places(None, 0, 16), as_places(8, 0, 16), as_places((2, 30, True), 0, 16), as_places((1, 3), 0, 16)
        ((0, 16, True), (0, 8, True), (2, 16, True), (1, 3))
        >>> as_places(None, 0, 16, sums=True)
        16
    """
    if isinstance(found, tuple) and len(found) == 2:
        return found
    known = (0, end) if found is None else (0, found) if isinstance(found, int) else (int(found[0]), int(found[1]))
    low, high = max(first, known[0]), min(end, known[1])
    if low >= high and found is not None:  # it cannot be both
        return found
    if sums and not isinstance(found, tuple):
        return high if low == 0 else (low, high)
    return low, high, True


def is_range(found: Any) -> bool:
    """Whether a value from a saved model is one that `index_ranges` returns: JSON has lists for tuples."""
    bounds = [0, found] if isinstance(found, int) else found
    if not isinstance(bounds, list) or len(bounds) not in (2, 3):
        return False
    if len(bounds) == 3:
        return isinstance(bounds[2], bool) and is_range(bounds[:2])
    whole = all(isinstance(bound, int) and abs(bound) < 2**31 for bound in bounds)
    real = all(isinstance(bound, float) and math.isfinite(bound) for bound in bounds)
    return (whole or real) and bounds[0] < bounds[1]
