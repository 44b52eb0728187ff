"""Element types by their names. bfloat16 is the upper half of a float32; NumPy has it from `ml_dtypes`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

BFLOAT16, FLOAT16 = "bfloat16", "float16"
TF32 = "tf32"
"""What a product is computed in, not a type of elements: float32 whose mantissa is rounded to 10 bits."""

INFINITE = 1e30
"""A constant beyond it stands for an infinity, such as the padding of a maximum."""


def is_float(dtype: str) -> bool:
    """Whether a type is one of floating-point numbers."""
    return dtype.startswith("float") or dtype == BFLOAT16


def is_integer(dtype: str) -> bool:
    """Whether a type is one of integers; booleans are not."""
    return dtype.startswith(("int", "uint"))


def limits(dtype: str) -> Any:
    """The limits of a type of numbers, as `numpy.finfo` and `numpy.iinfo` have them.

    Example:
        >>> float(limits("bfloat16").eps), limits("int8").max
        (0.0078125, 127)
    """
    of_floats: Any = ml_dtypes.finfo
    return of_floats(dtype) if is_float(dtype) else np.iinfo(dtype)


def native(array: NDArray[Any]) -> NDArray[Any]:
    """The array in a type of NumPy's own: bfloat16 as float32, which holds each of its numbers."""
    return array.astype(np.float32) if str(array.dtype) == BFLOAT16 else array
