"""Expressions of a stage over the whole grid of its axes, by NumPy: floats in float64, integers in int64.

Elements that are only moved keep the type that their array has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.ir import Call, TensorLoad, Var
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm, IntImm

from ..errors import UnsupportedFunction
from .dtypes import TF32, is_float
from .expressions import intrinsic
from .stages import Axis, Stage

Array = NDArray[Any]

BINARY: dict[type, Callable[[Array, Array], Array]] = {
    prim.Add: np.add,
    prim.Sub: np.subtract,
    prim.Mul: np.multiply,
    prim.Mod: np.fmod,
    prim.FloorDiv: np.floor_divide,
    prim.FloorMod: np.mod,
    prim.Min: np.minimum,
    prim.Max: np.maximum,
    prim.EQ: np.equal,
    prim.NE: np.not_equal,
    prim.LT: np.less,
    prim.LE: np.less_equal,
    prim.GT: np.greater,
    prim.GE: np.greater_equal,
    prim.And: np.logical_and,
    prim.Or: np.logical_or,
    prim.BitwiseAnd: np.bitwise_and,
    prim.LShift: np.left_shift,
    prim.RShift: np.right_shift,
}


def _special(name: str) -> Callable[..., Array]:
    """A function of `scipy.special`, which is loaded at the first call: it takes 0.3 s, and workers rarely need it."""

    def function(x: Array) -> Array:
        from scipy import special

        values: Array = getattr(special, name)(x)
        return values

    return function


def _where(condition: Array, then: Array, otherwise: Array) -> Array:
    """NumPy's `where`, but a number takes the type of the elements beside it, which would otherwise become wider."""
    if then.ndim and not otherwise.ndim:
        otherwise = otherwise.astype(then.dtype)
    elif otherwise.ndim and not then.ndim:
        then = then.astype(otherwise.dtype)
    return np.where(condition, then, otherwise)


INTRINSICS: dict[str, Callable[..., Array]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "pow": np.power,
    "tanh": np.tanh,
    "sigmoid": _special("expit"),
    "erf": _special("erf"),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "fabs": np.abs,
    "abs": np.abs,
    "isnan": np.isnan,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "nearbyint": np.round,
    "trunc": np.trunc,
    "if_then_else": _where,
}


_SOME_HUNDREDS = 256.0


def _nudge(x: Array, nudge: Array, step: Array) -> Array:
    """A number that something is added to, and more in proportion if it is larger than some hundreds."""
    del step
    moved: Array = x + np.maximum(np.abs(x), _SOME_HUNDREDS) * (nudge / _SOME_HUNDREDS)
    return moved


def _nudge_between(x: Array, nudge: Array, step: Array) -> Array:
    """The same, except that multiples of a step stay as they are."""
    return np.where(np.fmod(x, step) == 0, x, _nudge(x, nudge, step))


def _tf32(x: Array) -> Array:
    """A number rounded to float32, and then as `expressions.tf32` says."""
    numbers = x.astype(np.float32)
    bits = numbers.view(np.uint32)
    nearest = (bits + np.uint32(0x1000) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isnan(numbers), numbers, nearest).astype(np.float64)


EXTERNS: dict[str, Callable[..., Array]] = {"nudge": _nudge, "nudge_between": _nudge_between, TF32: _tf32}
"""Functions that are called by `call_pure_extern`. Only the reference has the nudges."""


class Narrow(np.ndarray[Any, Any]):
    """Many elements in a narrow type. Those that are loaded become wide, so that not all of them are so at once."""


class GridEvaluator:
    """Evaluates expressions over a grid of axes. A result broadcasts to the axes' extents."""

    def __init__(self, axes: Sequence[Axis], values: Mapping[Any, Array], offsets: Mapping[Any, int]) -> None:
        self.axes = axes
        self.values = values
        self.ranges = {
            axis.var: (np.arange(axis.extent) + offsets.get(axis.var, 0)).reshape(
                [axis.extent if other is axis else 1 for other in axes]
            )
            for axis in axes
        }

    def __call__(self, node: Any) -> Array:
        if isinstance(node, IntImm):
            return np.asarray(int(node), dtype=bool if str(node.ty.dtype) == "bool" else np.int64)
        if isinstance(node, FloatImm):
            return np.asarray(float(node.value))
        if isinstance(node, Var):
            return self.ranges[node]
        if isinstance(node, TensorLoad):
            return self._load(node)
        if isinstance(node, prim.Cast):
            return self._cast(node)
        if isinstance(node, prim.Not):
            return np.logical_not(self(node.a))
        if isinstance(node, prim.Select):
            return _where(self(node.condition), self(node.true_value), self(node.false_value))
        if isinstance(node, prim.Div):
            left, right = self(node.a), self(node.b)
            with np.errstate(all="ignore"):  # a kernel does not warn of a division by zero either
                return np.divide(left, right) if left.dtype.kind == "f" else np.fix(left / right).astype(np.int64)
        if type(node) in BINARY:
            left, right = self(node.a), self(node.b)
            with np.errstate(invalid="ignore"):  # of infinity less infinity
                return BINARY[type(node)](left, right)
        if isinstance(node, Call):
            name = intrinsic(node)
            if name in INTRINSICS:
                with np.errstate(all="ignore"):
                    return INTRINSICS[name](*(self(argument) for argument in node.args))
            if name == "call_pure_extern" and str(node.args[0].value) in EXTERNS:
                with np.errstate(all="ignore"):
                    return EXTERNS[str(node.args[0].value)](*(self(argument) for argument in node.args[1:]))
            if name == "reinterpret":
                return self._reinterpreted(node)
            raise UnsupportedFunction(f"the NumPy reference does not know the intrinsic {node.op.name}")
        raise UnsupportedFunction(f"the NumPy reference does not know {type(node).__name__}")

    def _cast(self, node: Any) -> Array:
        value, dtype = self(node.value), str(node.ty.dtype)
        if dtype == "bool":
            return value.astype(bool)
        if is_float(dtype):
            return value.astype(np.float64)
        with np.errstate(invalid="ignore"):  # a kernel does not warn of what no integer holds
            return np.trunc(value).astype(np.int64)

    def _reinterpreted(self, node: Any) -> Array:
        """The bits of a number as a number of another type."""
        value, dtype = self(node.args[0]).astype(str(node.args[0].ty.dtype)), str(node.ty.dtype)
        return value.view(dtype).astype(np.float64 if is_float(dtype) else np.int64)

    def _load(self, node: Any) -> Array:
        """The values of a load, in a wide type unless elements are only moved."""
        array = self.values[node.source]
        if not isinstance(array, Narrow):
            return self._taken(node, array)
        return self._taken(node, np.asarray(array)).astype(np.float64 if is_float(str(array.dtype)) else np.int64)

    def _taken(self, node: Any, array: Array) -> Array:
        """The elements of an array. Indices outside the buffer, which a condition guards, are clipped."""
        if array.size == 0:  # a condition guards all loads from an empty buffer
            return np.zeros((1,) * len(self.axes), array.dtype)
        indices = [np.clip(self(index), 0, extent - 1) for index, extent in zip(node.indices, array.shape, strict=True)]
        rank = len(self.axes)
        occupied: set[int] = set()
        for index in indices:
            used = {position for position in range(rank) if index.ndim and index.shape[position] > 1}
            if used & occupied:
                gathered: Array = array[tuple(np.broadcast_arrays(*indices))]
                return gathered
            occupied |= used
        # No two dimensions depend on the same axis: indexing them one by one is many times faster.
        order: list[int] = []
        for dimension, index in enumerate(indices):
            step = _as_slice(index)
            if step is not None:
                array = array[(slice(None),) * dimension + (step,)]
            else:
                array = np.take(array, index.reshape(-1), axis=dimension)
        shape: list[int] = []
        for index in indices:
            used_axes = [position for position in range(rank) if index.ndim and index.shape[position] > 1]
            shape += [index.shape[position] for position in used_axes]
            order += used_axes
        transposed: Array = array.reshape(shape).transpose(np.argsort(order))
        return transposed.reshape(
            [axis.extent if position in occupied else 1 for position, axis in enumerate(self.axes)]
        )


def store(stage: Stage, result: Array, value: Array, offsets: Mapping[Any, int]) -> None:
    """Writes the value of a stage over its spatial axes to the elements that its indices name.

    Args:
        stage: The stage.
        result: The array of its buffer.
        value: Broadcasts to the spatial axes.
        offsets: The first positions of axes that do not begin at 0.
    """
    evaluator = GridEvaluator(stage.spatial, {}, offsets)
    indices = [evaluator(index) for index in stage.indices]
    extents = tuple(axis.extent for axis in stage.spatial)
    values = np.broadcast_to(value, extents)
    if not indices:  # a tensor without axes, which a block with an axis of one element may write
        result[...] = values.reshape(())
        return
    used = [_varying(index) for index in indices]
    slices = [_as_slice(index) if len(axes) < 2 else None for index, axes in zip(indices, used, strict=True)]
    order = [axis for axes in used for axis in axes]
    rest = [axis for axis in range(len(extents)) if axis not in order]
    if None in slices or len(set(order)) < len(order) or math.prod(extents[axis] for axis in rest) != 1:
        result[tuple(np.broadcast_to(index, extents) for index in indices)] = values
        return
    # Each dimension follows an axis of its own: slices are many times faster than arrays of indices.
    part = result[tuple(slices)]
    part[...] = values.transpose(order + rest).reshape(part.shape)


def _varying(index: Array) -> list[int]:
    """The axes along which an index has more than one position."""
    return [axis for axis in range(index.ndim) if index.shape[axis] > 1]


def _as_slice(index: Array) -> slice | None:
    """The slice that holds the same positions in the same order; None if there is none."""
    flat = index.reshape(-1)
    if flat.size == 0:
        return slice(0, 0)
    step = int(flat[1] - flat[0]) if flat.size > 1 else 1
    if step <= 0 or not np.array_equal(flat, np.arange(flat.size) * step + flat[0]):
        return None
    return slice(int(flat[0]), int(flat[-1]) + 1, step)
