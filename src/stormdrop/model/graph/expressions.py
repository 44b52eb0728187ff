"""What is asked of the expressions of a model's Relax code: which of them call a kernel, and what they read."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ...runtime.program import FUNCTION

VIEWS = ("relax.reshape", "relax.expand_dims", "relax.squeeze")
"""The operators that give a tensor another shape, and leave its elements where they are."""


def bindings_of(function: relax.Function) -> list[relax.Binding]:
    """The bindings of a function, in order."""
    return [binding for block in function.body.blocks for binding in block.bindings]


def calls_kernel(expr: Any) -> bool:
    """Whether an expression is the call of a TensorIR function: `R.call_tir(function, (arguments), types)`."""
    return isinstance(expr, relax.Call) and expr.op == tvm.ir.Op.get("relax.call_tir")


def operator_name(expr: Any) -> str:
    """The name of the operator that an expression calls, such as "relax.nn.conv2d"; empty if it calls none."""
    return getattr(getattr(expr, "op", None), "name", "")


def variables_of(expr: Any) -> list[relax.Var]:
    """The variables that an expression reads, in order; each as often as it is read.

    TVM's visitor would visit the types of variables, too: all sizes in a tuple of hundreds, for each of its elements.
    """
    if isinstance(expr, relax.Var):
        return [expr]
    if isinstance(expr, relax.TupleGetItem):
        return variables_of(expr.tuple_value)
    if isinstance(expr, relax.Tuple):
        return [variable for field in expr.fields for variable in variables_of(field)]
    if isinstance(expr, relax.Call):
        return [variable for part in (expr.op, *expr.args) for variable in variables_of(part)]
    found: list[relax.Var] = []
    relax.analysis.post_order_visit(expr, lambda node: found.append(node) if isinstance(node, relax.Var) else None)
    return found


def part_index(value: Any) -> int | None:
    """The index of the part that an expression of the imported graph calls; None for any other expression."""
    operator = operator_name(value)
    if operator not in ("relax.call_dps_packed", "relax.call_pure_packed"):
        return None
    symbol = str(getattr(value.args[0], "global_symbol", ""))
    return int(symbol.removeprefix(FUNCTION)) if symbol.startswith(FUNCTION) else None


def part_arguments(value: Any) -> list[Any]:
    """The arguments of a call of a part."""
    return list(value.args[1].fields if value.op.name == "relax.call_dps_packed" else value.args[1:])
