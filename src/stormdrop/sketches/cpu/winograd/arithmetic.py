"""What a Winograd convolution computes in: float32, or integers for bytes.

    float32    V = B^T d B            U = G g G^T            M = sum of V U             Y = A^T M A
    integers   V in int16             U = 4 G g G^T, int16   M in int32, by vpmaddwd    Y = A^T M A / 4

Bytes take tiles of two outputs of a window of three, along one axis or two. Their matrices hold 0, 1, -1, and halves
in G only. So 2 G along each axis is whole, V and U need at most 10 and 12 bits and a sign, and Y is exact. No sum may
leave 32 bits: with uint8 data, a zero point of 0 and int8 weights there may be 1,826 channels.

They are offered where the machine multiplies these bytes in pairs of int16 only (see `dot_products`): where it
multiplies them in groups of four, at twice that rate, the direct convolution is about as fast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm

from ....ir.attributes import WORD
from ....ir.contractions.factors import Factor
from ....ir.expressions import Expr
from ....ir.kept import kept
from ....machine.cpu import Cpu
from ...winograd.convolution import Convolution
from ...winograd.transforms import Filter, Matrix, matrices
from ..contractions.dot_products import NARROWEST, dot_products, unit_for_int16

_M, _TAPS = 2, 3  # the only filter of integers
_LARGEST_SUM = 2**31 - 1


@dataclass(frozen=True)
class Arithmetic:
    """The types of a Winograd convolution, and how its elements are read, transformed and multiplied.

    Attributes:
        inputs: The type of V.
        sums: The type of everything else.
        feature: LLVM's name of the instruction set extension that is needed; None for float32.
        instruction: LLVM's name of the instruction that multiplies two channels at a time; None for float32.
        data_zero_point, weight_zero_point: What is subtracted from the elements that are loaded.
        halvings: How often the results are divided by 2, because the matrices of the weights are multiplied by 2.
    """

    inputs: str = "float32"
    sums: str = "float32"
    feature: str | None = None
    instruction: str | None = None
    data_zero_point: int = 0
    weight_zero_point: int = 0
    halvings: int = 0

    @property
    def group(self) -> int:
        """The channels whose products are added up at a time."""
        return 1 if self.instruction is None else 2

    @property
    def itemsize(self) -> int:
        """The bytes of an element of V, and of a weight in U."""
        return int(np.dtype(self.inputs).itemsize)

    def lanes(self, target: Cpu) -> int:
        """The elements of V in a vector."""
        return target.lanes * 4 // self.itemsize

    def constant(self, value: float) -> Expr:
        """A number in the type of the sums."""
        return tirx.const(value if self.instruction is None else round(value), self.sums)

    def data(self, load: Expr) -> Expr:
        """An element of the images as V is computed from it."""
        return _less(_converted(load, self.inputs), self.data_zero_point, self.inputs)

    def weight(self, load: Expr) -> Expr:
        """An element of the weights as U is computed from it."""
        return _less(_converted(load, self.sums), self.weight_zero_point, self.sums)

    def weight_matrix(self, tile: Filter) -> Matrix:
        """G of a filter, or 2 G."""
        matrix = matrices(tile).weight
        return 2 * matrix if self.halvings and tile.r > 1 else matrix

    def product(self, inputs: list[Expr], weights: Expr) -> Expr:
        """The product of a group of elements of V with the weights for them, which are one number or one word."""
        if self.instruction is None:
            (element,) = inputs
            return element * weights
        word = tirx.call_pure_extern("int32", WORD, *inputs)
        return tirx.call_llvm_pure_intrin(self.sums, self.instruction, IntImm("int32", 0), word, weights)

    def word(self, weights: list[Expr]) -> Expr:
        """The elements of U for one group, as `product` takes them."""
        if self.instruction is None:
            return weights[0]
        low, high = weights
        return prim.FloorMod(low, IntImm("int32", 1 << 16)) + high * (1 << 16)

    def result(self, value: Expr) -> Expr:
        """An output of the convolution: what A^T M A gives, divided by 2 for each matrix that was doubled."""
        return tirx.shift_right(value, IntImm(self.sums, self.halvings)) if self.halvings else value


FLOAT32 = Arithmetic()
"""That of images and weights in float32, and in bfloat16, which is widened where it is read."""


@kept
def integers_for(conv: Convolution, target: Cpu) -> Arithmetic | None:
    """The integers in which a machine computes a convolution of bytes.

    Args:
        conv: The convolution.
        target: The machine.

    Returns:
        None if the images are no bytes, the machine multiplies these bytes otherwise or has no instruction for int16,
        the window is another one, the channels are no pairs or too few, or sums might leave 32 bits.
    """
    data, weight = conv.contraction.data_factor, conv.contraction.column_factor
    unit = unit_for_int16(target)
    if not conv.of_bytes or unit is None or dot_products(conv.contraction, target) is not None:
        return None
    windows = [tile for tile in conv.filters(_M) if tile.r > 1]
    if any(tile.r != _TAPS for tile in windows) or conv.channel.extent % 2 or conv.column.extent < NARROWEST:
        return None
    arithmetic = Arithmetic("int16", "int32", *unit, data.zero_point, weight.zero_point, len(windows))
    largest = conv.channel.extent * _largest(data) * _largest(weight)
    for tile in windows:
        largest *= _growth(arithmetic, tile)
    return arithmetic if largest <= _LARGEST_SUM else None


def _growth(arithmetic: Arithmetic, tile: Filter) -> int:
    """The largest sum along an axis for each channel, as a multiple of the largest product of two elements.

    The sums are the products, what two opposite points have in common, and the outputs, as `rows_of_output` makes them.
    Each is a sum of inputs times weights whose coefficients are known. It is the largest if all terms have the same
    sign. (Added up in another order the sums might leave 32 bits, and would still be right in the end.)
    """
    points, output = np.eye(tile.alpha), matrices(tile).output
    pairs = [(points[first], points[first + 1]) for first in range(1, tile.alpha - 1, 2)]
    sums = [*points, *output, *(left + right for left, right in pairs), *(left - right for left, right in pairs)]
    inputs, weights = matrices(tile).input, arithmetic.weight_matrix(tile)
    coefficients = np.einsum("si,ij,ik->sjk", sums, inputs, weights)
    return round(float(np.abs(coefficients).sum(axis=(1, 2)).max()))


def _largest(factor: Factor) -> int:
    """The largest magnitude of a byte less its zero point."""
    limits = np.iinfo(factor.dtype)
    return int(max(limits.max - factor.zero_point, factor.zero_point - limits.min))


def _converted(load: Expr, dtype: str) -> Expr:
    return load if str(load.ty.dtype) == dtype else prim.Cast(dtype, load)


def _less(value: Expr, zero_point: int, dtype: str) -> Expr:
    return value - IntImm(dtype, zero_point) if zero_point else value
