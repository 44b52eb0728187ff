"""Reduction factorisation: with partial results a reduction runs in parallel, or in vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ....ir.contractions.contraction import contiguous
from .. import blocks
from ..contract import VARIES, Applies, Rule, State

PARTS = "parts"  # a note on reductions whose partial results are computed in parallel
_TASKS_PER_CORE = 16  # more parallel tasks gain nothing (Ansor's bound)


@dataclass(frozen=True)
class FactorTasks(Rule):
    """A reduction with few results is split into parts that run in parallel, and each part into lanes if possible.

    Before:     y[i] = sum over r of x[i, r]
    After:      partial[t, i] = sum over s of x[i, t * steps + s];  y[i] = sum over t of partial[t, i]
    """

    name = "rfactor"

    def applies(self, state: State, block: str) -> Applies:
        if not blocks.reduces(state.schedule, block) or state.noted(block, VARIES):
            return Applies.NO
        results = math.prod(blocks.extents(state.schedule, block, reduce=False))
        terms = math.prod(blocks.extents(state.schedule, block, reduce=True))
        few = results < terms and results <= _TASKS_PER_CORE * state.target.cores
        return Applies.MAY if few and blocks.largest_divisor(terms, math.isqrt(terms)) > 1 else Applies.NO

    def apply(self, state: State, block: str) -> None:
        schedule, reduced = state.schedule, [loop for loop in blocks.own_loops(state.schedule, block) if loop.reduce]
        lanes = _along_memory(state, block)
        fused = schedule.fuse(*(loop.loop for loop in reduced))
        terms = math.prod(loop.extent for loop in reduced)
        tasks = blocks.largest_divisor(terms, 4 * state.target.cores)
        rank = len(blocks.store_of(schedule, block).indices)
        partial = schedule.rfactor(_split(state, block, fused, terms, tasks, lanes)[0], 0)
        created = [partial]
        if lanes:
            created.append(schedule.rfactor(schedule.get_loops(partial)[-1], rank + 1))
        for name in (block, *(str(schedule.get(partial).name_hint) for partial in created)):
            state.note(name, VARIES)
            state.note(name, PARTS)


@dataclass(frozen=True)
class FactorLanes(Rule):
    """A reduction along memory keeps one partial result per vector lane.

    Before:     y[i] = sum over r of x[i, r]
    After:      partial[i, l] = sum over s of x[i, s * lanes + l];  y[i] = sum over l of partial[i, l]
    """

    name = "lanes"

    def applies(self, state: State, block: str) -> Applies:
        if state.noted(block, VARIES) or not blocks.reduces(state.schedule, block):
            return Applies.NO
        return Applies.MUST if _along_memory(state, block) else Applies.NO

    def apply(self, state: State, block: str) -> None:
        schedule = state.schedule
        along = [loop for loop in blocks.own_loops(schedule, block) if loop.reduce][-1]
        rank = len(blocks.store_of(schedule, block).indices)
        partial = schedule.rfactor(_split(state, block, along.loop, along.extent, 1, lanes=True)[-1], rank)
        for name in (block, str(schedule.get(partial).name_hint)):
            state.note(name, VARIES)


def _split(state: State, block: str, loop: Any, extent: int, tasks: int, lanes: bool) -> list[Any]:
    """Splits a reduction loop into tasks (if there may be several), steps, and lanes (if wanted)."""
    width = blocks.largest_divisor(extent // tasks, 2 * state.target.lanes) if lanes else 1
    default = [tasks] * (tasks > 1) + [extent // tasks // width] + [width] * lanes
    most = 4 * state.target.lanes if lanes else None
    sizes = state.knobs.tile(f"{block}_parts", extent, len(default), default, most)
    return list(state.schedule.split(loop, list(sizes)))


def _along_memory(state: State, block: str) -> bool:
    """Whether only the last reduction moves along memory, so that its vectors are contiguous."""
    schedule = state.schedule
    if blocks.reuses(schedule, block):
        return False
    loops = blocks.own_loops(schedule, block)
    along = [loop for loop in loops if loop.reduce][-1]
    spatial = [loop.var for loop in loops if not loop.reduce and loop.extent > 1]
    loads = [load for load in blocks.reads(schedule, block) if load.indices]
    if any(contiguous(load, var) for load in loads for var in spatial):
        return False
    wide = blocks.largest_divisor(along.extent, 4 * state.target.lanes) > 3
    return wide and any(contiguous(load, along.var) for load in loads)
