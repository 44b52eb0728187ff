"""Replaces kernels that copy a tensor without moving any of its elements by reshapes, which do nothing.

    fused_squeeze_expand_dims_reshape(x of (1, 128, 1))  ->  reshape(x, (1, 128))

TVM does so for a function of one reshape, but a chain of them has become one function by then.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import TensorLoad

from ...errors import UnsupportedFunction
from ...ir.reference import evaluate_graph
from ...ir.stages import StageGraph, shape_of
from ..graph.expressions import bindings_of, calls_kernel
from .rewriting import rewrite_main

_LARGEST = 1 << 22  # elements: what a larger function does would take long to find out


def remove_copies(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with these calls of `main` replaced, except where they make an output, which must not share memory.

    Functions that become unused stay.
    """
    return rewrite_main(mod, _Copies(mod))


@relax.expr_functor.mutator
class _Copies(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._mod = mod
        self._known: dict[str, bool] = {}
        bindings = bindings_of(mod["main"])
        self._outputs = [binding.value for binding in bindings if not isinstance(binding.var, relax.DataflowVar)]

    def visit_call_(self, call: relax.Call) -> Any:
        if any(call.same_as(value) for value in self._outputs):
            return self.visit_expr_post_order(call)
        call = self.visit_expr_post_order(call)
        if not calls_kernel(call) or len(call.args[1].fields) != 1:
            return call
        name = call.args[0].name_hint
        if name not in self._known:
            self._known[name] = _keeps_order(self._mod[name])
        if not self._known[name]:
            return call
        return self.builder_.normalize(relax.op.reshape(call.args[1].fields[0], call.ty_args[0].shape))


def _keeps_order(function: Any) -> bool:
    """Whether a function's only output holds the elements of its only input, in their order."""
    try:
        graph = StageGraph.parse(function)
    except UnsupportedFunction:
        return False
    if len(graph.inputs) != 1 or len(graph.outputs) != 1:
        return False
    (source,), (target,) = graph.inputs, graph.outputs
    size = math.prod(shape_of(source))
    if source.dtype != target.dtype or size != math.prod(shape_of(target)) or not 0 < size <= _LARGEST:
        return False
    if not all(stage.combine is None and isinstance(stage.value, TensorLoad) for stage in graph.stages):
        return False
    positions = np.arange(size)
    (moved,) = evaluate_graph(graph, [positions.reshape(shape_of(source))], rounded=False)
    return bool((moved.reshape(-1) == positions).all())
