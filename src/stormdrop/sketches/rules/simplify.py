"""Simplify tensor: a block that multiplies by small constant matrices, as Winograd's transforms do.

    for e, n, p, c:                                     for p0, c0: for p1, c1:
        for r, s:                                           for e, n, r, s, unrolled:
            v[e, n, p, c] += d[r, s, p, c]                      v[e, n, p, c] += d[r, s, p, c] * a number
                             * B[e, r] * B[n, s]

The loops over the indices of the constant matrices are unrolled, and the others are tiled in two levels. Then the
entries of the matrices are numbers in the code, and products with zero vanish.

In Ansor an attribute of the block (`auto_scheduler_simplify_const_tensor_indices`) names these indices. A workload in
normal form has no attributes, so here a constant matrix is known by its values: they are computed from the indices
alone, which is how TE templates write it (`tvm.topi.utils.const_matrix`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...ir.contractions.contraction import contiguous
from ...ir.expressions import variables
from . import blocks
from .blocks import Loop
from .contract import VARIES, Applies, Nest, Place, Rule, State
from .inline import CONSTANT
from .registers import fused_consumer

_MOST_STEPS = 2048  # that are unrolled: those of F(4 x 4, 3 x 3) are 1,296
_THREADS = 128  # of a block by default


@dataclass(frozen=True)
class SimplifyTensor(Rule):
    """Unrolls the indices of constant matrices, and tiles the other loops in two levels: parallel tasks and vectors."""

    name = "simplify"

    def applies(self, state: State, block: str) -> Applies:
        return Applies.MUST if constant_loops(state, block) else Applies.NO

    def apply(self, state: State, block: str) -> None:
        schedule = state.schedule
        loops = blocks.own_loops(schedule, block)
        *_, last = _others(state, block, loops)
        along = contiguous(blocks.store_of(schedule, block), last.var)
        inner = {last.name: 2 * state.target.lanes if along else 1}
        sizes = _sizes(state, block, loops, inner)
        outer, inside, unrolled = _tile(state, block, loops, sizes)
        if along:
            vector = inside.pop()
            schedule.reorder(*unrolled, vector)
            state.vectors[block] = vector
        state.nests[block] = Nest(outer, [outer[-1]])


@dataclass(frozen=True)
class SimplifyTensorOnGpu(Rule):
    """The same for GPUs: the two levels are blocks and threads, and a thread keeps its results in registers."""

    name = "simplify"

    def applies(self, state: State, block: str) -> Applies:
        return Applies.MUST if constant_loops(state, block) else Applies.NO

    def apply(self, state: State, block: str) -> None:
        schedule, most = state.schedule, state.gpu.threads_per_block
        loops = blocks.own_loops(schedule, block)
        inner, threads = {}, _THREADS
        for loop in reversed(_others(state, block, loops)):
            inner[loop.name] = blocks.largest_divisor(loop.extent, threads)
            threads //= inner[loop.name]
        sizes = _sizes(state, block, loops, inner)
        state.knobs.require(
            [f"{block}_{name}" for name in sizes],
            lambda *tiles: math.prod(tile[1] for tile in tiles) <= most,
            f"{most} threads",
        )
        consumer = fused_consumer(state, block)
        if consumer is not None:
            schedule.set_scope(schedule.get_sblock(block), 0, "local")
        outer, inside, _ = _tile(state, block, loops, sizes)
        grid, thread = schedule.fuse(*outer), schedule.fuse(*inside)
        schedule.bind(grid, "blockIdx.x")
        schedule.bind(thread, "threadIdx.x")
        if consumer is not None:
            schedule.reverse_compute_at(schedule.get_sblock(consumer), thread, preserve_unit_loops=True)
            for loop in schedule.get_loops(consumer)[2:]:
                schedule.unroll(loop)
            state.places[consumer] = Place(block)
        state.nests[block] = Nest([grid], [thread])


def constant_loops(state: State, block: str) -> list[Loop]:
    """The loops of a reduction that move the indices of small constant matrices; empty if the rule does not apply."""
    if block in state.places or block in state.nests or state.noted(block, VARIES):
        return []
    if not blocks.reduces(state.schedule, block):
        return []
    loops = blocks.own_loops(state.schedule, block)
    moved = [loop for loop in loops if loop.var in _constant_indices(state, block)]
    small = math.prod(loop.extent for loop in moved) <= _MOST_STEPS
    return moved if small and any(loop.reduce for loop in moved) and _others(state, block, loops) else []


def _constants(state: State, block: str) -> list[str]:
    """The blocks that a block reads and that compute their values from their indices alone."""
    schedule = state.schedule
    written = schedule.get_producers(schedule.get_sblock(block))
    producers = [str(schedule.get(producer).name_hint) for producer in written]
    stores = {producer: blocks.store_of(schedule, producer) for producer in producers}
    return [
        producer
        for producer, store in stores.items()
        if blocks.is_plain(store) and variables(store.value) and not blocks.reads(schedule, producer)
    ]


def _constant_indices(state: State, block: str) -> set[Any]:
    """The iterators of a block that are in the indices of constant matrices."""
    buffers = [blocks.store_of(state.schedule, constant).buffer for constant in _constants(state, block)]
    loads = [load for load in blocks.reads(state.schedule, block) if any(load.source.same_as(by) for by in buffers)]
    return {var for load in loads for index in load.indices for var in variables(index)}


def _others(state: State, block: str, loops: Sequence[Loop]) -> list[Loop]:
    """The spatial loops to tile."""
    constant = _constant_indices(state, block)
    return [loop for loop in loops if not loop.reduce and loop.var not in constant]


def _sizes(state: State, block: str, loops: Sequence[Loop], inner: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Two factors of each loop to tile, from knobs; the inner ones are at most `inner` by default."""
    sizes = {}
    for loop in _others(state, block, loops):
        size = blocks.largest_divisor(loop.extent, inner.get(loop.name, 1))
        default = (loop.extent // size, size)
        sizes[loop.name] = state.knobs.tile(f"{block}_{loop.name}", loop.extent, 2, default)
    return sizes


def _tile(
    state: State, block: str, loops: Sequence[Loop], sizes: Mapping[str, tuple[int, ...]]
) -> tuple[list[Any], list[Any], list[Any]]:
    """Splits and orders the loops, and unrolls those of constant indices: the outer, the inner, the unrolled ones."""
    schedule, constant = state.schedule, _constant_indices(state, block)
    for name in _constants(state, block):
        state.note(name, CONSTANT)
    parts = [schedule.split(loop.loop, list(sizes[loop.name])) for loop in loops if loop.name in sizes]
    outer, inner = [part[0] for part in parts], [part[1] for part in parts]
    serial = [loop.loop for loop in loops if loop.reduce and loop.var not in constant]
    moved = [loop for loop in loops if loop.var in constant]
    unrolled = [loop.loop for loop in sorted(moved, key=lambda loop: loop.reduce)]
    schedule.reorder(*outer, *inner, *serial, *unrolled)
    for loop in unrolled:
        schedule.unroll(loop)
    state.note(block, VARIES)
    return outer, inner, unrolled
