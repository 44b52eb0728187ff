"""Reductions on GPUs: by several threads together, or by the thread that also computes what consumes the result.

If the block that reads the results has the same leading axes, these are rows, and the reduction is computed row by row:

    row sums, averages      y[i] = f(sum over r of x[i, r])          `lanes` threads for each of several rows
    softmax, norms          y[i, j] = f(x[i, j], sum over r ...)     all threads of a block work on one row
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ....ir.contractions.contraction import contiguous
from ....machine.gpu import WARP, Gpu
from .. import blocks
from ..cache_write import COPY
from ..contract import VARIES, Applies, Nest, Place, Rows, Rule, State
from ..registers import cache_in_registers, cacheable, fused_consumer

_THREADS = (32, 64, 128, 256, 512, 1024)
_LANES = (8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class CrossThreadReduction(Rule):
    """Before: a thread for y[i] = sum over r of x[i, r]     After: `lanes` threads share the terms and combine theirs.

    As in Ansor there have to be more terms than a warp has threads; a contraction must have fewer results than terms,
    and fewer than a warp for each multiprocessor. Which threads are neighbours follows from the memory.
    """

    name = "cross_thread"

    def applies(self, state: State, block: str) -> Applies:
        schedule = state.schedule
        if block in state.places or block in state.nests or state.noted(block, VARIES) or state.noted(block, COPY):
            return Applies.NO
        if not blocks.reduces(schedule, block):
            return Applies.NO
        results = math.prod(blocks.extents(schedule, block, reduce=False))
        terms = math.prod(blocks.extents(schedule, block, reduce=True))
        few = results < terms and results <= WARP * state.gpu.multiprocessors
        if terms <= WARP or (blocks.reuses(schedule, block) and not few):
            return Applies.NO
        anchor = _anchor(state, block)
        if anchor is None:
            return Applies.MAY if cacheable(state, block) else Applies.NO
        return Applies.MUST if anchor in state.rows else Applies.MAY

    def apply(self, state: State, block: str) -> None:
        schedule = state.schedule
        anchor = _anchor(state, block) or cache_in_registers(state, block)
        if anchor not in state.rows:
            state.rows[anchor] = _rows(state, anchor, block)
            state.nests[anchor] = Nest([state.rows[anchor].loop], [state.rows[anchor].loop])
        rows = state.rows[anchor]
        schedule.compute_at(schedule.get_sblock(block), rows.loop, preserve_unit_loops=True)
        schedule.set_scope(schedule.get_sblock(block), 0, "shared" if rows.whole else "local")
        reduced = schedule.fuse(*(loop.loop for loop in blocks.own_loops(schedule, block) if loop.reduce))
        steps, lane = schedule.split(reduced, [None, rows.lanes])
        schedule.reorder(lane, steps)
        schedule.bind(lane, rows.axis)
        state.places[block] = Place(anchor)


@dataclass(frozen=True)
class FuseReduction(Rule):
    """Before: two kernels, t[i] = sum ...; y[i] = f(t[i])     After: each thread computes an element of t, then of y.

    It applies to reductions whose terms threads do not share.
    """

    name = "fuse"

    def applies(self, state: State, block: str) -> Applies:
        if block in state.places or block in state.nests or not blocks.reduces(state.schedule, block):
            return Applies.NO
        return Applies.NO if fused_consumer(state, block) is None else Applies.MUST

    def apply(self, state: State, block: str) -> None:
        schedule, consumer = state.schedule, fused_consumer(state, block)
        assert consumer is not None
        elements = schedule.fuse(*(loop.loop for loop in blocks.own_loops(schedule, consumer)))
        schedule.compute_at(schedule.get_sblock(block), elements, preserve_unit_loops=True)
        schedule.set_scope(schedule.get_sblock(block), 0, "local")
        state.nests[consumer] = Nest([elements], [elements])
        state.places[block] = Place(consumer)


def thread_counts(device: Gpu) -> list[int]:
    """The numbers of threads that a block may have."""
    return [count for count in _THREADS if count <= device.threads_per_block]


def threads_of(state: State) -> int:
    """The threads of a block in the kernels that are no contractions: a knob."""
    counts = thread_counts(state.gpu)
    return int(state.knobs.ordinal("threads", counts, default=min(256, counts[-1])))


def _anchor(state: State, block: str) -> str | None:
    """The block in whose rows a reduction can be computed; None if there is none.

    It is the nest of all its consumers. They read its results by their own leading axes, which number the rows.
    """
    schedule = state.schedule
    consumers = blocks.consumers(schedule, block)
    nests = {state.places[name].nest if name in state.places else name for name in consumers}
    if len(nests) != 1 or blocks.is_output(schedule, state.workload, block):
        return None
    (anchor,) = nests
    count = _leading(state, block, consumers)
    fits = count > 0 and count <= len(blocks.extents(schedule, anchor, reduce=False))
    if anchor in state.rows:
        return anchor if fits and state.rows[anchor].axes == count else None
    if not fits or anchor in state.nests or state.noted(anchor, COPY) or blocks.reduces(schedule, anchor):
        return None
    return anchor


def _leading(state: State, block: str, consumers: list[str]) -> int:
    """The number of leading axes that consumers read a block by, if it has no others; otherwise 0."""
    schedule = state.schedule
    store = blocks.store_of(schedule, block)
    own = list(schedule.get(schedule.get_sblock(block)).iter_vars)[: len(store.indices)]
    if len(own) < len(store.indices) or any(
        not index.same_as(axis.var) for index, axis in zip(store.indices, own, strict=True)
    ):
        return 0
    count = len(own)
    for consumer in consumers:
        axes = list(schedule.get(schedule.get_sblock(consumer)).iter_vars)
        for load in blocks.reads(schedule, consumer):
            if load.source.same_as(store.buffer):
                pairs = zip(load.indices, axes, own, strict=False)
                shared = [index.same_as(axis.var) and axis.dom.extent == by.dom.extent for index, axis, by in pairs]
                count = min(count, [*shared, False].index(False))
    return count if math.prod(int(axis.dom.extent) for axis in own[count:]) == 1 else 0


def _rows(state: State, anchor: str, block: str) -> Rows:
    """Makes the leading loops of a block one loop over rows, and has threads share the others."""
    schedule, knobs = state.schedule, state.knobs
    loops = [loop.loop for loop in blocks.own_loops(schedule, anchor)]
    copied = state.noted(anchor, COPY)
    count = len(loops) if copied else _leading(state, block, blocks.consumers(schedule, block))
    rest = loops[count:]
    whole = math.prod(int(schedule.get(loop).extent) for loop in rest) > 1
    threads = threads_of(state)
    terms = math.prod(blocks.extents(schedule, block, reduce=True))
    if whole:
        lanes, axis = threads, "threadIdx.x"
    else:
        choices = [number for number in _LANES if number <= min(terms, state.gpu.threads_per_block)]
        lanes = knobs.ordinal(f"{anchor}_lanes", choices, default=WARP)
        knobs.require(("threads", f"{anchor}_lanes"), lambda threads, lanes: lanes <= threads, "lanes fit")
        axis = "threadIdx.x" if _along_terms(state, block) else "threadIdx.y"
    row = schedule.fuse(*loops[:count]) if loops[:count] else schedule.add_unit_loop(schedule.get_sblock(anchor))
    inner = schedule.fuse(*rest) if rest else schedule.add_unit_loop(schedule.get_sblock(anchor))
    steps, lane = schedule.split(inner, [None, lanes])
    if whole:
        schedule.bind(row, "blockIdx.x")
    else:
        schedule.reorder(lane, steps)
    schedule.bind(lane, axis)
    return Rows(count, row, lanes, axis, whole)


def _along_terms(state: State, block: str) -> bool:
    """Whether neighbouring terms are neighbours in memory."""
    last: Any = [loop.var for loop in blocks.own_loops(state.schedule, block) if loop.reduce][-1]
    return any(contiguous(load, last) for load in blocks.reads(state.schedule, block) if load.indices)
