"""Inlining: an elementwise block is computed inside the blocks that read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...ir.expressions import walk
from ...ir.inlining import worth_copying
from . import blocks
from .cache_write import COPY
from .contract import Applies, Rule, State

CONSTANT = "constant"  # a note on constant matrices whose readers unroll the loops over their indices


@dataclass(frozen=True)
class Inline(Rule):
    """Before: B[i] = A[i] + 1; C[i] = max(B[i], 0).     After: C[i] = max(A[i] + 1, 0).

    Unlike Ansor's rule, it does not inline what a contraction reads, which would be computed again for each use. Nor
    does it inline padding that a reduction reads: a conditional in the innermost loop costs more than a copy.
    """

    name = "inline"

    def applies(self, state: State, block: str) -> Applies:
        if state.noted(block, CONSTANT):
            return Applies.MUST
        schedule = state.schedule
        store = blocks.store_of(schedule, block)
        kept = blocks.is_output(schedule, state.workload, block) or state.noted(block, COPY)
        if kept or blocks.reduces(schedule, block) or not blocks.is_plain(store):
            return Applies.NO
        readers = blocks.consumers(schedule, block)
        loads = [load for reader in readers for load in blocks.reads(schedule, reader)]
        copies = sum(load.source.same_as(store.buffer) for load in loads)
        return Applies.MUST if copies and self._pays(state, store.value, readers, copies) else Applies.NO

    def _pays(self, state: State, value: Any, readers: Sequence[str], copies: int) -> bool:
        """Whether a value that its readers load at so many places is better computed there."""
        if any(blocks.reuses(state.schedule, reader) for reader in readers):
            return False
        return worth_copying(value, copies, any(blocks.reduces(state.schedule, reader) for reader in readers))

    def apply(self, state: State, block: str) -> None:
        state.schedule.compute_inline(block)


@dataclass(frozen=True)
class InlineAll(Inline):
    """The same for GPUs, where Ansor inlines every block that does not reduce, also padding and costly functions.

    What a contraction stages in shared memory is computed while it is fetched. A value that would be copied many times
    is not inlined, because a chain of squares would double with every link: this limit is not Ansor's.
    """

    most_nodes: int = 256

    def _pays(self, state: State, value: Any, readers: Sequence[str], copies: int) -> bool:
        return copies == 1 or copies * sum(1 for _ in walk(value)) <= self.most_nodes
