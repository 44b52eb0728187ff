"""What to expect of a contraction by tiles before anything is measured.

    per tile of words    the products of the step's tiles (16 cycles each; three for each product of parts), or the
                         loads of their operands (8 cycles each, more from beyond the first cache), whichever is most
    per step             sums stored and loaded again, and the epilogue of each vector
    per element          its parts, if there are any
    per panel            its columns are packed, if they vary

The figures are what the instructions take on a Sapphire Rapids. It expects too little time where memory decides.
Cycles are those of one core that starts one multiply-add of float32 vectors per cycle, as in the model of
`register_blocked`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....ir.contractions.contraction import Contraction
from ....ir.stages import shape_of
from ....machine.cpu import Cpu
from ..contractions.dot_products import DotProducts
from ..prefetch import LINE, PREFETCH
from .columns import packs_by_panel
from .groups import BY_COLUMN, steps_per_group
from .instructions import TILE, WORD_BYTES
from .loops import BLOCK
from .parts import PRODUCTS
from .reductions import products_of
from .rows import rows_of

_PRODUCT, _LOAD, _STORE, _EPILOGUE = 16.0, 8.0, 16.0, 4.0  # cycles of a tile; the last of a vector
_L2, _MEMORY = 40.0, 8.0  # bytes per cycle from there
_TASK, _FETCH = 500.0, 0.5  # cycles of a task; of a line that is fetched ahead
_PARTS, _PARTS_APART = 0.3, 0.9  # cycles of an element of which two parts are computed: by its group, by a stage before
_USABLE = 0.8  # the share of a cache that is found again


def cycles(
    contraction: Contraction, dots: DotProducts, knobs: Mapping[str, NDArray[Any]], target: Cpu
) -> NDArray[np.float64]:
    """The expected cycles of n configurations.

    Args:
        contraction: The contraction.
        dots: How tiles multiply it.
        knobs: n values of each knob, by name.
        target: The machine.
    """
    extents = rows_of(contraction).extents
    words = dots.parts * math.prod(dots.extents(contraction))
    rows, row_tiles, column_tiles = (knobs[name] for name in ("rows", "row_tiles", "column_tiles"))
    sizes = [row_tiles, rows] if len(extents) == 2 else [row_tiles * rows]
    row_steps = np.prod([np.ceil(extent / size) for extent, size in zip(extents, sizes, strict=True)], axis=0)
    panels = np.ceil(contraction.column.extent / (TILE * column_tiles))
    steps = math.prod(axis.extent for axis in contraction.outer) * row_steps * panels
    panel = WORD_BYTES * TILE * column_tiles * words
    data = WORD_BYTES * rows * row_tiles * words
    by_column = knobs["order"] == BY_COLUMN
    products = math.prod(products_of(contraction, dots))
    blocks = products / knobs.get(BLOCK, np.full(1, products))
    sums = rows * row_tiles * TILE * column_tiles
    group = steps_per_group(contraction, dots, target, steps / panels, panels, sums, by_column)
    group = np.where(blocks > 1, group, 1)
    # The steps of a group find their panel again, or a step that walks through columns its data.
    together = by_column | (group > 1)
    again, fresh = np.where(together, panel, data), np.where(together, data, panel)
    near = np.where((again + fresh) / blocks <= _USABLE * target.l1, 0.0, again / _L2)
    # All data pass for each panel, or all columns for each group.
    far_data = data / np.where(np.where(by_column, data * row_steps, 0) <= _USABLE * target.l2, _L2, _MEMORY)
    far_columns = panel / group / np.where(panel * panels <= _USABLE * target.l2, _L2, _MEMORY)
    # Constant columns come from memory once.
    cold = panel / row_steps / _MEMORY if contraction.constant is not None else 0.0
    streamed = np.where(by_column, cold, np.maximum(far_columns, cold))
    fetched = knobs.get(PREFETCH, np.zeros(1)) == 1
    waiting = np.where(together & ~fetched, streamed, 0.0)
    far = np.where(together, far_data, 0.0) + streamed - waiting
    multiplied = len(PRODUCTS) if dots.parts > 1 else 1
    loads = dots.parts * _LOAD * (row_tiles + column_tiles)
    computed = products * np.maximum(multiplied * _PRODUCT * row_tiles * column_tiles, loads)
    computed = computed + np.where(fetched, _FETCH * panel / LINE / group, 0.0)
    end = row_tiles * column_tiles * (blocks * _STORE + (blocks - 1) * _LOAD + _EPILOGUE * rows)
    total = np.ceil(steps / panels / group) * panels
    tasks = np.minimum(total, target.cores * knobs["tasks"])
    rounds = np.ceil(tasks / target.cores) * np.ceil(total / tasks) * group
    # Columns that vary are read by the tasks that pack them, or read and written before.
    of_task = np.ceil(tasks / target.cores) * np.ceil(np.ceil(total / tasks) * panels / total)
    by_panel = by_column & packs_by_panel(contraction)
    packs = np.where(by_panel, of_task, 2 * panels / target.cores) if contraction.constant is None else 0.0
    elements = math.prod(shape_of(contraction.other.source)) if dots.parts > 1 else 0
    parts = np.where(by_column, _PARTS_APART, _PARTS) * elements / target.cores
    return np.asarray(
        rounds * (np.maximum(computed, near + far) + waiting + end) + _TASK * tasks + parts + packs * panel / _MEMORY,
        dtype=np.float64,
    )
