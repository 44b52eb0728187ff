"""What to expect of a register-blocked contraction before anything is measured.

The expectation orders the space and picks its origin. It is the cost in cycles of one core, computed from the
configuration alone:

    per reduction step   the multiply-adds of the tile, or its loads, or the latency that too few accumulators do not
                         hide, whichever is most; the loop's own instructions; rows that evict each other
    per tile             accumulators set to zero, epilogue, stores
    memory               what a tile reads of either operand, over the bandwidth of the cache that holds it since it was
                         read last; which cache that is follows from the order of the loops
    besides              packing, padding, the start of tasks; constants that are fetched ahead, or waited for
    all of it            what tiles compute twice, and how long cores wait

The constants were fitted to measurements of random points on one core of a Zen 4. The model says which of two schedules
is likely to be faster, not how long either takes. `benchmarks/kernels/prior.py` says how often it is right.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....machine.cpu import Cpu
from ..prefetch import LINE, PREFETCH
from .contraction_shape import ContractionShape, fits_registers
from .tiled_contraction import BY_COLUMN, BY_ROW, DECODE_PER_TASK, MIXED, PAD_BEFORE, PAD_PER_TASK, PAD_PER_TILE

Floats = NDArray[np.float64]

_COPY_TRANSFERS = 3  # a copy that fits no cache is fetched to be written, written, and read again
_BROADCAST_LANES = 16  # with this number of lanes, instructions broadcast an operand from memory: AVX-512
_USEFUL_UNROLL = 4  # steps beyond which unrolling gains nothing
_SETS = 64  # sets of a first cache (32 KiB in 8 ways, 48 KiB in 12)
_ROWS_PER_SET = 11  # rows that can share a set: those beyond the ways are not all needed at once
_USABLE = 0.9  # the share of a first or second cache that is found again
_DECODED = 4.0  # bytes of a number
_FAR_STRIDE = 2048  # bytes from one step's columns to the next's, from which on nothing fetches them ahead
_SCATTERED = 2.0  # times that such pieces take, from where they do not fit


@dataclass(frozen=True)
class Costs:
    """Cycles (of a core that starts one multiply-add per cycle), or bytes per cycle."""

    load: float = 1.0  # of a vector
    broadcast: float = 0.75
    latency: float = 4.0  # of a multiply-add
    loop: float = 1.0  # per iteration of the reduction
    store: float = 100.0  # per vector of a tile: zero, epilogue, store
    l2: float = 26.0  # bytes per cycle, as for l3 and memory
    l3: float = 16.0
    memory: float = 4.0
    exposed: float = 0.1  # share of the transfers that is never hidden by computation
    conflict: float = 0.25  # per row, step, and row too many, if rows share a set of the first cache
    spill: float = 1.0  # per register too many
    stride: float = 2.2  # per vector of columns that are not contiguous from step to step
    copy: float = 15.0  # bytes per cycle of packing and padding
    remote: float = 2.0  # bytes per cycle of lines that another core has just written
    padded: float = 1.0  # per vector that is padded in registers: a load, and whether it is inside
    task: float = 500.0
    fetch: float = 0.5  # of a line that is fetched ahead


class _Tiles:
    """What the tiles of n configurations compute and move; each attribute has a value per configuration.

    A tile whose `accumulators` (bytes) are `in_cache`, not in registers, loads and stores them in each unrolled step.
    It reads `data` bytes of the other operand and a `panel` of the column operand. Both were read before. How far away
    they are is the number of bytes that went through the caches since then: `data_distance` for the data;
    `near_distance` for the panel in a share `near_share` of the tiles, and `far_distance` in all others. A panel that
    is `scattered` is in pieces that are too far apart to be fetched ahead. `tiles_per_panel` tiles in a row read
    the same panel.
    """

    def __init__(self, shape: ContractionShape, knobs: Mapping[str, NDArray[Any]], target: Cpu) -> None:
        two = len(shape.rows) == 2
        self.sizes = [knobs[name] for name in (("rows_outer", "rows") if two else ("rows",))]
        self.columns, order = knobs["columns"], knobs["order"]
        self.by_column, self.by_row, mixed = order == BY_COLUMN, order == BY_ROW, order == MIXED
        self.rows = np.prod(self.sizes, axis=0)
        self.vectors = self.columns / np.gcd(self.columns, target.lanes)
        tiles = [np.ceil(extent / size) for extent, size in zip(shape.rows, self.sizes, strict=True)]
        blocks = tiles[0] if two else np.ceil(tiles[0] / knobs["block"])
        per_block = tiles[1] if two else knobs["block"]
        self.column_tiles = np.ceil(shape.columns / self.columns)
        self.count = shape.outer * blocks * per_block * self.column_tiles
        self.tasks = shape.outer * blocks * np.where(self.by_row, per_block if two else 1, self.column_tiles)

        in_registers = knobs["prologue"] == PAD_PER_TILE if shape.padded_bytes else np.zeros(len(self.columns), bool)
        all_loads = self.vectors * (1 + self.rows) if shape.follows_columns else self.vectors
        self.loads = np.where(in_registers, self.vectors, all_loads)
        self.in_cache = ~fits_registers(self.rows, self.columns, target)
        self.accumulators = 4.0 * self.rows * self.columns
        self.broadcasts = 0 if shape.follows_columns else self.rows

        self.data = _data_bytes(shape, self.sizes, self.columns)
        self.decoded = knobs["decode"] == DECODE_PER_TASK if "decode" in knobs else np.zeros(len(self.columns), bool)
        itemsize = np.where(self.decoded, _DECODED, float(shape.column_itemsize))
        self.panel: Floats = itemsize * shape.steps * self.columns
        all_rows = shape.other_bytes / shape.outer
        all_columns = shape.column_bytes / (shape.outer if shape.column_varies else 1)
        self.block_data = self.data * per_block
        passing = np.where(self.by_column, all_rows, np.where(self.by_row, self.data, self.block_data))
        self.data_distance = self.panel + passing
        self.near_distance = self.panel + self.data
        self.far_distance = np.where(self.by_row, all_columns + self.data, all_columns + self.block_data)
        # Pieces of rows that lie far apart are not fetched ahead.
        apart = (knobs["pack"] == 0) & ~self.in_cache if shape.column_varies else np.zeros(len(self.columns), bool)
        self.scattered = apart & (self.panel > target.l1 / 2) & (shape.column_stride >= _FAR_STRIDE)
        self.near_share = np.where(self.by_column, 1.0, np.where(mixed, 1 - 1 / per_block, 0.0))
        self.tiles_per_panel = np.where(self.by_column, blocks * per_block, np.where(mixed, per_block, 1))

    def moved(self, cost: Callable[[Floats], Floats], scattered: float = 1.0) -> Floats:
        """What a tile reads, each byte at the cost of its distance, and at `scattered` times that in pieces."""
        panel = self.near_share * cost(self.near_distance) + (1 - self.near_share) * cost(self.far_distance)
        return self.data * cost(self.data_distance) + self.panel * panel * np.where(self.scattered, scattered, 1.0)


def cycles(shape: ContractionShape, knobs: Mapping[str, NDArray[Any]], target: Cpu, costs: Costs = Costs()) -> Floats:
    """Estimates the cycles of n configurations of a register-blocked contraction.

    Args:
        shape: The contraction.
        knobs: n values of each knob, by name.
        target: The machine.
        costs: The constants of the model.

    Returns:
        Expected cycles until the last core is done, shape `(n,)`.
    """
    tiles = _Tiles(shape, knobs, target)
    step = _step_cycles(tiles, shape, knobs, target, costs)

    def per_byte(distance: Floats) -> Floats:
        """Cycles per byte that was read `distance` bytes ago: those of the first cache that still holds it."""
        outside = np.where(distance < target.l3, 1 / costs.l3, 1 / costs.memory)
        beyond_l1 = np.where(distance < _USABLE * target.l2, 1 / costs.l2, outside)
        return np.where(distance < _USABLE * target.l1, 0.0, beyond_l1)

    # What a step adds up in a cache is written and read again.
    step = step + np.where(tiles.in_cache, 2 * tiles.accumulators * per_byte(tiles.accumulators) / knobs["unroll"], 0)
    tile = shape.steps * step + costs.store * tiles.rows * np.where(tiles.in_cache, 1, tiles.vectors)
    moved = tiles.moved(per_byte, _SCATTERED)
    total = tiles.count * (np.maximum(tile, moved) + costs.exposed * moved)
    total = total + (tiles.tasks * costs.task if shape.parallel else 0)
    if shape.column_varies:
        total = total + knobs["pack"] * 2 * shape.column_bytes / costs.copy
    if shape.padded_bytes:
        total = total + _padding_cycles(tiles, shape, knobs, target, costs)
    decoding = shape.steps * tiles.vectors * (shape.decoding + costs.load)
    total = total + np.where(tiles.decoded, tiles.tasks * decoding, 0.0)
    if PREFETCH in knobs:
        fetches = np.maximum(shape.steps / knobs["unroll"], tiles.panel / LINE / tiles.tiles_per_panel)
        unfetched = shape.column_bytes / costs.memory
        total = total + np.where(knobs[PREFETCH] == 1, tiles.count * fetches * costs.fetch, unfetched)
    rounds = np.ceil(tiles.tasks / target.cores) if shape.parallel else tiles.tasks
    return np.asarray(total * rounds / tiles.tasks, dtype=np.float64)


def _step_cycles(
    tiles: _Tiles, shape: ContractionShape, knobs: Mapping[str, NDArray[Any]], target: Cpu, costs: Costs
) -> Floats:
    """Cycles of one reduction step of a tile."""
    rows, vectors = tiles.rows, tiles.vectors
    # Below AVX-512 no instruction takes a scalar operand from memory: it needs a load and a register of its own.
    loads_scalars = target.lanes < _BROADCAST_LANES
    broadcast = 1.0 if loads_scalars else costs.broadcast
    computed = rows * vectors * shape.multiply_add + np.where(tiles.decoded, 0.0, vectors * shape.decoding)
    again = np.where(tiles.in_cache, 2 * rows * vectors / knobs["unroll"], 0)  # accumulators from the first cache
    step = np.maximum(computed, (tiles.loads + again) * costs.load + tiles.broadcasts * broadcast)
    step = np.maximum(step, costs.latency) + costs.loop / np.minimum(knobs["unroll"], _USEFUL_UNROLL)
    if shape.follows_columns:
        # The compiler keeps what neighbouring rows share in registers, too.
        step = step + costs.spill * np.maximum(0, (2 * rows + 1) * vectors - target.registers)
    else:
        if loads_scalars:
            # With one vector per row LLVM holds several steps at once; with more, some scalars beside them.
            several_steps = (vectors == 1) & (knobs["unroll"] > 1)
            live = np.where(several_steps, 2 * rows + 1, (rows + 1) * vectors + target.registers // 8 - 1)
            step = step + np.where(tiles.in_cache, 0, costs.spill * np.maximum(0, live - target.registers))
        conflicts = [_conflicts(shape.strides, sizes) for sizes in _as_tuples(tiles.sizes)]
        step = step + costs.conflict * np.array(conflicts)
    step = step + np.where(tiles.scattered, costs.stride * vectors, 0)
    return np.asarray(step, dtype=np.float64)


def _padding_cycles(
    tiles: _Tiles, shape: ContractionShape, knobs: Mapping[str, NDArray[Any]], target: Cpu, costs: Costs
) -> Floats:
    """Cycles of padding the other operand: by a stage before, by each task, or in the registers of each tile."""
    if shape.padded_bytes > target.caches:
        before = np.full(len(tiles.rows), _COPY_TRANSFERS * shape.padded_bytes / costs.memory)
    else:
        # Each core has written some rows; tiles of columns on several cores read them all.
        spread = tiles.by_column & (tiles.column_tiles > 1)
        others = np.where(spread, (target.cores - 1) / costs.remote, 0.0)
        before = shape.padded_bytes * (1 / costs.copy + others)
    by_row = tiles.data * (tiles.column_tiles if shape.follows_columns else 1)
    region = np.where(tiles.by_row, by_row, tiles.block_data)
    held = tiles.data / (shape.itemsize * target.lanes)
    spilled = costs.spill * np.maximum(0, held + tiles.rows * tiles.vectors - target.registers)
    per_tile = tiles.count * (held * costs.padded + 2 * spilled)
    inside = np.where(knobs["prologue"] == PAD_PER_TASK, 2 * tiles.tasks * region / costs.copy, per_tile)
    return np.asarray(np.where(knobs["prologue"] == PAD_BEFORE, before, inside), dtype=np.float64)


FEATURES = ("OI_L2", "OI_L3", "OI_Memory", "Register_Reuse", "ILP", "Registers", "Vectors", "Load_Balance")
"""What `features` says of a configuration: for a CPU what the seven of the AF-DS paper (section 4.1) are for a GPU.

    OI_...           operations per byte that comes from beyond the first, second, third cache: what is read again after
                     more than the cache holds, and every byte once
    Register_Reuse   multiply-adds per load
    ILP              independent multiply-adds, over those that fill the latency
    Registers        accumulators and what a step loads, over the registers there are
    Vectors          elements that are wanted, over those that all vectors of all tiles compute
    Load_Balance     tasks, over what the cores could do in as many rounds
"""


def features(shape: ContractionShape, knobs: Mapping[str, NDArray[Any]], target: Cpu, costs: Costs = Costs()) -> Floats:
    """Computes the `FEATURES` of n configurations of a register-blocked contraction.

    Args:
        shape: The contraction.
        knobs: n values of each knob, by name.
        target: The machine.
        costs: The constants of the model.

    Returns:
        One row per configuration, shape `(n, 8)`.
    """
    tiles = _Tiles(shape, knobs, target)
    accumulators, wanted = tiles.rows * tiles.vectors, shape.outer * math.prod(shape.rows) * shape.columns
    operations = 2.0 * shape.steps * wanted / tiles.count
    once = (shape.other_bytes + shape.column_bytes + 4 * wanted) / tiles.count

    def intensity(cache: int) -> Floats:
        again = tiles.moved(lambda distance: (distance >= _USABLE * cache).astype(np.float64))
        return np.asarray(operations / (once + again), dtype=np.float64)

    intensities = [intensity(cache) for cache in (target.l1, target.l2, target.l3)]
    computed = tiles.count * tiles.rows * tiles.vectors * target.lanes
    rounds = np.ceil(tiles.tasks / target.cores) if shape.parallel else tiles.tasks
    return np.stack(
        [
            *intensities,
            accumulators / (tiles.loads + tiles.broadcasts),
            accumulators / costs.latency,
            (accumulators + tiles.loads) / target.registers,
            wanted / computed,
            tiles.tasks / (rounds * target.cores),
        ],
        axis=1,
    )


def _as_tuples(sizes: Sequence[NDArray[Any]]) -> list[tuple[int, ...]]:
    return [tuple(int(size) for size in per_axis) for per_axis in zip(*sizes, strict=True)]


@lru_cache(maxsize=4096)
def _conflicts(strides: tuple[int, ...], rows: tuple[int, ...]) -> int:
    """How often the rows of a tile evict each other from the first cache.

    For each set, the number of their lines in it times those that are too many; summed over the sets.
    """
    addresses = (
        sum(number * stride for number, stride in zip(index, strides, strict=True)) for index in np.ndindex(*rows)
    )
    sets = Counter(line % _SETS for line in {address // LINE for address in addresses})
    return sum(count * max(0, count - _ROWS_PER_SET) for count in sets.values())


def _data_bytes(shape: ContractionShape, sizes: Sequence[NDArray[Any]], columns: NDArray[Any]) -> Floats:
    """Bytes of the other operand that a tile reads."""
    total = np.full(len(columns), float(shape.itemsize))
    flat = len(shape.rows) < sum(bool(dimension.row_steps) for dimension in shape.dimensions)
    if flat:
        total = total * sizes[0]
    for dimension in shape.dimensions:
        reached = np.full(len(columns), float(dimension.extent))
        if not flat:
            for row_axis, step in dimension.row_steps:
                reached = reached + step * (sizes[row_axis] - 1)
        elif dimension.row_steps:
            continue
        total = total * np.minimum(columns if dimension.follows_columns else reached, dimension.size)
    return total
