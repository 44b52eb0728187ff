"""The check of a kernel's output: what it holds before the kernel runs, and how far it is from the expected output."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir.dtypes import is_float, limits, native

Array = NDArray[Any]

_SENTINEL = 1.2345e30  # in float outputs before a kernel writes them


def fill(view: Array) -> None:
    """Fills an output with values that no reference of small integers holds, so that unwritten elements are noticed.

    The values are finite, because NaN and infinity may be expected. They have both signs, because a maximum or a
    minimum over the old values would hide one of them.
    """
    if not is_float(str(view.dtype)):
        view.fill(True if view.dtype.kind == "b" else 0x55)
        return
    sentinel = min(_SENTINEL, 0.7 * float(limits(str(view.dtype)).max))
    view.fill(sentinel)
    view.reshape(-1)[1::2] = -sentinel


def difference(name: str, actual: Array, expected: Array, tolerance: float, tie: Array | None = None) -> str:
    """Compares an output with the expected one.

    Args:
        name: The output's name, for the text.
        actual: What the kernel wrote.
        expected: What is right. A NaN or an infinity that is expected must be there.
        tolerance: The difference that is allowed, in units of max|expected| over the finite elements; with 0 the
            outputs must be equal.
        tie: What is right instead, where a value is near a tie of a rounding. What is between the two is right, too.

    Returns:
        One line about the largest difference; empty if all differences are allowed.

    Example:
        >>> import numpy as np
        >>> difference("c", np.array([1.0, 2.5]), np.array([1.0, 2.0]), tolerance=0.1)
        'c[1] is 2.5, not 2; 1 of 2 elements differ by more than 0.2'
    """
    actual, expected = native(actual), native(expected)
    if _surely_close(actual, expected, tolerance):
        return ""
    ours, theirs = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(all="ignore"):
        gap = np.abs(ours - theirs)
    gap[np.isnan(gap)] = np.inf
    gap[(ours == theirs) | (np.isnan(ours) & np.isnan(theirs))] = 0.0
    if tie is not None:
        gap = np.fmin(gap, _distance(ours, theirs, native(tie).astype(np.float64)))
    allowed = tolerance * float(np.max(np.abs(theirs), where=np.isfinite(theirs), initial=0.0))
    if not gap.size or float(gap.max()) <= allowed:
        return ""
    largest = np.unravel_index(int(gap.argmax()), gap.shape)
    count = int(np.count_nonzero(gap > allowed))
    position = ", ".join(str(int(index)) for index in largest)
    return (
        f"{name}[{position}] is {ours[largest]:.6g}, not {theirs[largest]:.6g};"
        f" {count} of {gap.size} elements differ by more than {allowed:.3g}"
    )


def excess(name: str, actual: Array, expected: Array, allowed: Array) -> str:
    """Compares an output with the expected one, if each element may differ by an amount of its own.

    Args:
        name: The output's name, for the text.
        actual: What the kernel wrote.
        expected: What is right. All elements are finite.
        allowed: The difference that is allowed, per element.

    Returns:
        One line about the element that exceeds what is allowed most; empty if none does.

    Example:
        >>> import numpy as np
        >>> excess("c", np.array([1.0, 2.5]), np.array([1.0, 2.0]), allowed=np.array([0.1, 0.1]))
        'c[1] is 2.5, not 2 (0.1 may be lost by rounding); 1 of 2 elements differ by more than rounding allows'
    """
    actual, expected = native(actual), native(expected)
    with np.errstate(all="ignore"):
        gap = np.abs(actual - expected)  # in the type of the output, in which close numbers differ exactly
        wrong = ~(gap <= allowed)  # true for NaN as well
        if not wrong.any():
            return ""
        largest = np.unravel_index(int(np.argmax(np.where(wrong, gap - allowed, -np.inf))), gap.shape)
    position = ", ".join(str(int(index)) for index in largest)
    return (
        f"{name}[{position}] is {actual[largest]:.6g}, not {expected[largest]:.6g} ({allowed[largest]:.3g} may be lost"
        f" by rounding); {int(np.count_nonzero(wrong))} of {gap.size} elements differ by more than rounding allows"
    )


def _distance(values: Array, one: Array, other: Array) -> Array:
    """How far values are outside of the intervals between two arrays; NaN where one of these is NaN or infinite."""
    with np.errstate(all="ignore"):
        below, above = np.minimum(one, other) - values, values - np.maximum(one, other)
        return np.asarray(np.maximum(np.maximum(below, above), 0 * (one + other)))


def same_bytes(one: Array, other: Array) -> bool:
    """Whether two arrays of equal shape and type hold the same bytes, NaNs and signs of zero included."""
    words = np.dtype(f"u{one.itemsize}")
    return np.array_equal(np.ascontiguousarray(one).view(words), np.ascontiguousarray(other).view(words))


def _surely_close(actual: Array, expected: Array, tolerance: float) -> bool:
    """Whether all differences are surely allowed. Most kernels pass here, in a tenth of the time of the full check."""
    if expected.dtype.kind != "f" or not expected.size:
        return False
    with np.errstate(all="ignore"):
        gap, scale = float(np.max(np.abs(actual - expected))), float(np.max(np.abs(expected)))
    return gap <= 0.999 * tolerance * scale < np.inf
