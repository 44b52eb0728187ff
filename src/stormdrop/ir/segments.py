"""Values that depend on the position on an axis (concatenation, padding), one segment of the axis after the other.

    y[i] = i < 17 ? a[i] : b[i - 17]        has two segments:  y[i] = a[i]       from 0 to 17
                                                               y[i] = b[i - 17]  from 17 on

A vector that lies within one segment never takes both branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm
from tvm.sym import Analyzer

from .expressions import Expr, children, coefficients, is_selection, rebuild, substitute, variables
from .grid import BINARY
from .stages import Axis

MOST_SEGMENTS = 127
"""A value with more has a loop over the whole axis. Each segment is a loop of its own, which has to be compiled; and
choices are nested as deep as there are segments."""


@dataclass(frozen=True)
class Segment:
    """A stretch of an axis on which no comparison of the axis with a constant changes its result.

    Attributes:
        start: Its first position.
        end: The position after its last.
        value: The value on it, without the choices that have the same result on all of it.
    """

    start: int
    end: int
    value: Expr


@dataclass(frozen=True)
class _Comparison:
    """A comparison of an axis with a constant: of `factor * (position - crossing)` with 0, by TVM's class of it."""

    kind: type
    factor: int
    crossing: int

    def holds(self, position: int) -> bool:
        return bool(BINARY[self.kind](np.asarray(self.factor * (position - self.crossing)), np.asarray(0)))

    def cuts(self) -> list[int]:
        """The positions at which its result is another one than at the position before."""
        return [cut for cut in (self.crossing, self.crossing + 1) if self.holds(cut - 1) != self.holds(cut)]


def segments_of(value: Expr, axis: Axis) -> list[Segment]:
    """The longest segments of an axis, in order.

    Args:
        value: The value on the whole axis.
        axis: The axis to divide.

    Returns:
        The segments. It is one, the whole axis with the whole value, if there would be more than `MOST_SEGMENTS`.
    """
    comparisons = _Comparisons(value, axis.var)
    cuts = [cut for cut in comparisons.cuts() if 0 < cut < axis.extent]
    if len(cuts) >= MOST_SEGMENTS:
        return [Segment(0, axis.extent, value)]
    return comparisons.segments(value, 0, axis.extent)


class _Comparisons:
    """The comparisons of a variable with constants in a value, and what the value is where they are decided."""

    def __init__(self, value: Expr, variable: Any) -> None:
        self._known: dict[Any, _Comparison] = {}
        self._holding: set[Any] = set()  # the expressions that hold one of them
        self._collect(value, variable)

    def _collect(self, node: Expr, variable: Any) -> bool:
        comparison = _comparison(node, variable) if isinstance(node, prim.CmpExpr) else None
        if comparison is not None:
            self._known[node] = comparison
            return True
        below = [self._collect(child, variable) for child in children(node)]
        if any(below):
            self._holding.add(node)
        return any(below)

    def cuts(self) -> set[int]:
        """The positions at which a comparison has another result than at the position before."""
        return {cut for comparison in self._known.values() for cut in comparison.cuts()}

    def segments(self, node: Expr, start: int, end: int) -> list[Segment]:
        """The segments of an expression between two positions."""
        if node in self._known:
            comparison = self._known[node]
            bounds = [start, *(cut for cut in comparison.cuts() if start < cut < end), end]
            return [Segment(*both, IntImm("bool", int(comparison.holds(both[0])))) for both in pairwise(bounds)]
        if node not in self._holding:
            return [Segment(start, end, node)]
        if not is_selection(node):
            return self._over_operands(node, children(node), start, end)
        condition, *branches = children(node)
        found = []
        for part in self.segments(condition, start, end):
            decided = Analyzer().simplify(part.value)
            if isinstance(decided, IntImm):
                found += self.segments(branches[0 if int(decided) else 1], part.start, part.end)
            else:
                found += self._over_operands(node, [decided, *branches], part.start, part.end)
        return found

    def _over_operands(self, node: Expr, operands: Sequence[Expr], start: int, end: int) -> list[Segment]:
        """The segments of an expression over other operands."""
        parts = [self.segments(operand, start, end) for operand in operands]
        bounds = sorted({end, *(segment.start for segments in parts for segment in segments)})
        found = []
        for first, last in pairwise(bounds):
            values = [next(part.value for part in segments if first < part.end) for segments in parts]
            found.append(Segment(first, last, rebuild(node, values)))
        return found


def _comparison(node: Any, variable: Any) -> _Comparison | None:
    """A comparison of a variable with a constant.

    It is None if a side depends on anything else, or if the difference of the sides does not change by one per step.
    """
    difference = node.a - node.b
    factors = coefficients(difference, {variable})
    if variables(difference) != {variable} or factors is None or factors.get(variable) not in (1, -1):
        return None
    factor = factors[variable]
    at_zero = Analyzer().simplify(substitute(difference, {variable: IntImm("int32", 0)}))
    if not isinstance(at_zero, IntImm):  # it loads something
        return None
    return _Comparison(type(node), factor, -factor * int(at_zero))
