"""Converters of operators that compute each element by itself, and of those that only give a shape or a constant."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from tvm import relax, te, tirx
from tvm.ir import GenericConst

from .node import Node, const, is_float, scalar, shape_of

_MISH_IS_LINEAR = 20.0  # from there on mish(x) is x in float32; exp(2 x) stays finite


def _pairwise(operator: Callable[[Any, Any], Any]) -> Callable[[Node], Any]:
    """Max(a, b, c) -> maximum(maximum(a, b), c). TVM makes a stack of the operands, which has one more dimension."""
    return lambda node: functools.reduce(operator, _tensors(node))


def _mean(node: Node) -> Any:
    total = functools.reduce(relax.op.add, _tensors(node))
    return relax.op.divide(total, scalar(len(node.inputs), node[0]))


def _tensors(node: Node) -> list[Any]:
    return [node[position] for position in range(len(node.inputs))]


def _divide(node: Node) -> Any | None:
    """A quotient of integers, rounded towards zero. A division by zero, which ONNX does not define, ends no process.

    The result is then 0. The smallest number divided by -1 is itself.
    """
    divisor = node[1]
    if is_float(node.dtype()) or _is_safe_divisor(divisor):
        return None

    def quotient(a: Any, b: Any) -> Any:
        zero, one = tirx.const(0, a.ty.dtype), tirx.const(1, a.ty.dtype)
        return tirx.Select(b == zero, zero, tirx.truncdiv(a, _safe(b, one)) * _sign_of_minus_one(b))

    return _broadcast(node, quotient, "divide")


def _safe(divisor: Any, one: Any) -> Any:
    """The divisor, with 1 in the place of 0 and -1."""
    zero = tirx.const(0, one.ty.dtype)
    unsafe = divisor == zero
    if not str(one.ty.dtype).startswith("uint"):
        unsafe = tirx.Or(unsafe, divisor == tirx.const(-1, one.ty.dtype))
    return tirx.Select(unsafe, one, divisor)


def _sign_of_minus_one(divisor: Any) -> Any:
    dtype = str(divisor.ty.dtype)
    one = tirx.const(1, dtype)
    if dtype.startswith("uint"):
        return one
    return tirx.Select(divisor == tirx.const(-1, dtype), tirx.const(-1, dtype), one)


def _is_safe_divisor(expr: Any) -> bool:
    """Whether it is a constant without 0 and -1."""
    return isinstance(expr, GenericConst) and not np.isin(expr.value.numpy(), (0, -1)).any()


def _modulo(node: Node) -> Any | None:
    """The remainder with the sign of the divisor, or with `fmod` with that of the dividend."""
    truncated = bool(node.attribute("fmod", 0))
    dtype = node.dtype()
    if not is_float(dtype):
        if _is_safe_divisor(node[1]):
            return None

        def remainder(a: Any, b: Any) -> Any:
            one, zero = tirx.const(1, dtype), tirx.const(0, dtype)
            safe = _safe(b, one)
            rest = tirx.truncmod(a, safe) if truncated else tirx.floormod(a, safe)
            return tirx.Select(b == zero, zero, rest)

        return _broadcast(node, remainder, "modulo")

    def float_remainder(a: Any, b: Any) -> Any:
        zero, rest = tirx.const(0, dtype), tirx.truncmod(a, b)
        if not truncated:
            differs = tirx.any(tirx.all(rest < zero, b > zero), tirx.all(rest > zero, b < zero))
            rest = tirx.Select(differs, rest + b, rest)
        return rest

    return _broadcast(node, float_remainder, "modulo")


def _shift(node: Node) -> Any:
    """Shifts by the width and more, and by negative numbers, give what is left after all bits are shifted out."""
    left = node.attribute("direction") == "LEFT"
    dtype = node.dtype()
    bits = np.dtype(dtype).itemsize * 8

    def shifted(a: Any, b: Any) -> Any:
        zero, width = tirx.const(0, dtype), b.astype("int64")  # a large unsigned number becomes negative
        inside = tirx.all(width >= 0, width < bits)
        amount = tirx.Select(inside, width, tirx.const(0, "int64")).astype(dtype)
        if left:
            return tirx.Select(inside, a << amount, zero)
        rest = zero if dtype.startswith("uint") else tirx.Select(a < zero, tirx.const(-1, dtype), zero)
        return tirx.Select(inside, a >> amount, rest)

    return _broadcast(node, shifted, "shift")


def _power(node: Node) -> Any | None:
    """The result has the type of the base. Integers are computed in float64."""
    base, exponent = node[0], node[1]
    if node.dtype(0) == node.dtype(1) and is_float(node.dtype()):
        return None
    dtype = node.dtype()
    wide = dtype if is_float(dtype) else "float64"
    powers = relax.op.power(relax.op.astype(base, wide), relax.op.astype(exponent, wide))
    return powers if wide == dtype else relax.op.astype(powers, dtype)


def _is_infinite(node: Node) -> Any:
    dtype = node.dtype()
    infinities = [np.inf] * bool(node.attribute("detect_positive", 1))
    infinities += [-np.inf] * bool(node.attribute("detect_negative", 1))
    if not infinities:
        return relax.op.zeros(node.shape(), "bool")
    found = [relax.op.equal(node[0], relax.const(value, dtype)) for value in infinities]
    return functools.reduce(relax.op.logical_or, found)


def _bit_cast(node: Node) -> Any | None:
    target = np.dtype(helper.tensor_dtype_to_np_dtype(node.attribute("to"))).name
    if target == node.dtype():
        return node[0]
    if "bool" in (target, node.dtype()):
        raise ValueError("to or from bool")

    def reinterpreted(x: Any) -> Any:
        return te.compute(x.shape, lambda *i: tirx.reinterpret(target, x(*i)), name="bit_cast")

    return node.compute(reinterpreted, node[0], name="bit_cast")


def _celu(node: Node) -> Any:
    """max(0, x) + alpha * (exp(min(0, x) / alpha) - 1)."""
    x, alpha = node[0], scalar(node.attribute("alpha", 1.0), node[0])
    scaled = relax.op.divide(_negative(x), alpha)
    return relax.op.add(_positive(x), relax.op.multiply(alpha, _exp_minus_one(scaled, x)))


def _elu(node: Node) -> Any:
    """max(0, x) + alpha * (exp(min(0, x)) - 1)."""
    x, alpha = node[0], scalar(node.attribute("alpha", 1.0), node[0])
    return relax.op.add(_positive(x), relax.op.multiply(alpha, _exp_minus_one(_negative(x), x)))


def _selu(node: Node) -> Any:
    x = node[0]
    alpha = scalar(node.attribute("alpha", 1.67326319217681884765625), x)
    gamma = scalar(node.attribute("gamma", 1.05070102214813232421875), x)
    negative = relax.op.multiply(alpha, _exp_minus_one(_negative(x), x))
    return relax.op.multiply(gamma, relax.op.add(_positive(x), negative))


def _softplus(node: Node) -> Any | None:
    """As one operator, which `passes.small_results` rewrites."""
    return None if node.dtype() == "float64" else relax.op.nn.softplus(node[0])


def _mish(node: Node) -> Any:
    """`x * n / (n + 2)` with n = e * (e + 2) and e = exp(x): that is x * tanh(softplus(x))."""
    x = node[0]
    e = node.emit(relax.op.exp(relax.op.minimum(x, scalar(_MISH_IS_LINEAR, x))))
    n = node.emit(relax.op.multiply(e, relax.op.add(e, scalar(2, x))))
    return relax.op.multiply(x, relax.op.divide(n, relax.op.add(n, scalar(2, x))))


def _exp_minus_one(exponent: Any, like: Any) -> Any:
    return relax.op.subtract(relax.op.exp(exponent), scalar(1, like))


def _positive(x: Any) -> Any:
    return relax.op.maximum(x, scalar(0, x))


def _negative(x: Any) -> Any:
    return relax.op.minimum(x, scalar(0, x))


def _thresholded_relu(node: Node) -> Any:
    x = node[0]
    return relax.op.where(relax.op.greater(x, scalar(node.attribute("alpha", 1.0), x)), x, scalar(0, x))


def _eye_like(node: Node) -> Any:
    rows, columns = node.shape()
    dtype = node.dtype()
    if node.attribute("dtype"):
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(node.attribute("dtype"))).name
    return const(np.eye(rows, columns, node.attribute("k", 0), dtype=dtype))


def _equal(node: Node) -> Any | None:
    """Whether booleans are equal: LLVM takes no comparison of those that TVM makes."""
    return relax.op.logical_not(relax.op.logical_xor(*_tensors(node))) if node.dtype() == "bool" else None


def _shape(node: Node) -> Any:
    first, end = node.attribute("start", 0), node.attribute("end")
    return const(np.array(node.shape()[first:end], np.int64))


def _size(node: Node) -> Any:
    return const(np.array(np.prod(node.shape(), dtype=np.int64)))


def _constant(node: Node) -> Any | None:
    for kind, dtype in (("int", "int64"), ("float", "float32")):
        for name in (f"value_{kind}", f"value_{kind}s"):
            if node.attribute(name) is not None:
                return const(np.array(node.attribute(name), dtype))
    return const(numpy_helper.to_array(node.attribute("value")))


def _broadcast(node: Node, function: Callable[..., Any], name: str) -> Any:
    """The result of an elementwise function of the inputs, which are broadcast."""
    tensors = _tensors(node)
    shape = np.broadcast_shapes(*(shape_of(tensor) for tensor in tensors))
    whole = [
        tensor if shape_of(tensor) == shape else node.emit(relax.op.broadcast_to(tensor, shape)) for tensor in tensors
    ]

    def compute(*placeholders: Any) -> Any:
        return te.compute(shape, lambda *i: function(*(placeholder(*i) for placeholder in placeholders)), name=name)

    return node.compute(compute, *whole, name=name)


def _cast(node: Node) -> Any | None:
    """A float32 as an int32, the nearest one if it does not fit, which ONNX leaves open.

    TVM's importer makes 64 bits of it in between, to drop the upper ones. No sketch takes kernels with such integers.
    """
    value = node.inputs[0]
    fixed = isinstance(value, relax.ShapeExpr | GenericConst) or not isinstance(value, relax.Expr)
    if fixed or node.attribute("to") != TensorProto.INT32 or node.dtype() != "float32":
        return None
    low, high = (scalar(bound, value) for bound in (-(2.0**31), 2.0**31 - 128))  # of those that float32 has
    numbers = relax.op.where(relax.op.isnan(value), scalar(0.0, value), value)
    bounded = relax.op.minimum(relax.op.maximum(numbers, low), high)
    return relax.op.astype(node.emit(bounded), "int32")


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "BitCast": _bit_cast,
    "BitShift": _shift,
    "Cast": _cast,
    "Celu": _celu,
    "Constant": _constant,
    "Div": _divide,
    "Elu": _elu,
    "Equal": _equal,
    "EyeLike": _eye_like,
    "IsInf": _is_infinite,
    "Max": _pairwise(relax.op.maximum),
    "Mean": _mean,
    "Min": _pairwise(relax.op.minimum),
    "Mish": _mish,
    "Mod": _modulo,
    "Pow": _power,
    "Selu": _selu,
    "Shape": _shape,
    "Size": _size,
    "Softplus": _softplus,
    "Sum": _pairwise(relax.op.add),
    "ThresholdedRelu": _thresholded_relu,
}
