"""Quantised operators: layers of bytes, and the QDQ form."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzz.drawing import FLOATS, Array, Drawing, Value
from fuzz.images import image, window
from fuzz.registry import operator
from fuzz.telling import Rejected

_MARGIN = 2e-3

_OWN = "com.microsoft"  # the domain of onnxruntime's own operators


def _zero_point(d: Drawing, dtype: str, count: int | None = None, symmetric: float = 0.3) -> Array:
    info = np.iinfo(dtype)
    shape = () if count is None else (count,)
    if d.chance(symmetric):
        return np.zeros(shape, dtype)
    middle = (info.min + info.max + 1) // 2
    return np.asarray(middle + d.rng.integers(-20, 21, shape), dtype)


def _scale(d: Drawing, largest: float, count: int | None = None) -> Array:
    """A scale with which values up to the largest fill half of a byte's range."""
    shape = () if count is None else (count,)
    return np.asarray(max(largest, 0.1) / 100 * d.rng.uniform(0.7, 1.3, shape), np.float32)


def quantized(d: Drawing, x: Value, dtype: str | None = None) -> tuple[Value, Value, Value]:
    """A QuantizeLinear of a value per tensor: its codes, its scale and its zero point."""
    dtype = dtype or d.choice(["uint8", "int8"])
    scale = d.constant(_scale(d, float(np.abs(x.array).max())))
    zero = d.constant(_zero_point(d, dtype))
    steps = x.array / scale.array
    if not x.exact and np.abs((steps % 1) - 0.5).min() < _MARGIN * max(1.0, float(np.abs(steps).max()) / 100):
        raise Rejected("a value that is rounded is near a tie")
    with d.anything():
        return d.add("QuantizeLinear", x, scale, zero, exact=True), scale, zero


def _dequantized(d: Drawing, codes: Value, scale: Value, zero: Value) -> Value:
    return d.add("DequantizeLinear", codes, scale, zero, exact=True)


@operator("QuantizeLinear", "DequantizeLinear", since=10, weight=1.5)
def round_trip(d: Drawing, name: str) -> Value:
    x = d.tensor(FLOATS, (1, 2, 3, 4))
    if d.opset >= 13 and d.chance(0.4):
        axis = d.integer(0, x.rank - 1)
        dtype = d.choice(["uint8", "int8"])
        count = x.shape[axis]
        scale = d.constant(_scale(d, float(np.abs(x.array).max()), count))
        zero = d.constant(_zero_point(d, dtype, count))
        shape = [count if i == axis else 1 for i in range(x.rank)]
        steps = x.array / scale.array.reshape(shape)
        if not x.exact and np.abs((steps % 1) - 0.5).min() < _MARGIN:
            raise Rejected("a value that is rounded is near a tie")
        codes = d.add("QuantizeLinear", x, scale, zero, exact=True, axis=axis)
        d.hide(codes)
        return d.add("DequantizeLinear", codes, scale, zero, exact=True, axis=axis - x.rank * d.chance(0.3))
    codes, scale, zero = quantized(d, x)
    if d.chance(0.3):
        return codes
    d.hide(codes)
    return _dequantized(d, codes, scale, zero)


def _weight_codes(d: Drawing, shape: tuple[int, ...], axis: int, dtype: str = "int8") -> tuple[Value, Value, Value]:
    """A constant weight as codes, with a scale and a zero point per tensor or per channel."""
    info = np.iinfo(dtype)
    codes = d.constant(d.rng.integers(info.min, info.max + 1, shape).astype(dtype))
    count = shape[axis] if d.chance(0.5) and d.opset >= 13 else None
    zero = np.zeros(() if count is None else (count,), dtype) if d.chance(0.6) else _zero_point(d, dtype, count)
    return codes, d.constant(_scale(d, 1.0, count)), d.constant(zero)


@operator("QdqConv", since=10, weight=2)
def qdq_convolution(d: Drawing, name: str) -> Value:
    """A convolution in the QDQ form."""
    x = image(d, (4,))
    codes, *rest = quantized(d, x)
    read = _dequantized(d, codes, *rest)
    groups = d.choice([1, 1, x.shape[1]])
    given = window(d, x, dilations=True, most=3)
    shape = (groups * d.choice([1, 2, 4]), x.shape[1] // groups, *given["kernel_shape"])
    weight, scale, zero = _weight_codes(d, shape, 0)
    axis: dict[str, Any] = {"axis": 0} if scale.rank else {}
    weights = d.add("DequantizeLinear", weight, scale, zero, exact=True, **axis)
    d.hide(codes, read, weights)
    bias = [d.constant(d.array(shape[:1]))] if d.chance(0.6) else []
    made = d.add("Conv", read, weights, *bias, group=groups, **given)
    return _ending(d, made)


@operator("QdqMatMul", since=10, weight=2)
def qdq_matmul(d: Drawing, name: str) -> Value:
    """A product in the QDQ form, with an addition at times."""
    x = d.tensor(FLOATS, (2, 3))
    codes, *rest = quantized(d, x)
    read = _dequantized(d, codes, *rest)
    n = d.choice([1, 3, 4, 8])
    weight, scale, zero = _weight_codes(d, (x.shape[-1], n), 1, d.choice(["int8", "int8", "uint8"]))
    axis: dict[str, Any] = {"axis": 1} if scale.rank else {}
    weights = d.add("DequantizeLinear", weight, scale, zero, exact=True, **axis)
    d.hide(codes, read, weights)
    made = d.add("MatMul", read, weights)
    if d.chance(0.5):
        d.hide(made)
        made = d.add("Add", made, d.constant(d.array((n,))))
    return _ending(d, made)


@operator("QdqAdd", since=10)
def qdq_add(d: Drawing, name: str) -> Value:
    """An addition or a product of two values in the QDQ form."""
    x = d.tensor(FLOATS, (2, 3, 4))
    pair = []
    for value in (x, d.partner(x)):
        codes, *rest = quantized(d, value)
        pair.append(_dequantized(d, codes, *rest))
        d.hide(codes, pair[-1])
    return _ending(d, d.add(d.choice(["Add", "Mul", "Sub"]), *pair))


def _ending(d: Drawing, made: Value) -> Value:
    """The result of a layer in the QDQ form: quantised again, if it is not near a tie, with an activation at times."""
    if d.chance(0.3):
        d.hide(made)
        made = d.add("Relu", made)
    if d.chance(0.4):
        return made
    codes, scale, zero = quantized(d, made)
    d.hide(codes)
    return _dequantized(d, codes, scale, zero)


@operator("QLinearConv", since=10, weight=1.5)
def qlinear_convolution(d: Drawing, name: str) -> Value:
    x = image(d, (4,))
    codes, scale, zero = quantized(d, x)
    groups = d.choice([1, 1, x.shape[1]])
    given = window(d, x, dilations=True, most=3)
    shape = (groups * d.choice([1, 2, 4]), x.shape[1] // groups, *given["kernel_shape"])
    weight, weight_scale, weight_zero = _weight_codes(d, shape, 0)
    out = [d.constant(_scale(d, 8.0)), d.constant(_zero_point(d, codes.dtype))]
    bias = [d.constant(d.rng.integers(-500, 500, shape[0]).astype(np.int32))] if d.chance(0.5) else []
    d.hide(codes)
    made = d.add(name, codes, scale, zero, weight, weight_scale, weight_zero, *out, *bias, group=groups, **given)
    d.hide(made)
    return _dequantized(d, made, *out)


@operator("QLinearMatMul", since=10)
def qlinear_matmul(d: Drawing, name: str) -> Value:
    x = d.tensor(FLOATS, (2, 3))
    codes, scale, zero = quantized(d, x)
    weight = _weight_codes(d, (x.shape[-1], d.choice([1, 3, 8])), 1, codes.dtype)
    out = [d.constant(_scale(d, 8.0)), d.constant(_zero_point(d, codes.dtype))]
    d.hide(codes)
    made = d.add(name, codes, scale, zero, *weight, *out)
    d.hide(made)
    return _dequantized(d, made, *out)


@operator("MatMulInteger", since=10)
def matmul_integer(d: Drawing, name: str) -> Value:
    x = d.tensor(FLOATS, (2, 3))
    codes, _, zero = quantized(d, x, "uint8")
    weight, _, weight_zero = _weight_codes(d, (x.shape[-1], d.choice([1, 3, 8])), 1, d.choice(["int8", "uint8"]))
    d.hide(codes)
    return d.add(name, codes, weight, *d.choice([(), (zero,), (zero, weight_zero), (None, weight_zero)]))


@operator("ConvInteger", since=10)
def convolution_integer(d: Drawing, name: str) -> Value:
    x = image(d, (4,))
    codes, _, zero = quantized(d, x, "uint8")
    given = window(d, x, dilations=True, most=3)
    weight = d.constant(
        d.rng.integers(0, 256, (d.choice([1, 2, 4]), x.shape[1], *given["kernel_shape"])).astype("uint8")
    )
    d.hide(codes)
    return d.add(name, codes, weight, *d.choice([(), (zero,), (zero, d.constant(np.uint8(120)))]), **given)


@operator("DynamicQuantizeLinear", since=11, weight=1.5)
def dynamic(d: Drawing, name: str) -> Value:
    """A dynamically quantised product, as onnxruntime's quantiser writes it."""
    x = d.tensor(FLOATS, (2, 3), lambda value: value.exact)
    codes, scale, zero = d.add_all(name, [x], 3, exact=True)
    d.hide(codes, scale, zero)
    weight, weight_scale, weight_zero = _weight_codes(d, (x.shape[-1], d.choice([1, 3, 8])), 1)
    if weight_zero.rank:
        raise Rejected("onnxruntime's quantiser does not write it")
    product = d.add("MatMulInteger", codes, weight, zero, weight_zero)
    number = d.add("Cast", product, to=1)
    both = d.add("Mul", scale, weight_scale)
    d.hide(product, number, both)
    return d.add("Mul", number, both)


@operator("DynamicQuantizeMatMul", since=11)
def dynamic_matmul(d: Drawing, name: str) -> Value:
    """A dynamically quantised product as one node, of onnxruntime's own domain."""
    x = d.tensor(FLOATS, (2, 3), lambda value: value.exact)
    weight, scale, zero, bias = _scaled_weight(d, x.shape[-1], d.choice([1, 3, 8]))
    return d.add(name, x, weight, scale, *d.choice([(), (zero,), (zero, bias), (None, bias)]), domain=_OWN)


@operator("MatMulIntegerToFloat", since=10)
def matmul_integer_to_float(d: Drawing, name: str) -> Value:
    """The scaled product of codes, of onnxruntime's own domain."""
    codes, scale, zero = quantized(d, d.tensor(FLOATS, (2, 3)), "uint8")
    weight, weight_scale, weight_zero, bias = _scaled_weight(d, codes.shape[-1], d.choice([1, 3, 8]))
    d.hide(codes)
    rest = d.choice([(), (zero,), (zero, weight_zero), (zero, weight_zero, bias), (None, weight_zero)])
    return d.add(name, codes, weight, scale, weight_scale, *rest, domain=_OWN)


@operator("QAttention", since=10, weight=1.5)
def attention(d: Drawing, name: str) -> Value:
    """Attention of a sequence of codes to itself, of onnxruntime's own domain."""
    codes, scale, zero = quantized(d, d.tensor(FLOATS, (3,)), "uint8")
    batch, length, inputs = codes.shape
    heads, size, past = d.choice([1, 2, 3]), d.choice([1, 4, 5]), d.choice([0, 0, 3])
    weight, weight_scale, weight_zero, bias = _scaled_weight(d, inputs, 3 * heads * size)
    total = past + length
    lengths = d.rng.integers(1, total + 1, batch)
    mask = d.choice(
        [
            None,
            lengths,
            np.concatenate([lengths, lengths // 2]),
            d.rng.integers(0, 2, (batch, total)) | np.eye(1, total, dtype=int),
            d.rng.integers(0, 2, (batch, length, total)) | np.eye(length, total, dtype=int),
        ]
    )
    before = [d.constant(d.array((2, batch, heads, past, size)))] if past else []
    d.hide(codes)
    return d.add_all(
        name,
        [
            *(codes, weight, bias, scale, weight_scale, None if mask is None else d.constant(mask.astype(np.int32))),
            *(zero, weight_zero, *before),
        ],
        2 if past or d.chance(0.2) else 1,
        domain=_OWN,
        num_heads=heads,
        unidirectional=d.choice([None, 0, 1]),
        scale=d.choice([None, None, 0.3]),
    )[0]


def _scaled_weight(d: Drawing, inputs: int, outputs: int) -> tuple[Value, Value, Value, Value]:
    """A constant weight as codes, with its scales and zero points, and a bias."""
    return *_weight_codes(d, (inputs, outputs), 1, d.choice(["int8", "uint8"])), d.constant(d.array((outputs,)))


@operator("MatMulNBits", since=14)
def four_bits(d: Drawing, name: str) -> Value:
    """A product with a weight of four bits, of onnxruntime's own domain."""
    x = d.tensor(FLOATS, (2, 3), lambda value: value.shape[-1] in (16, 8, 17, 13))
    k, n, block = x.shape[-1], d.choice([1, 3, 8]), 16
    count = -(-k // block)
    packed = d.constant(d.rng.integers(0, 256, (n, count, block // 2)).astype(np.uint8))
    scales = d.constant(_scale(d, 1.0, n * count))
    zero = [d.constant(d.rng.integers(0, 256, n * -(-count // 2)).astype(np.uint8))] if d.chance(0.4) else []
    return d.add(name, x, packed, scales, *zero, domain=_OWN, K=k, N=n, bits=4, block_size=block)
