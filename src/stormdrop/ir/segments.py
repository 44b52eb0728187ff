"""Values that depend on the position on an axis (concatenation, padding), one segment of the axis after the other.

    y[i] = i < 17 ? a[i] : b[i - 17]        has two segments:  y[i] = a[i]       from 0 to 17
                                                               y[i] = b[i - 17]  from 17 on

A vector that lies within one segment never takes both branches.
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

_MOST_BOUNDS = 16  # of segments, with both ends of the axis
_COMPARISONS = (prim.LT, prim.LE, prim.GT, prim.GE, prim.EQ, prim.NE)


def segments_of(value: Expr, axis: Axis) -> list[tuple[int, int]]:
    """The longest stretches of an axis on which no comparison of the axis with a constant changes its result.

    Args:
        value: the expression that holds the comparisons.
        axis: the axis to divide.

    Returns:
        The first position of each segment and the position after its last, in order. It is one segment, the whole
        axis, if no comparison changes or if there would be more than 15 segments.
    """
    cuts = {0, axis.extent}
    for node in walk(value):
        if isinstance(node, _COMPARISONS):
            crossing = _crossing(node, axis.var)
            if crossing is not None:
                before, there, after = (_holds(node, axis.var, crossing + offset) for offset in (-1, 0, 1))
                cuts |= {crossing} if before != there else set()
                cuts |= {crossing + 1} if there != after else set()
    bounds = sorted(cut for cut in cuts if 0 <= cut <= axis.extent)
    return list(pairwise(bounds)) if len(bounds) <= _MOST_BOUNDS else [(0, axis.extent)]


def value_on_segment(value: Expr, variable: Any, start: int) -> Expr:
    """The value on one segment, without the choices that have the same result on all of it.

    Args:
        value: the value on the whole axis.
        variable: the variable of the axis.
        start: the first position of the segment, as `segments_of` returns it.
    """

    def visit(node: Expr) -> Expr | None:
        if isinstance(node, _COMPARISONS) and _crossing(node, variable) is not None:
            return IntImm("bool", int(_holds(node, variable, start)))
        if isinstance(node, prim.Select) or (isinstance(node, Call) and "if_then_else" in node.op.name):
            condition, *branches = children(node)
            condition = Analyzer().simplify(transform(condition, visit))
            if isinstance(condition, IntImm):
                return transform(branches[0 if int(condition) else 1], visit)
            return rebuild(node, [condition, *(transform(branch, visit) for branch in branches)])
        return None

    return transform(value, visit)


def _crossing(comparison: Any, variable: Any) -> int | None:
    """The value of the variable for which both sides of a comparison are equal.

    It is None if a side depends on anything else, or if their difference does not change by one per step.
    """
    difference = comparison.a - comparison.b
    factors = coefficients(difference, {variable})
    if variables(difference) != {variable} or factors is None or factors.get(variable) not in (1, -1):
        return None
    return -factors[variable] * int(Analyzer().simplify(substitute(difference, {variable: IntImm("int32", 0)})))


def _holds(comparison: Any, variable: Any, position: int) -> bool:
    return bool(int(Analyzer().simplify(substitute(comparison, {variable: IntImm("int32", position)}))))
