"""Winograd's minimal filtering: convolutions of stride 1 with a half to a sixth of the multiplications.

A tile of m outputs along an axis with a window of r takes alpha = m + r - 1 products of each input and output channel,
not m r (`transforms` has the formulas). A 3x3 convolution takes 2.25 times fewer with m = 2 and 4 times fewer with
m = 4, 5x5 takes 2.8 and 6.25 times fewer, 1x7 takes 1.75 times fewer with m = 2. An axis without a window is one more
axis of the batch.

Outputs are computed in tiles of m x m from tiles of alpha x alpha inputs. P of all tiles of all images make a block.
The transformed inputs and the products of a block stay in the second-level cache:

    for blocks, for column tiles:                                   parallel over one, the other or both
        V[alpha^2, channels, P] = B^T d B                           here, or for all blocks before
        for each of the alpha^2 positions, for row tiles of P:      products of small matrices
            accumulators[rows, columns] = V[., rows] * U[., columns]           registers
            M[P, alpha^2, columns] = accumulators
        output[., columns] = epilogue(A^T M A)                      bias, residual, activation

Images and weights in bfloat16 are widened where they are read; everything in between is float32. U, the transformed
weights, is computed ahead of time in float64. Bytes are computed in integers, exactly (see `arithmetic`).

If m does not divide an extent, the last tiles overlap those before them. They compute some outputs twice, rounded
differently, and store only those that no tile before them stores. So every run gives the same result. Blocks and row
tiles that overlap compute the same values twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import UnsupportedFunction
from ....ir.kept import kept
from ....ir.workload import Workload
from ....machine.cpu import Cpu
from ....space import Categorical, Constraint, Knob, Ordinal, Space
from ...contract import Variant
from ...winograd.convolution import Convolution, find_convolution
from ...winograd.transforms import POINTS
from ..cheapest_origin import with_cheapest_origin
from ..prefetch import prefetch_knob
from . import cost_model
from .arithmetic import FLOAT32, Arithmetic, integers_for
from .loops import ORDERS, WinogradLoops

_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 24, 28)
_BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16)
_MOST_POSITIONS = 64  # products per tile; with 100, for 7x7 and m = 4, the error is 7e-5
_WASTE = 1.16  # blocks and columns may compute up to this many times the elements


@dataclass(frozen=True)
class Winograd:
    """A sketch for convolutions of stride 1 by constant weights in float32 or bfloat16, see the module.

    Args:
        m: The outputs of a tile along each axis that has a window: 2 or 4.
        max_error: The bound on max|difference| / max|reference| of what it computes. It is not exact for small
            integers.
    """

    m: int
    max_error: float = 1e-4

    @property
    def name(self) -> str:
        """`winograd_2` or `winograd_4`."""
        return f"winograd_{self.m}"

    def speedup_bound(self, workload: Workload, target: Cpu) -> float:
        """See `Bounded`: a transformed convolution has at most this many times fewer operations than the plain sum."""
        return 4.0

    def space(self, workload: Workload, target: Cpu) -> Space | None:
        """The tilings whose accumulators fit the register file; None for a function that is no such convolution.

        The knobs:

        - `rows`: tiles of a row tile, which share registers
        - `block`: row tiles of a block
        - `columns`: output channels of a column tile
        - `unroll`: input channels, or pairs of them, that are unrolled
        - `order`: "fused" runs blocks in parallel, each from its inputs to its outputs. "tiles" and "columns" compute V
          for all blocks first. Then they run blocks and column tiles in parallel: "tiles" takes all column tiles of one
          block after the other, "columns" all blocks of one column tile.
        - `prefetch`: whether the transformed weights are fetched ahead (see `prefetch`)
        """
        return _space(workload, self, target)

    def estimate(self, workload: Workload, target: Cpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The expected cycles of n configurations, see `cost_model.cycles`."""
        conv, arithmetic = self._found(workload, target)
        return cost_model.cycles(conv, self.m, arithmetic, knobs, target)

    def apply(self, workload: Workload, target: Cpu, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration."""
        conv, arithmetic = self._found(workload, target)
        return WinogradLoops(conv, self.m, arithmetic, target, config).variant()

    def _found(self, workload: Workload, target: Cpu) -> tuple[Convolution, Arithmetic]:
        """The convolution of a workload, and what it is computed in. Raises `UnsupportedFunction` if there is none."""
        conv = find_convolution(workload)
        arithmetic = self._arithmetic(conv, target)
        if arithmetic is None:
            raise UnsupportedFunction(f"{self.name} does not compute such a convolution on this machine")
        return conv, arithmetic

    def _arithmetic(self, conv: Convolution, target: Cpu) -> Arithmetic | None:
        return None if conv.of_bytes else FLOAT32


@dataclass(frozen=True)
class WinogradOfBytes(Winograd):
    """The sketch for convolutions of bytes with windows of three, exactly in integers, see `arithmetic`."""

    m: int = 2
    max_error: float = 0.0

    @property
    def name(self) -> str:
        """`winograd_bytes`."""
        return "winograd_bytes"

    def _arithmetic(self, conv: Convolution, target: Cpu) -> Arithmetic | None:
        return integers_for(conv, target)


@kept
def _space(workload: Workload, sketch: Winograd, target: Cpu) -> Space | None:
    try:
        conv, arithmetic = sketch._found(workload, target)
    except UnsupportedFunction:
        return None
    filters = conv.filters(sketch.m)
    image_axes = [axis for axis, _ in conv.image]
    if any(axis.extent < tile.m for axis, tile in zip(image_axes, filters, strict=True)):
        return None
    if any(tile.alpha not in POINTS for tile in filters) or math.prod(tile.alpha for tile in filters) > _MOST_POSITIONS:
        return None
    tiles = conv.tiles(sketch.m)
    columns = _column_tiles(conv.column.extent, target.lanes)
    rows = [size for size in _ROWS if size <= tiles]
    blocks = [count for count in _BLOCKS if count <= tiles]
    width = math.gcd(conv.channel.extent, arithmetic.lanes(target)) // arithmetic.group
    knobs: list[Knob] = [
        Ordinal("rows", rows),
        Ordinal("block", blocks),
        Ordinal("columns", columns),
        Ordinal("unroll", [factor for factor in (1, 2, 4, 8) if width % factor == 0]),
        Categorical("order", ORDERS),
        *prefetch_knob(cost_model.weight_bytes(conv, sketch.m, arithmetic), target),
    ]
    constraints = [
        Constraint(
            ("rows", "columns"),
            lambda rows, columns: (rows + 1) * columns < target.registers * math.gcd(columns, target.lanes),
            f"accumulators, a row of columns and one more fit {target.registers} registers of {target.lanes}",
        ),
        Constraint(
            ("rows", "block"),
            lambda rows, block: (block - 1) * rows < tiles and _computed_tiles(tiles, rows, block) <= _WASTE * tiles,
            f"{tiles} tiles in blocks without much waste",
        ),
    ]
    space = Space(sketch.name, knobs, constraints)
    return with_cheapest_origin(space, lambda columns: sketch.estimate(workload, target, columns))


def _computed_tiles(tiles: int, rows: int, block: int) -> int:
    """How many tiles are multiplied in blocks of some tiles of rows, if tiles in two blocks count twice."""
    size = min(rows * block, tiles)
    return -(-tiles // size) * -(-size // rows) * rows


def _column_tiles(extent: int, lanes: int) -> list[int]:
    """Column tiles: up to four vectors, or multiples of half a vector that divide the extent."""
    if extent < lanes:
        return [1 << (extent.bit_length() - 1)]
    half = max(1, lanes // 2)
    sizes = [
        size
        for size in range(half, 4 * lanes + 1, half)
        if size <= extent and (size % lanes == 0 or extent % size == 0)
    ]
    return [size for size in sizes if size >= lanes and -(-extent // size) * size <= _WASTE * extent] or [lanes]
