"""Where the results of a block on a GPU go: through the block that consumes them, or a copy, while in registers."""

from __future__ import annotations

from . import blocks
from .cache_write import COPY, read_twice
from .contract import State


def fused_consumer(state: State, block: str) -> str | None:
    """The block that can be computed where a thread has a block's results: its only consumer, element by element.

    What else it reads must have been computed before.

    Args:
        state: The derivation so far.
        block: The block's name.
    """
    schedule = state.schedule
    consumer = blocks.matched_consumer(schedule, state.workload, block)
    if consumer is None or consumer in state.nests or consumer in state.places:
        return None
    if not (blocks.is_plain(blocks.store_of(schedule, consumer)) and blocks.is_plain(blocks.store_of(schedule, block))):
        return None
    order, reader = blocks.names(schedule), schedule.get_sblock(consumer)
    producers = [str(schedule.get(producer).name_hint) for producer in schedule.get_producers(reader)]
    earlier = all(order.index(producer) <= order.index(block) for producer in producers)
    return consumer if earlier else None


def cacheable(state: State, block: str) -> bool:
    """Whether TVM can have a block compute into a buffer of its own that is then copied."""
    return blocks.is_plain(blocks.store_of(state.schedule, block)) and not read_twice(state, block)


def cache_in_registers(state: State, block: str) -> str:
    """Has a block compute into registers. Returns the name of the block that copies them."""
    copy = state.schedule.cache_write(state.schedule.get_sblock(block), 0, "local")
    name = str(state.schedule.get(copy).name_hint)
    state.note(name, COPY)
    return name
