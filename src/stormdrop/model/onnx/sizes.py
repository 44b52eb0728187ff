"""Which tensors are larger than any that this machine can hold, and which models have more weights than it compiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from ...errors import ModelError
from ...machine.process.memory import usable_memory

_TIMES_WEIGHTS = 3
"""The memory that a compilation takes, as a multiple of the weights. TVM has them three times while it loads a program:
what is saved is loaded again, to be verified."""


def is_too_large(shape: Sequence[int], itemsize: float) -> bool:
    """Whether a tensor takes more bytes than the memory that this process may use. A negative size counts as 0."""
    return math.prod(max(extent, 0) for extent in shape) * itemsize > _memory()


def too_large(shape: Sequence[int]) -> str:
    """The end of a message about a tensor that is too large."""
    return f"shape {'x'.join(map(str, shape))}, more elements than this machine's {_memory() / 1e9:.1f} GB can hold"


def check_weights(size: int, name: str) -> None:
    """Raises `ModelError` if a model has more weights than this machine can compile.

    Args:
        size: The bytes of its weights.
        name: The name of the model.
    """
    if size * _TIMES_WEIGHTS > _memory():
        raise ModelError(
            f"{name}: its weights are {size / 1e9:.1f} GB; to compile it takes {_TIMES_WEIGHTS} times as much "
            f"memory, and this machine has {_memory() / 1e9:.1f} GB"
        )


@cache
def _memory() -> int:
    return usable_memory()
