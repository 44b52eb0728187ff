"""Which results say something: finite, not too large, and not one value everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

LARGEST = 1e4
"""No value is drawn that is larger: functions behind it would leave the range of float32."""

MOST_ELEMENTS = 3000


class Rejected(Exception):
    """What was drawn is no valid node, or one whose result says nothing. Another one is drawn."""


def require_telling(array: Array) -> None:
    """Raises `Rejected` for a result that says little, or on which nothing can be built."""
    if array.size > MOST_ELEMENTS or array.ndim > 6:
        raise Rejected("too many elements")
    if not array.size:
        raise Rejected("no elements")
    if array.dtype.kind in "fi" and not np.abs(array.astype(np.float64)).max() <= LARGEST:
        raise Rejected("values that are not finite, or large")
    if array.dtype.kind == "f" and np.abs(array).max() < 1e-4:
        raise Rejected("values that are all small")
    if array.dtype.kind not in "fiub":
        raise Rejected("no numbers")
    if array.size > 1 and not varies(array):
        raise Rejected("one value everywhere")


def varies(array: Array) -> bool:
    """Whether an array holds different numbers, or a single one."""
    return array.size == 1 or bool(np.ptp(array.astype(np.float64)) > 1e-3 * np.abs(array.astype(np.float64)).max())
