"""The inputs that a model is verified on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from ..metadata import TensorInfo

Feeds = Mapping[str, NDArray[Any]]
"""Arrays by the name of an input or output."""

_KEEPS_ALL = ("Cast", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""ONNX operators whose output holds every element of their first input."""

_BINARY = 2  # values of an integer input of which nothing is known: 0 and 1, as of a mask


@dataclass(frozen=True, eq=False)
class Sample:
    """Inputs of a model.

    Attributes:
        name: Says in words what the values of its floating-point inputs are.
        feeds: The inputs by name.
    """

    name: str
    feeds: Feeds


def samples(inputs: Sequence[TensorInfo], ranges: Mapping[str, int], seed: int = 0) -> list[Sample]:
    """Make inputs of different scales: a wrong kernel may be right for one of them, where another function saturates.

    Args:
        inputs: The inputs of the model.
        ranges: What `index_ranges` finds.
        seed: The same seed gives the same values.

    Returns:
        Standard normal values; the values of an image in bytes; and values of both signs from 1e-6 to 1e3.
    """

    def extremes(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
        magnitudes = 10.0 ** rng.uniform(-6, 3, shape)
        return np.where(rng.random(shape) < 0.5, magnitudes, -magnitudes)

    return [
        Sample("standard normal", random_feeds(inputs, seed, ranges)),
        Sample("0 to 255", _drawn(inputs, ranges, seed + 1, lambda rng, shape: rng.uniform(0, 255, shape))),
        Sample("1e-6 to 1e3", _drawn(inputs, ranges, seed + 2, extremes)),
    ]


def random_feeds(
    inputs: Sequence[TensorInfo], seed: int = 0, ranges: Mapping[str, int] | None = None
) -> dict[str, NDArray[Any]]:
    """Make inputs for a model: standard normal values, and integers that the model takes.

    Args:
        inputs: The inputs of the model.
        seed: The same seed gives the same values.
        ranges: The number of values, from 0, of each integer input of which it is known. All others, and booleans, are
            0 and 1.

    Returns:
        The arrays by input name, with the shapes and types of `inputs`.
    """
    return _drawn(inputs, ranges or {}, seed, lambda rng, shape: rng.standard_normal(shape))


def index_ranges(model: onnx.ModelProto) -> dict[str, int]:
    """Find the inputs of an ONNX model all of whose elements index a table of known length, as words do a vocabulary.

    Returns:
        The length of the table by the name of the input; the shortest one if there are several.
    """
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    origin = {value.name: value.name for value in model.graph.input if value.name not in shapes}
    ranges: dict[str, int] = {}
    for node in model.graph.node:
        if node.op_type in _KEEPS_ALL and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        if node.op_type == "Gather" and node.input[0] in shapes and node.input[1] in origin:
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
            name, length = origin[node.input[1]], shapes[node.input[0]][axis]
            ranges[name] = min(length, ranges.get(name, length))
    return ranges


def _drawn(
    inputs: Sequence[TensorInfo],
    ranges: Mapping[str, int],
    seed: int,
    reals: Callable[[np.random.Generator, tuple[int, ...]], NDArray[Any]],
) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    feeds: dict[str, NDArray[Any]] = {}
    for info in inputs:
        floating = np.issubdtype(np.dtype(info.dtype), np.floating)
        shape = info.shape
        values = reals(rng, shape) if floating else rng.integers(0, ranges.get(info.name, _BINARY), shape)
        feeds[info.name] = np.asarray(values, dtype=info.dtype)
    return feeds
