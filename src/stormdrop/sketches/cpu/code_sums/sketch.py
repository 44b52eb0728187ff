"""Products with weights that are codes, with the scale and the zero point of a group left to one correction.

    sum of a[k] (code[k, j] - zero[g, j]) scale[g, j]  =
        sum over groups of scale[g, j] (sum of a[k] code[k, j]  -  zero[g, j] sum of a[k])

    for tiles of columns and rows, in parallel over columns:
        accumulators[rows, columns] = 0
        for group:
            sums[rows, columns] = 0                                        registers
            for word of four bytes, for code in word, unrolled:
                sums[rows, columns] += scaled[rows, k] float32(word[columns] & mask of the code)
            accumulators += scale[group, columns] (sums - zero[group, columns] total[rows, group])
        output[rows, columns] = epilogue(accumulators)

A word holds the codes of one column for several steps. A code that is masked and not shifted is 16 or 256 times as
large for each place in the word, so the data are that much smaller there. The factors are powers of two, so this is
exact, but for data below 1e-30, which may become denormals. Only the last code of a word, beside the sign, is shifted.
A weight takes three instructions of a vector in place of five: a mask, a conversion and a multiply-add. The sums of the
data of each group, `total`, are computed once before. With few rows of data decoding is what bounds such layers.

The result is rounded otherwise than in the other order, because the difference is taken after the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ....errors import UnsupportedFunction
from ....ir.kept import kept
from ....ir.workload import Workload
from ....machine.cpu import Cpu
from ....space import Constraint, Knob, Ordinal, Space
from ...contract import Variant
from ..cheapest_origin import with_cheapest_origin
from ..contractions.contraction_shape import fits_registers
from ..contractions.register_blocked import column_tiles
from ..prefetch import prefetch_knob
from . import cost_model
from .product import product_of
from .sum_loops import CodeSumLoops

_MOST_ROWS = 16  # of data: with more, decoding is shared by so many products that it counts for little
_VECTORS = (1, 2, 3, 4, 6, 8)
UNROLLS = (1, 2, 4, 8)
AHEAD = (0, 1024, 2048, 4096, 8192)  # bytes


@dataclass(frozen=True)
class CodeSums:
    """A sketch for products with grouped codes, see the module."""

    name: ClassVar[str] = "code_sums"
    max_error: ClassVar[float] = 1e-5

    def space(self, workload: Workload, target: Cpu) -> Space | None:
        """The tilings whose sums fit the register file; None for another function.

        The knobs:

        - `rows`, `columns`: of a tile
        - `unroll`: words of a group that are unrolled
        - `ahead`: by how many bytes words are fetched ahead, if they are no small part of a second cache
        """
        return _space(workload, target)

    def estimate(self, workload: Workload, target: Cpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The expected cycles of n configurations."""
        return cost_model.cycles(product_of(workload), knobs, target)

    def apply(self, workload: Workload, target: Cpu, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration."""
        return CodeSumLoops(product_of(workload), config, target).variant()


@kept
def _space(workload: Workload, target: Cpu) -> Space | None:
    try:
        product = product_of(workload)
    except UnsupportedFunction:
        return None
    if product.rows > _MOST_ROWS or target.keep_denormals:
        return None  # scaled data may be denormals
    knobs: list[Knob] = [
        Ordinal("rows", range(1, product.rows + 1)),
        Ordinal("columns", column_tiles(product.contraction.column.extent, target.lanes, _VECTORS)),
        Ordinal("unroll", [factor for factor in UNROLLS if product.words % factor == 0]),
    ]
    if prefetch_knob(product.column_bytes, target):
        knobs.append(Ordinal("ahead", AHEAD))
    fits = Constraint(
        ("rows", "columns"),
        lambda rows, columns: bool(fits_registers(rows, columns, target)),
        f"sums, a row of columns and one more fit {target.registers} registers of {target.lanes}",
    )
    space = Space(CodeSums.name, knobs, [fits])
    return with_cheapest_origin(space, lambda columns: cost_model.cycles(product, columns, target))
