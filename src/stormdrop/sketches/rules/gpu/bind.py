"""Bind: what no other rule has bound runs as a kernel of its own, with an element or a vector per thread."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.tirx import ForKind

from .. import blocks
from ..contract import Annotation, Applies, Nest, State
from .cross_thread import threads_of

_VECTORS = (1, 2, 4)


@dataclass(frozen=True)
class Bind(Annotation):
    """Before: for i, j: ...     After: for blocks in blockIdx.x: for threads in threadIdx.x: [for vector: ...].

    The threads of a block are a knob, which these kernels share. So are the elements of a vector, which there are only
    if a block does not reduce. Rows that several threads work on together are divided among the threads that are left.
    """

    name = "bind"

    def applies(self, state: State, block: str) -> Applies:
        loops = state.schedule.get_loops(block)
        bound = any(state.schedule.get(loop).kind == ForKind.THREAD_BINDING for loop in loops[:1])
        return Applies.NO if bound or block in state.places else Applies.MUST

    def apply(self, state: State, block: str) -> None:
        schedule, threads = state.schedule, threads_of(state)
        rows = state.rows.get(block)
        if rows is not None:
            grid, row = schedule.split(rows.loop, [None, threads // rows.lanes])
            schedule.bind(grid, "blockIdx.x")
            schedule.bind(row, "threadIdx.y" if rows.axis == "threadIdx.x" else "threadIdx.x")
            return
        width = 1
        if block in state.nests:
            (elements,) = state.nests[block].outer
        else:
            own = blocks.own_loops(schedule, block)
            spatial = [loop.loop for loop in own if not loop.reduce]
            schedule.reorder(*spatial, *(loop.loop for loop in own if loop.reduce))
            elements = schedule.fuse(*spatial) if spatial else schedule.add_unit_loop(schedule.get_loops(block)[0])
            if not blocks.reduces(schedule, block):
                width = state.knobs.ordinal("vector", _VECTORS)
        grid, thread, vector = schedule.split(elements, [None, threads, width])
        schedule.bind(grid, "blockIdx.x")
        schedule.bind(thread, "threadIdx.x")
        if width > 1:
            schedule.vectorize(vector)
        state.nests[block] = Nest([grid], [thread])
