"""Rewrites elementwise operators with constants so that Relax can change the layout of their tensor.

Relax leaves a tensor in its layout if a constant has fewer axes than the tensor, or if the operator is a clip, and puts
a transpose before and after the operator.

    add(x, c)        ->  add(x, c'), c' with leading axes of extent 1
    add(c, x)        ->  add(x, c'), because the first operand decides on the layout of both
    clip(x, 0, 6)    ->  minimum(maximum(x, 0'), 6')
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from ..graph.expressions import bindings_of, operator_name
from .rewriting import constant, rewrite_main

_RANK = 4
"""Only tensors of two-dimensional convolutions change their layout."""

_COMMUTATIVE = {f"relax.{name}" for name in ("add", "multiply", "maximum", "minimum")}
_BINARY = {f"relax.{name}" for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power")}


def expand_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with elementwise operators of `main` on constants rewritten as the module's docstring shows."""
    return rewrite_main(mod, _Expand(mod))


@relax.expr_functor.mutator
class _Expand(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        operators = {operator_name(binding.value) for binding in bindings_of(mod["main"])}
        self._has_images = "relax.nn.conv2d" in operators

    def visit_call_(self, call: relax.Call) -> Any:
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "")
        if name == "relax.clip" and _rank(call) == _RANK:
            return self._clip(call)
        if name not in _BINARY or _rank(call) != _RANK:
            return call
        left, right = call.args
        if self._has_images and name in _COMMUTATIVE and self._constant(left) is not None:
            return relax.Call(call.op, [right, self._expanded(left)], call.attrs)
        expanded = [self._expanded(argument) for argument in (left, right)]
        if expanded[0].same_as(left) and expanded[1].same_as(right):
            return call
        return relax.Call(call.op, expanded, call.attrs)

    def _constant(self, expr: Any) -> GenericConst | None:
        value = self.lookup_binding(expr) if isinstance(expr, relax.Var) else expr
        return value if isinstance(value, GenericConst) else None

    def _expanded(self, argument: Any) -> Any:
        known = self._constant(argument)
        if known is None or _rank(argument) in (_RANK, -1):
            return argument
        value = known.value.numpy()
        return constant(value.reshape((1,) * (_RANK - value.ndim) + value.shape))

    def _clip(self, call: relax.Call) -> Any:
        value, low, high = call.args
        lower, upper = _number(low), _number(high)
        if lower is None or upper is None:
            return call
        shape = (1,) * _RANK
        bounds = [constant(np.full(shape, bound, str(value.ty.dtype))) for bound in (lower, upper)]
        raised = self.builder_.emit(relax.op.maximum(value, bounds[0]))
        return self.builder_.normalize(relax.op.minimum(raised, bounds[1]))


def _rank(expr: Any) -> int:
    """The number of axes of a tensor; -1 if that is unknown, or if the expression is no tensor."""
    return int(getattr(expr.ty, "ndim", -1))


def _number(expr: Any) -> float | None:
    value = getattr(expr, "value", expr)
    value = getattr(value, "value", value)
    return float(value) if isinstance(value, int | float) else None
