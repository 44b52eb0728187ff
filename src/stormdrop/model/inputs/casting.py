"""Arrays that the user gives, in the types of a model's inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


def in_type(array: NDArray[Any], dtype: DTypeLike) -> NDArray[Any] | None:
    """An array in another type; None if a value is none of an integer or boolean type, as 0.7, 300 and NaN of uint8.

    Args:
        array: Numbers or booleans, in any shape.
        dtype: The type. A type of real numbers rounds them.

    Example:
        >>> in_type(np.array([1.0, 2.0]), "int64")
        array([1, 2])
    """
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        return None if cast.dtype.kind in "biu" and not np.array_equal(cast, array) else cast
