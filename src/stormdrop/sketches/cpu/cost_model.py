"""What to expect of a schedule before anything is measured: it orders a space and picks its origin.

The cost of a register-blocked contraction in cycles of one core, from its configuration alone:

    per reduction step   the multiply-adds of the tile, or its loads, or the latency that too few accumulators leave
                         bare, whichever is most; the loop's own instructions; rows that evict each other
    per tile             accumulators set to zero, epilogue, stores
    memory               what a tile reads of either operand, over the bandwidth of the cache that holds it since it was
                         read last; which one that is follows from the order of the loops
    beside               packing, padding, the start of tasks
    all of it            what tiles compute twice, and what cores wait for

The constants were fitted to measurements of random points on one core of a Zen 4; of two schedules it says which is
likely to be faster, not how long either takes. `benchmarks/kernels/prior.py` says how often it is right.
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

from ...ir.expressions import coefficients
from ...ir.roles import Contraction
from ...ir.stages import shape_of
from ...machine.cpu import Target
from .nests import stride

Floats = NDArray[np.float64]

_THROUGH_MEMORY = 3  # a copy that fits no cache is fetched to be written, written, and read again
_EMBEDS = 16  # lanes of vectors whose instructions broadcast an operand from memory
_UNROLL = 4  # steps beyond which unrolling gains nothing
_LINE, _SETS = 64, 64  # bytes of a cache line; sets of a first cache (32 KiB in 8 ways, 48 KiB in 12)
_SHARING = 11  # rows that can share a set: those beyond the ways are not all needed at once
_HOLDS = 0.9  # of a first or second cache: so much is found again
_FAR = 2048  # bytes from one step's columns to the next's, from which on nothing fetches them ahead


@dataclass(frozen=True)
class Costs:
    """Cycles (of a core that starts one multiply-add per cycle), or bytes per cycle."""

    load: float = 1.0  # of a vector
    broadcast: float = 0.75
    latency: float = 4.0  # of a multiply-add
    loop: float = 1.0  # per iteration of the reduction
    store: float = 100.0  # per vector of a tile: zero, epilogue, store
    l2: float = 26.0
    l3: float = 16.0
    memory: float = 4.0
    exposed: float = 0.1  # share of the transfers that is never hidden by computation
    conflict: float = 0.25  # per row, step, and row too many, where rows share a set of the first cache
    spill: float = 1.0  # per register too many
    stride: float = 2.2  # per vector of columns that are not contiguous from step to step
    copy: float = 15.0  # bytes per cycle of packing and padding
    remote: float = 2.0  # bytes per cycle of lines that another core has just written
    padded: float = 1.0  # per vector that is padded in registers: a load, and whether it is inside
    task: float = 500.0


@dataclass(frozen=True, eq=False)
class Shape:
    """What the model needs to know of a contraction; see `shape`.

    `reads` has one entry per dimension of the other operand: its extent over the reductions alone, the steps per row
    of each row axis, whether it follows the columns, and its size.
    """

    rows: tuple[int, ...]
    columns: int
    outer: int
    steps: int
    strides: tuple[int, ...]
    reads: tuple[tuple[int, tuple[tuple[int, int], ...], bool, int], ...]
    follows_columns: bool
    other_bytes: int
    column_bytes: int
    column_varies: bool
    column_stride: int
    padded_bytes: int


def shape(parts: Contraction, extents: Sequence[int]) -> Shape:
    """The numbers of a contraction whose row axes are walked with these extents."""
    steps = {axis.var: axis.extent for axis in parts.stage.reductions}
    rows = [axis.var for axis in parts.rows]
    left, right = parts.stage.value.a, parts.stage.value.b
    other = right if parts.operand.source.same_as(left.source) else left
    sizes = shape_of(other.source)
    every = {*steps, *rows, parts.column.var, *(axis.var for axis in parts.outer)}
    factors = [coefficients(index, every) or {} for index in other.indices]
    item = np.dtype(str(other.source.dtype)).itemsize
    strides = [
        sum(int(each.get(row, 0)) * math.prod(sizes[at + 1 :]) for at, each in enumerate(factors)) * item
        for row in rows
    ]
    reads = tuple(
        (
            1 + sum(abs(int(factor)) * (steps[name] - 1) for name, factor in each.items() if name in steps),
            tuple((rows.index(name), abs(int(factor))) for name, factor in each.items() if name in rows),
            parts.column.var in each,
            size,
        )
        for each, size in zip(factors, sizes, strict=True)
    )
    prologue = parts.prologue
    return Shape(
        tuple(extents),
        parts.column.extent,
        math.prod(axis.extent for axis in parts.outer),
        math.prod(steps.values()),
        tuple(strides[-1:] if parts.flat else strides),
        reads,
        any(parts.column.var in each for each in factors),
        item * math.prod(sizes),
        item * math.prod(shape_of(parts.operand.source)),
        parts.packable is not None and parts.constant is None,
        abs(stride(parts.operand, parts.stage.reductions[-1].var) or 0) * item,
        0 if prologue is None else item * math.prod(shape_of(prologue.buffer)),
    )


class _Tiles:
    """n configurations of a register-blocked contraction, given as n values of each knob: what their tiles move.

    A tile reads `own` bytes of the other operand and a `panel` of the columns. Both were read before; since then so
    many bytes went through the caches: `held` for the former, for the latter `near` in a share `again` of the tiles,
    and `far` in the others.
    """

    def __init__(self, shape: Shape, knobs: Mapping[str, NDArray[Any]], target: Target) -> None:
        two = len(shape.rows) == 2
        self.sizes = [knobs[name] for name in (("rows_outer", "rows") if two else ("rows",))]
        self.columns, order = knobs["columns"], knobs["order"]
        self.by_column, self.by_row, mixed = order == "columns", order == "rows", order == "mixed"
        self.rows = np.prod(self.sizes, axis=0)
        self.vectors = self.columns / np.gcd(self.columns, target.lanes)
        tiles = [np.ceil(extent / size) for extent, size in zip(shape.rows, self.sizes, strict=True)]
        blocks = tiles[0] if two else np.ceil(tiles[0] / knobs["block"])
        per_block = tiles[1] if two else knobs["block"]
        self.column_tiles = np.ceil(shape.columns / self.columns)
        self.count = shape.outer * blocks * per_block * self.column_tiles
        self.tasks = shape.outer * blocks * np.where(self.by_row, per_block if two else 1, self.column_tiles)

        self.in_registers = knobs["prologue"] == "tile" if shape.padded_bytes else np.zeros(len(self.columns), bool)
        every = self.vectors * (1 + self.rows) if shape.follows_columns else self.vectors
        self.loads = np.where(self.in_registers, self.vectors, every)
        self.broadcasts = 0 if shape.follows_columns else self.rows

        self.own, self.panel = _read(shape, self.sizes, self.columns), 4.0 * shape.steps * self.columns
        all_rows = shape.other_bytes / shape.outer
        all_columns = shape.column_bytes / (shape.outer if shape.column_varies else 1)
        self.slab = self.own * per_block
        passing = np.where(self.by_column, all_rows, np.where(self.by_row, self.own, self.slab))
        self.held = self.panel + passing
        self.near = self.panel + self.own
        self.far = np.where(self.by_row, all_columns + self.own, all_columns + self.slab)
        self.again = np.where(self.by_column, 1.0, np.where(mixed, 1 - 1 / per_block, 0.0))

    def moved(self, costs: Callable[[Floats], Floats]) -> Floats:
        """What a tile reads, each byte at the cost that it has after so many others."""
        panel = self.again * costs(self.near) + (1 - self.again) * costs(self.far)
        return self.own * costs(self.held) + self.panel * panel


def cycles(shape: Shape, knobs: Mapping[str, NDArray[Any]], target: Target, costs: Costs = Costs()) -> Floats:
    """Expected cycles of n configurations of a register-blocked contraction, given as n values of each knob."""
    tiles = _Tiles(shape, knobs, target)
    rows, vectors = tiles.rows, tiles.vectors
    # Below AVX-512 no instruction takes a scalar operand from memory: it needs a load and a register of its own.
    apart = target.lanes < _EMBEDS
    broadcast = 1.0 if apart else costs.broadcast
    step = np.maximum(rows * vectors, tiles.loads * costs.load + tiles.broadcasts * broadcast)
    step = np.maximum(step, costs.latency) + costs.loop / np.minimum(knobs["unroll"], _UNROLL)
    if shape.follows_columns:
        # The compiler keeps what neighbouring rows share in registers, too.
        step = step + costs.spill * np.maximum(0, (2 * rows + 1) * vectors - target.registers)
    else:
        if apart:
            # Of one vector per row LLVM holds several steps at once; of more, some scalars beside them.
            alone = (vectors == 1) & (knobs["unroll"] > 1)
            live = np.where(alone, 2 * rows + 1, (rows + 1) * vectors + target.registers // 8 - 1)
            step = step + costs.spill * np.maximum(0, live - target.registers)
        step = step + costs.conflict * np.array([_conflicts(shape.strides, each) for each in _tuples(tiles.sizes)])
    if shape.column_varies:
        spread = (knobs["pack"] == 0) & (tiles.panel > target.l1 / 2) & (shape.column_stride >= _FAR)
        step = step + np.where(spread, costs.stride * vectors, 0)
    tile = shape.steps * step + costs.store * rows * vectors

    def per_byte(held: Floats) -> Floats:
        """Cycles per byte that comes from the cache which holds so many bytes."""
        outside = np.where(held < target.l3, 1 / costs.l3, 1 / costs.memory)
        return np.where(held < _HOLDS * target.l1, 0.0, np.where(held < _HOLDS * target.l2, 1 / costs.l2, outside))

    moved = tiles.moved(per_byte)
    total = tiles.count * (np.maximum(tile, moved) + costs.exposed * moved) + tiles.tasks * costs.task
    if shape.column_varies:
        total = total + knobs["pack"] * 2 * shape.column_bytes / costs.copy
    if shape.padded_bytes:
        region = np.where(tiles.by_row, tiles.own * (tiles.column_tiles if shape.follows_columns else 1), tiles.slab)
        if shape.padded_bytes > target.caches:
            whole = np.full(len(rows), _THROUGH_MEMORY * shape.padded_bytes / costs.memory)
        else:
            # Each core has written some rows; tiles of columns on several cores read them all.
            spread = tiles.by_column & (tiles.column_tiles > 1)
            others = np.where(spread, (target.cores - 1) / costs.remote, 0.0)
            whole = shape.padded_bytes * (1 / costs.copy + others)
        held = tiles.own / (4 * target.lanes)
        spilled = costs.spill * np.maximum(0, held + rows * vectors - target.registers)
        per_tile = tiles.count * (held * costs.padded + 2 * spilled)
        inside = np.where(knobs["prologue"] == "task", 2 * tiles.tasks * region / costs.copy, per_tile)
        total = total + np.where(knobs["prologue"] == "apart", whole, inside)
    rounds = np.ceil(tiles.tasks / target.cores)
    return np.asarray(total * rounds / tiles.tasks, dtype=np.float64)


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


def features(shape: Shape, knobs: Mapping[str, NDArray[Any]], target: Target, costs: Costs = Costs()) -> Floats:
    """`FEATURES` of n configurations, given as n values of each knob; shape (n, 8)."""
    tiles = _Tiles(shape, knobs, target)
    held, wanted = tiles.rows * tiles.vectors, shape.outer * math.prod(shape.rows) * shape.columns
    operations = 2.0 * shape.steps * wanted / tiles.count
    once = (shape.other_bytes + shape.column_bytes + 4 * wanted) / tiles.count

    def intensity(cache: int) -> Floats:
        again = tiles.moved(lambda held: (held >= _HOLDS * cache).astype(np.float64))
        return np.asarray(operations / (once + again), dtype=np.float64)

    intensities = [intensity(cache) for cache in (target.l1, target.l2, target.l3)]
    lanes = tiles.count * tiles.rows * tiles.vectors * target.lanes
    rounds = np.ceil(tiles.tasks / target.cores)
    return np.stack(
        [
            *intensities,
            held / (tiles.loads + tiles.broadcasts),
            held / costs.latency,
            (held + tiles.loads) / target.registers,
            wanted / lanes,
            tiles.tasks / (rounds * target.cores),
        ],
        axis=1,
    )


def _tuples(sizes: Sequence[NDArray[Any]]) -> list[tuple[int, ...]]:
    return [tuple(int(size) for size in each) for each in zip(*sizes, strict=True)]


@lru_cache(maxsize=4096)
def _conflicts(strides: tuple[int, ...], rows: tuple[int, ...]) -> int:
    """Lines of a tile's rows times those too many of them in the same set of the first cache, summed over the sets."""
    places = (sum(at * stride for at, stride in zip(index, strides, strict=True)) for index in np.ndindex(*rows))
    sets = Counter(line % _SETS for line in {place // _LINE for place in places})
    return sum(count * max(0, count - _SHARING) for count in sets.values())


def _read(shape: Shape, sizes: Sequence[NDArray[Any]], columns: NDArray[Any]) -> Floats:
    """Bytes of the other operand that a tile reads."""
    total = np.full(len(columns), 4.0)
    flat = len(shape.rows) < sum(bool(follows) for _, follows, _, _ in shape.reads)
    if flat:
        total = total * sizes[0]
    for extent, follows, along, size in shape.reads:
        span = np.full(len(columns), float(extent))
        if not flat:
            for axis, factor in follows:
                span = span + factor * (sizes[axis] - 1)
        elif follows:
            continue
        total = total * np.minimum(columns if along else span, size)
    return total
