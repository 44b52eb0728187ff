"""Products and convolutions of integers whose zero points are subtracted, in int32.

They take bytes as they are and widen them in the sum, so that kernels read bytes and can multiply several at a time.
Zero points that are constants are a part of the sum. Those that data decide, as after a DynamicQuantizeLinear, are
subtracted from what the bytes give:

    sum (a - z)(b - y) = sum a (b - m) + (m - y) sum a - z sum (b - y)

where b - m is an int8. If b - y is one, m is y. A zero point for each row, and one of data for each channel, stay where
they are: such tensors are widened before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te
from tvm.ir import GenericConst

from .node import Node, const, dtype_of, limits, shape_of
from .windows import pads_of

_BYTES = ("int8", "uint8")
_WORD = 4  # bytes whose products are added up at a time
_SHORT = (2, 3)  # channels of which there are too few for a word; one channel lies beside the next position's


def integer_product(node: Node, left: tuple[Any, Any], right: tuple[Any, Any]) -> Any:
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
        return corrected_product(node, left, right)
    a = shifted(node, left[0], None if left[1] is None else node.emit(as_column(node, left[1])))
    b = shifted(node, *right)
    return node.emit(relax.op.matmul(a, b))


def _is_of_bytes(value: Any, point: Any, points: tuple[int, ...]) -> bool:
    """Whether a tensor holds bytes, and has no zero point, a single one, or one for each of these positions."""
    return dtype_of(value) in _BYTES and (point is None or shape_of(point) in ((), (1,), points))


def corrected_product(node: Node, left: tuple[Any, Any], right: tuple[Any, Any]) -> Any:
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
        columns = relax.op.sum(shifted(node, b, right_point), axis=-2, keepdims=True)
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


def as_column(node: Node, value: Any) -> Any:
    """A value per row as a column."""
    shape = shape_of(value)
    return relax.op.expand_dims(value, -1) if len(shape) == 1 and shape[0] != 1 else value


def integer_convolution(node: Node, data: tuple[Any, Any], weights: tuple[Any, Any]) -> Any:
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
    return convolved(shifted(node, *data), shifted(node, w, point), pads)


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


def shifted(node: Node, value: Any, zero: Any) -> Any:
    """A tensor of integers without its zero point, in int32."""
    wide = node.emit(relax.op.astype(value, "int32"))
    return wide if zero is None else node.emit(relax.op.subtract(wide, relax.op.astype(zero, "int32")))
