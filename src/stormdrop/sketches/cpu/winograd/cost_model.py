"""What to expect of a Winograd schedule before it is measured, in the cycles of `prior` (one multiply-add each).

    per product          the multiply-adds of a tile of rows and columns, or its loads, or the latency that too few
                         accumulators leave bare; what it reads over the bandwidth of the cache that holds it
    per tile             the transforms, by vector and by position; where V is made apart it goes through memory
    beside               padding, the start of tasks
    all of it            what blocks and tiles compute twice, and what cores wait for

The constants were fitted to some 170 random points of seven layers (7x7 to 272x272) on one core of a Zen 4: the mean
deviation of the logarithm is 0.09, of which half is the noise of that machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....ir.stages import shape_of
from ....machine.cpu import Target
from .convolution import Convolution

Floats = NDArray[np.float64]

_LOAD, _BROADCAST, _LATENCY, _LOOP = 1.0, 0.5, 4.0, 0.5
_UNROLL = 4  # steps beyond which unrolling gains nothing
_CALL, _CLEAR = 20.0, 2.0  # per product, and per accumulator
_TRANSFORM = 3.0  # per vector of V or M
_EPILOGUE = 5.0  # per vector of outputs
_TASK = 500.0
_FILL = 32.0  # bytes per cycle of weights that every product takes from the second cache
_L2, _L3, _MEMORY = 64.0, 20.0, 8.0  # bytes per cycle
_WRITTEN = 2.5  # bytes moved for each that is written: the line is read before
_COPIED = 30.0  # bytes per cycle of padding
_EXPOSED = 0.1  # share of the transfers that is never hidden by computation
_USED = 0.9  # of a cache, before it overflows


def cycles(conv: Convolution, m: int, knobs: Mapping[str, NDArray[Any]], target: Target) -> Floats:
    """Expected cycles of n configurations with tiles of m outputs along each axis, given as n values of each knob."""
    down, across = conv.filters(m)
    positions, tiles, channels = down.alpha * across.alpha, conv.tiles(m), conv.channel.extent
    rows, columns = knobs["rows"], knobs["columns"]
    fused, by_column = knobs["order"] == "fused", knobs["order"] == "columns"
    size = np.minimum(rows * knobs["block"], tiles)
    blocks, products = np.ceil(tiles / size), np.ceil(size / rows)
    vectors, column_tiles = columns / np.gcd(columns, target.lanes), np.ceil(conv.column.extent / columns)

    def per_byte(held: Floats) -> Floats:
        """Cycles per byte that comes from the cache which holds so many bytes."""
        outside = np.where(held < target.l3, 1 / _L3, 1 / _MEMORY)
        return np.where(held < _USED * target.l1, 0.0, np.where(held < _USED * target.l2, 1 / _L2, outside))

    step = np.maximum(rows * vectors, vectors * _LOAD + rows * _BROADCAST)
    filled = np.where(4 * channels * columns < _USED * target.l1, 0.0, 4 * columns / _FILL)
    step = np.maximum(np.maximum(step, _LATENCY), filled) + _EXPOSED * filled
    step = step + _LOOP / np.minimum(knobs["unroll"], _UNROLL)
    computed = positions * products * (channels * step + _CLEAR * rows * vectors + _CALL)
    inputs, weights = 4.0 * positions * channels * size, 4.0 * positions * channels * columns
    result = 4.0 * positions * size * columns
    near, all_inputs, all_weights = inputs + weights + result, inputs * blocks, weights * column_tiles
    # By columns, the weights of a tile stay for all blocks; else the inputs of a block stay for all tiles of columns.
    kept = np.where(by_column, 1 / blocks, 1.0)
    moved = weights * (
        kept * per_byte(all_weights + np.where(by_column, all_inputs, inputs + result)) + (1 - kept) * per_byte(near)
    )
    first = np.where(by_column, 1.0, 1 / column_tiles)
    source = np.where(fused, inputs + result, all_inputs + np.where(by_column, weights, 0.0))
    moved = moved + inputs * (first * per_byte(source) + (1 - first) * per_byte(near))
    total = blocks * column_tiles * (np.maximum(computed, moved) + _EXPOSED * moved)

    made = blocks * size * positions * channels
    total = total + made * _TRANSFORM / math.gcd(channels, target.lanes)
    apart = ~fused | (inputs > _USED * target.l2)
    total = total + np.where(apart, 4 * made * _WRITTEN * per_byte(all_inputs), 0.0)
    outputs = blocks * size * column_tiles * vectors
    output_bytes = np.asarray(4.0 * math.prod(shape_of(conv.parts.epilogue.buffer)))
    store = _EPILOGUE * (1 + _WRITTEN * 4 * target.lanes * per_byte(output_bytes))
    taken = positions * (_TRANSFORM + 4 * target.lanes * per_byte(result))
    total = total + outputs * (taken + down.m * across.m * store)
    if conv.before:
        copied = np.asarray(4.0 * math.prod(shape_of(conv.data.source)))
        total = total + copied * (1 / _COPIED + per_byte(2 * copied) / 2)
    tasks = blocks * np.where(fused, 1, column_tiles)
    rounds = np.ceil(tasks / target.cores)
    return np.asarray((total + tasks * _TASK) * rounds / tasks, dtype=np.float64)
