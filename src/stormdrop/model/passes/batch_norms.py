"""Folds batch norms of inference, as far as their statistics are constants.

    batch_norm(conv2d(x, w) + b)  ->  conv2d(x, w * scale) + (b * scale + shift)
    other batch_norm(x)           ->  x * scale + shift

A batch norm that follows no convolution becomes a multiplication and an addition per channel: its decomposition by TVM
would be four operators in the layout of channels first.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from ..graph.expressions import bindings_of, operator_name, variables_of
from ..tensors import Array
from .rewriting import constant, rewrite_main

_CONVOLUTIONS = {"relax.nn.conv1d": "OIW", "relax.nn.conv2d": "OIHW", "relax.nn.conv3d": "OIDHW"}


def fold_batch_norms(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with the batch norms of `main` folded. Bindings that become unused are removed."""
    if not any(map(_is_norm, (binding.value for binding in bindings_of(mod["main"])))):
        return mod
    return relax.transform.DeadCodeElimination()(rewrite_main(mod, _BatchNorms(mod)))


def _is_norm(value: Any) -> bool:
    return operator_name(value) == "relax.nn.batch_norm"


@relax.expr_functor.mutator
class _BatchNorms(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        bindings = bindings_of(mod["main"])
        self._readers = Counter(variable for binding in bindings for variable in variables_of(binding.value))

    def visit_tuple_getitem_(self, op: relax.TupleGetItem) -> Any:
        item = self.visit_expr_post_order(op)
        norm = self.lookup_binding(item.tuple_value) if isinstance(item.tuple_value, relax.Var) else item.tuple_value
        if item.index != 0 or not _is_norm(norm) or norm.attrs.training:
            return item
        statistics = [self._constant(argument) for argument in norm.args[1:]]
        if any(value is None for value in statistics) or len(norm.ty.fields[0].shape.values) <= int(norm.attrs.axis):
            return item
        return self._applied(norm, [value for value in statistics if value is not None])

    def _applied(self, norm: relax.Call, statistics: list[Array]) -> Any:
        gamma, beta, mean, variance = (value.astype(np.float64) for value in statistics)
        scale = 1 / np.sqrt(variance + float(norm.attrs.epsilon))
        scale = scale * gamma if norm.attrs.scale else scale
        shift = -mean * scale + (beta if norm.attrs.center else 0.0)
        axis, rank = int(norm.attrs.axis), len(norm.ty.fields[0].shape.values)
        shape = [-1 if position == axis else 1 for position in range(rank)]
        dtype = str(norm.ty.fields[0].dtype)

        def per_channel(value: Array) -> Any:
            return constant(value.reshape(shape).astype(dtype))

        convolution, bias = self._convolution(norm.args[0], axis, rank)
        if convolution is None:
            scaled = self.builder_.emit(relax.op.multiply(norm.args[0], per_channel(scale)))
            return self.builder_.normalize(relax.op.add(scaled, per_channel(shift)))
        weights = self._constant(convolution.args[1])
        assert weights is not None
        folded = weights * scale.reshape([-1] + [1] * (weights.ndim - 1))
        whole = constant(folded.astype(weights.dtype))
        result = self.builder_.emit(relax.Call(convolution.op, [convolution.args[0], whole], convolution.attrs))
        return self.builder_.normalize(relax.op.add(result, per_channel(shift + bias * scale)))

    def _convolution(self, value: Any, axis: int, rank: int) -> tuple[Any, Array]:
        """The convolution with constant weights that computes a value for nobody else, and its bias; or None."""
        none = None, np.zeros(1)
        call, bias = self._only(value), np.zeros(1)
        if operator_name(call) == "relax.add":
            added = self._constant(call.args[1])
            channels = int(call.ty.shape.values[axis])
            if added is None or added.size != channels:
                return none
            if added.shape[added.ndim - rank + axis :][:1] not in ((channels,), ()):
                return none
            call, bias = self._only(call.args[0]), added.reshape(-1).astype(np.float64)
        name = operator_name(call)
        fits = (
            name in _CONVOLUTIONS
            and axis == 1
            and str(call.attrs.kernel_layout) == _CONVOLUTIONS[name]
            and self._constant(call.args[1]) is not None
        )
        return (call, bias) if fits else none

    def _only(self, value: Any) -> Any:
        """What computes a value that has one reader; None otherwise."""
        return self.lookup_binding(value) if isinstance(value, relax.Var) and self._readers[value] <= 1 else None

    def _constant(self, expr: Any) -> Array | None:
        """A constant, also one that is reshaped."""
        if isinstance(expr, relax.Var):
            expr = self.lookup_binding(expr)
        if isinstance(expr, GenericConst):
            return np.asarray(expr.value.numpy())
        if operator_name(expr) == "relax.reshape":
            value = self._constant(expr.args[0])
            return None if value is None else value.reshape([int(extent) for extent in expr.ty.shape])
        return None
