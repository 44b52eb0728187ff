"""The factors of a contraction: loads, which may be widened to the type of the sums, less a zero point.

    float32     A[i, k]                       B[k, j]
    bytes       int32(A[i, k])                int32(B[k, j])
    quantised   int32(A[i, k]) - 3            int32(B[k, j])

A quantised tensor stands for `scale * (element - zero point)`. Products of such factors are exact in 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.ir import TensorLoad
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm

from .expressions import Expr
from .stages import Stage


@dataclass(frozen=True, eq=False)
class Factor:
    """One factor of a product.

    Attributes:
        load: The element that is loaded.
        widened: Whether it is converted to another type before it is multiplied.
        zero_point: What is subtracted from it, after the conversion.
    """

    load: Any
    widened: bool
    zero_point: int = 0

    @property
    def dtype(self) -> str:
        """The type of the element in memory."""
        return str(self.load.source.dtype)


def factor_of(node: Expr) -> Factor | None:
    """An expression as a factor; None if it is anything else than a load, widened or not, less a constant."""
    zero_point = 0
    if isinstance(node, prim.Sub | prim.Add) and isinstance(node.b, IntImm):
        zero_point = int(node.b) if isinstance(node, prim.Sub) else -int(node.b)
        node = node.a
    widened = isinstance(node, prim.Cast)
    load = node.value if widened else node
    return Factor(load, widened, zero_point) if isinstance(load, TensorLoad) else None


def factors_of(stage: Stage) -> tuple[Factor, Factor] | None:
    """The two factors whose product a stage sums.

    Args:
        stage: the stage.

    Returns:
        The factors, left and right, which load from different buffers; None if the stage computes anything else.
    """
    if stage.combine != "sum" or not isinstance(stage.value, prim.Mul):
        return None
    left, right = factor_of(stage.value.a), factor_of(stage.value.b)
    if left is None or right is None or left.load.source.same_as(right.load.source):
        return None
    return left, right


def is_integer(dtype: str) -> bool:
    """Whether a type is one of integers; booleans are not."""
    return dtype.startswith(("int", "uint"))
