"""How accesses step over a buffer in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tvm.ir.prim.expr import IntImm
from tvm.sym import Analyzer

from .expressions import Expr, coefficients, substitute
from .stages import Axis, Buffer, shape_of

Strides = Mapping[Axis, int]
"""How many elements apart in memory neighbouring positions of each axis are."""


def strides_of(buffer: Buffer, indices: Sequence[Expr], axes: Sequence[Axis]) -> Strides | None:
    """The strides of an access along axes; None if it may leave the buffer, or steps otherwise than forwards.

    Args:
        buffer: The buffer.
        indices: The element that is accessed, in terms of the axes.
        axes: The axes, of which each goes from 0 to its extent.

    Example:
        >>> from stormdrop.ir.stages import intermediate, variable
        >>> i, j = Axis(variable("i"), 4), Axis(variable("j"), 8)
        >>> list(strides_of(intermediate("x", (8, 9), "float32"), (j.var, i.var * 2), (i, j)).values())
        [2, 9]
    """
    variables, shape = {axis.var for axis in axes}, shape_of(buffer)
    origin = {axis.var: IntImm("int32", 0) for axis in axes}
    strides = dict.fromkeys(axes, 0)
    for dimension, (index, extent) in enumerate(zip(indices, shape, strict=True)):
        factors = coefficients(index, variables)
        first = Analyzer().simplify(substitute(index, origin))
        if factors is None or min(factors.values(), default=0) < 0 or not isinstance(first, IntImm):
            return None
        steps = {axis: factors.get(axis.var, 0) for axis in axes}
        if not 0 <= int(first) <= extent - 1 - sum(step * (axis.extent - 1) for axis, step in steps.items()):
            return None
        for axis, step in steps.items():
            strides[axis] += step * math.prod(shape[dimension + 1 :])
    return strides
