"""Parallel: the outermost loops of every nest become one parallel loop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import takewhile

from tvm.tirx import ForKind

from .. import blocks
from ..contract import VARIES, Annotation, Applies, Nest, State

_TASKS_PER_CORE = 16  # fusing more loops costs index arithmetic without a gain


@dataclass(frozen=True)
class Parallel(Annotation):
    """Before: for i, j, k: ...     After: for ij in parallel: for k: ...

    For tiles these are the loops of tasks. For other blocks they are as many leading loops as give each core sixteen
    tasks (Ansor's bound).
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
        """The nest of the loops before the first that reduces or is vectorised.

        The extents of their iterators decide how many of them are outer loops.
        """
        schedule = state.schedule
        loops = [loop for loop in blocks.loops(schedule, block) if schedule.get(loop.loop).kind == ForKind.SERIAL]
        leading = list(takewhile(lambda loop: not loop.reduce, loops))
        if not leading:
            return None
        wanted = _TASKS_PER_CORE * state.target.cores
        products = [math.prod(loop.whole for loop in leading[:count]) for count in range(1, len(leading) + 1)]
        count = next((number for number, product in enumerate(products, 1) if product >= wanted), len(leading))
        outer, rest = [loop.loop for loop in leading[:count]], [loop.loop for loop in leading[count:-1]]
        return Nest(outer, [outer[-1], *([] if state.noted(block, VARIES) else rest)])
