"""Multi-level tiling of contractions, alone or fused with the block that consumes them.

Each spatial loop (S) is split into four, each reduction loop (R) into two, in the order "SSRSRS":

    for i0, j0:                                 tasks
        for i1, j1:                             tiles of a task
            for k0:
                for i2, j2:                     tiles of a tile
                    for k1:
                        for i3, j3:             the innermost tile: j3 is a vector
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import blocks
from ..blocks import Loop
from ..cache_write import COPY, tileable
from ..contract import Applies, Nest, Place, Rule, State

_MOST_INNER = 64  # Ansor's bound on innermost factors
_MOST_LOCAL = 16384  # bytes of results that may be on a thread's stack


@dataclass(frozen=True)
class TileAndFuse(Rule):
    """Tiles the consumer, and computes the contraction inside of its tiles."""

    name = "tile_fuse"

    def applies(self, state: State, block: str) -> Applies:
        if not tileable(state, block):
            return Applies.NO
        consumer = blocks.matched_consumer(state.schedule, state.workload, block)
        if (
            consumer is None
            or consumer in state.nests
            or not blocks.is_plain(blocks.store_of(state.schedule, consumer))
        ):
            return Applies.NO
        return Applies.MUST if state.noted(consumer, COPY) else Applies.MAY

    def apply(self, state: State, block: str) -> None:
        schedule = state.schedule
        consumer = blocks.consumers(schedule, block)[0]
        names = blocks.matching(schedule, block, consumer)
        assert names is not None
        sizes = _sizes(state, block)
        loops = blocks.own_loops(schedule, consumer)
        parts = []
        for loop in loops:
            task, tile, inner, innermost = sizes[names[loop.name]]
            parts.append(schedule.split(loop.loop, [task, tile, inner * innermost]))
        levels = [[loops_of_axis[level] for loops_of_axis in parts] for level in range(3)]
        schedule.reorder(*(loop for level in levels for loop in level))
        state.nests[consumer] = Nest(levels[0], [levels[0][-1], levels[1][-1]])
        depth = state.knobs.ordinal(f"{block}_at", [1, 2], default=2)
        state.places[block] = Place(consumer, f"{block}_at")
        outside = state.nests[consumer].levels[depth - 1]
        schedule.compute_at(schedule.get_sblock(block), outside, preserve_unit_loops=True)
        _tile(state, block, sizes, first=depth)
        local = math.prod(math.prod(sizes[name][depth:]) for name in names.values())
        if local * np.dtype(str(blocks.store_of(schedule, block).buffer.dtype)).itemsize <= _MOST_LOCAL:
            schedule.set_scope(schedule.get_sblock(block), 0, "local")


@dataclass(frozen=True)
class Tile(Rule):
    """Tiles the contraction in its own nest."""

    name = "tile"

    def applies(self, state: State, block: str) -> Applies:
        if block in state.factors or not tileable(state, block):
            return Applies.NO
        return Applies.MUST

    def apply(self, state: State, block: str) -> None:
        levels = _tile(state, block, _sizes(state, block), first=0)
        state.nests[block] = Nest(levels[0], [levels[0][-1], levels[1][-1]])


def _sizes(state: State, block: str) -> dict[str, tuple[int, ...]]:
    """The tile sizes of each iterator, from knobs.

    By default there is one register tile and nothing larger. It has two vectors of columns, as many rows as have their
    accumulators in registers beside two more vectors, and four steps of the last reduction.
    """
    loops, target = blocks.own_loops(state.schedule, block), state.target
    wide = [loop for loop in loops if not loop.reduce and loop.extent > 1]
    inner = {
        loop.name: most for loop, most in zip(wide[::-1], (2 * target.lanes, target.registers // 2 - 2), strict=False)
    }
    inner[[loop.name for loop in loops if loop.reduce][-1]] = 4
    sizes = {}
    for loop in loops:
        innermost = blocks.largest_divisor(loop.extent, inner.get(loop.name, 1))
        default = (loop.extent // innermost, *((1, 1) if not loop.reduce else ()), innermost)
        sizes[loop.name] = state.knobs.tile(f"{block}_{loop.name}", loop.extent, len(default), default, _MOST_INNER)
    return sizes


def _tile(state: State, block: str, sizes: dict[str, tuple[int, ...]], first: int) -> list[list[Any]]:
    """Splits and reorders the loops of a block, whose outermost `first` levels are another block's loops."""
    schedule, loops = state.schedule, blocks.own_loops(state.schedule, block)

    def levels(reduce: bool) -> list[list[Any]]:
        parts = [
            _split(state, loop, sizes[loop.name][0 if reduce else first :]) for loop in loops if loop.reduce == reduce
        ]
        return [list(level) for level in zip(*parts, strict=True)]

    spatial, reduced = levels(reduce=False), levels(reduce=True)
    *outer, inner, innermost = spatial
    schedule.reorder(*(loop for level in (*outer, reduced[0], inner, reduced[1], innermost) for loop in level))
    state.factors[block] = sizes
    state.vectors[block] = innermost[-1]
    return spatial


def _split(state: State, loop: Loop, sizes: Sequence[int]) -> list[Any]:
    assert loop.extent == math.prod(sizes), f"{loop.name} has {loop.extent} steps, not {sizes}"
    return list(state.schedule.split(loop.loop, list(sizes)))
