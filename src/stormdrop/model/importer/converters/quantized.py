"""Converters of operators on quantized tensors. They compute in int32 and round half to even, as ONNX says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import helper
from tvm import relax, te, tirx

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
    return _quantized(node, x, _along(node, node[1], axis), None if zero is None else _along(node, zero, axis), target)


def _dequantize(node: Node) -> Any:
    """(x - zero point) * scale."""
    _require(node.dtype(), node)
    axis = node.attribute("axis", 1)
    value = _shifted(node, node[0], None if not node.has(2) else _along(node, node[2], axis))
    scale = _along(node, node[1], axis)
    return relax.op.multiply(relax.op.astype(value, dtype_of(scale)), scale)


def _dynamic_quantize(node: Node) -> Any:
    """The tensor as uint8 with a scale and a zero point that follow from its smallest and largest element."""
    x = node[0]
    zero, top = relax.const(0.0, "float32"), relax.const(255.0, "float32")
    high = node.emit(relax.op.maximum(node.emit(relax.op.max(x)), zero))
    low = node.emit(relax.op.minimum(node.emit(relax.op.min(x)), zero))
    scale = node.emit(relax.op.divide(relax.op.subtract(high, low), top))
    safe = node.emit(relax.op.where(relax.op.equal(scale, zero), relax.const(1.0, "float32"), scale))
    point = _quantized(node, node.emit(relax.op.negative(low)), safe, None, "uint8")
    return relax.Tuple([_quantized(node, x, safe, point, "uint8"), scale, point])


def _matmul_integer(node: Node) -> Any:
    return _product(node, (node[0], node.optional(2)), (node[1], node.optional(3)))


def _qlinear_matmul(node: Node) -> Any:
    product = _product(node, (node[0], node[2]), (node[3], node[5]))
    scale = relax.op.divide(relax.op.multiply(_rows(node, node[1]), node[4]), node[6])
    return _requantized(node, product, node.emit(scale), node[7])


def _conv_integer(node: Node) -> Any:
    return _convolution(node, (node[0], node.optional(2)), (node[1], node.optional(3)))


def _qlinear_conv(node: Node) -> Any:
    rank = len(node.shape())
    result = _convolution(node, (node[0], node[2]), (node[3], node[5]))

    def channels(value: Any) -> Any:
        return relax.op.reshape(value, (1, -1) + (1,) * (rank - 2)) if shape_of(value) else value

    if node.has(8):
        result = node.emit(relax.op.add(result, channels(node[8])))
    scale = relax.op.divide(relax.op.multiply(node[1], node.emit(channels(node[4]))), node[6])
    return _requantized(node, result, node.emit(scale), node[7])


def _product(node: Node, left: tuple[Any, Any], right: tuple[Any, Any]) -> Any:
    """The product of two tensors with their zero points, in int32."""
    a = _shifted(node, left[0], None if left[1] is None else node.emit(_rows(node, left[1])))
    b = _shifted(node, *right)
    return node.emit(relax.op.matmul(a, b))


def _rows(node: Node, value: Any) -> Any:
    """A value per row as a column."""
    shape = shape_of(value)
    return relax.op.expand_dims(value, -1) if len(shape) == 1 and shape[0] != 1 else value


def _convolution(node: Node, data: tuple[Any, Any], weights: tuple[Any, Any]) -> Any:
    """The convolution of a tensor with weights and their zero points, in int32."""
    spatial = len(shape_of(data[0])) - 2
    if spatial not in (1, 2):
        raise ValueError(f"{spatial} spatial dimensions")
    w, point = weights
    if point is not None and shape_of(point) not in ((), (1,)):
        point = node.emit(relax.op.reshape(point, (-1,) + (1,) * (spatial + 1)))
    kernel = shape_of(w)[2:]
    strides = list(node.attribute("strides", (1,) * spatial))
    dilations = list(node.attribute("dilations", (1,) * spatial))
    pads = _pads(node, shape_of(data[0])[2:], kernel, strides, dilations)
    x = _shifted(node, *data)
    function = relax.op.nn.conv2d if spatial == 2 else relax.op.nn.conv1d
    layouts = ("NCHW", "OIHW") if spatial == 2 else ("NCW", "OIW")
    return node.emit(
        function(
            x,
            _shifted(node, w, point),
            strides=strides,
            padding=pads,
            dilation=dilations,
            groups=node.attribute("group", 1),
            data_layout=layouts[0],
            kernel_layout=layouts[1],
            out_dtype="int32",
        )
    )


def _pads(
    node: Node, extents: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    mode = node.attribute("auto_pad", "NOTSET")
    if mode == "NOTSET":
        return list(node.attribute("pads", (0,) * 2 * len(extents)))
    if mode == "VALID":
        return [0] * 2 * len(extents)
    totals = [
        max((-(-extent // stride) - 1) * stride + (size - 1) * dilation + 1 - extent, 0)
        for extent, size, stride, dilation in zip(extents, kernel, strides, dilations, strict=True)
    ]
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return small + large if mode == "SAME_UPPER" else large + small


def _shifted(node: Node, value: Any, zero: Any) -> Any:
    """A tensor of integers without its zero point, in int32."""
    wide = node.emit(relax.op.astype(value, "int32"))
    return wide if zero is None else node.emit(relax.op.subtract(wide, relax.op.astype(zero, "int32")))


def _requantized(node: Node, total: Any, scale: Any, zero: Any) -> Any:
    """saturate(round(total * scale) + zero point)."""
    _require(dtype_of(zero), node)
    real = node.emit(relax.op.multiply(relax.op.astype(total, dtype_of(scale)), scale))
    one = const(np.ones((), dtype_of(scale)))
    return _quantized(node, real, one, node.emit(_rows(node, zero)), dtype_of(zero))


def _quantized(node: Node, x: Any, scale: Any, zero: Any, target: str) -> Any:
    """saturate(round(x / scale) + zero point), where the scale and the zero point broadcast."""
    dtype = "float32" if dtype_of(x) == "float16" else dtype_of(x)
    quotient = relax.op.divide(relax.op.astype(x, dtype), relax.op.astype(scale, dtype))
    quotient = node.emit(quotient)
    rounded = node.compute(_rounded, quotient, name="round_to_even")
    if zero is not None:
        rounded = node.emit(relax.op.add(rounded, relax.op.astype(zero, dtype)))
    low, high = limits(target)
    bounded = relax.op.minimum(relax.op.maximum(rounded, relax.const(low, dtype)), relax.const(high, dtype))
    return node.emit(relax.op.astype(bounded, target))


def _rounded(x: Any) -> Any:
    return te.compute(x.shape, lambda *i: tirx.nearbyint(x(*i)), name="round_to_even")


def _along(node: Node, value: Any, axis: int) -> Any:
    """A scale or a zero point as a tensor that broadcasts against the node's first input."""
    shape, rank = shape_of(value), len(node.shape())
    if not shape or (shape == (1,) and rank != 1):
        return node.emit(relax.op.reshape(value, ())) if shape else value
    if len(shape) > 1 or node.attribute("block_size", 0):
        raise ValueError("a quantization by blocks")
    place = normalised(axis, rank) if rank > 1 else 0
    return node.emit(relax.op.reshape(value, (1,) * place + (-1,) + (1,) * (rank - place - 1)))


def _require(dtype: str, node: Node) -> None:
    if dtype not in _INTEGERS:
        raise ValueError(f"elements of type {dtype}")


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "ConvInteger": _conv_integer,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "MatMulInteger": _matmul_integer,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": _quantize,
}
