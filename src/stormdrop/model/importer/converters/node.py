"""An ONNX node whose inputs are Relax expressions, as converters see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import GenericConst

from ...onnx.nodes import as_text


class Node:
    """An ONNX node.

    Attributes:
        operator: The name of the operator.
        inputs: The inputs; None for one that is left out.
        opset: The version of the operators.
        outputs: How many outputs the node has.
    """

    def __init__(
        self,
        builder: relax.BlockBuilder,
        operator: str,
        inputs: Sequence[Any],
        attributes: dict[str, Any],
        opset: int,
    ) -> None:
        self.operator, self.inputs, self.opset = operator, inputs, opset
        self.outputs: int = attributes["tvm_custom"]["num_outputs"]
        self._builder = builder
        self._attributes = attributes

    def __getitem__(self, position: int) -> Any:
        """An input as a tensor."""
        value = self.inputs[position]
        if isinstance(value, relax.ShapeExpr):
            return const(np.array([int(extent) for extent in value.values], np.int64))
        return value

    def has(self, position: int) -> bool:
        """Whether the node has this input."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def optional(self, position: int) -> Any:
        """An input; None if it is left out."""
        return self[position] if self.has(position) else None

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute, as `attribute_of` gives it, of those that TVM's importer has read."""
        return as_text(self._attributes.get(name, default))

    def replace_attributes(self, changed: Mapping[str, Any], removed: Sequence[str]) -> None:
        """Changes the attributes that TVM's importer gets, if the converter leaves the node to it."""
        for name in removed:
            self._attributes.pop(name, None)
        self._attributes.update(changed)

    def shape(self, position: int = 0) -> tuple[int, ...]:
        """The shape of an input."""
        return shape_of(self[position])

    def dtype(self, position: int = 0) -> str:
        """The type of an input's elements."""
        return dtype_of(self[position])

    def constant(self, position: int) -> NDArray[Any] | None:
        """The value of an input that is a constant; None if it is left out.

        Raises:
            ValueError: It is no constant.
        """
        value = self.optional(position)
        if value is None:
            return None
        if not isinstance(value, GenericConst):
            raise ValueError(f"input {position} must be a constant")
        array: NDArray[Any] = value.value.numpy()
        return array

    def emit(self, expr: Any) -> Any:
        """The variable that an expression is bound to."""
        return self._builder.emit(expr)

    def compute(self, function: Callable[..., Any], *arguments: Any, name: str, **settings: Any) -> Any:
        """The result of a TensorIR function that is written in tensor expressions.

        Args:
            function: Gets a placeholder for each argument that is a Relax expression, and all others as they are.
            arguments: The arguments.
            name: The name of the function.
            settings: Further arguments of `function` by name, which it gets as they are.
        """
        return self._builder.emit_te(function, *arguments, primfunc_name_hint=name, **settings)


def shape_of(expr: Any) -> tuple[int, ...]:
    """The shape of a tensor, which is always known."""
    return tuple(int(extent) for extent in expr.ty.shape)


def dtype_of(expr: Any) -> str:
    """The type of a tensor's elements."""
    return str(expr.ty.dtype)


def const(array: Any) -> Any:
    """An array as a constant of its own type: `relax.const` narrows types of 64 bits."""
    values = np.asarray(array)
    return relax.const(np.ascontiguousarray(values).reshape(values.shape), str(values.dtype))


def scalar(value: float, like: Any) -> Any:
    """A constant of the type of a tensor."""
    return relax.const(value, dtype_of(like))


def is_float(dtype: str) -> bool:
    """Whether a type is a floating-point type."""
    return dtype.startswith(("float", "bfloat"))


def limits(dtype: str) -> tuple[int, int]:
    """The smallest and the largest value of a type of integers."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def normalised(axis: int, rank: int) -> int:
    """An axis counted from the first one.

    Raises:
        ValueError: There is no such axis.
    """
    if not -rank <= axis < rank:
        raise ValueError(f"there is no axis {axis} in a tensor of {rank} dimensions")
    return axis % rank


def tuple_of(*values: Any) -> Any:
    """The outputs of a node; the value itself if there is one only."""
    return values[0] if len(values) == 1 else relax.Tuple(list(values))
