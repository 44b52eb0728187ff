"""What an ONNX model says of the values of its inputs: they index, divide, or go into a function that is partial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from ..inputs.ranges import UNBOUNDED, Range, as_places
from .contributed import DOMAIN, is_contributed
from .nodes import attribute_of, constants_of
from .standard import qualified_name
from .weights import array_of

_KEEPS_ALL = ("Cast", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Operators whose output holds every element of their first input."""

_KEEPS_THE_ONE = ("Gather", "Slice")
"""Operators whose output holds the element of their first input, if that is its only one."""

_READS = ("Gather", "GatherElements", "GatherND")
_WRITES = ("Scatter", "ScatterElements", "ScatterND")
"""Operators whose second input indexes the first one, or the place in it that is written to."""

_TABLES: Mapping[str, tuple[tuple[int, int], ...]] = {
    "RotaryEmbedding": ((3, 1),),
    f"{DOMAIN}.EmbedLayerNormalization": ((0, 2), (1, 4), (8, 3)),
    f"{DOMAIN}.GroupQueryAttention": ((9, 7),),
    f"{DOMAIN}.RotaryEmbedding": ((1, 2),),
}
"""Which inputs of an operator index the rows of a table, which is another input of it."""

_DOMAINS: Mapping[str, tuple[int, float, float]] = {
    "Acos": (0, -1.0, 1.0),
    "Acosh": (0, 1.0, UNBOUNDED),
    "Asin": (0, -1.0, 1.0),
    "Atanh": (0, -0.99, 0.99),
    "BatchNormalization": (4, 0.0, UNBOUNDED),
    "DequantizeLinear": (1, 0.01, 1.0),
    "Log": (0, 0.0, UNBOUNDED),
    "NonMaxSuppression": (3, 0.0, 1.0),
    "QuantizeLinear": (1, 0.01, 1.0),
    "Sqrt": (0, 0.0, UNBOUNDED),
}
"""Which input of an operator has to be real numbers of which range."""

_OVER_TIME = {
    **dict.fromkeys((f"{DOMAIN}.DynamicQuantizeLSTM", "GRU", "LSTM", "RNN"), (4, 0)),
    f"{DOMAIN}.Attention": (3, 1),
    f"{DOMAIN}.MultiHeadAttention": (4, 1),
    f"{DOMAIN}.QAttention": (5, 1),
    "ReverseSequence": (1, 0),
}
"""Which input of an operator counts the steps that each sequence has, if it is a vector, and the axis of the steps."""


def index_ranges(model: onnx.ModelProto) -> dict[str, Range]:
    """Finds what a model says of the values of its inputs.

    All elements of an integer input may index a table of known length, as words do a vocabulary. A comparison with each
    of 0, 1, 2 and so on also makes indices of its elements: this is how some exporters write `OneHot`. An input of one
    element that is compared with a constant, as a sampling rate with 16000, has that value: others may have no meaning.
    An integer that something is divided by is 1 or 2. A real number that goes into a root is not negative, and so on.
    The places of an axis that is written to are all different, unless what is written there is summed up.

    Returns:
        By the name of the input the length of the table, the shortest one if there are several; the first value of its
        range and the first after it; what `as_places` returns; or, for real numbers, the bounds.
    """
    constants = _integers(model)
    values = {name: int(value.ravel()[0]) for name, value in constants.items() if value.size == 1}
    depths = {name: value.size for name, value in constants.items() if _counts_up(value)}
    one = {value.name for value in model.graph.input if _has_one_element(value)}
    tables = {tensor.name for tensor in model.graph.initializer}
    reals = {value.name for value in model.graph.input if _is_real(value)}
    origin = {value.name: value.name for value in model.graph.input if value.name not in tables}
    shapes = _shapes(model)
    producers = {name: node for node in model.graph.node for name in node.output}
    lengths: dict[str, int] = {}
    written: set[str] = set()
    bounds: dict[str, tuple[int, int]] = {}
    compared: dict[str, tuple[int, int]] = {}
    domains: dict[str, tuple[float, float]] = {}

    def shorten(name: str, length: int) -> None:
        lengths[name] = min(length, lengths.get(name, length))

    for node in model.graph.node:
        read = [origin.get(name) for name in node.input]
        if node.op_type in _KEEPS_ALL and read[0] is not None:
            origin[node.output[0]] = read[0]
        if node.op_type in _KEEPS_THE_ONE and read[0] in one:
            origin[node.output[0]] = str(read[0])
        for name, length in _indexed(node, shapes):
            if name in origin:
                shorten(origin[name], length)
                written |= {origin[name]} if node.op_type in _WRITES and not _reduces(node) else set()
        if node.op_type == "OneHot" and read[0] is not None and node.input[1] in values:
            shorten(read[0], values[node.input[1]])
        if node.op_type in ("Div", "Mod") and read[1] is not None:
            bounds[read[1]] = (1, 3)
        if node.op_type in ("CumProd", "CumSum") and (axis := read[1]) is not None and node.input[0] in shapes:
            bounds[axis] = (0, max(1, len(shapes[node.input[0]])))
        if node.op_type == "TensorScatter" and len(read) > 2 and (begin := read[2]) is not None:
            cache, update = (shapes.get(name) for name in node.input[:2])
            if cache is not None and update is not None:
                axis = attribute_of(node, "axis", -2)
                bounds[begin] = (0, max(1, cache[axis] - update[axis] + 1))
        counted, over = _OVER_TIME.get(qualified_name(node), (len(read), 0))
        steps = read[counted] if counted < len(read) and node.input[0] in shapes else None
        if steps is not None and len(shapes.get(node.input[counted], (1,))) == 1:
            bounds[steps] = (1, shapes[node.input[0]][attribute_of(node, "time_axis", over)] + 1)
        if is_contributed(node, "GroupQueryAttention"):
            bounds |= _rows_of_cache(node, values, shapes, origin, producers)
        position, low, high = _DOMAINS.get(node.op_type, (len(read), 0.0, 0.0))
        if position < len(read) and (name := read[position] or "") in reals:
            before = domains.get(name, (-UNBOUNDED, UNBOUNDED))
            domains[name] = max(low, before[0]), min(high, before[1])
        if node.op_type == "Equal":
            for name, other in (node.input, reversed(node.input)):
                if name in origin and other in values:
                    compared.setdefault(origin[name], (values[other], values[other] + 1))
                elif name in origin and other in depths:
                    shorten(origin[name], depths[other])
    # Functions that share an input may be defined nowhere together, as Acosh and Atanh are.
    domains = {name: (low, high) for name, (low, high) in domains.items() if low < high}
    single = {name: value for name, value in compared.items() if name in one}
    places = {name: as_places(None, 0, lengths[name]) for name in written}
    found: dict[str, Range] = {**bounds, **single, **lengths, **places}
    return {**{name: known for name, known in found.items() if name not in reals}, **domains}


def _reduces(node: onnx.NodeProto) -> bool:
    """Whether what is written to one place is summed up there, or reduced in another way."""
    return bool(attribute_of(node, "reduction", "none") != "none")


def _indexed(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, int]]:
    """The inputs of a node that index, each with the length of what it indexes."""
    for places, table in _TABLES.get(qualified_name(node), ()):
        if max(places, table) < len(node.input) and node.input[table] in shapes:
            # One position may stand for a whole sequence, which begins there.
            rows = 1 if node.op_type == "EmbedLayerNormalization" else shapes.get(node.input[0], (1, 1))[-2]
            yield node.input[places], max(1, shapes[node.input[table]][0] - rows + 1)
    if node.op_type not in (*_READS, *_WRITES):
        return
    shape, indices = shapes.get(node.input[0]), node.input[1]
    if shape is None:
        return
    if not node.op_type.endswith("ND"):
        axis = attribute_of(node, "axis", 0)
        if -len(shape) <= axis < len(shape):
            yield indices, shape[axis]
    elif shapes.get(indices):
        first = attribute_of(node, "batch_dims", 0)
        indexed = shape[first : first + shapes[indices][-1]]
        yield indices, min(indexed, default=1)


def _rows_of_cache(
    node: onnx.NodeProto,
    values: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    origin: Mapping[str, str],
    producers: Mapping[str, onnx.NodeProto],
) -> dict[str, tuple[int, int]]:
    """The ranges of the inputs that say where the new rows of a GroupQueryAttention stand.

    The last one is not behind the cache. If the ones of a mask are counted, as exporters write it, all of them are 1.
    """
    name, counted = node.input[5], False
    while name in producers and producers[name].op_type in ("ReduceSum", "Sub", *_KEEPS_ALL):
        counted |= producers[name].op_type == "ReduceSum"
        name = producers[name].input[0]
    length, past = node.input[6], shapes.get(node.input[3], (0, 0, 0, 0))[2]
    rows = shapes[node.input[0]][1] if node.input[0] in shapes else None
    total = values.get(length, max(rows or 1, past))
    found = {origin[length]: (total, total + 1)} if length in origin else {}
    if name in origin:
        found[origin[name]] = (1, 2) if counted else ((total if rows is None else rows) - 1, total)
    return found


def _shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """The shapes that the model states, without those with a size that is open or 0."""
    graph = model.graph
    shapes = {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in (*graph.input, *graph.value_info)
        if value.type.tensor_type.HasField("shape")
    }
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    return {name: shape for name, shape in shapes.items() if all(size > 0 for size in shape)}


def _integers(model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    """The constant integers of a model, by name."""
    integers = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
    return {
        name: array_of(tensor) for name, tensor in constants_of(model.graph).items() if tensor.data_type in integers
    }


def _counts_up(value: NDArray[Any]) -> bool:
    """Whether it is 0, 1, 2 and so on, along its last axis."""
    last = value.shape[-1:] == (value.size,)
    return last and value.size > 1 and bool((value.ravel() == np.arange(value.size)).all())


def _has_one_element(value: onnx.ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    return tensor.HasField("shape") and all(dim.dim_value == 1 for dim in tensor.shape.dim)


def _is_real(value: onnx.ValueInfoProto) -> bool:
    reals = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    return value.type.tensor_type.elem_type in reals
