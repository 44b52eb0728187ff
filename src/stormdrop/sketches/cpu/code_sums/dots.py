"""Products with weights that are codes, by instructions for bytes: the data are written in digits of a byte each.

    units[row, group] = 2 ** n, so that all data of the group are units * an integer of 24 bits, rounded
    digits[row, group, 3, k] = such an integer = 65536 digits[0] + 256 digits[1] + digits[2], each from -128 to 127

    for tiles of columns and rows, in parallel over columns:
        accumulators[rows, columns] = 0
        for group:
            sums[3, rows, columns] = -zero[group, columns] (sum of digits[rows, group, 3])         registers
            for words of four codes, unrolled:
                sums[3, rows, columns] += dot product of codes[columns] and digits[rows, group, 3]
            accumulators += scale[group, columns] units[rows, group] (65536 sums[0] + 256 sums[1] + sums[2])
        output[rows, columns] = epilogue(accumulators)

A dot product adds up four products of a byte without a sign (codes) and one with a sign (a digit). So 64 weights take
three instructions of 16 lanes, and float32 takes four multiply-adds and four conversions. Sums of integers are exact.
Data are rounded to the 24th bit of the largest number of their group, as sums of float32 are, too. With infinity or
NaN among its data, a row becomes NaN.

A word has four codes of 8 bits, or eight of 4 bits, of which the lower halves of the bytes are the first four.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ....errors import UnsupportedFunction
from ....ir.attributes import NEEDS
from ....ir.kept import kept
from ....ir.workload import Workload
from ....machine.cpu import Cpu
from ....space import Constraint, Knob, Ordinal, Space
from ...contract import Variant
from ..cheapest_origin import with_cheapest_origin
from ..contractions.dot_products import NARROWEST, unit_for_bytes
from ..contractions.register_blocked import column_tiles
from ..prefetch import prefetch_knob
from . import cost_model
from .dot_loops import CodeDotLoops
from .product import DIGITS, product_of
from .sketch import AHEAD, UNROLLS

_VECTORS = (1, 2, 3, 4, 6)
_MOST_CODES = 1 << 15  # of a group: their sums fit 32 bits


@dataclass(frozen=True)
class CodeDots:
    """A sketch for products with grouped codes on CPUs that multiply bytes, see the module."""

    name: ClassVar[str] = "code_dots"
    max_error: ClassVar[float] = 1e-5

    def space(self, workload: Workload, target: Cpu) -> Space | None:
        """The tilings whose sums fit the register file; None for another function, or a CPU without the unit.

        The knobs are those of `CodeSums.space`.
        """
        return _space(workload, target)

    def estimate(self, workload: Workload, target: Cpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The expected cycles of n configurations."""
        return cost_model.dot_cycles(product_of(workload), knobs, target)

    def apply(self, workload: Workload, target: Cpu, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration."""
        unit = unit_for_bytes(target)
        if unit is None:
            raise UnsupportedFunction("the CPU has no instruction for dot products of codes and bytes with a sign")
        feature, instruction = unit
        variant = CodeDotLoops(product_of(workload), config, target, instruction).variant()
        return Variant(variant.main.with_attr(NEEDS, [feature]), variant.transforms)


@kept
def _space(workload: Workload, target: Cpu) -> Space | None:
    try:
        product = product_of(workload)
    except UnsupportedFunction:
        return None
    extent = product.contraction.column.extent
    if unit_for_bytes(target) is None or product.codes > _MOST_CODES or extent < NARROWEST or target.keep_denormals:
        return None  # the units of the smallest data would be denormals
    columns = [size for size in column_tiles(extent, target.lanes, _VECTORS) if np.gcd(size, target.lanes) >= NARROWEST]
    rows = {-(-product.rows // count) for count in range(1, product.rows + 1)}
    knobs: list[Knob] = [
        Ordinal("rows", sorted(size for size in rows if _fits(size, 1, target))),
        Ordinal("columns", columns),
        Ordinal("unroll", [factor for factor in UNROLLS if product.words % factor == 0]),
    ]
    if prefetch_knob(product.column_bytes, target):
        knobs.append(Ordinal("ahead", AHEAD))
    fits = Constraint(
        ("rows", "columns"),
        lambda rows, columns: _fits(rows, columns, target),
        f"{DIGITS} sums for each element, and a row of columns, fit {target.registers} registers of {target.lanes}",
    )
    space = Space(CodeDots.name, knobs, [fits])
    return with_cheapest_origin(space, lambda columns: cost_model.dot_cycles(product, columns, target))


def _fits(rows: int, columns: int, target: Cpu) -> bool:
    return bool((DIGITS * rows + 1) * -(-columns // target.lanes) < target.registers)
