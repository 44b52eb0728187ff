"""Inlining: an elementwise block is computed inside the blocks that read it."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.roles import worth_copying
from . import blocks
from .cache_write import COPY
from .contract import Applies, Rule, State


@dataclass(frozen=True)
class Inline(Rule):
    """Before: B[i] = A[i] + 1; C[i] = max(B[i], 0).     After: C[i] = max(A[i] + 1, 0)

    Unlike Ansor's rule, it does not inline what a contraction reads, which would be computed again for each use. Nor
    does it inline padding that a reduction reads: a conditional in the innermost loop costs more than a copy.
    """

    name = "inline"

    def applies(self, state: State, block: str) -> Applies:
        schedule = state.schedule
        store = blocks.store_of(schedule, block)
        if (
            blocks.reduces(schedule, block)
            or blocks.is_output(schedule, state.workload, block)
            or state.noted(block, COPY)
        ):
            return Applies.NO
        readers = blocks.consumers(schedule, block)
        if not readers or not blocks.is_plain(store) or any(blocks.reuses(schedule, reader) for reader in readers):
            return Applies.NO
        loads = [load for reader in readers for load in blocks.reads(schedule, reader)]
        copies = sum(load.source.same_as(store.buffer) for load in loads)
        reduced = any(blocks.reduces(schedule, reader) for reader in readers)
        return Applies.MUST if worth_copying(store.value, copies, reduced) else Applies.NO

    def apply(self, state: State, block: str) -> None:
        state.schedule.compute_inline(block)
