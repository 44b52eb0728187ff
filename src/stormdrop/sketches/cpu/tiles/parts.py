"""Numbers of float32 as sums of two of bfloat16, which tiles can multiply.

    high(x) = bfloat16(x)
    low(x)  = bfloat16(x - high(x))                       both together have 16 digits of 24
    x y     ~ low(x) high(y) + high(x) high(y) + high(x) low(y)

Each product is off by at most 3 * 2^-18 of it: 2^-18 for what the two parts leave of x, as much for y, and as much for
low(x) low(y), which is not computed. Sums are in float32. Tiles multiply bfloat16 sixteen times as fast as vectors
multiply float32, so that three products for one are still five times as fast.

What packs the column operand computes its parts; `data` says who computes those of the data. An infinite number has no
low part, because infinity less infinity is none: its products are NaN. So are those of finite numbers from 3.396e38 on,
for which the nearest number of bfloat16 is infinity.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm.ir.prim import expr as prim

from ....ir.contractions.contraction import Contraction, find_contraction
from ....ir.contractions.factors import factor_of
from ....ir.dtypes import BFLOAT16
from ....ir.expressions import Expr, transform
from ....ir.stages import Axis, Stage, StageGraph, intermediate, shape_of, variable

HIGH, LOW = 0, 1
_LINE, _FAR = 32, 512  # elements of a line of a cache; of 1 KiB

PRODUCTS = ((LOW, HIGH), (HIGH, HIGH), (HIGH, LOW))
"""Which parts of the data and of the columns are multiplied. In this order each of the four is loaded once."""


def with_high_parts(contraction: Contraction, constants: tuple[int, ...]) -> Contraction:
    """The contraction of the high parts of the data, which a stage computes.

    Args:
        contraction: A contraction of float32.
        constants: The positions of the constant inputs of its function.
    """
    graph, source = contraction.graph, contraction.other.source
    *leading, width = shape_of(source)
    high = intermediate("high", [*leading, width + apart(width)], BFLOAT16)
    stages: list[Stage] = []
    prologue = contraction.prologue if contraction.prologue and _stores_in_order(contraction.prologue) else None
    for stage in graph.stages:
        if stage is prologue:
            stage = _high_parts(stage, high)
        elif stage.buffer.same_as(contraction.stage.buffer):
            if prologue is None:
                axes = tuple(Axis(variable(f"high{number}"), extent) for number, extent in enumerate(shape_of(source)))
                indices = tuple(axis.var for axis in axes)
                stages.append(_high_parts(Stage("high", axes, source, indices, source[indices]), high))
            left, right = (_factor(node, source, high) for node in (stage.value.a, stage.value.b))
            stage = replace(stage, value=prim.Mul(left, right))
        stages.append(stage)
    return find_contraction(StageGraph(graph.parameters, tuple(stages)), constants)


def apart(width: int) -> int:
    """The elements between two rows of parts of so many elements.

    Rows that begin at a distance of 1, 2 or 4 KiB share a few sets of the first cache, so that the rows of a tile would
    put the panel out of it.
    """
    return _LINE if width % _FAR == 0 else 0


def low_parts(stage: Stage) -> Stage:
    """The stage that computes the low parts, after the one that computes the high parts."""
    low = intermediate("low", shape_of(stage.buffer), BFLOAT16)
    high = prim.Cast("float32", stage.buffer[stage.indices])

    def rest(node: Expr) -> Expr | None:
        is_high = isinstance(node, prim.Cast) and str(node.ty.dtype) == BFLOAT16
        return prim.Cast(BFLOAT16, node.value - high) if is_high else None

    return replace(stage, name="low", buffer=low, value=transform(stage.value, rest))


def _stores_in_order(stage: Stage) -> bool:
    """Whether the indices of what a stage writes are its axes, one after the other."""
    indices = zip(stage.indices, stage.axes, strict=False)
    return len(stage.indices) == len(stage.axes) and all(index.same_as(axis.var) for index, axis in indices)


def _high_parts(stage: Stage, high: Any) -> Stage:
    return replace(stage, buffer=high, value=prim.Cast(BFLOAT16, stage.value))


def _factor(node: Expr, source: Any, high: Any) -> Expr:
    """A factor of a product, which loads a high part if it loaded from `source`."""
    factor = factor_of(node)
    if factor is None or not factor.load.source.same_as(source):
        return node
    return prim.Cast("float32", high[tuple(factor.load.indices)])
