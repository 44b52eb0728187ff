"""Converters of operators on quantized tensors. They compute in int32 and round half to even, as ONNX says.

If zero points are constants, products and convolutions take bytes as they are and widen them in the sum, so that
kernels read bytes and can multiply several at a time. Otherwise the tensors are widened before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper
from tvm import relax, te
from tvm.ir import GenericConst

from .node import Node, const, dtype_of, limits, normalised, shape_of
from .windows import pads_of

_BYTES = ("int8", "uint8")
_WORD = 4  # bytes whose products are added up at a time
_SHORT = (2, 3)  # channels of which there are too few for a word; one channel lies beside the next position's
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
    left_point, right_point = (_constant_point(*operand) for operand in (left, right))
    matrices = _multiply_as_matrices(shape_of(left[0]), shape_of(right[0]))
    if left_point is not None and right_point is not None and matrices:
        middle = 128 if dtype_of(right[0]) == "uint8" else 0
        if isinstance(right[0], GenericConst):
            middle = right_point
        product = node.compute(_product_of_bytes, left[0], right[0], left_point, middle, name="matmul_of_bytes")
        if middle == right_point:
            return product
        sums = node.compute(_sums_of_rows, left[0], left_point, name="sums_of_rows")
        moved = relax.op.multiply(sums, relax.const(middle - right_point, "int32"))
        return node.emit(relax.op.add(product, node.emit(moved)))
    a = _shifted(node, left[0], None if left[1] is None else node.emit(_rows(node, left[1])))
    b = _shifted(node, *right)
    return node.emit(relax.op.matmul(a, b))


def _constant_point(value: Any, point: Any) -> int | None:
    """The zero point of a tensor of bytes, if it is one constant for all elements; else None."""
    if dtype_of(value) not in _BYTES:
        return None
    if point is None:
        return 0
    if not isinstance(point, GenericConst) or shape_of(point) not in ((), (1,)):
        return None
    return int(point.value.numpy().reshape(()))


def _multiply_as_matrices(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    """Whether a product has one matrix on the right, or as many as on the left."""
    return len(left) >= 2 and (len(right) == 2 or (len(right) >= 2 and left[:-2] == right[:-2]))


def _product_of_bytes(a: Any, b: Any, left: int, right: int) -> Any:
    """Products of matrices of bytes, less their zero points. The bytes are widened in the sum, not before it.

    So a kernel reads bytes, and can multiply several at a time.
    """
    k = te.reduce_axis((0, a.shape[-1]), name="k")

    def element(*i: Any) -> Any:
        *batch, row, column = i
        x = a(*batch, row, k).astype("int32")
        y = b(*(batch if len(b.shape) > 2 else ()), k, column).astype("int32")
        return te.sum((x - left if left else x) * (y - right if right else y), axis=k)

    return te.compute((*a.shape[:-1], b.shape[-1]), element, name="matmul_of_bytes")


def _sums_of_rows(a: Any, point: int) -> Any:
    """The sum of each row of a tensor of bytes, less their zero point.

    A product with b - z is the product with b - 128, plus 128 - z times these sums. Instructions for dot products take
    b - 128, which fits a signed byte, and no other zero point of unsigned bytes.
    """
    k = te.reduce_axis((0, a.shape[-1]), name="k")

    def element(*i: Any) -> Any:
        x = a(*i[:-1], k).astype("int32")
        return te.sum(x - point if point else x, axis=k)

    return te.compute((*a.shape[:-1], 1), element, name="sums_of_rows")


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
    kernel = shape_of(w)[2:]
    strides = list(node.attribute("strides", (1,) * spatial))
    dilations = list(node.attribute("dilations", (1,) * spatial))
    pads = pads_of(node, kernel)
    bytes_of = _bytes_of_convolution(node, data, weights, pads)
    if bytes_of is not None:
        x, w, pads, correction = bytes_of
    else:
        if point is not None and shape_of(point) not in ((), (1,)):
            point = node.emit(relax.op.reshape(point, (-1,) + (1,) * (spatial + 1)))
        x, w, correction = _shifted(node, *data), _shifted(node, w, point), None
    function = relax.op.nn.conv2d if spatial == 2 else relax.op.nn.conv1d
    layouts = ("NCHW", "OIHW") if spatial == 2 else ("NCW", "OIW")
    result = node.emit(
        function(
            x,
            w,
            strides=strides,
            padding=pads,
            dilation=dilations,
            groups=node.attribute("group", 1),
            data_layout=layouts[0],
            kernel_layout=layouts[1],
            out_dtype="int32",
        )
    )
    return result if correction is None else node.emit(relax.op.add(result, correction))


def _bytes_of_convolution(
    node: Node, data: tuple[Any, Any], weights: tuple[Any, Any], pads: list[int]
) -> tuple[Any, Any, list[int], Any] | None:
    """Data and weights of a convolution as bytes, its padding, and what is added to its result.

    The sum of (x - z) w is that of x w, less z times the sum of w, if the padding is z. Two or three channels, as of an
    image, are padded to a word of four bytes, which is loaded at once.

    Returns:
        None if the zero point of the data or the weights are no constants, or if the weights less theirs are no int8.
    """
    zero, (kernel, point) = _constant_point(*data), weights
    if zero is None or not isinstance(kernel, GenericConst) or not (point is None or isinstance(point, GenericConst)):
        return None
    values = kernel.value.numpy().astype(np.int64)
    if point is not None:
        shape = (-1,) + (1,) * (values.ndim - 1)
        values = values - point.value.numpy().astype(np.int64).reshape(shape)
    low, high = limits("int8")
    if values.min(initial=0) < low or values.max(initial=0) > high:
        return None
    x, spatial = data[0], values.ndim - 2
    sums = values.sum(axis=tuple(range(1, values.ndim)))
    more = _WORD - values.shape[1] if values.shape[1] in _SHORT and node.attribute("group", 1) == 1 else 0
    if more or (zero and any(pads)):
        around = [0, 0, 0, more, *(pads[side * spatial + axis] for axis in range(spatial) for side in (0, 1))]
        x, pads = node.emit(relax.op.nn.pad(x, around, pad_value=zero)), [0] * len(pads)
        values = np.pad(values, [(0, 0), (0, more), *[(0, 0)] * spatial])
    if not zero:
        return x, const(values.astype("int8")), pads, None
    correction = const((-zero * sums).astype("int32").reshape(1, -1, *[1] * spatial))
    return x, const(values.astype("int8")), pads, correction


def _shifted(node: Node, value: Any, zero: Any) -> Any:
    """A tensor of integers without its zero point, in int32."""
    wide = node.emit(relax.op.astype(value, "int32"))
    return wide if zero is None else node.emit(relax.op.subtract(wide, relax.op.astype(zero, "int32")))


def _requantized(node: Node, total: Any, scale: Any, zero: Any) -> Any:
    """saturate(round(total * scale) + zero point).

    An even constant zero point is added before the rounding, which takes fewer instructions. An odd one would change
    ties. In float32 the sum may be a tie where the number is within 2^-17 of one; either side is right there.
    """
    _require(dtype_of(zero), node)
    real = node.emit(relax.op.multiply(relax.op.astype(total, dtype_of(scale)), scale))
    rows = node.emit(_rows(node, zero))
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
    "MatMulInteger": _matmul_integer,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": _quantize,
}
