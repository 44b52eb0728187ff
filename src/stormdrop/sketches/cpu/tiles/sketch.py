"""Contractions by the tile registers of AMX: matmul, dense, batch_matmul, convolutions.

They multiply bfloat16 and bytes, and float32 in parts (see `parts`).

    for tasks:                                                       parallel
        configure the tiles
        for panels of columns, for groups of steps:                  in either order
            for blocks of the reductions:
                for steps of some tiles of rows:
                    sums = 0, or what the block before has left      tile registers
                    for reductions, the words of the last one in tiles:
                        load tiles of columns, tiles of data
                        sums += data * columns
                    scratch = sums
                    after the last block: output = epilogue(scratch)     vectors: bias, residual, activation, rounding

The column operand is packed into words, as for dot products (`packed_words`); `columns` says when. The data
are read where they are, or their parts (`data`): their last reduction has to be contiguous, and the rows of a tile at
one distance from each other. Padding is computed before, and so are whole words if they do not divide the reduction
(`whole_groups`). Tiles that do not divide an extent overlap, as those of `register_blocked` do. Those of a narrow image
may run on from one of its rows to the next (`rows`).

A machine without tiles has no such schedule. What AMX needs of the operating system is in `machine.tiles`. On any
machine `tests/stand_ins/emulated_tiles.py` executes the schedules with loops in the place of the instructions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ....errors import UnsupportedFunction
from ....ir.contractions.contraction import Contraction, contiguous
from ....ir.dtypes import BFLOAT16
from ....ir.expressions import variables
from ....ir.kept import kept
from ....ir.stages import Axis, shape_of
from ....ir.workload import Workload
from ....machine.cpu import Cpu
from ....space import Categorical, Constraint, Knob, Ordinal, Space
from ...contract import Variant
from ..cheapest_origin import with_cheapest_origin
from ..contractions.dot_products import LARGEST_PRODUCT, DotProducts
from ..nests import load_stride
from ..prefetch import prefetch_knob
from . import cost_model
from .groups import ORDERS, walks_inside
from .instructions import REGISTERS, TILE, WORD_BYTES, product_of
from .loops import BLOCK, TileLoops
from .parts import with_high_parts
from .reductions import block_sizes, products_of
from .rows import rows_of
from .whole_groups import groups_that_fill_tiles, with_whole_groups

_FEW_ROWS = 4  # with fewer rows in float32 the memory decides, and vectors need no parts of the weights
_WASTE = 1.25  # tiles may compute up to this many times the elements
_PER_STEP = (1, 2, 3, 4)
_TASKS = (1, 2, 4)
_BLOCK = (4, 24)  # products of a block: panels of 4 to 48 KB; 8 was the best for layers of 512 x 1024 x 4096


_AT_ONCE = {"int8": 64.0, "uint8": 64.0, BFLOAT16: 32.0, "float32": 12.0}
"""Multiply-adds of a type in the time of one in lanes of float32, at most."""


@dataclass(frozen=True)
class Tiles:
    """A sketch for contractions on machines with AMX, see the module."""

    name: ClassVar[str] = "tiles"
    max_error: ClassVar[float] = 0.0

    def speedup_bound(self, workload: Workload, target: Cpu) -> float:
        """See `Bounded`: twice what was measured."""
        return max((_AT_ONCE.get(spec.dtype, 1.0) for spec in workload.inputs), default=1.0)

    def space(self, workload: Workload, target: Cpu) -> Space | None:
        """The tilings that fit the eight registers; None for a function without such a contraction.

        The knobs:

        - `rows`: rows of a tile
        - `row_tiles`, `column_tiles`: tiles of a step
        - `order`: whether the steps of a task walk through rows or through columns first, see `ORDERS`
        - `tasks`: parallel tasks per core
        - `block`: products of tiles after which the next step of a group takes its turn, see `groups`
        - `prefetch`: whether constant columns are fetched ahead, see `prefetch`
        """
        return _space(workload, self, target)

    def estimate(self, workload: Workload, target: Cpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The expected cycles of n configurations, see `cost_model.cycles`."""
        contraction, dots = self.contraction(workload, target)
        return cost_model.cycles(contraction, dots, knobs, target)

    def apply(self, workload: Workload, target: Cpu, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration."""
        contraction, dots = self.contraction(workload, target)
        return TileLoops(contraction, dots, target, config).variant()

    def contraction(self, workload: Workload, target: Cpu) -> tuple[Contraction, DotProducts]:
        """The contraction of a workload, and how tiles multiply it. Raises `UnsupportedFunction`."""
        return contraction_of(workload, target, False)


@dataclass(frozen=True)
class TilesOfParts(Tiles):
    """The sketch for contractions of float32, whose factors are sums of two numbers of bfloat16, see `parts`.

    It is exact for integers of up to 8 binary digits, which have no low part.
    """

    name: ClassVar[str] = "tiles_of_parts"
    max_error: ClassVar[float] = 2e-5  # each product is off by 1.1e-5 of it at most

    def contraction(self, workload: Workload, target: Cpu) -> tuple[Contraction, DotProducts]:
        """The contraction of a workload over the parts, and how tiles multiply it. Raises `UnsupportedFunction`."""
        return contraction_of(workload, target, True)


@kept
def contraction_of(workload: Workload, target: Cpu, parts: bool) -> tuple[Contraction, DotProducts]:
    """The contraction of a workload, and how tiles multiply it.

    Args:
        workload: The function.
        target: The machine.
        parts: Whether factors of float32 are taken as two parts.

    Raises:
        UnsupportedFunction: It has no such contraction, or the machine does not multiply it.
    """
    contraction = workload.contraction
    if parts:
        factors = (contraction.data_factor, contraction.column_factor)
        of_float32 = all(factor.dtype == "float32" and not factor.decoders for factor in factors)
        if not of_float32 or math.prod(axis.extent for axis in contraction.rows) < _FEW_ROWS:
            raise UnsupportedFunction(f"{workload.name} does not multiply {_FEW_ROWS} rows and more of float32")
        contraction = with_high_parts(contraction)
    dots = tile_products(contraction, target)
    if dots is None:
        raise UnsupportedFunction(f"{workload.name} is no contraction for the tiles of {target.name}")
    assert dots.groups is not None  # `tile_products` says how many
    return with_whole_groups(contraction, dots.groups * dots.group), dots


def tile_products(contraction: Contraction, target: Cpu) -> DotProducts | None:
    """How the tiles of a machine multiply a contraction; None if they do not, see the module."""
    data, columns = contraction.data_factor, contraction.column_factor
    product = product_of(data.dtype, columns.dtype, target)
    if product is None or contraction.packable is None or contraction.column.extent < TILE:
        return None
    feature, instruction = product
    *_, grouped = contraction.stage.reductions
    last = len(contraction.stage.reductions) - 1
    parts = 2 if columns.dtype == "float32" else 1
    dots = DotProducts(feature, instruction, True, False, data.zero_point, last, data.dtype, parts=parts)
    words = -(-grouped.extent // dots.group)
    is_last = _is_last_axis(contraction.other, grouped)
    dots = replace(dots, groups=groups_that_fill_tiles(words) if is_last else words)
    steps = math.prod(axis.extent for axis in contraction.stage.reductions)
    stride = load_stride(contraction.other, contraction.rows[-1].var)
    read_in_rows = contiguous(contraction.other, grouped.var) and stride is not None and stride > 0
    by_column = any(contraction.column.var in variables(index) for index in contraction.other.indices)
    overflows = dots.sums == "int32" and steps * LARGEST_PRODUCT >= 2**31
    whole = grouped.extent % dots.group == 0 or is_last
    fits = read_in_rows and whole and not by_column and not overflows and not columns.zero_point
    return dots if fits and str(contraction.stage.buffer.dtype) == dots.sums else None


def _is_last_axis(load: Any, axis: Axis) -> bool:
    """Whether an axis is all of the last axis of what is loaded."""
    return bool(load.indices[-1].same_as(axis.var)) and shape_of(load.source)[-1] == axis.extent


@kept
def _space(workload: Workload, sketch: Tiles, target: Cpu) -> Space | None:
    if "amx-tile" not in target.features or target.runner:
        return None  # behind a runner nobody asks the operating system for tiles
    try:
        contraction, dots = sketch.contraction(workload, target)
    except UnsupportedFunction:
        return None
    extents, columns = rows_of(contraction).extents, contraction.column.extent
    several = len(extents) == 2

    def fits(rows: int, row_tiles: int) -> bool:
        """Whether the rows of a step are there, and whether steps compute few of them twice."""
        step = [row_tiles, rows] if several else [row_tiles * rows]
        return all(size <= extent for size, extent in zip(step, extents, strict=True)) and all(
            -(-extent // size) * size <= _WASTE * extent for size, extent in zip(step, extents, strict=True)
        )

    def columns_fit(column_tiles: int) -> bool:
        width = TILE * column_tiles
        return width <= columns and (column_tiles == 1 or -(-columns // width) * width <= _WASTE * columns)

    rows = [size for size in _row_sizes(extents[-1]) if fits(size, 1)]
    knobs: list[Knob] = [
        Ordinal("rows", rows),
        Ordinal("row_tiles", [count for count in _PER_STEP if any(fits(size, count) for size in rows)]),
        Ordinal("column_tiles", [count for count in _PER_STEP if columns_fit(count)]),
        Categorical("order", ORDERS),
        Ordinal("tasks", _TASKS),
    ]
    products = products_of(contraction, dots)
    blocks = [size for size in block_sizes(products)[:-1] if _BLOCK[0] <= size <= _BLOCK[1]]
    if blocks:
        knobs.append(Ordinal(BLOCK, [*blocks, math.prod(products)]))
    if contraction.constant is not None and not walks_inside(contraction):
        knobs += prefetch_knob(WORD_BYTES * columns * dots.parts * math.prod(dots.extents(contraction)), target)
    constraints = [
        Constraint(
            ("row_tiles", "column_tiles"),
            lambda rows, columns: rows * columns + rows + columns <= REGISTERS,
            f"sums, data and columns fit {REGISTERS} tiles",
        ),
        Constraint(
            ("rows", "row_tiles"), lambda rows, row_tiles: row_tiles == 1 or fits(rows, row_tiles), "rows of a step"
        ),
    ]
    space = Space(sketch.name, knobs, constraints)
    return with_cheapest_origin(space, lambda columns: sketch.estimate(workload, target, columns))


def _row_sizes(extent: int) -> list[int]:
    """Rows of a tile: for each number of tiles the smallest size that covers the extent."""
    sizes = {-(-extent // count) for count in range(1, extent + 1)}
    return sorted(size for size in sizes if size <= TILE)
