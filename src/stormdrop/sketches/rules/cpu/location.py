"""Compute location: a producer that is not inlined is computed alone, or inside of its consumer's loops."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....ir.expressions import coefficients, variables
from .. import blocks
from ..contract import Annotation, Applies, Place, State
from .packing import PACKED
from .rfactor import PARTS


@dataclass(frozen=True)
class ComputeLocation(Annotation):
    """Before: B has a nest of its own     After: B is computed inside of a loop of the nest that reads it.

    The knob is 0 for a nest of its own, 1 for the outermost level of its consumer's nest, and more for a deeper one. It
    concerns padding, row maxima and partial sums. A producer of a producer must not be computed deeper than that one.
    Packing keeps a nest of its own. So does what is read at indices that are not affine (in a grouped convolution),
    because the part that a tile needs has no constant size.
    """

    name = "location"

    def applies(self, state: State, block: str) -> Applies:
        schedule = state.schedule
        if block in state.nests or block in state.places or state.noted(block, PACKED):
            return Applies.NO
        if blocks.is_output(schedule, state.workload, block) or not _read_in_boxes(state, block):
            return Applies.NO
        return Applies.NO if self._nest(state, block) is None else Applies.MUST

    def apply(self, state: State, block: str) -> None:
        schedule, knobs = state.schedule, state.knobs
        nest = self._nest(state, block)
        assert nest is not None
        levels, name = state.nests[nest].levels, f"{block}_at"
        level = knobs.ordinal(name, list(range(len(levels) + 1)), default=self._default(state, block, nest))
        for consumer in blocks.consumers(schedule, block):
            place = state.places.get(consumer)
            if place is not None and place.knob is not None:
                knobs.require(
                    (name, place.knob),
                    lambda level, consumer_level: level <= consumer_level,
                    f"{block} is computed no deeper than {consumer}",
                )
        state.places[block] = Place(nest, name)
        if level:
            schedule.compute_at(schedule.get_sblock(block), levels[level - 1], preserve_unit_loops=True)

    @staticmethod
    def _nest(state: State, block: str) -> str | None:
        """The nest that contains all consumers; None if they are in several nests."""
        nests = set()
        for consumer in blocks.consumers(state.schedule, block):
            place = state.places.get(consumer)
            nests.add(consumer if place is None else place.nest)
        nest = nests.pop() if len(nests) == 1 else None
        return nest if nest in state.nests else None

    @staticmethod
    def _default(state: State, block: str, nest: str) -> int:
        """The level of the consumers if there is enough to run in parallel; 0 otherwise, and for what tiles read."""
        readers = blocks.consumers(state.schedule, block)
        tasks = math.prod(blocks.extents(state.schedule, nest, reduce=False))
        partial = state.noted(block, PARTS)
        if partial or tasks < state.target.cores or any(reader in state.factors for reader in readers):
            return 0
        names = [state.places[reader].knob for reader in readers if reader in state.places]
        placed = [state.knobs.values[name] for name in names if name is not None]
        return min([len(state.nests[nest].levels), *(int(str(value)) for value in placed)])


def _read_in_boxes(state: State, block: str) -> bool:
    """Whether all consumers read a block at affine indices."""
    buffer = blocks.store_of(state.schedule, block).buffer
    consumers = blocks.consumers(state.schedule, block)
    loads = [load for consumer in consumers for load in blocks.reads(state.schedule, consumer)]
    indices = [index for load in loads if load.source.same_as(buffer) for index in load.indices]
    return all(coefficients(index, variables(index)) is not None for index in indices)
