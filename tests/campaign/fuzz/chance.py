"""What decides how a graph is drawn: yes or no, numbers, choices, shapes and arrays, all from one generator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuzz.telling import Rejected

Array = NDArray[Any]

_EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17)


class Chance:
    """Draws what a graph consists of.

    Attributes:
        rng: Decides everything.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def integer(self, low: int, high: int) -> int:
        """An integer from low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def choice(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def shape(self, rank: int, elements: int = 600) -> tuple[int, ...]:
        extents: list[int] = []
        for _ in range(rank):
            fitting = [extent for extent in _EXTENTS if extent * int(np.prod(extents)) <= elements] or [1]
            extents.append(self.choice(fitting))
        return tuple(int(extent) for extent in self.rng.permutation(extents))

    def array(self, shape: Iterable[int], dtype: str = "float32", distinct: bool = True) -> Array:
        """Numbers as inputs and weights have them; `distinct` says that ties are unlikely."""
        shape = tuple(shape)
        if dtype == "bool":
            return np.asarray(self.rng.random(shape) < 0.5)
        kind = np.dtype(dtype)
        if kind.kind in "iu":
            span = 100 if distinct else 4
            low = 0 if kind.kind == "u" else -span
            return np.asarray(self.rng.integers(low, span + 1, shape), kind)
        if distinct:
            return np.asarray(self.rng.standard_normal(shape), kind)
        return np.asarray(self.rng.integers(-3, 4, shape) / 2, kind)

    def factors(self, size: int, rank: int) -> list[int]:
        """A shape of so many elements."""
        if rank == 0:
            if size != 1:
                raise Rejected("several elements are no scalar")
            return []
        extents = [1] * rank
        rest, factor = size, 2
        while rest > 1:
            if rest % factor:
                factor += 1
                continue
            extents[self.integer(0, rank - 1)] *= factor
            rest //= factor
        return extents
