"""Evaluates layout operators on constants in NumPy.

Relax's own constant folding compiles a kernel for each shape of weight that it transposes. That took half of the time
of importing ResNet-50.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import GenericConst

from .rewriting import rewrite_main


def fold_layouts(mod: tvm.IRModule) -> tvm.IRModule:
    """The module in which transposed and reshaped constants of `main` are constants. Relax folds what is left."""
    return rewrite_main(mod, _Fold(mod))


def _permute(value: NDArray[Any], call: relax.Call) -> NDArray[Any]:
    axes = call.attrs.axes
    return np.transpose(value, None if axes is None else [int(axis) for axis in axes])


def _reshape(value: NDArray[Any], call: relax.Call) -> NDArray[Any]:
    return value.reshape([int(extent) for extent in call.ty.shape])


_EVALUATE: dict[str, Callable[[NDArray[Any], relax.Call], NDArray[Any]]] = {
    "relax.permute_dims": _permute,
    "relax.reshape": _reshape,
    "relax.expand_dims": _reshape,
    "relax.squeeze": _reshape,
    "relax.flatten": _reshape,
}


@relax.expr_functor.mutator
class _Fold(relax.PyExprMutator):
    def visit_call_(self, call: relax.Call) -> Any:
        call = self.visit_expr_post_order(call)
        evaluate = _EVALUATE.get(getattr(call.op, "name", ""))
        source = self._constant(call.args[0]) if evaluate is not None else None
        if evaluate is None or source is None:
            return call
        return relax.const(np.ascontiguousarray(evaluate(source.value.numpy(), call)))

    def _constant(self, expr: Any) -> GenericConst | None:
        if isinstance(expr, relax.Var):
            expr = self.lookup_binding(expr)
        return expr if isinstance(expr, GenericConst) else None
