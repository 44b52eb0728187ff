"""What to expect of a Winograd schedule before it is measured, in cycles of one multiply-add each.

    per product          the multiply-adds of a tile of rows and columns, or its loads, or the latency that too few
                         accumulators do not hide; what it reads over the bandwidth of the cache that holds it
    per tile             the transforms, by vector and by position; if V is made apart, it goes through memory
    besides              padding, the start of tasks; weights that are fetched ahead, or waited for
    all of it            what blocks and tiles compute twice, and how long cores wait

The constants were fitted to some 170 random points of seven layers (7x7 to 272x272) on one core of a Zen 4. The mean
deviation of the logarithm is 0.09, of which half is the noise of that machine. What a pair of int16 costs was measured
on a Zen 3 (`contraction_shape`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....ir.stages import shape_of
from ....machine.cpu import Cpu
from ...winograd.convolution import Convolution
from ..contractions.contraction_shape import PAIR_OF_INT16
from ..prefetch import LINE, PREFETCH
from .arithmetic import Arithmetic
from .loops import BY_COLUMN, FUSED

Floats = NDArray[np.float64]

_LOAD, _BROADCAST, _LATENCY, _LOOP = 1.0, 0.5, 4.0, 0.5
_USEFUL_UNROLL = 4  # steps beyond which unrolling gains nothing
_CALL, _CLEAR = 20.0, 2.0  # per product, and per accumulator
_TRANSFORM = 3.0  # per vector of V or M
_EPILOGUE = 5.0  # per vector of outputs
_TASK = 500.0
_WEIGHT_BANDWIDTH = 32.0  # bytes per cycle of weights that every product takes from the second cache
_L2, _L3, _MEMORY = 64.0, 20.0, 8.0  # bytes per cycle
_WRITTEN = 2.5  # bytes moved for each that is written: the line is read before
_COPIED = 30.0  # bytes per cycle of padding
_FETCH = 0.5  # per line that is fetched ahead
_EXPOSED = 0.1  # share of the transfers that is never hidden by computation
_USABLE = 0.9  # share of a cache that is used before it overflows


def cycles(conv: Convolution, m: int, arithmetic: Arithmetic, knobs: Mapping[str, NDArray[Any]], target: Cpu) -> Floats:
    """Estimates the cycles of n configurations.

    Args:
        conv: The convolution.
        m: The outputs of a tile along each axis that has a window.
        arithmetic: What it is computed in.
        knobs: n values of each knob, by name; see `Winograd.space`.
        target: The machine.

    Returns:
        Expected cycles until the last core is done, shape `(n,)`.
    """
    down, across = conv.filters(m)
    positions, tiles, channels = down.alpha * across.alpha, conv.tiles(m), conv.channel.extent
    rows, columns, order = knobs["rows"], knobs["columns"], knobs["order"]
    size = np.minimum(rows * knobs["block"], tiles)
    blocks = np.ceil(tiles / size)
    vectors, column_tiles = columns / np.gcd(columns, target.lanes), np.ceil(conv.column.extent / columns)

    def per_byte(distance: Floats) -> Floats:
        """Cycles per byte that was read `distance` bytes ago: those of the first cache that still holds it."""
        outside = np.where(distance < target.l3, 1 / _L3, 1 / _MEMORY)
        beyond_l1 = np.where(distance < _USABLE * target.l2, 1 / _L2, outside)
        return np.where(distance < _USABLE * target.l1, 0.0, beyond_l1)

    item = float(arithmetic.itemsize)
    inputs, weights = item * positions * channels * size, item * positions * channels * columns
    result = 4.0 * positions * size * columns
    near, all_inputs, all_weights = inputs + weights + result, inputs * blocks, weights * column_tiles
    # By columns, the weights of a tile stay for all blocks; else the inputs of a block stay for all tiles of columns.
    fused, by_column = order == FUSED, order == BY_COLUMN
    first_weights = np.where(by_column, 1 / blocks, 1.0)
    weights_passing = np.where(by_column, all_inputs, inputs + result)
    moved = weights * (first_weights * per_byte(all_weights + weights_passing) + (1 - first_weights) * per_byte(near))
    first_inputs = np.where(by_column, 1.0, 1 / column_tiles)
    inputs_passing = np.where(fused, inputs + result, all_inputs + np.where(by_column, weights, 0.0))
    moved = moved + inputs * (first_inputs * per_byte(inputs_passing) + (1 - first_inputs) * per_byte(near))
    computed = positions * np.ceil(size / rows) * _product_cycles(channels, vectors, arithmetic, knobs, target)
    total = blocks * column_tiles * (np.maximum(computed, moved) + _EXPOSED * moved)

    transformed = blocks * size * positions * channels
    total = total + transformed * _TRANSFORM / math.gcd(channels, arithmetic.lanes(target))
    through_memory = ~fused | (inputs > _USABLE * target.l2)
    total = total + np.where(through_memory, item * transformed * _WRITTEN * per_byte(all_inputs), 0.0)
    outputs = blocks * size * column_tiles * vectors
    output_item, image_item = _itemsize(conv.contraction.epilogue.buffer), _itemsize(conv.data.source)
    output_bytes = np.asarray(output_item * math.prod(shape_of(conv.contraction.epilogue.buffer)))
    store = _EPILOGUE * (1 + _WRITTEN * output_item * target.lanes * per_byte(output_bytes))
    from_products = positions * (_TRANSFORM + 4 * target.lanes * per_byte(result))
    total = total + outputs * (from_products + down.m * across.m * store)
    if conv.before:
        copied = np.asarray(image_item * math.prod(shape_of(conv.data.source)))
        total = total + copied * (1 / _COPIED + per_byte(2 * copied) / 2)
    if PREFETCH in knobs:
        row_tiles = np.ceil(size / rows)
        steps = channels / arithmetic.group / knobs["unroll"]
        lines = np.maximum(row_tiles * steps, item * channels * columns / LINE)
        fetching = _FETCH * blocks * column_tiles * positions * lines
        total = total + np.where(knobs[PREFETCH] == 1, fetching, weight_bytes(conv, m, arithmetic) / _MEMORY)
    tasks = blocks * np.where(fused, 1, column_tiles)
    rounds = np.ceil(tasks / target.cores)
    return np.asarray((total + tasks * _TASK) * rounds / tasks, dtype=np.float64)


def _itemsize(buffer: Any) -> float:
    """The bytes of an element of the images or of the results."""
    return float(np.dtype(str(buffer.dtype)).itemsize)


def weight_bytes(conv: Convolution, m: int, arithmetic: Arithmetic) -> int:
    """The size of the transformed weights."""
    down, across = conv.filters(m)
    return arithmetic.itemsize * down.alpha * across.alpha * conv.channel.extent * conv.column.extent


def _product_cycles(
    channels: int, vectors: Floats, arithmetic: Arithmetic, knobs: Mapping[str, NDArray[Any]], target: Cpu
) -> Floats:
    """Cycles of the product of one tile of rows and columns at one position."""
    rows, columns = knobs["rows"], knobs["columns"]
    multiply = 1.0 if arithmetic.group == 1 else PAIR_OF_INT16
    step = np.maximum(multiply * rows * vectors, vectors * _LOAD + rows * _BROADCAST)
    all_weights = arithmetic.itemsize * channels * columns
    weights = np.where(all_weights < _USABLE * target.l1, 0.0, 4 * columns / _WEIGHT_BANDWIDTH)
    step = np.maximum(np.maximum(step, _LATENCY), weights) + _EXPOSED * weights
    step = step + _LOOP / np.minimum(knobs["unroll"], _USEFUL_UNROLL)
    return np.asarray(channels / arithmetic.group * step + _CLEAR * rows * vectors + _CALL, dtype=np.float64)
