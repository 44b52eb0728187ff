"""Always inlining: an elementwise block goes into the blocks that read it."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.ir import Call

from ..expressions import walk
from . import blocks
from .cache_write import COPY
from .contract import Applies, Rule, State

_MOST_COPIED = 64  # nodes of an expression that inlining may make of one that is read more than once


@dataclass(frozen=True)
class Inline(Rule):
    """Before: B[i] = A[i] + 1; C[i] = max(B[i], 0).     After: C[i] = max(A[i] + 1, 0)

    Unlike Ansor's rule it leaves alone what a contraction reads (it would be computed again for each use), and
    padding that a reduction reads: a conditional in the innermost loop costs more than a copy.
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
        if not readers or not blocks.is_plain(store) or any(blocks.reuses(schedule, each) for each in readers):
            return Applies.NO
        nodes = list(walk(store.value))
        calls = [str(node.op.name) for node in nodes if isinstance(node, Call)]
        guarded = any("if_then_else" in name for name in calls)
        if guarded and any(blocks.reduces(schedule, each) for each in readers):
            return Applies.NO
        costly = any("if_then_else" not in name for name in calls)
        copies = sum(load.source.same_as(store.buffer) for each in readers for load in blocks.reads(schedule, each))
        return Applies.MUST if copies == 1 or (not costly and copies * len(nodes) <= _MOST_COPIED) else Applies.NO

    def apply(self, state: State, block: str) -> None:
        state.schedule.compute_inline(block)
