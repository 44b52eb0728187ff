"""Which tensors are larger than any that this machine can hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from ...machine.memory import usable_memory


def is_too_large(shape: Sequence[int], itemsize: float) -> bool:
    """Whether a tensor takes more bytes than the memory that this process may use. A negative size counts as 0."""
    return math.prod(max(extent, 0) for extent in shape) * itemsize > _memory()


def too_large(shape: Sequence[int]) -> str:
    """The end of a message about a tensor that is too large."""
    return f"shape {'x'.join(map(str, shape))}, more elements than this machine's {_memory() / 1e9:.1f} GB can hold"


@cache
def _memory() -> int:
    return usable_memory()
