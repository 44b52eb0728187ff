"""Converters of operators on quantized tensors. They compute in int32 and round half to even, as ONNX says.

`integer_products` has the sums between the numbers that are rounded to codes and those that codes stand for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper
from tvm import relax, te, tirx
from tvm.ir import GenericConst

from ...onnx.contributed import DOMAIN, DYNAMIC_QUANTIZE_MATMUL, MATMUL_INTEGER_TO_FLOAT
from .integer_products import as_column, corrected_product, integer_convolution, integer_product, shifted
from .node import Node, const, dtype_of, limits, normalised, shape_of

_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")


def _quantize(node: Node) -> Any:
    """saturate(round(x / scale) + zero point)."""
    zero = node.optional(2)
    target = "uint8" if zero is None else dtype_of(zero)
    if node.attribute("output_dtype"):
        target = np.dtype(helper.tensor_dtype_to_np_dtype(node.attribute("output_dtype"))).name
    _require(target, node)
    x = node[0]
    axis = node.attribute("axis", 1)
    moved = None if zero is None or _is_all(zero, 0) else _along(node, zero, axis)
    return _quantized(node, x, _along(node, node[1], axis), moved, target)


def _dequantize(node: Node) -> Any:
    """(x - zero point) * scale."""
    _require(node.dtype(), node)
    axis = node.attribute("axis", 1)
    value = shifted(node, node[0], None if not node.has(2) else _along(node, node[2], axis))
    scale = _along(node, node[1], axis)
    return relax.op.multiply(relax.op.astype(value, dtype_of(scale)), scale)


def _dynamic_quantize(node: Node) -> Any:
    """The tensor as uint8 with a scale and a zero point that follow from its smallest and largest element."""
    return relax.Tuple(_rounded_dynamically(node, node[0]))


def _rounded_dynamically(node: Node, x: Any) -> list[Any]:
    """A tensor as uint8, with its scale and its zero point."""
    high, low = node.emit(relax.op.max(x)), node.emit(relax.op.min(x))
    both = node.compute(_byte_parameters, high, low, name="byte_parameters")
    scale, point = (node.emit(relax.TupleGetItem(both, index)) for index in range(2))
    return [node.emit(_quantized(node, x, scale, point, "uint8")), scale, point]


def _byte_parameters(high: Any, low: Any) -> list[Any]:
    """The scale and the zero point of uint8 for numbers from the lowest to the highest, and for zero.

    If all of them are zero, the scale is 1, as onnxruntime has it.
    """
    zero = tirx.const(0, high.dtype)

    def scale_of(*_: Any) -> Any:
        width = tirx.max(high(), zero) - tirx.min(low(), zero)
        return tirx.Select(width == zero, tirx.const(1, high.dtype), width / tirx.const(255, high.dtype))

    scale = te.compute((), scale_of, name="scale")

    def point_of(*_: Any) -> Any:
        point = tirx.nearbyint((zero - tirx.min(low(), zero)) / scale())
        return tirx.min(point, tirx.const(255, high.dtype)).astype("uint8")

    return [scale, te.compute((), point_of, name="zero_point")]


def product_by_bytes(node: Node, x: Any, weights: Any, scales: Any, points: Any) -> Any:
    """The product of numbers with weights that are bytes, where the numbers are rounded to bytes.

    Args:
        node: The node.
        x: The numbers, as (rows, inputs). They have one scale and one zero point, as after a DynamicQuantizeLinear.
        weights: The weights as an array, (inputs, outputs).
        scales: Their scales: one, or one for each output.
        points: Their zero points, likewise; None for zeros.
    """
    both = node.compute(_rounded_to_bytes, x, name="dynamic_quantize")
    data, scale, point = (node.emit(relax.TupleGetItem(both, index)) for index in range(3))
    total = corrected_product(node, (data, point), (const(weights), None if points is None else const(points)))
    factor = node.emit(relax.op.multiply(scale, const(scales)))
    return node.emit(relax.op.multiply(relax.op.astype(total, "float32"), factor))


def _rounded_to_bytes(x: Any) -> list[Any]:
    """Numbers as uint8, with their scale and their zero point, by one kernel: for those that are few."""

    def extreme(of: Callable[..., Any], name: str) -> Any:
        axes = [te.reduce_axis((0, extent), name="k") for extent in x.shape]
        return te.compute((), lambda *_: of(x(*axes), axis=axes), name=name)

    scale, point = _byte_parameters(extreme(te.max, "high"), extreme(te.min, "low"))

    def element(*i: Any) -> Any:
        number = tirx.nearbyint(x(*i) / scale()) + point().astype(x.dtype)
        return tirx.max(tirx.min(number, tirx.const(255, x.dtype)), tirx.const(0, x.dtype)).astype("uint8")

    return [te.compute(x.shape, element, name="rounded"), scale, point]


def scaled_product(node: Node, left: tuple[Any, Any, Any], right: tuple[Any, Any, Any], bias: Any) -> Any:
    """The product of two tensors of integers, as the numbers that they stand for, and a bias.

    Args:
        node: The node.
        left: The first tensor, its zero point or None, and its scale, which is one for all elements.
        right: The second one, its zero points or None, and its scales: one, or one for each column.
        bias: What is added to each row; None for nothing.

    Raises:
        ValueError: There are other scales, or they are not float32.
    """
    (a, left_point, left_scale), (b, right_point, right_scale) = left, right
    if shape_of(left_scale) not in ((), (1,)) or shape_of(right_scale) not in ((), (1,), shape_of(b)[-1:]):
        raise ValueError(f"scales of shape {shape_of(left_scale)} and {shape_of(right_scale)}")
    if dtype_of(left_scale) != "float32":
        raise ValueError(f"scales of type {dtype_of(left_scale)}")
    total = integer_product(node, (a, left_point), (b, right_point))
    factor = node.emit(relax.op.multiply(node.emit(relax.op.reshape(left_scale, ())), right_scale))
    product = node.emit(relax.op.multiply(relax.op.astype(total, "float32"), factor))
    return product if bias is None else node.emit(relax.op.add(product, bias))


def _dynamic_matmul(node: Node) -> Any:
    """DynamicQuantizeMatMul: a DynamicQuantizeLinear, and the product of its bytes."""
    codes, scale, point = _rounded_dynamically(node, node[0])
    return scaled_product(node, (codes, point, scale), (node[1], node.optional(3), node[2]), node.optional(4))


def _matmul_integer_to_float(node: Node) -> Any:
    left, right = (node[0], node.optional(4), node[2]), (node[1], node.optional(5), node[3])
    return scaled_product(node, left, right, node.optional(6))


def _matmul_integer(node: Node) -> Any:
    return integer_product(node, (node[0], node.optional(2)), (node[1], node.optional(3)))


def _qlinear_matmul(node: Node) -> Any:
    product = integer_product(node, (node[0], node[2]), (node[3], node[5]))
    scale = relax.op.divide(relax.op.multiply(as_column(node, node[1]), node[4]), node[6])
    return _requantized(node, product, node.emit(scale), node[7])


def _conv_integer(node: Node) -> Any:
    return integer_convolution(node, (node[0], node.optional(2)), (node[1], node.optional(3)))


def _qlinear_conv(node: Node) -> Any:
    rank = len(node.shape())
    result = integer_convolution(node, (node[0], node[2]), (node[3], node[5]))

    def channels(value: Any) -> Any:
        return relax.op.reshape(value, (1, -1) + (1,) * (rank - 2)) if shape_of(value) else value

    if node.has(8):
        result = node.emit(relax.op.add(result, channels(node[8])))
    scale = relax.op.divide(relax.op.multiply(node[1], node.emit(channels(node[4]))), node[6])
    return _requantized(node, result, node.emit(scale), node[7])


def _requantized(node: Node, total: Any, scale: Any, zero: Any) -> Any:
    """saturate(round(total * scale) + zero point).

    An even constant zero point is added before the rounding, which takes fewer instructions. An odd one would change
    ties. In float32 the sum may be a tie where the number is within 2^-17 of one; either side is right there.
    """
    _require(dtype_of(zero), node)
    real = node.emit(relax.op.multiply(relax.op.astype(total, dtype_of(scale)), scale))
    rows = node.emit(as_column(node, zero))
    if not isinstance(zero, GenericConst) or (zero.value.numpy() % 2).any():
        return _quantized(node, real, None, rows, dtype_of(zero))
    if not _is_all(zero, 0):
        real = node.emit(relax.op.add(real, relax.op.astype(rows, dtype_of(scale))))
    return _quantized(node, real, None, None, dtype_of(zero))


def _quantized(node: Node, x: Any, scale: Any, zero: Any, target: str) -> Any:
    """saturate(round(x / scale) + zero point), where the scale and the zero point broadcast. No scale stands for 1."""
    dtype = dtype_of(x)
    quotient = x
    if scale is not None and not _is_all(scale, 1):
        quotient = node.emit(relax.op.divide(x, relax.op.astype(scale, dtype)))
    rounded = node.emit(relax.op.round(quotient))  # to even: see `passes.legalize`
    if zero is not None:
        rounded = node.emit(relax.op.add(rounded, relax.op.astype(zero, dtype)))
    low, high = limits(target)
    bounded = relax.op.minimum(relax.op.maximum(rounded, relax.const(low, dtype)), relax.const(high, dtype))
    return node.emit(relax.op.astype(bounded, target))


def _is_all(value: Any, number: int) -> bool:
    """Whether a tensor is a constant all of whose elements are this number."""
    return isinstance(value, GenericConst) and bool((value.value.numpy() == number).all())


def _along(node: Node, value: Any, axis: int) -> Any:
    """A scale or a zero point as a tensor that broadcasts against the node's first input."""
    shape, rank = shape_of(value), len(node.shape())
    block = node.attribute("block_size", 0)
    if block:  # an element for each block along the axis
        place = normalised(axis, rank)
        repeated = node.emit(relax.op.repeat(value, block, place))
        return node.emit(relax.op.strided_slice(repeated, [place], [0], [node.shape()[place]]))
    if not shape or (shape == (1,) and rank != 1):
        return node.emit(relax.op.reshape(value, ())) if shape else value
    if len(shape) > 1:
        raise ValueError("a quantization by blocks without a block_size")
    place = normalised(axis, rank) if rank > 1 else 0
    return node.emit(relax.op.reshape(value, (1,) * place + (-1,) + (1,) * (rank - place - 1)))


def _require(dtype: str, node: Node) -> None:
    if dtype not in _INTEGERS:
        raise ValueError(f"elements of type {dtype}")


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "ConvInteger": _conv_integer,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    f"{DOMAIN}.{DYNAMIC_QUANTIZE_MATMUL}": _dynamic_matmul,
    "MatMulInteger": _matmul_integer,
    f"{DOMAIN}.{MATMUL_INTEGER_TO_FLOAT}": _matmul_integer_to_float,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": _quantize,
}
