"""What the verification of a model asks of arrays: how far one is from another, and what it holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ir.relative_error import relative_error
from ..tensors import Array

_LEAST = 1e-30  # a tensor whose largest value is less: kernels take denormals for zero, and sums lose many of them
_MOST_NAN = 0.9  # the share of a tensor that may be NaN
_CONSTANT = 1e-6  # values that differ by less, relative to the largest, are one value


def error_of(value: Array, right: Array) -> float:
    """The `relative_error` of numbers; of integers and booleans, which may be positions, the share that differs."""
    if right.dtype.kind in "iub" and value.shape == right.shape:
        return float(np.mean(value != right)) if right.size else 0.0
    return relative_error(value, right, _LEAST)


def mean_error(value: Array, right: Array) -> float:
    """The mean of the differences, relative to the largest value; of integers and booleans, the share that differs.

    An element that is finite on one side only counts as the largest value.
    """
    if not right.size or value.shape != right.shape:
        return float(value.shape != right.shape)
    if right.dtype.kind in "iub":
        return error_of(value, right)
    scale = max(_LEAST, float(np.abs(right[np.isfinite(right)]).max(initial=0.0)))
    with np.errstate(invalid="ignore"):
        gap = np.abs(np.asarray(value, np.float64) - right) / scale
        same = (value == right) | (np.isnan(value) & np.isnan(right))
    return float(np.mean(np.where(same, 0.0, np.where(np.isfinite(gap), gap, 1.0))))


def same_top(value: Array, right: Array) -> list[bool]:
    """Of each row of two outputs, whether the largest element is at the same place.

    Args:
        value: An output.
        right: What it is compared with.

    Returns:
        Nothing if they have no rows of several numbers, or different shapes.
    """
    if value.shape != right.shape or not right.ndim or right.shape[-1] < 2:
        return []
    if not np.issubdtype(right.dtype, np.floating):
        return []
    same: list[bool] = (value.argmax(axis=-1) == right.argmax(axis=-1)).ravel().tolist()
    return same


def overflows(value: Array, exact: Array) -> bool:
    """Whether a value is infinite or NaN somewhere where the exact one is not."""
    if np.size(value) != exact.size or value.dtype.kind != "f":
        return False  # of a part that onnxruntime runs, whose shape depends on data
    return bool((~np.isfinite(value) & np.isfinite(exact).reshape(np.shape(value))).any())


def has_nan(value: Array) -> bool:
    """Whether a value holds NaN."""
    return value.dtype.kind == "f" and bool(np.isnan(value).any())


def has_numbers(value: Array) -> bool:
    """Whether enough of a value is no NaN, a tenth, so that it says whether another one is right."""
    return value.dtype.kind != "f" or not value.size or float(np.mean(np.isnan(value))) <= _MOST_NAN


def exceeds_float32(value: Array) -> bool:
    """Whether a value is finite in float64 and would not be so in float32."""
    finite = np.abs(value[np.isfinite(value)]) if value.dtype.kind == "f" else np.zeros(0)
    return float(finite.max(initial=0.0)) >= float(np.finfo(np.float32).max)


def varies(values: Sequence[Array]) -> bool:
    """Whether a tensor holds different values in one sample; or, if it is a single value, over the samples."""
    parts = values if values[0].size > 1 else [np.concatenate([np.ravel(value) for value in values])]
    for part in parts:
        finite = np.asarray(part[np.isfinite(part)], np.float64) if part.dtype.kind == "f" else part.astype(np.float64)
        if finite.size and np.ptp(finite) > _CONSTANT * np.abs(finite).max():
            return True
    return False


def in_layout_of(like: Array, value: Array) -> Array | None:
    """A peer's tensor in the shape of ours: equal, without axes of one element, or channels-last; None otherwise."""
    if value.shape == like.shape:
        return value
    if np.squeeze(value).shape == np.squeeze(like).shape:
        return value.reshape(like.shape)
    moved = np.moveaxis(value, 1, -1) if value.ndim == like.ndim > 2 else value
    return moved if moved.shape == like.shape else None
