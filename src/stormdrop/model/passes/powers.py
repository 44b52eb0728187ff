"""Powers that a few multiplications and square roots compute: a call of `pow` per element takes ten times as long.

    power(x, 2)     ->  x * x
    power(x, 0.75)  ->  sqrt(x) * sqrt(sqrt(x)): a local response normalisation's

Exponents are multiples of a quarter up to 3. Of -inf, which no square root takes, the result is NaN instead of inf.
"""

from __future__ import annotations

import functools
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst

from .rewriting import rewritten

_PARTS = 4
_LARGEST = 3 * _PARTS


def expand_powers(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with such powers of `main` rewritten."""
    return rewritten(mod, _Powers(mod))


@relax.expr_functor.mutator
class _Powers(relax.PyExprMutator):
    def visit_call_(self, call: relax.Call) -> Any:
        call = self.visit_expr_post_order(call)
        parts = self._parts(call) if getattr(call.op, "name", "") == "relax.power" else None
        if parts is None:
            return call
        value = call.args[0]
        root = self.builder_.emit(relax.op.sqrt(value)) if parts % _PARTS else value
        factors = [value] * (parts // _PARTS)
        if parts & 2:
            factors.append(root)
        if parts & 1:
            factors.append(self.builder_.emit(relax.op.sqrt(root)))
        product = functools.reduce(lambda a, b: self.builder_.emit(relax.op.multiply(a, b)), factors)
        return self.builder_.normalize(product)

    def _parts(self, call: relax.Call) -> int | None:
        """Quarters in the exponent; None where it is no such number, or changes the shape or the type."""
        base, exponent = call.args
        if isinstance(exponent, relax.Var):
            exponent = self.lookup_binding(exponent)
        if not isinstance(exponent, GenericConst) or not str(base.ty.dtype).startswith("float"):
            return None
        values = exponent.value.numpy()
        if values.size != 1 or values.ndim > base.ty.ndim or call.ty.dtype != base.ty.dtype:
            return None
        parts = float(values.reshape(-1)[0]) * _PARTS
        return int(parts) if parts.is_integer() and 0 < parts <= _LARGEST else None
