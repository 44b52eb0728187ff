"""The inputs of an ONNX model: which ones it uses, the sizes of those that it leaves open, and those with fixed values.

A dimension without a size may have a name, be written as -1 or "?", or be empty; an input may even lack its rank. A 0
that is written down is a size, though the user may give another one: some exporters mean an open dimension by it. The
user gives the sizes by input. A dimension with a name has one size in all inputs, so it has to be given only once. One
whose name is a sum, such as "past + sequence" of a decoder with a cache, follows from the sizes of the others.

The value of an input may decide the shape of a tensor, as axes and repeats do. The user fixes such an input: it becomes
a constant, and the model is imported without it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from ...errors import ModelError, shown
from .casting import in_type

Shapes = Mapping[str, Sequence[int]]
"""The shapes that the user gives, by the name of the input."""

Values = Mapping[str, Any]
"""The values that the user fixes inputs to, by the name of the input: arrays, numbers, or lists of them."""

_INITIALIZERS_ARE_NO_INPUTS = 4
"""The first version of ONNX's representation in which an initializer need not be listed among the inputs."""

_LISTED = 5  # open dimensions that a message names, at most


def fill_shapes(model: onnx.ModelProto, shapes: Shapes, name: str) -> None:
    """Writes the sizes into the inputs of a model's graph.

    Args:
        model: The model; it is changed.
        shapes: The shapes that the user gives. Those of inputs that the graph does not use need not be complete.
        name: The name of the model, for messages.

    Raises:
        ModelError: A shape contradicts the model or another shape, or a size is still open.
    """
    inputs = _named_inputs(model.graph, shapes, name)
    _open_nameless(model.graph)
    sizes = _NamedSizes(name)
    for key, shape in shapes.items():
        _give(inputs[key], shape, sizes, name)
    sizes.check_sums()
    used = _used_names(model.graph)
    missing = _Missing()
    for key, value in inputs.items():
        if value.type.HasField("tensor_type"):
            _fill_named(value, sizes)
        elif key in used:
            raise ModelError(f"{name}: input {shown(key)!r} is no tensor")
        if key in used:
            missing.look(value)
    if missing:
        raise ModelError(f"{name}: {missing}")


def fix_values(model: onnx.ModelProto, values: Values, name: str) -> None:
    """Makes inputs constants.

    Args:
        model: The model; it is changed.
        values: The values of the inputs that are fixed.
        name: The name of the model, for messages.

    Raises:
        ModelError: An input is unknown, or its type or shape does not hold the value.
    """
    inputs = _named_inputs(model.graph, values, name)
    for key, given in values.items():
        _fix(model, inputs[key], _value_of(inputs[key], given, name))


def dimension_names(model: onnx.ModelProto) -> dict[str, list[str | None]]:
    """What a model calls the dimensions of its inputs, by input; None for those without a name."""
    return {
        value.name: [
            dim.dim_param if any(map(str.isalnum, dim.dim_param)) else None for dim in value.type.tensor_type.shape.dim
        ]
        for value in _true_inputs(model.graph)
    }


def drop_unused_inputs(model: onnx.ModelProto) -> tuple[str, ...]:
    """Removes the inputs and the initializers that a graph does not use.

    Args:
        model: The model; it is changed.

    Returns:
        The names of these inputs, without those of initializers.
    """
    used = _used_names(model.graph)
    ignored = tuple(value.name for value in _true_inputs(model.graph) if value.name not in used)
    # In old versions of the format an initializer is an input as well: onnxruntime takes neither without the other.
    for listed in (model.graph.input, model.graph.initializer):
        for position in reversed(range(len(listed))):
            if listed[position].name not in used:
                del listed[position]
    return ignored


def fix_empty_inputs(model: onnx.ModelProto) -> tuple[str, ...]:
    """Makes the inputs that have no elements constants: their value is known, and no kernel can take them.

    Args:
        model: The model, whose inputs have sizes; it is changed.

    Returns:
        Their names.
    """
    empty = [value for value in _true_inputs(model.graph) if 0 in _sizes(value)]
    for value in empty:
        _fix(model, value, np.zeros(_sizes(value), helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)))
    return tuple(value.name for value in empty)


def _fix(model: onnx.ModelProto, value: onnx.ValueInfoProto, array: NDArray[Any]) -> None:
    """Puts a constant in the place of an input."""
    model.graph.initializer.append(numpy_helper.from_array(array, value.name))
    model.graph.input.remove(value)
    model.ir_version = max(model.ir_version, _INITIALIZERS_ARE_NO_INPUTS)


def _value_of(value: onnx.ValueInfoProto, given: Any, name: str) -> NDArray[Any]:
    """What the user gives as an array of the type and the shape of an input. A number may stand for an axis of one."""
    key = f"{name}: the value of input {shown(value.name)!r}"
    tensor = value.type.tensor_type
    if tensor.elem_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
        raise ModelError(f"{key} cannot be fixed: the input is no tensor of numbers")
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    try:
        array = np.asarray(given)
    except ValueError:  # rows of different lengths
        raise ModelError(f"{key} is no array of numbers") from None
    if array.dtype.kind not in "biuf":
        raise ModelError(f"{key} is no array of numbers")
    fixed = in_type(array, dtype)
    if fixed is None:
        raise ModelError(f"{key} is not of its type, {dtype.name}")
    if not tensor.HasField("shape"):
        return fixed
    sizes = [-1 if _is_open(dim) or dim.dim_value < 0 else dim.dim_value for dim in tensor.shape.dim]
    if fixed.ndim < len(sizes):
        fixed = fixed.reshape((1,) * (len(sizes) - fixed.ndim) + fixed.shape)
    if fixed.ndim > len(sizes) and fixed.size == 1:
        fixed = fixed.reshape((1,) * len(sizes))
    if fixed.ndim != len(sizes) or any(size not in (-1, own) for size, own in zip(sizes, fixed.shape, strict=True)):
        wanted = "x".join("N" if size < 0 else str(size) for size in sizes) or "a number"
        raise ModelError(f"{key} has the shape {'x'.join(map(str, array.shape)) or 'of a number'}, not {wanted}")
    return fixed


def _named_inputs(graph: onnx.GraphProto, given: Mapping[str, Any], name: str) -> dict[str, onnx.ValueInfoProto]:
    """The inputs by name. Raises `ModelError` if something is given for an input that is not there."""
    inputs = {value.name: value for value in _true_inputs(graph)}
    for unknown in sorted(set(given) - set(inputs)):
        raise ModelError(
            f"{name}: has no input {shown(unknown)!r}; its inputs are {', '.join(repr(shown(key)) for key in inputs)}"
        )
    return inputs


def _sizes(value: onnx.ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def _true_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs that a caller gives. Old models list their initializers among the inputs, too."""
    initializers = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in initializers]


def _used_names(graph: onnx.GraphProto) -> set[str]:
    """The names of all inputs of nodes, including the nodes of branches and loop bodies, and of the outputs."""
    names = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                names |= _used_names(inner)
    return names


def _give(value: onnx.ValueInfoProto, shape: Sequence[int], sizes: _NamedSizes, name: str) -> None:
    """Writes a shape that the user gives into an input."""
    if not value.type.HasField("tensor_type"):
        return  # only an input that the graph uses must be a tensor
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        tensor.shape.dim.extend(onnx.TensorShapeProto.Dimension() for _ in shape)
    dims = tensor.shape.dim
    key = shown(value.name)
    if len(shape) != len(dims):
        known = "x".join("N" if _is_open(dim) else str(dim.dim_value) for dim in dims)
        raise ModelError(f"{name}: input {key!r} has {len(dims)} dimensions ({known}), not {len(shape)}")
    for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
        if dim.dim_value > 0 and dim.dim_value != size:
            raise ModelError(f"{name}: dimension {axis} of input {key!r} is {dim.dim_value}, not {size}")
        if dim.dim_param:
            sizes.give(dim.dim_param, size, f"dimension {axis} of input {key!r}")
        dim.dim_value = size


def _fill_named(value: onnx.ValueInfoProto, sizes: _NamedSizes) -> None:
    """Writes the sizes that are known by name into an input."""
    for dim in value.type.tensor_type.shape.dim:
        size = sizes.of(dim.dim_param) if dim.dim_param else None
        if size is not None:
            dim.dim_value = size


class _NamedSizes:
    """The sizes of the dimensions that have a name, and where each was given."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._origin: dict[str, str] = {}
        self.known: dict[str, int] = {}

    def give(self, symbol: str, size: int, where: str) -> None:
        """Notes a size. Raises `ModelError` if the same name has another one already."""
        if self.known.setdefault(symbol, size) != size:
            raise ModelError(
                f"{self._model}: {where} and {self._origin[symbol]} are both {shown(symbol)!r}, so they must be equal, "
                f"not {size} and {self.known[symbol]}"
            )
        self._origin.setdefault(symbol, where)

    def of(self, symbol: str) -> int | None:
        """The size of a name, given or as the sum of others; None if it is not known."""
        return self.known.get(symbol, self._sum(symbol))

    def check_sums(self) -> None:
        """Raises `ModelError` if a name that is a sum has another size than the sum."""
        for symbol, size in self.known.items():
            wanted = self._sum(symbol)
            if wanted not in (None, size):
                raise ModelError(
                    f"{self._model}: {self._origin[symbol]} is {shown(symbol)!r}, so it must be {wanted}, not {size}; "
                    "it may be left out"
                )

    def _sum(self, symbol: str) -> int | None:
        """What the terms of a name add up to; None if it is no sum, or one of the terms is not known."""
        terms = [term.strip() for term in symbol.split("+")]
        sizes = [int(term) if term.isdecimal() else self.known.get(term) for term in terms]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(terms) > 1 else None


@dataclass
class _Missing:
    """What is still open in the inputs of a model; `str` is the end of a message."""

    named: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    others: list[str] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.examples)

    def look(self, value: onnx.ValueInfoProto) -> None:
        """Notes what is open in an input."""
        key, tensor = shown(value.name), value.type.tensor_type
        if not tensor.HasField("shape"):
            self.others.append(f"the rank of input {key!r}")
            self.examples.append(f"--shape {key}=NxNx...")
            return
        needed = False  # whether the sizes that the examples ask for so far leave a size of this input open
        for axis, dim in enumerate(tensor.shape.dim):
            where = f"dimension {axis} of input {key!r}"
            if not _is_open(dim):
                continue
            needed |= dim.dim_param not in self.named
            if dim.dim_param:
                self.named[dim.dim_param].append(where)
            else:
                self.others.append(where)
        if needed:
            sizes = ("N" if _is_open(dim) else str(dim.dim_value) for dim in tensor.shape.dim)
            self.examples.append(f"--shape {key}={'x'.join(sizes)}")

    def __str__(self) -> str:
        open_ones = [f"{' and '.join(where)} ({shown(symbol)})" for symbol, where in self.named.items()] + self.others
        rest = f" and {len(open_ones) - _LISTED} more" if len(open_ones) > _LISTED else ""
        have = "has" if len(open_ones) == 1 else "have"
        return (
            f"{', '.join(open_ones[:_LISTED])}{rest} {have} no size; give the shape, as in "
            f"{' '.join(self.examples[:_LISTED])} (shapes= in Python)"
        )


def _is_open(dim: onnx.TensorShapeProto.Dimension) -> bool:
    return bool(dim.WhichOneof("value") != "dim_value")


def _open_nameless(graph: onnx.GraphProto) -> None:
    """Empties the dimensions that are written as -1 or "?": shape inference takes these for a size and for one name."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ():
            if dim.dim_value < 0 or (dim.dim_param and not any(map(str.isalnum, dim.dim_param))):
                dim.Clear()
