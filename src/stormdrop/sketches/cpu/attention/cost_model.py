"""What to expect of attention in blocks of rows before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....machine.cpu import Cpu
from .chain import Chain

# Costs in cycles of a core that starts one multiply-add per cycle.
_LOAD = 1.25  # of a vector, or of a row's element that is broadcast, per step
_BROADCAST = 0.5  # of a row's element, if instructions broadcast an operand from memory: AVX-512
_LATENCY = 4.0  # of a multiply-add
_STORE = 6.0  # per vector of a tile
_SOFTMAX = 28.0  # per vector of scores
_ROW = 40.0  # per row of the softmax
_L2, _L3 = 26.0, 10.0  # bytes per cycle
_PACK = 4.0  # bytes per cycle that are laid out anew
_APART = 1.1  # times that a product takes if the columns of a step lie far apart, from one step to the next
_AGAIN = 0.25  # of the values' way from the second cache, which each tile of rows reads again, that is not hidden
_TASK = 500.0


def cycles(chain: Chain, knobs: Mapping[str, NDArray[Any]], target: Cpu) -> NDArray[np.float64]:
    """Cycles until the last core is done: products, softmax, and what they read from which cache.

    Args:
        chain: The function.
        knobs: n values of each knob, by name.
        target: The machine.
    """
    rows, height = knobs["rows"], knobs["rows"] * knobs["block"]
    keys, columns = chain.scores.column.extent, chain.values.column.extent
    blocks = np.ceil(chain.rows / height)
    tasks = chain.heads * blocks

    def product(size: NDArray[Any], extent: int, steps: int, unroll: NDArray[Any]) -> NDArray[np.float64]:
        vectors = np.ceil(size / target.lanes)
        loads = _LOAD * (vectors + rows) if target.lanes < 16 else vectors + _BROADCAST * rows
        step = np.maximum(rows * vectors, loads)
        tile = steps * (np.maximum(step, _LATENCY) + 1 / unroll) + _STORE * rows * vectors
        return np.asarray(knobs["block"] * np.ceil(extent / size) * tile, float)

    of_keys = 4.0 * keys * chain.scores.steps
    of_values = 4.0 * keys * columns
    held = 4.0 * height * keys + of_keys + of_values
    rate = np.where(held > target.l2, _L3, _L2)
    task = (
        product(knobs["keys"], keys, chain.scores.steps, knobs["unroll"]) * np.where(knobs["pack_keys"], 1, _APART)
        + product(knobs["columns"], columns, chain.values.steps, knobs["unroll_keys"])
        * np.where(knobs["pack_values"], 1, _APART)
        + height
        * (_SOFTMAX * knobs["vectors"] * np.ceil(keys / target.lanes / knobs["vectors"]) + _ROW / knobs["vectors"])
        + (of_keys + of_values) / rate
        + _AGAIN * knobs["block"] * of_values / _L2
        + _TASK
    )
    packing = chain.heads * (knobs["pack_keys"] * of_keys + knobs["pack_values"] * of_values) / _PACK
    return np.asarray(np.ceil(tasks / target.cores) * task + packing / target.cores, float)
