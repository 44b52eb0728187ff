"""Evaluates operators on constants.

Relax's own pass makes a kernel for every call of an operator, to find out then that one in a hundred has constant
arguments. That takes seconds for a model of 1,500 nodes. It also compiles what it evaluates, which took half of the
time of importing ResNet-50, whose weights are transposed, and almost all of that of a detector with a hundred clips,
whose bounds are compared with NaN. Here NumPy evaluates the operators of which its result is the very same, and
Relax's pass sees the other calls of which all arguments are constants.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import GenericConst

from ...ir.dtypes import is_float, is_integer, limits
from ..graph.expressions import bindings_of
from ..graph.open_blocks import ended_blocks
from ..tensors import array_of
from .rewriting import constant, rewrite_main


def fold_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """The module in which the calls of `main` whose arguments are constants are constants, as far as TVM can do so."""
    return rewrite_main(mod, _Fold(mod))


def _permute(call: relax.Call, value: NDArray[Any]) -> NDArray[Any]:
    axes = call.attrs.axes
    return np.transpose(value, None if axes is None else [int(axis) for axis in axes])


def _reshape(call: relax.Call, value: NDArray[Any]) -> NDArray[Any]:
    return value.reshape([int(extent) for extent in call.ty.shape])


def _broadcast(call: relax.Call, value: NDArray[Any]) -> NDArray[Any]:
    return np.broadcast_to(value, [int(extent) for extent in call.ty.shape])


def _slice_scatter(call: relax.Call, into: NDArray[Any], value: NDArray[Any]) -> NDArray[Any]:
    start, stop, step = (int(argument) for argument in call.args[2:])
    result: NDArray[Any] = into.copy()
    result[(slice(None),) * int(call.attrs.axis) + (slice(start, stop, step),)] = value
    return result


def _strided_slice(call: relax.Call, value: NDArray[Any]) -> NDArray[Any] | None:
    axes, *bounds = ([int(number) for number in argument.fields] for argument in call.args[1:])
    index = [slice(None)] * value.ndim
    for axis, *bound in zip(axes, *bounds, strict=True):
        index[axis] = slice(*bound)
    result: NDArray[Any] = value[tuple(index)]
    return result if result.shape == tuple(int(extent) for extent in call.ty.shape) else None


def _concat(call: relax.Call, *values: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate(values, None if call.attrs.axis is None else int(call.attrs.axis))


def _convert(call: relax.Call, value: NDArray[Any]) -> NDArray[Any] | None:
    dtype = str(call.ty.dtype)
    if is_integer(dtype) and is_float(str(value.dtype)):
        low, high = limits(dtype).min, limits(dtype).max
        if not ((value >= low) & (value <= high)).all():
            return None  # what such a number becomes depends on the machine
    return value.astype(dtype)


def _computed(function: Callable[..., Any]) -> Callable[..., NDArray[Any]]:
    return lambda _, *values: np.asarray(function(*values))


_EVALUATE: dict[str, Callable[..., NDArray[Any] | None]] = {
    "relax.astype": _convert,
    "relax.permute_dims": _permute,
    "relax.reshape": _reshape,
    "relax.expand_dims": _reshape,
    "relax.round": _computed(np.round),
    "relax.squeeze": _reshape,
    "relax.flatten": _reshape,
    "relax.broadcast_to": _broadcast,
    "relax.slice_scatter": _slice_scatter,
    "relax.strided_slice": _strided_slice,
    "relax.concat": _concat,
    "relax.less": _computed(np.less),
    "relax.add": _computed(np.add),
    "relax.multiply": _computed(np.multiply),
    "relax.equal": _computed(np.equal),
    "relax.not_equal": _computed(np.not_equal),  # true of NaN, as in IEEE 754; TVM's kernels say false
    "relax.subtract": _computed(np.subtract),
    "relax.isnan": _computed(np.isnan),
    "relax.where": _computed(np.where),
}


@relax.expr_functor.mutator
class _Fold(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._known: dict[Any, GenericConst] = {}

    def visit_dataflow_var_(self, op: relax.DataflowVar) -> Any:
        known = self._known.get(op)
        return super().visit_dataflow_var_(op) if known is None else known

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        value = self._constant(binding.value) if isinstance(binding.var, relax.DataflowVar) else None
        if value is None:
            super().visit_var_binding_(binding)
        else:
            self._known[binding.var] = value

    def _constant(self, expr: Any) -> GenericConst | None:
        """The value of an expression if it is a constant, or an operator of constants."""
        if not isinstance(expr, relax.Call):
            return expr if isinstance(expr, GenericConst) else self._known.get(expr)
        if not isinstance(expr.op, tvm.ir.Op) or not expr.op.has_attr("FLegalize"):
            return None
        arguments = [self._argument(argument) for argument in expr.args]
        if any(argument is None for argument in arguments):
            return None
        evaluate = _EVALUATE.get(expr.op.name)
        if evaluate is None:
            return _folded_by_relax(relax.Call(expr.op, arguments, expr.attrs, expr.ty_args))
        fields = itertools.chain.from_iterable(
            argument.fields if isinstance(argument, relax.Tuple) else [argument] for argument in arguments
        )
        values = [array_of(field) for field in fields if isinstance(field, GenericConst)]
        value = evaluate(expr, *values)
        return None if value is None else constant(value)

    def _argument(self, argument: Any) -> Any:
        """An argument with constants in place of variables; None if a variable is no constant."""
        if isinstance(argument, relax.Tuple):
            fields = [self._argument(field) for field in argument.fields]
            return None if any(field is None for field in fields) else relax.Tuple(fields)
        if isinstance(argument, relax.Var):
            return self._known.get(argument)
        return argument


def _folded_by_relax(call: relax.Call) -> GenericConst | None:
    builder = relax.BlockBuilder()
    with ended_blocks(builder), builder.function("main", []):
        with builder.dataflow():
            result = builder.emit_output(call)
        builder.emit_func_output(result)
    mod = relax.transform.FoldConstant()(builder.get())
    values = [binding.value for binding in bindings_of(mod["main"])]
    values.append(mod["main"].body.body)
    return next((value for value in values if isinstance(value, GenericConst)), None)
