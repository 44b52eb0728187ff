"""Cache write: a contraction without an elementwise consumer computes into a buffer, which is then copied."""

from __future__ import annotations

from dataclasses import dataclass

from . import blocks
from .contract import VARIES, Applies, Rule, State

COPY = "copy"  # a note on the copies that cache writes make


@dataclass(frozen=True)
class CacheWrite(Rule):
    """Before: C[i, j] = sum ...     After: cache[i, j] = sum ...; C[i, j] = cache[i, j].

    Tiling can fuse the contraction with the copy, so that the sums stay in registers or in the first cache.
    """

    name = "cache_write"

    def applies(self, state: State, block: str) -> Applies:
        schedule = state.schedule
        if not tileable(state, block) or not blocks.is_plain(blocks.store_of(schedule, block)):
            return Applies.NO
        fusible = blocks.matched_consumer(schedule, state.workload, block) is not None
        return Applies.NO if fusible or read_twice(state, block) else Applies.MAY

    def apply(self, state: State, block: str) -> None:
        copy = state.schedule.cache_write(state.schedule.get_sblock(block), 0, "global")
        state.note(str(state.schedule.get(copy).name_hint), COPY)


def tileable(state: State, block: str) -> bool:
    """Whether a block is a contraction whose extents are known."""
    return blocks.reuses(state.schedule, block) and not state.noted(block, VARIES)


def read_twice(state: State, block: str) -> bool:
    """Whether a consumer declares several regions of what a block writes, which TVM cannot cache."""
    buffer = blocks.store_of(state.schedule, block).buffer
    readers = [state.schedule.get(consumer) for consumer in state.schedule.get_consumers(block)]
    return any(sum(region.source.same_as(buffer) for region in reader.reads) > 1 for reader in readers)
