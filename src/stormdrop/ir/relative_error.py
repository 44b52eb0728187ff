"""The one measure of how far an output is from the reference: largest difference over largest reference value."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def relative_error(value: NDArray[Any], reference: NDArray[Any], least: float = 0.0) -> float:
    """Computes max|value - reference| / max|reference| over all elements, in float64.

    The scale is that of the whole array, so that an element near zero does not count as wrong because of rounding.

    Args:
        value: The output to judge.
        reference: What the output should be. NaN and infinite elements are expected to be equal in `value`; the two
            maxima are taken over the other elements.
        least: What the differences are divided by if max|reference| is less.

    Returns:
        The error: 0.0 if the arrays are equal; infinity if their shapes differ, if an element is finite in one array
        only, if other non-finite values differ, or if the reference is all zero and `value` is not.

    Example:
        >>> relative_error(np.array([1.0, -3.0]), np.array([1.0, -4.0]))
        0.25
        >>> relative_error(np.array([1.0, np.nan]), np.array([1.0, -4.0]))
        inf
    """
    if value.shape != reference.shape:
        return float("inf")
    actual, expected = np.asarray(value, np.float64), np.asarray(reference, np.float64)
    finite = np.isfinite(expected)
    same_elsewhere = np.array_equal(actual[~finite], expected[~finite], equal_nan=True)
    if not same_elsewhere or not np.isfinite(actual[finite]).all():
        return float("inf")
    difference = float(np.abs(actual[finite] - expected[finite]).max(initial=0.0))
    scale = max(least, float(np.abs(expected[finite]).max(initial=0.0)))
    return difference / scale if scale > 0 else (0.0 if difference == 0 else float("inf"))
