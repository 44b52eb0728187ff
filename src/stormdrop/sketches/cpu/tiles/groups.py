"""How many steps of tiles wait for each other.

If a reduction is walked through in blocks, the steps of a group take turns: each adds up one block, and its sums wait
in a cache until its next turn. So the block of the panel comes from the first cache for all of them.

    BY_COLUMN    panels, and for each of them groups of rows. All steps are one group if the sums of so many fit. Each
                 panel is read once, and the data once for each panel.
    BY_ROW       groups of rows, and for each of them panels. The data of a group fit the second cache. The columns
                 are read once for each group.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....ir.contractions.contraction import Contraction
from ....ir.expressions import variables
from ....ir.stages import shape_of
from ....machine.cpu import Cpu
from ..contractions.dot_products import DotProducts
from .instructions import WORD_BYTES

BY_COLUMN, BY_ROW = ORDERS = ("columns", "rows")
"""Values of the knob `order`: whether the steps of a task walk through rows or through columns first."""

_SUMS = 64 << 10  # bytes of the sums of a group
_DATA = 0.4  # of a second cache: those of a group that walks through all panels


def steps_per_group(
    contraction: Contraction, dots: DotProducts, target: Cpu, steps: Any, panels: Any, sums: Any, by_column: Any
) -> Any:
    """The steps of a group, if there are several blocks of the reduction.

    Args:
        contraction: The contraction.
        dots: How tiles multiply it.
        target: The machine.
        steps: The steps with one panel, or those of n configurations, as for all that follow.
        panels: The panels.
        sums: The numbers that a step adds up.
        by_column: Whether the order is `BY_COLUMN`.

    Returns:
        The steps of a group, or those of n configurations.
    """
    source = contraction.other.source
    data = dots.parts * np.dtype(str(source.dtype)).itemsize * math.prod(shape_of(source))
    waiting = np.minimum(_SUMS // (WORD_BYTES * sums), steps)
    if walks_inside(contraction):
        waiting = np.minimum(waiting, steps // math.prod(axis.extent for axis in contraction.outer))
    of_rows = np.minimum(-(-steps // target.cores), np.floor(_DATA * target.l2 * steps / data))
    most = np.maximum(1, np.minimum(waiting, np.where(by_column, steps * panels // target.cores, of_rows)))
    return np.ceil(steps / np.ceil(steps / most))  # groups of one size, because the last one overlaps another one


def walks_inside(contraction: Contraction) -> bool:
    """Whether the column operand has axes outside of the columns, so that not all steps have the same panels."""
    used = variables(contraction.operand)
    return any(axis.var in used and axis.extent > 1 for axis in contraction.outer)
