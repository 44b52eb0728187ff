"""Finds the operator at which a pass over a whole model fails, because TVM's errors do not name it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

from ..graph.expressions import bindings_of
from ..graph.open_blocks import ended_blocks


def failing_operator(mod: tvm.IRModule, step: Callable[[tvm.IRModule], tvm.IRModule]) -> str | None:
    """The first operator of `main` at which a pass fails if it is alone in a module.

    Args:
        mod: The module on which the pass failed.
        step: The pass.

    Returns:
        The operator and the types of its arguments, in one line; None if the pass takes each operator alone.
    """
    for binding in bindings_of(mod["main"]):
        call = getattr(binding, "value", None)
        if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.Op):
            continue
        try:
            step(_alone(call))
        except Exception:  # noqa: BLE001  whatever it raises, it is this operator that it cannot take
            types = ", ".join(str(argument.ty) for argument in call.args)
            return f"operator {operator_of(call)} of {' '.join(types.split())[:_SHOWN]}"
    return None


def operator_of(call: relax.Call) -> str:
    """The name of the operator or of the kernel that is called."""
    name: str = call.op.name.removeprefix("relax.")
    if name == "call_pure_packed":  # a function of TVM's runtime, such as relax.run.nonzero
        return str(call.args[0].global_symbol).rpartition(".")[2]
    return str(call.args[0].name_hint) if name == "call_tir" else name


_SHOWN = 200  # characters of the types, at most


def _alone(call: relax.Call) -> tvm.IRModule:
    """A module that does nothing but this call. Variables become its parameters; constants stay."""
    parameters: dict[relax.Var, relax.Var] = {}

    def parameter(expr: Any) -> Any:
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([parameter(field) for field in expr.fields])
        if not isinstance(expr, relax.Var):
            return expr
        return parameters.setdefault(expr, relax.Var(f"x{len(parameters)}", expr.ty))

    arguments = [parameter(argument) for argument in call.args]
    builder = relax.BlockBuilder()
    with ended_blocks(builder), builder.function("main", list(parameters.values())):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(call.op, arguments, call.attrs, call.ty_args))
        builder.emit_func_output(result)
    return builder.get()
