"""The transforms of Winograd's minimal filtering F(m, r): their matrices, and how to multiply by them.

    y = A^T [(G g) * (B^T d)]                    m outputs of a filter of r taps from alpha = m + r - 1 inputs
    Y = A^T [(G g G^T) * (B^T d B)] A            the same along two axes: equation 8 of Lavin and Gray, arXiv:1509.09308

d are inputs, g the weights, y the outputs, * elementwise. The matrices are those of Cook and Toom's construction
(section 5 there): products of polynomials by interpolation at alpha - 1 points and infinity.

The points decide about the rounding error. Those for alpha = 6 are 0, +-sqrt(2) and +-1/sqrt(2): the largest error is
a fifth of that of the customary 0, +-1, +-2 (64 channels of normal random numbers: 1.4e-6 of the largest output, not
7e-6; other pairs of points near these are alike, and all others that were tried worse), and p^2 = 2, q^2 = 1/2 and
p^2 q^2 = 1 are as cheap to multiply by. Those for alpha = 8 are the best powers of two: 4e-6 for F(4x4, 5x5), where
the best that were found have 3e-6. Those for alpha = 10, for F(4, 7) along one axis, are the best of 330: 2.3e-6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from tvm import tirx

from ....ir.expressions import Expr

Matrix = NDArray[np.float64]

# By alpha. 0 first, then pairs of opposite points: `rows_of_input` and `rows_of_output` share what a pair has in
# common.
POINTS: dict[int, tuple[float, ...]] = {
    1: (),
    4: (0, 1, -1),
    6: (0, 2**0.5, -(2**0.5), 0.5**0.5, -(0.5**0.5)),
    8: (0, 1, -1, 2, -2, 0.5, -0.5),
    10: (0, 0.5, -0.5, 0.75, -0.75, 4 / 3, -4 / 3, 2.5, -2.5),
}


@dataclass(frozen=True)
class Filter:
    """F(m, r) along one axis: m outputs of r taps. F(1, 1) transforms nothing."""

    m: int
    r: int

    @property
    def alpha(self) -> int:
        """Inputs, and products, of m outputs."""
        return self.m + self.r - 1


@dataclass(frozen=True, eq=False)
class Matrices:
    """`input` is B^T [alpha, alpha], `weight` G [alpha, r], `output` A^T [m, alpha]."""

    input: Matrix
    weight: Matrix
    output: Matrix


@lru_cache
def matrices(of: Filter) -> Matrices:
    """The matrices of a filter at the points for its alpha."""
    points = np.array(POINTS[of.alpha], dtype=np.float64)
    inputs, weight = np.zeros((of.alpha, of.alpha)), np.zeros((of.alpha, of.r))
    output = np.zeros((of.m, of.alpha))
    for at, point in enumerate(points):
        others = np.delete(points, at)
        inputs[at, :-1] = np.poly(others)[::-1]
        weight[at] = point ** np.arange(of.r) / np.prod(point - others)
        output[:, at] = point ** np.arange(of.m)
    inputs[-1], weight[-1, -1], output[-1, -1] = np.atleast_1d(np.poly(points))[::-1], 1.0, 1.0
    inputs[np.abs(inputs) < 1e-12] = 0.0  # what is left of terms that cancel
    return Matrices(inputs, weight, output)


def rows_of_input(of: Filter, values: Sequence[Expr]) -> list[Expr]:
    """B^T times a column of alpha values.

    The rows of two opposite points are even + odd and even - odd, in terms that are written alike: the compiler
    computes them once.
    """

    def row(factors: Matrix) -> Expr:
        even, odd = factors.copy(), factors.copy()
        even[1::2], odd[0::2] = 0.0, 0.0
        leading = odd[np.nonzero(odd)[0][-1]] if odd.any() else 1.0
        # Signs come from outside, so that the inner sum is the same for both points.
        return _sum([(1.0, _linear(even, values)), (leading, _linear(odd / leading, values))])

    return [row(factors) for factors in matrices(of).input]


def rows_of_output(of: Filter, values: Sequence[Expr]) -> list[Expr]:
    """A^T times a column of alpha values: sums and differences of the values at opposite points, computed once."""
    pairs = [(values[at], values[at + 1]) for at in range(1, len(values) - 1, 2)]

    def row(power: int, factors: Matrix) -> Expr:
        terms = [(factors[0], values[0])] if pairs else []
        for at, (left, right) in enumerate(pairs):
            terms.append((factors[1 + 2 * at], left + right if power % 2 == 0 else left - right))
        return _sum([*terms, (factors[-1], values[-1])])

    return [row(power, factors) for power, factors in enumerate(matrices(of).output)]


def _linear(factors: Matrix, values: Sequence[Expr]) -> Expr | None:
    return _sum(list(zip(factors, values, strict=True)))


def _sum(terms: Sequence[tuple[float, Expr | None]]) -> Expr | None:
    """The sum of float32 factors times values: 1 costs nothing, -1 a subtraction. None for no terms."""
    present = [(float(np.float32(factor)), value) for factor, value in terms if factor and value is not None]
    # What is added first should not need a negation.
    present.sort(key=lambda term: term[0] != 1.0)
    total: Expr | None = None
    for factor, value in present:
        magnitude = value if abs(factor) == 1.0 else value * tirx.const(abs(factor), "float32")
        if total is None:
            total = magnitude if factor > 0 else tirx.const(0.0, "float32") - magnitude
        else:
            total = total + magnitude if factor > 0 else total - magnitude
    return total
