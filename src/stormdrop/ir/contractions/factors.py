"""The factors of a contraction: loads, which may be widened to the type of the sums, less a zero point, or decoded.

    float32        A[i, k]                       B[k, j]
    bfloat16       float32(A[i, k])              float32(B[k, j])
    TF32           tf32(A[i, k])                 tf32(B[k, j])
    bytes          int32(A[i, k])                int32(B[k, j])
    quantised      int32(A[i, k]) - 3            int32(B[k, j])
    weight-only    A[i, k]                       float32(int32(B[k, j]) - zero[group, j]) * scale[group, j]

A quantised tensor stands for `scale * (element - zero point)`. Products of quantised factors are exact in 32 bits. The
codes of weight-only quantisation are decoded before they are multiplied; several may share a byte, of which shifts and
masks take one. `tf32` keeps 10 bits of the mantissa of a float32, as NVIDIA's tensor cores do (TF32).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.ir import TensorLoad
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm

from ..dtypes import is_integer
from ..expressions import Expr, is_tf32, loads_in
from ..kept import kept
from ..stages import Stage


@dataclass(frozen=True, eq=False)
class Factor:
    """One factor of a product.

    Attributes:
        load: The element that is loaded.
        widened: Whether it is converted to another type before it is multiplied.
        zero_point: What is subtracted from it, after the conversion.
        decoders: The loads that decode it: of zero points and of a scale. Empty if it is not decoded.
        rounded: Whether it is rounded to TF32.
    """

    load: Any
    widened: bool
    zero_point: int = 0
    decoders: tuple[Any, ...] = ()
    rounded: bool = False

    @property
    def dtype(self) -> str:
        """The type of the element in memory."""
        return str(self.load.source.dtype)

    @property
    def is_byte(self) -> bool:
        """Whether it is a byte less a zero point that is a byte of its type: 9 bits with a sign."""
        if self.dtype not in ("int8", "uint8") or self.decoders:
            return False
        limits = np.iinfo(self.dtype)
        return bool(limits.min <= self.zero_point <= limits.max)


def factor_of(node: Expr) -> Factor | None:
    """An expression as a factor; None if it is no load that is widened, less a constant, or decoded."""
    if isinstance(node, prim.Mul):
        return _decoded(node)
    if is_tf32(node):
        return Factor(node.args[1], False, rounded=True) if isinstance(node.args[1], TensorLoad) else None
    zero_point = 0
    if isinstance(node, prim.Sub | prim.Add) and isinstance(node.b, IntImm):
        zero_point = int(node.b) if isinstance(node, prim.Sub) else -int(node.b)
        node = node.a
    widened = isinstance(node, prim.Cast)
    load = node.value if widened else node
    return Factor(load, widened, zero_point) if isinstance(load, TensorLoad) else None


def _decoded(node: Expr) -> Factor | None:
    """A scale times a value that integers alone make, of which the first one loaded is the code."""
    value, scale = node.a, node.b
    if not isinstance(value, prim.Cast) or not isinstance(scale, TensorLoad):
        return None
    code, *zeros = loads_in(value.value) or [None]
    if code is None or not all(is_integer(str(load.source.dtype)) for load in (code, *zeros)):
        return None
    return Factor(code, True, decoders=(*zeros, scale))


@kept
def factors_of(stage: Stage) -> tuple[Factor, Factor] | None:
    """The two factors whose product a stage sums.

    Args:
        stage: The stage.

    Returns:
        The factors, left and right, which load from different buffers; None if the stage computes anything else.
    """
    if stage.combine != "sum" or not isinstance(stage.value, prim.Mul):
        return None
    left, right = factor_of(stage.value.a), factor_of(stage.value.b)
    if left is None or right is None or left.load.source.same_as(right.load.source):
        return None
    return left, right
