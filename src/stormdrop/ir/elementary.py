"""Elementary functions as arithmetic that runs in vectors: exp, sigmoid, tanh and erf of float32, and roundings.

LLVM calls the C library once per element for the first four. This module replaces each by additions, multiplications
and at most one division, over any number of lanes:

    exp(x)      = 2^(n-1) 2 p(x - n ln 2)    n = round(x / ln 2), p a polynomial
    sigmoid(x)  = 1 / (1 + exp(-x)),  a sigmoid(x) = a / (1 + exp(-x))
    tanh(x), erf(x) = x P(x^2) / Q(x^2)      P and Q polynomials, as long as the result is not 1 in float32

A value that is rounded to an integer, bounded, and converted to an integer is rounded by adding 1.5 * 2^23: the integer
stands in the lowest bits of the sum. This is the end of a layer of bytes. By AVX-512 it takes an instruction less, and
two micro-operations less on Intel's CPUs.

The relative error is below 2e-7 for exp, 3e-7 for sigmoid and 7e-7 for tanh and erf. Infinities and NaN give what
the C library gives. An exp below 2^-125 may be 0, unless denormals are kept. The coefficients are a least-squares fit
whose weights level the relative error out (Lawson's algorithm: C. L. Lawson, "Contributions to the Theory of Linear
Least Maximum Approximation", 1961).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm, IntImm
from tvm.tirx import BufferStore, PrimFunc

from .expressions import Expr, children, intrinsic, is_selection, is_tf32, rebuild, transform, transform_statement

# Binds a value to a new variable, and returns the variable.
Bind = Callable[[Expr], Expr]
# Makes the arithmetic for an intrinsic of one argument.
Expansion = Callable[[Expr, Bind], Expr]

# exp(r) = 1 + r + r^2 q(r) for |r| <= ln(2) / 2, to 3e-9.
_EXP = (4.999999343e-01, 1.666652040e-01, 4.166839079e-02, 8.368745127e-03, 1.381453988e-03)
# exp(r) for |r| <= ln(2) / 2 in a sum with 1, to 9e-8; the constant coefficient first.
_EXP_BESIDE_ONE = (1.0, 9.999997072e-01, 4.999914954e-01, 1.666763619e-01, 4.189792932e-02, 8.290314667e-03)
# Below, the power in an exp is 0, and exp below 2^-125; above, exp is infinite in float32.
_EXP_RANGE = (-87.5, 89.0)
# Below, exp is less than the least denormal.
_DENORMAL_EXP_RANGE = (-104.0, 89.0)
# Below, the power in a sigmoid is infinite, and sigmoid 0; above, sigmoid is 1 in float32.
_SIGMOID_RANGE = (-89.0, 87.0)
# ln 2 = high + low, high with so few digits that n * high is exact.
_LN2_HIGH = 0.693359375
_LN2_LOW = math.log(2) - _LN2_HIGH
# The sum of this and a small float32 is rounded to an integer, which stands in the lowest bits of the sum.
_ROUND = 1.5 * 2**23
_ROUND_BITS = 0x4B400000
_MOST_ROUNDED = 2.0**22  # the largest number that this sum rounds
_WHOLE = ("int8", "uint8", "int32")  # types that such a number is converted to
EXPONENT_BIAS, MANTISSA_BITS = 127, 23
"""Of float32: what is added to an exponent, and the bits below it."""


# tanh(x) / x in x^2 up to 9^2, to 2e-8; numerator and denominator.
_TANH = (
    (1.0, 1.338397548e-01, 3.498990454e-03, 2.066117330e-05, 1.341970522e-08),
    (1.0, 4.671729696e-01, 2.589018480e-02, 3.291029312e-04, 7.804680086e-07),
)
_TANH_ONE = 9.0
# erf(x) / x in x^2 up to 4^2, to 3e-8.
_ERF = (
    (1.128379167e00, 1.929350215e-01, 5.301943894e-02, 3.856404657e-03, 2.838238551e-04, 1.989881810e-06),
    (1.0, 5.043170309e-01, 1.150961357e-01, 1.515390824e-02, 1.178756154e-03, 3.741305395e-05),
)
_ERF_ONE = 4.0


def expand_for_cpu(function: PrimFunc, keep_denormals: bool = False) -> PrimFunc:
    """Replaces exp, sigmoid, tanh and erf of float32 by arithmetic that LLVM vectorises.

    Roundings to integers become an addition if they are bounded and converted to an integer, otherwise LLVM's
    intrinsic. TVM does not know them as vectors, and would take a condition apart, lane by lane, that holds one.

    Args:
        function: A function that has a schedule already. The result cannot be read as stages: it binds variables.
        keep_denormals: Whether an exp that is a denormal has its value, which takes a third longer. Otherwise it may
            be 0.
    """
    return _expanded(function, _EXPANSIONS_WITH_DENORMALS if keep_denormals else _EXPANSIONS)


def expand_for_gpu(function: PrimFunc) -> PrimFunc:
    """Replaces tanh of float32, which is too coarse in CUDA's fast mathematics (TVM compiles with it), and `tf32`.

    With CUDA 13 its error is 2^-11. The arithmetic that replaces it has an absolute error of 1e-7.

    Args:
        function: A function that has a schedule already. The result cannot be read as stages: it binds variables.
    """
    return _expanded(function, {"tanh": _tanh_by_exp})


def _expanded(function: PrimFunc, expansions: Mapping[str, Expansion]) -> PrimFunc:
    """The function with intrinsics of float32 replaced in the values that it stores."""

    def expand_store(node: Any) -> Any:
        if not isinstance(node, BufferStore):
            return node
        return BufferStore(node.buffer, _expanded_value(node.value, expansions), node.indices)

    body = transform_statement(function.body, expand_store)
    return PrimFunc(list(function.params), body, function.ret_type, function.attrs)


def _expanded_value(node: Expr, expansions: Mapping[str, Expansion]) -> Expr:
    """The expression with intrinsics replaced, inside of a `Let` for each value that is used more than once."""
    bound: list[tuple[Any, Expr]] = []

    def bind(value: Expr) -> Expr:
        variable = Var("v", value.ty)
        bound.append((variable, value))
        return variable

    def visit(item: Expr) -> Expr | None:
        if is_selection(item):
            # A branch may be defined only if it is taken: the values that it uses are bound inside of it.
            condition, *branches = children(item)
            expanded = [_expanded_value(branch, expansions) for branch in branches]
            return rebuild(item, [transform(condition, visit), *expanded])
        if isinstance(item, prim.Cast) and "nearbyint" in expansions and str(item.ty.dtype) in _WHOLE:
            value = _bounded_before(item.value)
            return None if value is None else _rounded_by_sum(transform(value, visit), str(item.ty.dtype))
        product = _sigmoid_and_factor(item) if "sigmoid" in expansions else None
        if product is not None:  # a division in place of a division and a product
            argument, other = (transform(operand, visit) for operand in product)
            return bind(other / _one_plus_exp(bind(argument), bind))
        if is_tf32(item):
            return _tf32_by_bits(bind(transform(item.args[1], visit)))
        expansion = expansions.get(intrinsic(item))
        if expansion is None or str(item.ty.dtype) != "float32":
            return None
        return expansion(bind(transform(item.args[0], visit)), bind)

    result = transform(node, visit)
    for variable, value in reversed(bound):
        result = prim.Let(variable, value, result)
    return result


def _tf32_by_bits(value: Expr) -> Expr:
    """A float32 rounded as `tf32` says."""
    bits = tirx.reinterpret("uint32", value)
    nearest = tirx.bitwise_and(bits + IntImm("uint32", 0x1000), IntImm("uint32", 0xFFFFE000))
    is_nan = tirx.bitwise_and(bits, IntImm("uint32", 0x7FFFFFFF)) > IntImm("uint32", 0x7F800000)
    return prim.Select(is_nan, value, tirx.reinterpret("float32", nearest))


def _bounded_before(node: Expr) -> Expr | None:
    """The operand of a rounding that is bounded by integers, with the bounds applied before the rounding.

    The result of the rounding is the same: if x is not larger than an integer n, neither is x rounded to an integer.

    Args:
        node: A value of float32.

    Returns:
        max(min(x, 127), -128) for max(min(nearbyint(x), 127), -128), for example; None if the value is no such
        rounding, or may exceed 2^22.
    """
    low, high, found = -math.inf, math.inf, node
    while isinstance(found, prim.Max | prim.Min):
        bounds = [child for child in (found.a, found.b) if isinstance(child, FloatImm)]
        if len(bounds) != 1 or not float(bounds[0].value).is_integer():
            return None
        bound = float(bounds[0].value)
        # The bound that is found first is applied last.
        if isinstance(found, prim.Max):
            low = min(max(low, bound), high)
        else:
            high = max(min(high, bound), low)
        found = found.b if bounds[0].same_as(found.a) else found.a
    if intrinsic(found) != "nearbyint" or str(found.ty.dtype) != "float32":
        return None
    if not -_MOST_ROUNDED <= low <= high <= _MOST_ROUNDED:
        return None
    value = found.args[0]
    while isinstance(value, prim.Max) and isinstance(value.b, FloatImm) and float(value.b.value) <= low:
        value = value.a  # as a ReLU does whose result is a byte
    return _clamped(value, low, high)


def _rounded_by_sum(bounded: Expr, dtype: str) -> Expr:
    """An integer from a float32 within 2^22: rounded by one addition, to the nearest, ties to even."""
    bits = tirx.reinterpret("int32", bounded + FloatImm("float32", _ROUND))
    return bits - _ROUND_BITS if dtype == "int32" else prim.Cast(dtype, bits)  # the lowest byte of `_ROUND` is 0


def _exp(x: Expr, bind: Bind) -> Expr:
    """`2^(n-1) 2 p(r)`: 2^n itself is no float32 for n = 128. For n = -126 the power is 0, and so is the result."""
    x = bind(_clamped(x, *_EXP_RANGE))
    shift = _ROUND + EXPONENT_BIAS - 1
    rounded = bind(_fused(x, 1 / math.log(2), shift))
    whole = bind(rounded - shift)
    r = bind(_fused(whole, -_LN2_LOW, _fused(whole, -_LN2_HIGH, x)))
    doubled = [2.0 * coefficient for coefficient in (1.0, 1.0, *_EXP)]
    return bind(_polynomial(doubled, r) * _power_of_two(rounded))


def _exp_with_denormals(x: Expr, bind: Bind) -> Expr:
    """`2^(n // 2) 2^(n - n // 2) p(r)`: neither power is a denormal, and the product may be one."""
    x = bind(_clamped(x, *_DENORMAL_EXP_RANGE))
    rounded = bind(_fused(x, 1 / math.log(2), _ROUND))
    whole = bind(rounded - _ROUND)
    r = bind(_fused(whole, -_LN2_LOW, _fused(whole, -_LN2_HIGH, x)))
    n = bind(tirx.reinterpret("int32", rounded) - _ROUND_BITS)
    half = bind(n >> 1)
    powers = [tirx.reinterpret("float32", (part + EXPONENT_BIAS) << MANTISSA_BITS) for part in (half, n - half)]
    return bind(_polynomial((1.0, 1.0, *_EXP), r) * powers[0] * powers[1])


def _sigmoid(x: Expr, bind: Bind) -> Expr:
    return bind(1.0 / _one_plus_exp(x, bind))


def _one_plus_exp(x: Expr, bind: Bind) -> Expr:
    """`1 + exp(-x)` as `1 + 2^n p(-r)` with r = x + n ln 2. Beside 1, powers that are denormal count for nothing."""
    x = bind(_clamped(x, *_SIGMOID_RANGE))
    rounded = bind(_fused(x, -1 / math.log(2), _ROUND + EXPONENT_BIAS))
    whole = bind(rounded - (_ROUND + EXPONENT_BIAS))
    r = bind(_fused(whole, _LN2_LOW, _fused(whole, _LN2_HIGH, x)))
    mirrored = [coefficient * (-1) ** degree for degree, coefficient in enumerate(_EXP_BESIDE_ONE)]
    return bind(_fused(bind(_polynomial(mirrored, r)), _power_of_two(rounded), 1.0))


def _sigmoid_and_factor(item: Expr) -> tuple[Expr, Expr] | None:
    """The argument of a sigmoid, and what it is multiplied by; None for any other expression than such a product."""
    if not isinstance(item, prim.Mul) or str(item.ty.dtype) != "float32":
        return None
    for factor, other in ((item.a, item.b), (item.b, item.a)):
        if intrinsic(factor) == "sigmoid":
            return factor.args[0], other
    return None


def _odd(x: Expr, limit: float, fraction: tuple[Sequence[float], Sequence[float]], bind: Bind) -> Expr:
    """`x P(x^2) / Q(x^2)` for |x| < `limit`, and 1 with the sign of x from there on."""
    x = bind(_clamped(x, -limit, limit))
    square = bind(x * x)
    return bind(_clamped(x * _polynomial(fraction[0], square) / _polynomial(fraction[1], square), -1.0, 1.0))


def _clamped(x: Expr, low: float, high: float) -> Expr:
    """`x` limited to a range. NaN stays NaN, because LLVM takes the second operand if a comparison fails.

    Selections in a `Let` do the same, but with each of them TVM's simplifier takes four times as long.
    """
    return prim.Min(FloatImm("float32", high), prim.Max(FloatImm("float32", low), x))


def _polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
    """Horner's scheme, the constant coefficient first."""
    return functools.reduce(lambda value, coefficient: _fused(value, x, coefficient), reversed(coefficients))


def _fused(a: Expr | float, b: Expr | float, c: Expr | float) -> Expr:
    """`a b + c`, rounded once if the machine has such an instruction.

    TVM assumes that the call may have effects, and that is wanted: its simplifier would otherwise substitute each value
    of a `Let` into the next one, which takes seconds for an exponential inside of another one.
    """
    operands = (FloatImm("float32", operand) if isinstance(operand, float) else operand for operand in (a, b, c))
    return tirx.call_llvm_intrin("float32", "llvm.fmuladd", *operands)


def _power_of_two(rounded: Expr) -> Expr:
    """2^e, from the sum of `_ROUND` and the biased exponent e + 127: the bits above the exponent are shifted out."""
    return tirx.reinterpret("float32", tirx.reinterpret("int32", rounded) << MANTISSA_BITS)


def _tanh_by_exp(x: Expr, bind: Bind) -> Expr:
    return bind(1.0 - 2.0 / (1.0 + tirx.exp(x + x)))


_EXPANSIONS: dict[str, Expansion] = {
    "exp": _exp,
    "sigmoid": _sigmoid,
    "nearbyint": lambda x, bind: bind(tirx.call_llvm_pure_intrin("float32", "llvm.nearbyint", x)),
    "tanh": lambda x, bind: _odd(x, _TANH_ONE, _TANH, bind),
    "erf": lambda x, bind: _odd(x, _ERF_ONE, _ERF, bind),
}
_EXPANSIONS_WITH_DENORMALS: dict[str, Expansion] = {**_EXPANSIONS, "exp": _exp_with_denormals}
