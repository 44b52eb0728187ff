"""Vectorise: the last loop of the innermost tile, or a loop along which all accesses of a block are contiguous."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....ir.contractions.contraction import contiguous
from ....ir.expressions import variables
from .. import blocks
from ..blocks import Loop
from ..contract import Annotation, Applies, State


@dataclass(frozen=True)
class Vectorise(Annotation):
    """Vectors along neighbours in memory.

    Before:     for i, j, r:              y[i, j] += x[i, r, j]
    After:      for i, j0, r, vector j1:  y[i, j0 * v + j1] += x[i, r, j0 * v + j1]
    """

    name = "vectorise"

    def applies(self, state: State, block: str) -> Applies:
        return Applies.MUST

    def apply(self, state: State, block: str) -> None:
        schedule, lanes = state.schedule, state.target.lanes
        if block in state.vectors:
            _vectorise(state, state.vectors[block])
            return
        most = state.knobs.ordinal("vector", [lanes, 2 * lanes, 4 * lanes], default=2 * lanes)
        loops = blocks.own_loops(schedule, block)
        along = next((loop for loop in reversed(loops) if _moves_along_memory(state, block, loop)), None)
        width = 1 if along is None else blocks.largest_divisor(along.extent, most)
        if along is None or width == 1:  # a loop over one element would count among those that others are put into
            return
        inner = schedule.split(along.loop, [None, width])[1]
        schedule.reorder(*(loop.loop for loop in loops if loop.reduce), inner)
        _vectorise(state, inner)


def _vectorise(state: State, loop: Any) -> None:
    if state.knobs.extent(loop) > 1:
        state.schedule.vectorize(loop)


def _moves_along_memory(state: State, block: str, loop: Loop) -> bool:
    """Whether a step of a loop moves the store by one element, and every load by one or not at all."""
    if loop.reduce or loop.extent == 1:
        return False
    accesses = [blocks.store_of(state.schedule, block), *blocks.reads(state.schedule, block)]
    moving = [access for access in accesses if any(loop.var in variables(index) for index in access.indices)]
    return accesses[0] in moving and all(contiguous(access, loop.var) for access in moving)
