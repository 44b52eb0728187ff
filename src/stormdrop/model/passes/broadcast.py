"""Rewrites elementwise operators with constants so that Relax can change the layout of their tensor.

Relax leaves a tensor in its layout if a constant has fewer axes than the tensor, or if the operator is a clip, and puts
a transpose before and after the operator.

    add(x, c)        ->  add(x, c'), c' with leading axes of extent 1
    add(c, x)        ->  add(x, c'), because the first operand decides on the layout of both
    clip(x, 0, 6)    ->  minimum(maximum(x, 0'), 6'), also if the importer has already made a TensorIR function of it
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst, TensorLoad
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm
from tvm.s_tir import Schedule

from ..graph.expressions import bindings_of, operator_name
from .rewriting import constant, rewrite_main

_RANK = 4
"""Only tensors of two-dimensional convolutions change their layout."""

Extremum = tuple[Callable[[Any, Any], Any], float | None]
"""The Relax operator of a maximum or a minimum, and the number that it takes if that is a part of the function."""

_COMMUTATIVE = {f"relax.{name}" for name in ("add", "multiply", "maximum", "minimum")}
_BINARY = {f"relax.{name}" for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power")}


def expand_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with elementwise operators of `main` on constants rewritten as the module's docstring shows."""
    return rewrite_main(mod, _Expand(mod))


@relax.expr_functor.mutator
class _Expand(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._mod = mod
        self._extrema: dict[str, Extremum | None] = {}  # by the name of the function
        operators = {operator_name(binding.value) for binding in bindings_of(mod["main"])}
        self._has_images = "relax.nn.conv2d" in operators

    def visit_call_(self, call: relax.Call) -> Any:
        call = self.visit_expr_post_order(call)
        name = operator_name(call)
        if name == "relax.call_tir" and _rank(call) == _RANK:
            return self._bound(call)
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

    def _bound(self, call: relax.Call) -> Any:
        """call_tir(maximum, (x, low)) -> maximum(x, low'); likewise for a minimum, and a bound inside the function."""
        arguments = call.args[1].fields
        name = call.args[0].name_hint
        if name not in self._extrema:
            self._extrema[name] = _extremum(self._mod[call.args[0]])
        extremum = self._extrema[name]
        if extremum is None:
            return call
        operator, bound = extremum
        if bound is None:
            known = self._constant(arguments[1])
            if known is None:
                return call
            bound = float(known.value.numpy())
        value = constant(np.full((1,) * _RANK, bound, str(arguments[0].ty.dtype)))
        return self.builder_.normalize(operator(arguments[0], value))

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


def _extremum(function: tirx.PrimFunc) -> Extremum | None:
    """The Relax operator, and the number, of a function y[i, ...] = max(x[i, ...], number).

    The number is None if it is the function's second parameter, a tensor without axes. The result is None for any
    other function.
    """
    schedule = Schedule(tvm.IRModule({"main": function}))
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    body: Any = schedule.get(blocks[0]).body if len(blocks) == 1 else None
    value: Any = body.value if isinstance(body, tirx.BufferStore) else None
    operator = {prim.Max: relax.op.maximum, prim.Min: relax.op.minimum}.get(type(value))
    if operator is None or not isinstance(value.a, TensorLoad):
        return None
    same = len(value.a.indices) == len(body.indices)
    if not same or not all(a.same_as(b) for a, b in zip(value.a.indices, body.indices, strict=True)):
        return None
    if isinstance(value.b, FloatImm) and len(function.params) == 2:
        return operator, float(value.b.value)
    scalar = isinstance(value.b, TensorLoad) and len(function.params) == 3 and len(function.params[1].shape) == 0
    return (operator, None) if scalar else None
