"""Parallel: the outermost loops of every nest as one parallel loop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import takewhile

from tvm.tirx import ForKind

from . import blocks
from .contract import VARIES, Annotation, Applies, Nest, State

_TASKS_PER_CORE = 16  # fusing more loops costs index arithmetic and gains nothing


@dataclass(frozen=True)
class Parallel(Annotation):
    """Before: for i, j, k: ...     After: for ij in parallel: for k: ...

    Of tiles the task level; of other blocks as many leading loops as give each core sixteen tasks (Ansor's bound).
    """

    name = "parallel"

    def applies(self, state: State, block: str) -> Applies:
        inside = block in state.factors and block in state.places
        return Applies.NO if inside else Applies.MUST

    def apply(self, state: State, block: str) -> None:
        if not state.at_root(block):
            return
        nest = state.nests.get(block) or self._leading(state, block)
        if nest is None:
            return
        fused = state.schedule.fuse(*nest.outer)
        state.nests[block] = Nest([fused], [fused, *nest.levels[1:]])
        if state.knobs.extent(fused) > 1:
            state.schedule.parallel(fused)

    @staticmethod
    def _leading(state: State, block: str) -> Nest | None:
        """The loops before the first that reduces or is vectorised; their iterators' extents say how many to fuse."""
        schedule = state.schedule
        loops = [each for each in blocks.loops(schedule, block) if schedule.get(each.loop).kind == ForKind.SERIAL]
        leading = list(takewhile(lambda each: not each.reduce, loops))
        if not leading:
            return None
        wanted = _TASKS_PER_CORE * state.target.cores
        products = [math.prod(each.whole for each in leading[:at]) for at in range(1, len(leading) + 1)]
        count = next((at for at, product in enumerate(products, 1) if product >= wanted), len(leading))
        outer, rest = [each.loop for each in leading[:count]], [each.loop for each in leading[count:-1]]
        return Nest(outer, [outer[-1], *([] if state.noted(block, VARIES) else rest)])
