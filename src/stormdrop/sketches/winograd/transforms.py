"""The transforms of Winograd's minimal filtering F(m, r): their matrices, and how to multiply by them.

    y = A^T [(G g) * (B^T d)]                    m outputs of a filter of r taps from alpha = m + r - 1 inputs
    Y = A^T [(G g G^T) * (B^T d B)] A            the same along two axes: equation 8 of Lavin and Gray, arXiv:1509.09308

d are inputs, g the weights, y the outputs, * elementwise. The matrices are those of Cook and Toom's construction
(section 5 there): products of polynomials by interpolation at alpha - 1 points and infinity.

The points decide how large the rounding error is. The errors here are shares of the largest output, for 64 channels of
normal random numbers.

- alpha = 6: 0, +-sqrt(2) and +-1/sqrt(2). The error is 1.4e-6, a fifth of that of the customary 0, +-1, +-2. Other
  pairs of points near these are alike, and all others that were tried are worse. p^2 = 2, q^2 = 1/2 and p^2 q^2 = 1 are
  as cheap to multiply by as the customary ones.
- alpha = 8: the best powers of two. The error is 4e-6 for F(4x4, 5x5); the best points that were found have 3e-6.
- alpha = 10, for F(4, 7) along one axis: the best of 330. The error is 2.3e-6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from tvm import tirx

from ...ir.expressions import Expr

Matrix = NDArray[np.float64]

POINTS: dict[int, tuple[float, ...]] = {
    1: (),
    4: (0, 1, -1),
    6: (0, 2**0.5, -(2**0.5), 0.5**0.5, -(0.5**0.5)),
    8: (0, 1, -1, 2, -2, 0.5, -0.5),
    10: (0, 0.5, -0.5, 0.75, -0.75, 4 / 3, -4 / 3, 2.5, -2.5),
}
"""The points by alpha: 0 first, then pairs of opposite points.

`rows_of_input` and `rows_of_output` compute what the two points of a pair have in common once.
"""


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
    """The matrices of one filter.

    Args:
        input: B^T, shape `(alpha, alpha)`.
        weight: G, shape `(alpha, r)`.
        output: A^T, shape `(m, alpha)`.
    """

    input: Matrix
    weight: Matrix
    output: Matrix


@lru_cache
def matrices(tile: Filter) -> Matrices:
    """The matrices of a filter at the points for its alpha."""
    points = np.array(POINTS[tile.alpha], dtype=np.float64)
    inputs, weight = np.zeros((tile.alpha, tile.alpha)), np.zeros((tile.alpha, tile.r))
    output = np.zeros((tile.m, tile.alpha))
    for number, point in enumerate(points):
        others = np.delete(points, number)
        inputs[number, :-1] = np.poly(others)[::-1]
        weight[number] = point ** np.arange(tile.r) / np.prod(point - others)
        output[:, number] = point ** np.arange(tile.m)
    inputs[-1], weight[-1, -1], output[-1, -1] = np.atleast_1d(np.poly(points))[::-1], 1.0, 1.0
    inputs[np.abs(inputs) < 1e-12] = 0.0  # what is left of terms that cancel
    return Matrices(inputs, weight, output)


def rows_of_input(tile: Filter, values: Sequence[Expr]) -> list[Expr]:
    """B^T times a column of alpha values, as one expression per row.

    The rows of two opposite points are even + odd and even - odd. Both are written in the same terms, so that the
    compiler computes these once.
    """

    def row(factors: Matrix) -> Expr:
        even, odd = factors.copy(), factors.copy()
        even[1::2], odd[0::2] = 0.0, 0.0
        leading = odd[np.nonzero(odd)[0][-1]] if odd.any() else 1.0
        # Signs come from outside, so that the inner sum is the same for both points.
        return _sum([(1.0, _linear(even, values)), (leading, _linear(odd / leading, values))])

    return [row(factors) for factors in matrices(tile).input]


def rows_of_output(tile: Filter, values: Sequence[Expr]) -> list[Expr]:
    """A^T times a column of alpha values, as one expression per row.

    They are written in sums and differences of the values at opposite points, which the compiler computes once.
    """
    pairs = [(values[first], values[first + 1]) for first in range(1, len(values) - 1, 2)]

    def row(power: int, factors: Matrix) -> Expr:
        terms = [(factors[0], values[0])] if pairs else []
        for number, (left, right) in enumerate(pairs):
            terms.append((factors[1 + 2 * number], left + right if power % 2 == 0 else left - right))
        return _sum([*terms, (factors[-1], values[-1])])

    return [row(power, factors) for power, factors in enumerate(matrices(tile).output)]


def _linear(factors: Matrix, values: Sequence[Expr]) -> Expr | None:
    return _sum(list(zip(factors, values, strict=True)))


def _sum(terms: Sequence[tuple[float, Expr | None]]) -> Expr | None:
    """The sum of factors times values, in the type of the values; None if there are no terms.

    A factor of 1 costs nothing, a factor of -1 costs a subtraction. Other factors are for float32.
    """
    present = [(float(np.float32(factor)), value) for factor, value in terms if factor and value is not None]
    # The first term should not need a negation.
    present.sort(key=lambda term: term[0] != 1.0)
    total: Expr | None = None
    for factor, value in present:
        magnitude = value if abs(factor) == 1.0 else value * tirx.const(abs(factor), "float32")
        if total is None:
            total = magnitude if factor > 0 else tirx.const(0, str(magnitude.ty.dtype)) - magnitude
        else:
            total = total + magnitude if factor > 0 else total - magnitude
    return total
