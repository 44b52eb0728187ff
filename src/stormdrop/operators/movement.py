"""Functions that visit each element once: elementwise, transpose, concatenate."""

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


@operator(kind=(*_UNARY, *_BINARY))
def elementwise(shape: tuple[int, ...], kind: str = "relu", dtype: str = "float32") -> Definition:
    """One function of each element, or of the elements of two inputs.

    The second input of `add`, `sub`, `mul` and `div` has the same shape; that of `bias_add` has the last axis only.
    """
    x = te.placeholder(shape, dtype, name="x")
    if kind in _UNARY:
        return Definition([x], te.compute(shape, lambda *i: _UNARY[kind](x[i]), name="elementwise"))
    skipped = len(shape) - 1 if kind == "bias_add" else 0
    z = te.placeholder(shape[skipped:], dtype, name="z")
    return Definition([x, z], te.compute(shape, lambda *i: _BINARY[kind](x[i], z[i[skipped:]]), name="elementwise"))


@operator()
def transpose(shape: tuple[int, ...], perm: tuple[int, ...], dtype: str = "float32") -> Definition:
    """The axes of x in another order: axis `i` of the output is axis `perm[i]` of x (NumPy, torch and ONNX alike)."""
    if sorted(perm) != list(range(len(shape))):
        raise OperatorError(f"perm={'x'.join(map(str, perm))} must name each of the {len(shape)} axes of shape once")
    x = te.placeholder(shape, dtype, name="x")

    def element(*i: Any) -> Any:
        return x[tuple(i[perm.index(axis)] for axis in range(len(shape)))]

    return Definition([x], te.compute([shape[axis] for axis in perm], element, name="transpose"))


@operator()
def concatenate(shape: tuple[int, ...], shape2: tuple[int, ...], axis: int, dtype: str = "float32") -> Definition:
    """Two tensors one after the other along an axis; their other extents are equal. The axis may be negative."""
    if not -len(shape) <= axis < len(shape):
        raise OperatorError(f"axis={axis} is outside a shape of {len(shape)} dimensions")
    at = axis % len(shape)
    if shape[:at] + shape[at + 1 :] != shape2[:at] + shape2[at + 1 :] or len(shape) != len(shape2):
        raise OperatorError(
            f"shape={'x'.join(map(str, shape))} and shape2={'x'.join(map(str, shape2))} differ in more than axis {axis}"
        )
    x, z = te.placeholder(shape, dtype, name="x"), te.placeholder(shape2, dtype, name="z")

    def element(*i: Any) -> Any:
        second = (*i[:at], i[at] - shape[at], *i[at + 1 :])
        return tirx.if_then_else(i[at] < shape[at], x[i], z[second])

    total = (*shape[:at], shape[at] + shape2[at], *shape[at + 1 :])
    return Definition([x, z], te.compute(total, element, name="concatenate"))
