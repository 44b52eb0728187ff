"""The parameters of a model: the extents of its inputs that differ between its sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import ModelError, UnsupportedFunction
from ...runtime.open_size import Sizes
from ...runtime.sizes import TensorInfo
from ..inputs.combinations import GivenShapes
from ..inputs.size_range import Range
from .probes import Probes

Infos = Sequence[TensorInfo]

HALVES = (2, 4, 8, 16, 32, 64)
"""By what the extents of a model may be divided, as by windows with a stride."""


class Parameters:
    """The parameters of a model that was made at several sizes.

    An extent that follows from others, as the second one of two tensors of n and 2n rows, is none.

    Args:
        inputs: The inputs at each size.
        model: The name of the model, for messages.

    Attributes:
        sizes: The parameters at each size.

    Raises:
        ModelError: The inputs are the same at all sizes, or extents move together without following from each other.
    """

    def __init__(self, inputs: Sequence[Infos], model: str) -> None:
        places: dict[tuple[int, ...], tuple[int, int]] = {}
        for index, tensors in enumerate(zip(*inputs, strict=True)):
            for axis, extents in enumerate(zip(*(info.shape for info in tensors), strict=True)):
                if len(set(extents)) > 1:
                    places.setdefault(extents, (index, axis))
        chosen: list[tuple[int, ...]] = []
        for extents in sorted(places, key=sum):
            if not (chosen and _follows(extents, chosen)):
                chosen.append(extents)
        if not chosen or np.linalg.matrix_rank([[1] * len(inputs), *chosen]) <= len(chosen):
            raise ModelError(f"{model}: has no open sizes: what differs between its sizes is {len(places)} extents")
        self._places = dict(zip(names(len(chosen)), (places[extents] for extents in chosen), strict=True))
        self.sizes = [self.at(infos) for infos in inputs]

    def at(self, inputs: Infos) -> dict[str, int]:
        """The parameters of a size.

        Args:
            inputs: The inputs at this size.
        """
        return {name: inputs[index].shape[axis] for name, (index, axis) in self._places.items()}

    def steps(self, inputs: Infos, shapes: GivenShapes) -> list[int]:
        """From one value of each parameter to the next.

        Args:
            inputs: The inputs at a size.
            shapes: What the user gives: the ranges.
        """
        given = [shapes.get(inputs[index].name, ())[axis:][:1] for index, axis in self._places.values()]
        return [size[0].step if size and isinstance(size[0], Range) else 1 for size in given]


def names(count: int, letter: str = "n") -> list[str]:
    """The names of so many parameters."""
    return [letter] if count == 1 else [f"{letter}{position}" for position in range(count)]


def as_sizes(vectors: Sequence[Sequence[int]], letter: str = "n") -> list[Sizes]:
    """The parameters at each size.

    Args:
        vectors: For each parameter its values at all sizes.
        letter: What the names of parameters begin with.
    """
    return [dict(zip(names(len(vectors), letter), values, strict=True)) for values in zip(*vectors, strict=True)]


def _follows(extents: Sequence[int], others: Sequence[Sequence[int]]) -> bool:
    try:
        Probes(as_sizes(others)).terms(extents)
    except (ValueError, UnsupportedFunction):
        return False
    return True
