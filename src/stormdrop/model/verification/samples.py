"""The inputs that a model is verified on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from ..metadata import Metadata, TensorInfo

Feeds = Mapping[str, NDArray[Any]]
"""Arrays by the name of an input or output."""

_KEEPS_ALL = ("Cast", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""ONNX operators whose output holds every element of their first input."""

_KEEPS_THE_ONE = ("Gather", "Slice")
"""Operators whose output holds the element of their first input, if that is its only one."""

Ranges = Mapping[str, int | tuple[int, int]]
"""What `index_ranges` finds."""

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


def samples(inputs: Sequence[TensorInfo], ranges: Ranges, seed: int = 0) -> list[Sample]:
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


def random_feeds(inputs: Sequence[TensorInfo], seed: int = 0, ranges: Ranges | None = None) -> dict[str, NDArray[Any]]:
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


def sample_feeds(metadata: Metadata, seed: int = 0) -> dict[str, NDArray[Any]]:
    """The first of the samples that a saved model was verified on, for this seed.

    Args:
        metadata: What the model says about itself. Its provenance holds what `index_ranges` found.
        seed: The same seed gives the same values.

    Returns:
        The arrays by input name.
    """
    recorded = metadata.provenance.get("index_ranges")
    ranges = recorded if isinstance(recorded, dict) else {}
    known = {name: found for name, found in ranges.items() if _is_range(found)}
    return random_feeds(metadata.inputs, seed, known)


def index_ranges(model: onnx.ModelProto) -> dict[str, int | tuple[int, int]]:
    """Find the inputs of an ONNX model all of whose elements index a table of known length, as words do a vocabulary.

    A comparison with each of 0, 1, 2 and so on also makes indices of its elements: this is how some exporters write
    `OneHot`. An input of one element that is compared with a constant, as a sampling rate with 16000, has that value:
    others may have no meaning. An input that something is divided by is 1 or 2.

    Returns:
        The length of the table by the name of the input, the shortest one if there are several; or the value, as the
        first of the range and the first after it.
    """
    constants = _integers(model)
    values = {name: int(value.ravel()[0]) for name, value in constants.items() if value.size == 1}
    depths = {name: value.size for name, value in constants.items() if _counts_up(value)}
    one = {value.name for value in model.graph.input if _has_one_element(value)}
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    origin = {value.name: value.name for value in model.graph.input if value.name not in shapes}
    lengths: dict[str, int] = {}
    compared: dict[str, tuple[int, int]] = {}
    divisors: dict[str, tuple[int, int]] = {}

    def shorten(name: str, length: int) -> None:
        lengths[name] = min(length, lengths.get(name, length))

    for node in model.graph.node:
        if node.op_type in _KEEPS_ALL and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        if node.op_type in _KEEPS_THE_ONE and origin.get(node.input[0]) in one:
            origin[node.output[0]] = origin[node.input[0]]
        if node.op_type == "Gather" and node.input[0] in shapes and node.input[1] in origin:
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
            shorten(origin[node.input[1]], shapes[node.input[0]][axis])
        if node.op_type == "OneHot" and node.input[0] in origin and node.input[1] in values:
            shorten(origin[node.input[0]], values[node.input[1]])
        if node.op_type in ("Div", "Mod") and node.input[1] in origin:
            divisors[origin[node.input[1]]] = (1, 3)
        if node.op_type == "Equal":
            for name, other in (node.input, reversed(node.input)):
                if name in origin and other in values:
                    compared.setdefault(origin[name], (values[other], values[other] + 1))
                elif name in origin and other in depths:
                    shorten(origin[name], depths[other])
    return {**divisors, **{name: value for name, value in compared.items() if name in one}, **lengths}


def _integers(model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    """The constant integers of a model, by name."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            tensors[node.output[0]] = node.attribute[0].t
    integers = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
    return {
        name: onnx.numpy_helper.to_array(tensor) for name, tensor in tensors.items() if tensor.data_type in integers
    }


def _counts_up(value: NDArray[Any]) -> bool:
    """Whether it is 0, 1, 2 and so on, along its last axis."""
    last = value.shape[-1:] == (value.size,)
    return last and value.size > 1 and bool((value.ravel() == np.arange(value.size)).all())


def _has_one_element(value: onnx.ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    return tensor.HasField("shape") and all(dim.dim_value == 1 for dim in tensor.shape.dim)


def _is_range(found: Any) -> bool:
    """Whether a value from a saved model is one that `index_ranges` returns: JSON has lists for tuples."""
    bounds = [0, found] if isinstance(found, int) else found
    return (
        isinstance(bounds, list)
        and len(bounds) == 2
        and all(isinstance(bound, int) and abs(bound) < 2**31 for bound in bounds)
        and bounds[0] < bounds[1]
    )


def _drawn(
    inputs: Sequence[TensorInfo],
    ranges: Ranges,
    seed: int,
    reals: Callable[[np.random.Generator, tuple[int, ...]], NDArray[Any]],
) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    feeds: dict[str, NDArray[Any]] = {}
    for info in inputs:
        floating = np.issubdtype(np.dtype(info.dtype), np.floating)
        shape = info.shape
        found = ranges.get(info.name, _BINARY)
        first, end = (0, found) if isinstance(found, int) else found
        values = reals(rng, shape) if floating else rng.integers(first, end, shape)
        feeds[info.name] = np.asarray(values, dtype=info.dtype)
    return feeds
