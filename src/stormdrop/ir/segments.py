"""Values that depend on where on an axis they are (concatenation, padding), piece by piece.

    y[i] = i < 17 ? a[i] : b[i - 17]        has two pieces:  y[i] = a[i] from 0 to 17,  y[i] = b[i - 17] from there on

A vector that runs along the axis then never takes both branches.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tvm.ir import Call
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm
from tvm.sym import Analyzer

from .expressions import Expr, children, coefficients, rebuild, substitute, transform, variables, walk
from .stages import Axis

_MOST = 16  # pieces; with more the axis stays whole
_COMPARISONS = (prim.LT, prim.LE, prim.GT, prim.GE, prim.EQ, prim.NE)


def pieces_of(value: Expr, axis: Axis) -> list[tuple[int, int]]:
    """The stretches of an axis on which all comparisons of it with constants stay as they are."""
    cuts = {0, axis.extent}
    for node in walk(value):
        if isinstance(node, _COMPARISONS):
            at = _crossing(node, axis.var)
            if at is not None:
                before, here, after = (_holds(node, axis.var, at + offset) for offset in (-1, 0, 1))
                cuts |= {at} if before != here else set()
                cuts |= {at + 1} if here != after else set()
    inside = sorted(cut for cut in cuts if 0 <= cut <= axis.extent)
    return list(pairwise(inside)) if len(inside) <= _MOST else [(0, axis.extent)]


def decided(value: Expr, name: Any, first: int) -> Expr:
    """The value on a piece that starts at `first`, without the choices that are made there once and for all."""

    def visit(node: Expr) -> Expr | None:
        if isinstance(node, _COMPARISONS) and _crossing(node, name) is not None:
            return IntImm("bool", int(_holds(node, name, first)))
        if isinstance(node, prim.Select) or (isinstance(node, Call) and "if_then_else" in node.op.name):
            condition, *branches = children(node)
            condition = Analyzer().simplify(transform(condition, visit))
            if isinstance(condition, IntImm):
                return transform(branches[0 if int(condition) else 1], visit)
            return rebuild(node, [condition, *(transform(branch, visit) for branch in branches)])
        return None

    return transform(value, visit)


def _crossing(comparison: Any, name: Any) -> int | None:
    """Where on an axis the sides of a comparison are equal, if it depends on nothing else and moves by one."""
    difference = comparison.a - comparison.b
    factors = coefficients(difference, {name})
    if variables(difference) != {name} or factors is None or factors.get(name) not in (1, -1):
        return None
    return -factors[name] * int(Analyzer().simplify(substitute(difference, {name: IntImm("int32", 0)})))


def _holds(comparison: Any, name: Any, at: int) -> bool:
    return bool(int(Analyzer().simplify(substitute(comparison, {name: IntImm("int32", at)}))))
