"""The register-blocked packed contraction: matmul, dense, batch_matmul, convolutions.

    for tiles of outer axes, columns and rows:                  parallel over the outermost, in one of three orders
        accumulators[rows, columns] = 0                          registers
        for reduction:                                           innermost part unrolled
            for row, for vector in columns:                      unrolled and vectorised
                accumulators[row, vector] += data[row, reduction] * packed[reduction, vector]
        output[rows, columns] = epilogue(accumulators)           bias, residual, activation

The column operand is packed so that the columns of a tile are contiguous per reduction step. A constant is packed
ahead of time, another operand by a stage of its own or not at all. If a tile does not divide an extent, the last tile
overlaps the one before it: it starts at `extent - tile`, computes some elements twice, and needs neither a predicate
nor padding. If every access takes some row axes as whole consecutive dimensions (a 1x1 convolution), they are one axis.
Few rows may have tiles of so many columns that their accumulators lie in a cache. Then each core reads whole rows of an
operand that is not packed, which come from memory 2.5 times as fast as pieces of rows do (44 and 17 GB/s on a Zen 4).
Products of bytes and of bfloat16 are added up several at a time if the machine has a unit for that (see
`dot_products`). What decodes a quantised column operand (scales, zero points) is packed as it is. With many rows each
task decodes its panel once, for all of its tiles.

This module holds the knobs; `tiled_contraction` builds and schedules the function.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ....errors import UnsupportedFunction
from ....ir.attributes import NEEDS
from ....ir.contractions.contraction import Contraction
from ....ir.elementary import expand_for_cpu
from ....ir.expressions import variables
from ....ir.kept import kept
from ....ir.workload import Workload
from ....machine.cpu import Cpu
from ....space import Categorical, Constraint, Knob, Ordinal, Space
from ...contract import Variant
from ..cheapest_origin import with_cheapest_origin
from ..non_temporal import stored, stores_knob
from ..prefetch import PREFETCH, prefetch_knob, with_prefetch
from . import cost_model
from .contraction_shape import ContractionShape, fits_registers, shape_of_contraction
from .dot_products import DotProducts
from .tiled_contraction import (
    BY_COLUMN,
    BY_ROW,
    DECODE_PER_STEP,
    DECODE_PER_TASK,
    ORDERS,
    PAD_BEFORE,
    PAD_PER_TASK,
    PAD_PER_TILE,
    TiledContraction,
    scheduled_kernel,
)
from .wide_bytes import multiplied

_WASTE = 1.16  # a tiling may compute up to this many times the elements
_MOST_ROWS = 14  # of a tile along one of two row axes
_FEW_ROWS = 4  # of all: registers are left for wide tiles, which read longer pieces of the column operand's rows
_VECTORS, _WIDE = (1, 2, 3, 4), (6, 8, 12)  # of a tile's columns
_STREAMED_ROWS = 16  # of all: more compute longer than the column operand takes to be read
_SHARING_ROWS = 8  # of all, from which on tasks may decode what several tiles multiply
_MOST_SUMS = 128 << 10  # bytes of accumulators in a cache: they lie on the stack of a thread
_STREAMS = (1, 2, 4)  # tiles of columns for each core, if the column operand is read as it lies
_BLOCKS = (1, 2, 4, 8, 16, 32, 64)
UNROLLS = (1, 2, 3, 4, 5, 6, 7, 8)


@dataclass(frozen=True)
class RegisterBlocked:
    """A sketch for functions with one contraction, see the module."""

    name: ClassVar[str] = "register_blocked"
    max_error: ClassVar[float] = 0.0

    def space(self, workload: Workload, target: Cpu) -> Space | None:
        """The tilings whose sums fit the register file or a cache; None for a function without one contraction.

        The knobs, of which a workload has those that make a difference:

        - `rows`, `rows_outer`: rows of a tile along one axis or two
        - `columns`: columns of a tile
        - `block`: tiles of rows in a block, if there is one row axis
        - `unroll`: steps of the innermost reduction that are unrolled
        - `order`: what runs in parallel and what each task walks through, see `ORDERS`
        - `pack`: whether a stage packs the column operand
        - `prologue`: where data are padded or widened, see `PAD_BEFORE`
        - `decode`: where a quantised column operand is decoded, see `DECODE_PER_STEP`
        - `prefetch`: whether constants are fetched ahead (see `prefetch`)
        - `stores`: stores past the caches (see `non_temporal`)
        """
        return _space(workload, target)

    def estimate(self, workload: Workload, target: Cpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The expected cycles of n configurations, see `cost_model.cycles`."""
        return cost_model.cycles(_analysis(workload, target).shape, knobs, target)

    def features(self, workload: Workload, target: Cpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The features of n configurations, see `cost_model.FEATURES`."""
        return cost_model.features(_analysis(workload, target).shape, knobs, target)

    def apply(self, workload: Workload, target: Cpu, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration."""
        analysis = _analysis(workload, target)
        contraction, dots = analysis.contraction, analysis.dots
        prologue = config.get("prologue", PAD_BEFORE)
        tiled = TiledContraction(contraction, config, prologue_inside=prologue != PAD_BEFORE, dots=dots)
        kernel = scheduled_kernel(tiled, target, config, prologue_in_registers=prologue == PAD_PER_TILE)
        if config.get(PREFETCH):
            inside = tiled.tile_axes[0].name if config["order"] == BY_COLUMN else None
            kernel = with_prefetch(kernel, tiled.packed, tiled.column.tiles[0].name, inside)
        main = stored(expand_for_cpu(tiled.with_neighbours(kernel, target), target.keep_denormals), config)
        if dots is not None:
            main = main.with_attr(NEEDS, [dots.feature])
        return Variant(main, tiled.transforms)


def few_columns(workload: Workload, target: Cpu) -> bool:
    """Whether vectors along the reduction may do better than vectors along the columns.

    That is so if vectors along the columns would be short, or if the column operand would be copied for one or two
    rows only. It is not so if there is not exactly one contraction.
    """
    try:
        contraction = _analysis(workload, target).contraction
    except UnsupportedFunction:
        return False
    copied_for_little = contraction.must_pack and math.prod(contraction.row_extents) <= 2
    return contraction.column.extent < target.lanes or copied_for_little


@dataclass(frozen=True, eq=False)
class _Analysis:
    """The contraction of a workload as a machine multiplies it.

    Attributes:
        contraction: The contraction.
        dots: How dot products compute it; None if each step is one multiply-add.
        shape: Its numbers for the cost model.
    """

    contraction: Contraction
    dots: DotProducts | None
    shape: ContractionShape


@kept
def _analysis(workload: Workload, target: Cpu) -> _Analysis:
    """Raises `UnsupportedFunction` if the workload has no contraction."""
    contraction, dots = multiplied(workload.contraction, target)
    return _Analysis(contraction, dots, shape_of_contraction(contraction, dots))


@kept
def _space(workload: Workload, target: Cpu) -> Space | None:
    try:
        analysis = _analysis(workload, target)
    except UnsupportedFunction:
        return None
    contraction, dots, shape = analysis.contraction, analysis.dots, analysis.shape
    streamed = [] if dots is not None or shape.follows_columns else _streamed_columns(contraction, target)
    knobs, constraints = _tile_knobs(contraction, target, dots is not None, streamed)
    inner = contraction.stage.reductions[-1].extent if dots is None else dots.extents(contraction)[-1]
    knobs.append(Ordinal("unroll", [factor for factor in UNROLLS if inner % factor == 0]))
    knobs.append(Categorical("order", ORDERS))
    if contraction.packable is not None and contraction.constant is None:
        knobs.append(Categorical("pack", [1] if contraction.must_pack or dots else [0, 1]))
    if contraction.prologue is not None:
        # Scalars of padding are no faster from registers; vectors, which several outputs share, are.
        per_tile = [PAD_PER_TILE] if shape.follows_columns else []
        knobs.append(Categorical("prologue", [PAD_BEFORE, PAD_PER_TASK, *per_tile]))
    knobs += prefetch_knob(0 if contraction.constant is None else shape.column_bytes, target)
    if _decodes_panels(contraction):
        knobs.append(Categorical("decode", [DECODE_PER_STEP, DECODE_PER_TASK]))
        constraints += _constraints_of_panels([knob.name for knob in knobs])
    knobs += stores_knob(workload, target)
    space = Space(RegisterBlocked.name, knobs, constraints)
    return with_cheapest_origin(space, lambda columns: cost_model.cycles(shape, columns, target))


def _tile_knobs(
    contraction: Contraction, target: Cpu, dots: bool, streamed: Sequence[int]
) -> tuple[list[Knob], list[Constraint]]:
    """The knobs for the sizes of a tile and of a block of tiles, and which of their values go together.

    Instructions for dot products take vectors of four lanes and more. `streamed` are columns whose accumulators lie in
    a cache.
    """
    extents = contraction.row_extents
    names = ["rows"] if len(extents) == 1 else ["rows_outer", "rows"]
    most = target.registers - 2 if len(extents) == 1 else _MOST_ROWS
    knobs: list[Knob] = [Ordinal(name, _row_tiles(extent, most)) for name, extent in zip(names, extents, strict=True)]
    vectors = _VECTORS + (_WIDE if math.prod(extents) <= _FEW_ROWS else ())
    columns = column_tiles(contraction.column.extent, target.lanes, vectors)
    columns = [size for size in columns if not dots or math.gcd(size, target.lanes) >= 4]
    knobs.append(Ordinal("columns", [*columns, *(size for size in streamed if size > columns[-1])]))
    constraints = [
        Constraint(
            (*names, "columns"),
            lambda *sizes: bool(
                fits_registers(math.prod(sizes[:-1]), sizes[-1], target)
                or (sizes[-1] in streamed and 4 * math.prod(sizes) <= _most_sums(target))
            ),
            f"accumulators, a row of columns and one more fit {target.registers} registers of {target.lanes}"
            + (
                f", or {_most_sums(target)} bytes" if streamed else ""
            ),  # these words are part of the fingerprint of records
        )
    ]
    if streamed:
        constraints.append(
            Constraint(("columns", "pack"), lambda columns, pack: not (pack and columns in streamed), "read as it lies")
        )
    if len(extents) == 1:
        knobs.append(Ordinal("block", [block for block in _BLOCKS if block == 1 or block * 2 <= extents[0]]))
        constraints.append(
            Constraint(("rows", "block"), lambda rows, block: _fills_blocks(extents[0], rows, block), "blocks")
        )
    return knobs, constraints


def _decodes_panels(contraction: Contraction) -> bool:
    """Whether tasks may decode columns for several tiles of rows."""
    outer = {axis.var for axis in contraction.outer if axis.extent > 1}
    if contraction.constant is None or not contraction.decoders or math.prod(contraction.row_extents) < _SHARING_ROWS:
        return False
    return not any(outer.intersection(variables(load)) for load in (contraction.operand, *contraction.decoders))


def _constraints_of_panels(knobs: Sequence[str]) -> list[Constraint]:
    """A task decodes one panel, which nothing fetches ahead."""
    one = Constraint(
        ("order", "decode"), lambda order, decode: decode == DECODE_PER_STEP or order != BY_ROW, "a panel of a task"
    )
    unfetched = Constraint(
        (PREFETCH, "decode"), lambda fetched, decode: decode == DECODE_PER_STEP or not fetched, "not fetched ahead"
    )
    return [one, unfetched] if PREFETCH in knobs else [one]


def _most_sums(target: Cpu) -> int:
    return min(target.l2 // 2, _MOST_SUMS)


def _streamed_columns(contraction: Contraction, target: Cpu) -> list[int]:
    """Column tiles of which each core has one or a few, for few rows and a column operand that is read as it lies."""
    as_it_lies = contraction.packable is not None and contraction.constant is None and not contraction.must_pack
    few_rows = math.prod(contraction.row_extents) <= _STREAMED_ROWS
    if not as_it_lies or not few_rows or contraction.decoders:
        return []
    extent, lanes = contraction.column.extent, target.lanes
    tiles = (-(-extent // (target.cores * count)) for count in reversed(_STREAMS))
    sizes = sorted({-(-tile // lanes) * lanes for tile in tiles})
    return [size for size in sizes if _WIDE[-1] * lanes < size <= extent and 4 * size <= _most_sums(target)]


def _row_tiles(extent: int, most: int) -> list[int]:
    """Tile sizes worth having: for each number of tiles the smallest size that covers the extent without much waste."""
    sizes = {-(-extent // count) for count in range(1, extent + 1)}
    return sorted(
        size for size in sizes if size <= most and (-(-extent // size) * size <= _WASTE * extent or size == 1)
    )


def column_tiles(extent: int, lanes: int, vectors: Sequence[int]) -> list[int]:
    """Column tiles: so many vectors, or one to three vectors and a half if that divides the extent."""
    if extent < lanes:
        return [1 << (extent.bit_length() - 1)]
    sizes = [lanes * count for count in vectors if lanes * count <= extent]
    sizes += [size for size in range(lanes // 2, 4 * lanes, lanes // 2) if size > lanes and extent % size == 0]
    fitting = [size for size in sizes if -(-extent // size) * size <= _WASTE * extent]
    return sorted(set(fitting or sizes[:1]))


def _fills_blocks(extent: int, rows: int, block: int) -> bool:
    """Whether blocks of `block` tiles cover the rows without much waste."""
    tiles = -(-extent // rows)
    return block == 1 or (block < tiles and -(-tiles // block) * block <= 1.1 * tiles)
