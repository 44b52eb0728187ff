"""Operators that visit each element once: elementwise, transpose, concatenate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from ..errors import OperatorError
from .declare import Definition, operator
from .epilogue import ACTIVATIONS

_UNARY: dict[str, Callable[[Any], Any]] = {
    **{name: function for name, function in ACTIVATIONS.items() if name != "none"},
    "exp": te.exp,
    "erf": tirx.erf,
    "sqrt": te.sqrt,
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, z: x + z,
    "sub": lambda x, z: x - z,
    "mul": lambda x, z: x * z,
    "div": lambda x, z: x / z,
    "bias_add": lambda x, z: x + z,
}


@operator("a function of each element of one or two tensors", "shape=64x33 kind=sigmoid", kind=(*_UNARY, *_BINARY))
def elementwise(shape: tuple[int, ...], kind: str = "relu", dtype: str = "float32") -> Definition:
    """A function of each element of one input, or of the elements of two inputs.

    Args:
        shape: The shape of the first input and of the output.
        kind: The function. "relu", "relu6", "silu", "gelu", "hardswish", "sigmoid", "tanh", "exp", "erf" and "sqrt"
            have one input. The second input of "add", "sub", "mul" and "div" has the same shape, and that of
            "bias_add" has the length of the last axis.
        dtype: "float32".

    Raises:
        OperatorError: An argument is not as described above, or the tensors take more than 8 GiB together.

    Example:
        >>> import stormdrop as sd
        >>> workload = sd.operators.elementwise((64, 32), kind="bias_add")
        >>> [spec.shape for spec in workload.inputs]
        [(64, 32), (32,)]
    """
    x = te.placeholder(shape, dtype, name="x")
    if kind in _UNARY:
        return Definition([x], te.compute(shape, lambda *i: _UNARY[kind](x[i]), name="elementwise"))
    first = len(shape) - 1 if kind == "bias_add" else 0  # axis of the shape that the second input has
    z = te.placeholder(shape[first:], dtype, name="z")
    return Definition([x, z], te.compute(shape, lambda *i: _BINARY[kind](x[i], z[i[first:]]), name="elementwise"))


@operator("the axes of a tensor in another order", "shape=32x48 perm=1x0")
def transpose(shape: tuple[int, ...], perm: tuple[int, ...], dtype: str = "float32") -> Definition:
    """The axes of a tensor in another order: axis `i` of the output is axis `perm[i]` of the input.

    NumPy, torch and ONNX define it in the same way.

    Args:
        shape: The shape of the input.
        perm: Each of its axes once, counted from 0.
        dtype: "float32".

    Raises:
        OperatorError: An argument is not as described above, or the tensors take more than 8 GiB together.

    Example:
        >>> import stormdrop as sd
        >>> workload = sd.operators.transpose((2, 3, 4), (0, 2, 1))
        >>> [spec.shape for spec in workload.outputs]
        [(2, 4, 3)]
    """
    if sorted(perm) != list(range(len(shape))):
        raise OperatorError(f"perm={'x'.join(map(str, perm))} must name each of the {len(shape)} axes of shape once")
    x = te.placeholder(shape, dtype, name="x")

    def element(*i: Any) -> Any:
        return x[tuple(i[perm.index(axis)] for axis in range(len(shape)))]

    return Definition([x], te.compute([shape[axis] for axis in perm], element, name="transpose"))


@operator("two tensors, one after the other along an axis", "shape=32x20 shape2=32x30 axis=1")
def concatenate(shape: tuple[int, ...], shape2: tuple[int, ...], axis: int, dtype: str = "float32") -> Definition:
    """Two tensors, one after the other along an axis.

    Args:
        shape: The shape of the first tensor.
        shape2: The shape of the second tensor, which differs in the extent of `axis` at most.
        axis: The axis; a negative one is counted from the last.
        dtype: "float32".

    Raises:
        OperatorError: An argument is not as described above, or the tensors take more than 8 GiB together.

    Example:
        >>> import stormdrop as sd
        >>> workload = sd.operators.concatenate((2, 3), (2, 5), axis=-1)
        >>> [spec.shape for spec in workload.outputs]
        [(2, 8)]
    """
    if not -len(shape) <= axis < len(shape):
        raise OperatorError(f"axis={axis} is outside a shape of {len(shape)} dimensions")
    along = axis % len(shape)
    if shape[:along] + shape[along + 1 :] != shape2[:along] + shape2[along + 1 :] or len(shape) != len(shape2):
        raise OperatorError(
            f"shape={'x'.join(map(str, shape))} and shape2={'x'.join(map(str, shape2))} differ in more than axis {axis}"
        )
    x, z = te.placeholder(shape, dtype, name="x"), te.placeholder(shape2, dtype, name="z")

    def element(*i: Any) -> Any:
        in_second = (*i[:along], i[along] - shape[along], *i[along + 1 :])
        return tirx.if_then_else(i[along] < shape[along], x[i], z[in_second])

    joined = (*shape[:along], shape[along] + shape2[along], *shape[along + 1 :])
    return Definition([x, z], te.compute(joined, element, name="concatenate"))
