"""A constant that differs between the sizes of a model: the first part of a larger one, or numbers in even steps.

a table of 512 positions                         its first n rows
where each of b texts of n words begins          n * i, for each text i
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import UnsupportedFunction
from ...runtime.open_size import Terms, in_even_steps

Array = NDArray[Any]


class OpenConstant(NamedTuple):
    """A constant at any size.

    Attributes:
        whole: The position of the array whose first part it is.
        steps: If it is none: its first number, and the steps along each of its axes.
    """

    whole: int
    steps: tuple[Terms, ...] = ()


def open_constant(arrays: Sequence[Array], terms: Callable[[Sequence[int]], Terms]) -> OpenConstant:
    """What a constant is at any size.

    Args:
        arrays: The constant at each of a few sizes.
        terms: Gives a number at any size, from what it is at these.

    Raises:
        UnsupportedFunction: It is neither the first part of one array nor numbers in even steps.
    """
    whole = max(range(len(arrays)), key=lambda at: arrays[at].size)
    if all(_is_part(array, arrays[whole]) for array in arrays):
        return OpenConstant(whole)
    steps = [_steps_of(array) for array in arrays]
    if any(each is None for each in steps):
        shapes = " and ".join(dict.fromkeys(f"{each.dtype}{list(each.shape)}" for each in (arrays[0], arrays[whole])))
        raise UnsupportedFunction(f"a constant has other values at another size ({shapes})")
    return OpenConstant(whole, tuple(terms(each) for each in zip(*steps, strict=True)))


def is_constant_at(array: Array, constant: OpenConstant, whole: Array, number: Callable[[Terms], int]) -> bool:
    """Whether an array is what a constant is at its size.

    Args:
        array: The array.
        constant: The constant.
        whole: The array whose first part it is.
        number: Gives the value of terms at the size.
    """
    if not constant.steps:
        return _is_part(array, whole)
    expected = in_even_steps(array.shape, tuple(map(number, constant.steps)), str(array.dtype))
    return bool(np.array_equal(array, expected))


def _is_part(array: Array, whole: Array) -> bool:
    """Whether an array is the first part of another one along each axis."""
    if array is whole:
        return True
    if array.ndim != whole.ndim or any(map(int.__gt__, array.shape, whole.shape)):
        return False
    part = whole[tuple(slice(extent) for extent in array.shape)]
    return array.dtype == whole.dtype and np.array_equal(part, array, equal_nan=array.dtype.kind == "f")


def _steps_of(array: Array) -> tuple[int, ...] | None:
    """The first number and the step along each axis; None if the numbers are in no even steps."""
    if array.dtype.kind not in "iu" or not array.size:
        return None
    first = int(array.flat[0])
    beside = [array.take(min(1, extent - 1), axis).flat[0] for axis, extent in enumerate(array.shape)]
    steps = (first, *(int(each) - first for each in beside))
    return steps if np.array_equal(array, in_even_steps(array.shape, steps, str(array.dtype))) else None
