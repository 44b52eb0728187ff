"""Computes powers by multiplications and square roots, because a call of `pow` per element takes ten times as long.

    power(x, 2)     ->  x * x
    power(x, 0.75)  ->  sqrt(x) * sqrt(sqrt(x)), as in a local response normalisation

The exponents are multiples of a quarter up to 3. For -inf, which has no square root, the result is NaN instead of inf.
"""

from __future__ import annotations

import functools
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst

from ..graph.expressions import operator_name
from .rewriting import rewrite_main

_QUARTERS = 4  # in an exponent of 1
_LARGEST = 3 * _QUARTERS


def expand_powers(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with the powers of `main` rewritten if their exponent is a constant multiple of a quarter up to 3."""
    return rewrite_main(mod, _Powers(mod))


@relax.expr_functor.mutator
class _Powers(relax.PyExprMutator):
    def visit_call_(self, call: relax.Call) -> Any:
        call = self.visit_expr_post_order(call)
        quarters = self._quarters(call) if operator_name(call) == "relax.power" else None
        if quarters is None:
            return call
        value = call.args[0]
        root = self.builder_.emit(relax.op.sqrt(value)) if quarters % _QUARTERS else value
        factors = [value] * (quarters // _QUARTERS)
        if quarters & 2:
            factors.append(root)
        if quarters & 1:
            factors.append(self.builder_.emit(relax.op.sqrt(root)))
        product = functools.reduce(lambda a, b: self.builder_.emit(relax.op.multiply(a, b)), factors)
        return self.builder_.normalize(product)

    def _quarters(self, call: relax.Call) -> int | None:
        """The exponent in quarters; None if this pass does not take it, or if it changes the shape or the type."""
        base, exponent = call.args
        if isinstance(exponent, relax.Var):
            exponent = self.lookup_binding(exponent)
        if not isinstance(exponent, GenericConst) or not str(base.ty.dtype).startswith("float"):
            return None
        values = exponent.value.numpy()
        if values.size != 1 or values.ndim > base.ty.ndim or call.ty.dtype != base.ty.dtype:
            return None
        quarters = float(values.reshape(-1)[0]) * _QUARTERS
        return int(quarters) if quarters.is_integer() and 0 < quarters <= _LARGEST else None
