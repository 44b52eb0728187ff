"""Elementary functions as arithmetic that runs in vectors: exp, sigmoid, tanh and erf of float32.

LLVM calls the C library once per element for these. What stands here instead is additions, multiplications and at
most one division, over any number of lanes:

    exp(x)      = 2^n p(x - n ln 2)          n = round(x / ln 2), p a polynomial
    sigmoid(x)  = 1 / (1 + exp(-x))
    tanh(x), erf(x) = x P(x^2) / Q(x^2)      where they are not 1 in float32 yet, rational functions

The relative error is below 2e-7 for exp, 3e-7 for sigmoid and 7e-7 for tanh and erf. Infinities and NaN give what
the C library gives. The coefficients are least squares with weights that level the relative error out (Lawson's
algorithm: C. L. Lawson, "Contributions to the Theory of Linear Least Maximum Approximation", 1961).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Call, Var
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm
from tvm.tirx import BufferStore, PrimFunc

from .expressions import Expr, children, rebuild, transform, transform_statement

# Binds a value to a variable, and returns that.
Let = Callable[[Expr], Expr]
Form = Callable[[Expr, Let], Expr]

# exp(r) = 1 + r + r^2 q(r) for |r| <= ln(2) / 2, to 3e-9.
_EXP = (4.999999343e-01, 1.666652040e-01, 4.166839079e-02, 8.368745127e-03, 1.381453988e-03)
# Below, exp is 0 in float32; above, infinity.
_EXP_RANGE = (-104.0, 89.0)
# ln 2 = high + low, high with so few digits that n * high is exact.
_LN2_HIGH = 0.693359375
_LN2_LOW = math.log(2) - _LN2_HIGH
# Adding it to a small float32 rounds that to an integer, which then stands in the lowest bits.
_ROUND = 1.5 * 2**23
_ROUND_BITS = 0x4B400000
_EXPONENT_BIAS = 127
_MANTISSA_BITS = 23

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


def in_vectors(function: PrimFunc) -> PrimFunc:
    """The function with these intrinsics (of float32) replaced in the values that it stores."""
    return replaced(function, _FORMS)


def exact_on_gpus(function: PrimFunc) -> PrimFunc:
    """The function with what CUDA's fast mathematics, which TVM asks for, is too coarse for in another form.

    Of CUDA 13 that is tanh, which is off by 2^-11; here its absolute error is some 1e-7.
    """
    return replaced(function, {"tanh": _tanh_by_exp})


def replaced(function: PrimFunc, forms: Mapping[str, Form]) -> PrimFunc:
    """The function with intrinsics of float32 replaced in the values that it stores.

    For a function that has a schedule already: what this puts into it (`Let`) is no longer read as stages.
    """

    def stored(node: Any) -> Any:
        return (
            BufferStore(node.buffer, _value(node.value, forms), node.indices) if isinstance(node, BufferStore) else node
        )

    return PrimFunc(
        list(function.params), transform_statement(function.body, stored), function.ret_type, function.attrs
    )


def _value(node: Expr, forms: Mapping[str, Form]) -> Expr:
    """The expression, after a list of the values that it uses more than once."""
    bound: list[tuple[Any, Expr]] = []

    def let(value: Expr) -> Expr:
        name = Var("v", value.ty)
        bound.append((name, value))
        return name

    def visit(item: Expr) -> Expr | None:
        if isinstance(item, prim.Select) or (isinstance(item, Call) and "if_then_else" in item.op.name):
            # What one branch uses may not exist where the other one is taken.
            condition, *branches = children(item)
            return rebuild(item, [transform(condition, visit), *(_value(branch, forms) for branch in branches)])
        if not isinstance(item, Call) or str(item.ty.dtype) != "float32":
            return None
        form = forms.get(item.op.name.split(".")[-1])
        return None if form is None else form(let(transform(item.args[0], visit)), let)

    result = transform(node, visit)
    for name, value in reversed(bound):
        result = prim.Let(name, value, result)
    return result


def _exp(x: Expr, let: Let) -> Expr:
    x = let(_clamped(x, *_EXP_RANGE))
    rounded = let(_fused(x, 1 / math.log(2), _ROUND))
    whole = let(rounded - _ROUND)
    r = let(_fused(whole, -_LN2_LOW, _fused(whole, -_LN2_HIGH, x)))
    # 2^n as two factors: alone it is no float32 at the ends of the range (n = 128, and n < -126).
    n = let(tirx.reinterpret("int32", rounded) - _ROUND_BITS)
    half = let(n >> 1)
    return let(_polynomial((1.0, 1.0, *_EXP), r) * _power_of_two(half) * _power_of_two(n - half))


def _sigmoid(x: Expr, let: Let) -> Expr:
    return let(1.0 / (1.0 + _exp(let(0.0 - x), let)))


def _odd(x: Expr, one: float, fraction: tuple[Sequence[float], Sequence[float]], let: Let) -> Expr:
    """`x P(x^2) / Q(x^2)`, which is 1 from `one` on."""
    x = let(_clamped(x, -one, one))
    square = let(x * x)
    return let(_clamped(x * _polynomial(fraction[0], square) / _polynomial(fraction[1], square), -1.0, 1.0))


def _clamped(x: Expr, low: float, high: float) -> Expr:
    """A NaN passes: where a comparison fails, LLVM takes the second operand.

    (Selections in a `Let` would say the same, and take TVM's simplifier four times as long with each.)
    """
    return prim.Min(FloatImm("float32", high), prim.Max(FloatImm("float32", low), x))


def _polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
    """Horner's scheme, the constant coefficient first."""
    return functools.reduce(lambda value, each: _fused(value, x, each), reversed(coefficients))


def _fused(a: Expr | float, b: Expr | float, c: Expr | float) -> Expr:
    """`a b + c`, rounded once where the machine can.

    TVM takes this for something that may have effects. Were it not for that, its simplifier would put each value of a
    `Let` in place of the variable, and again in the next: seconds where an exponential is inside of another one.
    """
    operands = (FloatImm("float32", each) if isinstance(each, float) else each for each in (a, b, c))
    return tirx.call_llvm_intrin("float32", "llvm.fmuladd", *operands)


def _power_of_two(n: Expr) -> Expr:
    return tirx.reinterpret("float32", (n + _EXPONENT_BIAS) << _MANTISSA_BITS)


def _tanh_by_exp(x: Expr, let: Let) -> Expr:
    return let(1.0 - 2.0 / (1.0 + tirx.exp(x + x)))


_FORMS: dict[str, Form] = {
    "exp": _exp,
    "sigmoid": _sigmoid,
    "tanh": lambda x, let: _odd(x, _TANH_ONE, _TANH, let),
    "erf": lambda x, let: _odd(x, _ERF_ONE, _ERF, let),
}
