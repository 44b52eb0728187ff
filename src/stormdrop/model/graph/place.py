"""Where a kernel writes if its output is a part of a larger tensor."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A slice along the last axis of a concatenation's output.

    Attributes:
        offset: Where the slice begins.
        total: The length of the whole axis.
    """

    offset: int
    total: int


def place_of(symbol: str) -> Place | None:
    """The part of a tensor that a kernel of a compiled model writes.

    Args:
        symbol: The name of the kernel.

    Returns:
        The part, which the name tells; None if the kernel writes a whole tensor.
    """
    found = re.search(r"_at(\d+)_of(\d+)(_\d+)?$", symbol)
    return None if found is None else Place(int(found[1]), int(found[2]))
