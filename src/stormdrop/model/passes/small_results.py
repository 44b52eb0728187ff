"""Computes softplus and atanh so that small results keep their digits.

TVM's formulas go through a number near 1, and what is small beside 1 is lost there: log(1 + exp(x)) is 0 for x = -17,
and log((1 + x) / (1 - x)) / 2 has one digit for x = 1e-6. Here

    softplus(x)  ->  max(x, 0) + log(1 + e)    e = exp(-|x|), and log(1 + e) = 2 atanh(e / (2 + e))
    atanh(x)     ->  x p(x^2) for |x| up to 1/3, and TVM's formula elsewhere

with a polynomial p. So a softplus calls no logarithm, for which LLVM calls the C library once per element.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..graph.expressions import bindings_of, operator_name
from .rewriting import rewrite_main

_BORDER = 1 / 3
# atanh(z) / z in z^2 for |z| <= 1/3, to 6e-10: the coefficients of a minimax polynomial, the constant one first.
_ATANH = (1.0, 3.333333775e-01, 1.999944418e-01, 1.430829833e-01, 1.071537061e-01, 1.214477865e-01)
_LEAST_THRESHOLD = 20.0
"""From there on softplus(x) is x in float32; torch takes x where it is larger than a threshold, which is 20."""
_TYPES = ("float32", "float16")


def keep_small_results(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with each softplus and atanh of `main` in float32 or float16 rewritten."""
    calls = {operator_name(binding.value) for binding in bindings_of(mod["main"])}
    return mod if calls.isdisjoint(_RULES) else rewrite_main(mod, _SmallResults(mod))


@relax.expr_functor.mutator
class _SmallResults(relax.PyExprMutator):
    def visit_call_(self, call: relax.Call) -> Any:
        call = self.visit_expr_post_order(call)
        rule = _RULES.get(operator_name(call))
        if rule is None or str(call.ty.dtype) not in _TYPES:
            return call
        return self.builder_.normalize(rule(call, self.builder_.emit))


def _softplus(call: relax.Call, emit: Any) -> Any:
    if call.attrs.threshold < _LEAST_THRESHOLD:
        return call
    x, beta = call.args[0], _number(float(call.attrs.beta), call)
    scaled = x if float(call.attrs.beta) == 1.0 else emit(relax.op.multiply(x, beta))
    e = emit(relax.op.exp(emit(relax.op.negative(emit(relax.op.abs(scaled))))))
    z = emit(relax.op.divide(e, emit(relax.op.add(e, _number(2.0, call)))))
    twice = emit(relax.op.multiply(_number(2.0, call), emit(_odd(z, emit))))
    total = relax.op.add(emit(relax.op.maximum(scaled, _number(0.0, call))), twice)
    return total if scaled is x else relax.op.divide(emit(total), beta)


def _atanh(call: relax.Call, emit: Any) -> Any:
    (x,) = call.args
    is_small = emit(relax.op.less(emit(relax.op.abs(x)), _number(_BORDER, call)))
    return relax.op.where(is_small, emit(_odd(x, emit)), emit(call))


def _odd(z: Any, emit: Any) -> Any:
    """`z p(z^2)` by Horner's scheme."""
    square = emit(relax.op.multiply(z, z))
    value = _number(_ATANH[-1], z)
    for coefficient in reversed(_ATANH[:-1]):
        value = emit(relax.op.add(emit(relax.op.multiply(value, square)), _number(coefficient, z)))
    return relax.op.multiply(z, value)


def _number(value: float, like: Any) -> Any:
    return relax.const(value, str(like.ty.dtype))


_RULES = {"relax.nn.softplus": _softplus, "relax.atanh": _atanh}
"""What becomes of a call; the operators that it needs are emitted."""
