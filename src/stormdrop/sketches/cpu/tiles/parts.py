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

from tvm.ir.prim import expr as prim

from ....ir.contractions.contraction import Contraction
from ....ir.contractions.made_data import with_made_data
from ....ir.dtypes import BFLOAT16
from ....ir.expressions import Expr, transform
from ....ir.stages import Stage, intermediate, shape_of

HIGH, LOW = 0, 1
_LINE, _FAR = 32, 512  # elements of a line of a cache; of 1 KiB

PRODUCTS = ((LOW, HIGH), (HIGH, HIGH), (HIGH, LOW))
"""Which parts of the data and of the columns are multiplied. In this order each of the four is loaded once."""


def with_high_parts(contraction: Contraction) -> Contraction:
    """The contraction of the high parts of the data, which a stage computes.

    Args:
        contraction: A contraction of float32.
    """
    *leading, width = shape_of(contraction.other.source)
    high = intermediate("high", [*leading, width + apart(width)], BFLOAT16)

    def high_parts(stage: Stage) -> Stage:
        return replace(stage, buffer=high, value=prim.Cast(BFLOAT16, stage.value))

    return with_made_data(contraction, high, high_parts, name="high", takes=_stores_in_order, sums="float32")


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
