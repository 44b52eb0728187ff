"""Converters of operators on quantized tensors. They compute in int32 and round half to even, as ONNX says.

Products and convolutions take bytes as they are and widen them in the sum, so that kernels read bytes and can multiply
several at a time. Zero points that are constants are a part of the sum. Those that data decide, as after a
DynamicQuantizeLinear, are subtracted from what the bytes give:

    sum (a - z)(b - y) = sum a (b - m) + (m - y) sum a - z sum (b - y)

where b - m is an int8. If b - y is one, m is y. A zero point for each row, and one of data for each channel, stay where
they are: such tensors are widened before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper
from tvm import relax, te, tirx
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
    high, low = node.emit(relax.op.max(x)), node.emit(relax.op.min(x))
    both = node.compute(_byte_parameters, high, low, name="byte_parameters")
    scale, point = (node.emit(relax.TupleGetItem(both, index)) for index in range(2))
    return relax.Tuple([_quantized(node, x, scale, point, "uint8"), scale, point])


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
    total = _corrected_product(node, (data, point), (const(weights), None if points is None else const(points)))
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
    if matrices and _is_of_bytes(*left, ()) and _is_of_bytes(*right, shape_of(right[0])[-1:]):
        return _corrected_product(node, left, right)
    a = _shifted(node, left[0], None if left[1] is None else node.emit(_rows(node, left[1])))
    b = _shifted(node, *right)
    return node.emit(relax.op.matmul(a, b))


def _is_of_bytes(value: Any, point: Any, points: tuple[int, ...]) -> bool:
    """Whether a tensor holds bytes, and has no zero point, a single one, or one for each of these positions."""
    return dtype_of(value) in _BYTES and (point is None or shape_of(point) in ((), (1,), points))


def _corrected_product(node: Node, left: tuple[Any, Any], right: tuple[Any, Any]) -> Any:
    """The product of two tensors of bytes whose zero points are subtracted from the sums: see the module."""
    (a, left_point), (b, right_point) = left, right
    middle = 128 if dtype_of(b) == "uint8" else 0
    parts = None if left_point is None else node.emit(relax.op.reshape(left_point, ()))
    if isinstance(b, GenericConst) and (right_point is None or isinstance(right_point, GenericConst)):
        less = _less(b, right_point, -1)
        if _fits(less):
            b, moved, middle = const(less.astype("int8")), None, 0
        else:
            moved = const((middle - _array(right_point)).astype("int32"))
        columns = const(less.sum(axis=-2, keepdims=True).astype("int32"))
    else:
        moved = relax.const(middle, "int32")
        if right_point is not None:
            moved = node.emit(relax.op.subtract(moved, relax.op.astype(right_point, "int32")))
        columns = relax.op.sum(_shifted(node, b, right_point), axis=-2, keepdims=True)
    total = node.compute(_product_of_bytes, a, b, 0, middle, name="matmul_of_bytes")
    if moved is not None:
        sums = node.compute(_sums_of_rows, a, 0, name="sums_of_rows")
        total = node.emit(relax.op.add(total, node.emit(relax.op.multiply(sums, moved))))
    return _less_multiples(node, total, parts, columns)


def _less_multiples(node: Node, total: Any, point: Any, sums: Any) -> Any:
    """Sums of products of bytes less the zero point of the data times the sums of what it is multiplied by."""
    if point is None:
        return total
    return node.emit(relax.op.subtract(total, node.emit(relax.op.multiply(relax.op.astype(point, "int32"), sums))))


def _array(point: Any) -> Any:
    """A constant zero point as numbers; 0 if there is none."""
    return np.int64(0) if point is None else point.value.numpy().astype(np.int64)


def _less(values: Any, point: Any, axis: int) -> Any:
    """A constant less its zero points, which are one or one for each position on an axis."""
    numbers, points = values.value.numpy().astype(np.int64), _array(point)
    shape = [1] * numbers.ndim
    shape[axis] = -1
    return numbers - points.reshape(shape)


def _fits(values: Any) -> bool:
    """Whether all of these integers are int8."""
    low, high = limits("int8")
    return bool(values.min(initial=0) >= low and values.max(initial=0) <= high)


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
    function = relax.op.nn.conv2d if spatial == 2 else relax.op.nn.conv1d
    layouts = ("NCHW", "OIHW") if spatial == 2 else ("NCW", "OIW")

    def convolved(x: Any, w: Any, pads: list[int]) -> Any:
        return node.emit(
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

    constant = isinstance(w, GenericConst) and (point is None or isinstance(point, GenericConst))
    if constant and _is_of_bytes(*data, ()) and _is_of_bytes(w, point, shape_of(w)[:1]):
        return _corrected_convolution(node, data, weights, pads, convolved)
    if point is not None and shape_of(point) not in ((), (1,)):
        point = node.emit(relax.op.reshape(point, (-1,) + (1,) * (spatial + 1)))
    return convolved(_shifted(node, *data), _shifted(node, w, point), pads)


def _corrected_convolution(
    node: Node,
    data: tuple[Any, Any],
    weights: tuple[Any, Any],
    pads: list[int],
    convolved: Callable[[Any, Any, list[int]], Any],
) -> Any:
    """The convolution of bytes with constant ones, whose zero points are subtracted from the sums: see the module.

    The padding is the zero point of the data. Two or three channels, as of an image, are padded to a word of four
    bytes, which is loaded at once.

    Args:
        node: The node.
        data: The data, and their zero point.
        weights: The weights, and their zero points.
        pads: How many elements are added before each spatial axis, and behind each.
        convolved: The convolution of data with weights and a padding of zeros.
    """
    (x, zero), (kernel, point) = data, weights
    less, groups, zero_point = _less(kernel, point, 0), node.attribute("group", 1), _constant_point(*data)
    spatial, sums = less.ndim - 2, less.sum(axis=tuple(range(1, less.ndim)))
    middle = 0 if _fits(less) or dtype_of(kernel) == "int8" else 128
    values = less if _fits(less) else kernel.value.numpy().astype(np.int64) - middle
    ones = np.ones((groups, *values.shape[1:]), np.int64)
    more = _WORD - values.shape[1] if values.shape[1] in _SHORT and groups == 1 else 0
    if more or (zero_point != 0 and any(pads)):
        around = [0, 0, 0, more, *(pads[side * spatial + axis] for axis in range(spatial) for side in (0, 1))]
        x, pads = _padded(node, x, around, zero, zero_point), [0] * len(pads)
        behind = [(0, 0), (0, more), *[(0, 0)] * spatial]
        values, ones = np.pad(values, behind), np.pad(ones, behind)
    total = convolved(x, const(values.astype("int8")), pads)
    column = (1, -1, *[1] * spatial)
    if not _fits(less):
        if groups == 1 and not more:  # the sums over channels are few, and a window of them is small
            wide = node.emit(relax.op.astype(x, "int32"))
            sums_of_channels = node.emit(relax.op.sum(wide, axis=1, keepdims=True))
            windows = convolved(sums_of_channels, const(ones[:, :1].astype("int32")), pads)
        else:
            windows = convolved(x, const(ones.astype("int8")), pads)
        if 1 < groups < len(values):
            windows = node.emit(relax.op.repeat(windows, len(values) // groups, axis=1))
        moved = const((middle - np.broadcast_to(_array(point), len(values))).astype("int32").reshape(column))
        total = node.emit(relax.op.add(total, node.emit(relax.op.multiply(windows, moved))))
    if zero_point is not None:
        correction = const((-zero_point * sums).astype("int32").reshape(column))
        return node.emit(relax.op.add(total, correction)) if zero_point else total
    moving = node.emit(relax.op.reshape(zero, (1,) * less.ndim))
    return _less_multiples(node, total, moving, const(sums.astype("int32").reshape(column)))


def _padded(node: Node, x: Any, around: list[int], zero: Any, zero_point: int | None) -> Any:
    """Bytes with more of them around, which are the zero point; `zero_point` is its value if it is a constant."""
    if zero_point is not None:
        return node.emit(relax.op.nn.pad(x, around, pad_value=zero_point))
    point = node.emit(relax.op.reshape(relax.op.astype(zero, "int16"), (1,) * len(shape_of(x))))
    less = node.emit(relax.op.subtract(relax.op.astype(x, "int16"), point))
    padded = node.emit(relax.op.nn.pad(less, around))
    return node.emit(relax.op.astype(node.emit(relax.op.add(padded, point)), dtype_of(x)))


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
