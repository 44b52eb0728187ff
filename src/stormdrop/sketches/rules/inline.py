"""Inlining: an elementwise block is computed inside the blocks that read it."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.expressions import walk
from ...ir.roles import worth_copying
from . import blocks
from .cache_write import COPY
from .contract import Applies, Rule, State

CONSTANT = "constant"  # a note on constant matrices whose readers unroll the loops over their indices


@dataclass(frozen=True)
class Inline(Rule):
    """Before: B[i] = A[i] + 1; C[i] = max(B[i], 0).     After: C[i] = max(A[i] + 1, 0)

    Unlike Ansor's rule, it does not inline what a contraction reads, which would be computed again for each use. Nor
    does it inline padding that a reduction reads: a conditional in the innermost loop costs more than a copy.
    """

    name = "inline"

    def applies(self, state: State, block: str) -> Applies:
        if state.noted(block, CONSTANT):
            return Applies.MUST
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


@dataclass(frozen=True)
class InlineAll(Rule):
    """The same for GPUs, where Ansor inlines every block that does not reduce, also padding and costly functions.

    What a contraction stages in shared memory is computed while it is fetched. A value that would be copied many times
    is not inlined, because a chain of squares would double with every link: this limit is not Ansor's.
    """

    name = "inline"
    most_nodes: int = 256

    def applies(self, state: State, block: str) -> Applies:
        if state.noted(block, CONSTANT):
            return Applies.MUST
        schedule = state.schedule
        store = blocks.store_of(schedule, block)
        if (
            blocks.reduces(schedule, block)
            or blocks.is_output(schedule, state.workload, block)
            or state.noted(block, COPY)
            or not blocks.is_plain(store)
        ):
            return Applies.NO
        readers = blocks.consumers(schedule, block)
        loads = [load for reader in readers for load in blocks.reads(schedule, reader)]
        copies = sum(load.source.same_as(store.buffer) for load in loads)
        small = copies <= 1 or copies * sum(1 for _ in walk(store.value)) <= self.most_nodes
        return Applies.MUST if copies and small else Applies.NO

    def apply(self, state: State, block: str) -> None:
        state.schedule.compute_inline(block)
