"""Samples that the user gives: the inputs that a model is verified, timed and calibrated on.

A file may hold several samples of an input, one after the other along the first axis. Inputs that it does not hold are
drawn, as all are without it (`samples.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError, shown
from .casting import in_type

Data = Mapping[str, NDArray[Any]]
"""The samples of inputs, by name."""

HINT = "give inputs that have a meaning for the model: --samples DATA.npz (samples= in Python)"
"""The end of a message about inputs that were drawn."""

_OPEN = 0


def split(inputs: Mapping[str, tuple[Sequence[int], str]], data: Data) -> list[dict[str, NDArray[Any]]]:
    """Takes the samples of a model's inputs apart.

    Args:
        inputs: The shape and the type of each input of the model, by name; a size of 0 is open, which on the first axis
            means one row.
        data: The samples of some inputs. An array holds several if its first axis is a multiple of the input's; those
            of an input without axes are a vector.

    Returns:
        The arrays of each sample by name, in the types of the inputs. An input with one sample has it in all.

    Raises:
        InputError: An input is unknown, an array is none of its input, or inputs have different numbers of samples.

    Example:
        >>> split({"x": ((1, 2), "float32")}, {"x": np.array([[1, 2], [3, 4]])})[1]
        {'x': array([[3., 4.]], dtype=float32)}
    """
    for name in data:
        if name not in inputs:
            raise InputError(f"the samples have {listed(data)}; the model's inputs are {listed(inputs)}")
    parts = {name: _parts(name, np.asarray(array), *inputs[name]) for name, array in data.items()}
    counts = {len(part) for part in parts.values()} - {1}
    if len(counts) > 1:
        numbers = ", ".join(f"{len(part)} of {shown(name)!r}" for name, part in parts.items())
        raise InputError(f"the inputs have different numbers of samples: {numbers}")
    count = max(map(len, parts.values()), default=0)
    return [{name: part[index % len(part)] for name, part in parts.items()} for index in range(count)]


def _parts(name: str, array: NDArray[Any], sizes: Sequence[int], dtype: str) -> list[NDArray[Any]]:
    """The samples of one input."""
    if array.dtype.kind not in "biuf":
        raise InputError(f"the samples of {shown(name)!r} are no numbers")
    cast = in_type(array, dtype)
    if cast is None:
        raise InputError(f"the samples of {shown(name)!r} are not of its type, {dtype}")
    array = cast
    if not sizes:
        if array.ndim < 2 and array.size:
            return [np.asarray(number) for number in np.atleast_1d(array)]
    elif (
        array.ndim == len(sizes)
        and array.shape[0]
        and all(size in (_OPEN, own) for size, own in zip(sizes[1:], array.shape[1:], strict=True))
    ):
        rows = sizes[0] or 1
        if array.shape[0] % rows == 0:
            return np.split(array, array.shape[0] // rows)
    rest = "".join(f"x{size or '?'}" for size in sizes[1:])
    wanted = f"{'N' if sizes[0] in (_OPEN, 1) else f'{sizes[0]}N'}{rest}" if sizes else "N"
    raise InputError(
        f"the samples of {shown(name)!r} have the shape {'x'.join(map(str, array.shape))}; it must be {wanted}"
    )


def listed(names: Mapping[str, Any]) -> str:
    """Names of inputs in words."""
    return ", ".join(map(shown, names)) or "none"
