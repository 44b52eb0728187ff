"""The loops of sums that read along their neighbours, in blocks of threads.

for groups of columns:                                      blockIdx.x
    for lanes:                                              threadIdx.y
        for vectors of columns:                             threadIdx.x
            partial = the terms of the lane                 16 bytes at a time
            shared memory = partial
    for vectors of columns:                                 threadIdx.x, of the first lane
        output = f(the sum of all lanes)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial as part_of
from typing import Any

from tvm import tirx
from tvm.tirx import For, ForKind, PrimFunc
from tvm_ffi import structural_equal

from ....ir.attributes import DISJOINT_SHARED
from ....ir.expressions import Expr, rewrite_loads, substitute
from ....ir.stages import Buffer, Stage, assemble, combined, intermediate, sequence, variable
from .nests import Nests, Place, all_of, bound
from .stages import Fetched, RowStages


def columns_kernel(found: RowStages, threads: int, lanes: int, vector: int, ahead: int) -> PrimFunc:
    """A sum over columns, and its results, as a kernel.

    Args:
        found: The function, as `find_columns` returns it.
        threads: The threads of a block.
        lanes: The threads that share the terms of a column.
        vector: The columns of a thread.
        ahead: The terms of a lane that are read before it computes with them.
    """
    return _Kernel(found, threads // lanes, lanes, vector, ahead).function()


class _Kernel:
    """A place is a block, a lane, a thread of the lane, and a column of the thread.

    While terms are summed up, a round and a step of it stand before the column.
    """

    def __init__(self, found: RowStages, width: int, lanes: int, vector: int, ahead: int) -> None:
        self._found = found
        self._vectors = found.columns // vector
        width = min(width, self._vectors)
        self._groups = -(-self._vectors // width)
        steps = -(-found.term.extent // lanes)
        ahead = min(ahead, steps)
        threads = found.row.extent // found.columns * self._groups, lanes, width
        self._terms = Nests((*threads, -(-steps // ahead), ahead, vector))
        self._sums = Nests((*threads, vector))
        self._block = variable("block")

    def function(self) -> PrimFunc:
        """The kernel."""
        first, *others = self._found.stages
        dtype, extents = str(first.buffer.dtype), self._sums.extents
        partial = intermediate("partial", extents, dtype, "local")
        shared = intermediate("shared_partial", extents, dtype, "shared")
        total = intermediate("total", extents, dtype, "local")

        def start(buffer: Buffer, at: Place) -> Any:
            return self._sums.at(lambda *at: Stage(f"{buffer.name}_start", (), buffer, at, first.identity), at)

        def hand_on(*at: Any) -> Stage:
            return Stage("hand_on", (), shared, at, partial[at])

        def gather(other: Any, *at: Any) -> Stage:
            value = combined(str(first.combine), total[at], shared[at[0], other, at[2], at[3]])
            return Stage("gather", (), total, at, value)

        def result(stage: Stage, *at: Any) -> Stage:
            value = rewrite_loads(stage.value, lambda load: total[at] if load.source.same_as(first.buffer) else None)
            indices = tuple(self._at(index, at) for index in stage.indices)
            return Stage(stage.name, (), stage.buffer, indices, self._at(value, at))

        def adding(at: Place) -> list[Any]:
            return [start(partial, at), self._adding(first, partial, at), self._sums.at(hand_on, at)]

        def finishing(at: Place) -> list[Any]:
            inside = all_of([at[1] < 1, *self._inside_columns(at)])
            other = variable("other")
            gathering = self._sums.at(part_of(gather, other), at, when=at[1] < 1)
            return [
                start(total, at),
                For(other, 0, self._sums.extents[1], ForKind.SERIAL, gathering),
                *(self._sums.at(part_of(result, stage), at, when=inside) for stage in others),
            ]

        body = [self._in_threads(adding), self._in_threads(finishing)]
        nest = bound(self._block, self._sums.extents[0], "blockIdx.x", body)
        stages = [*self._terms.stages, *self._sums.stages]
        return assemble(self._found.parameters, stages, [nest]).with_attr(DISJOINT_SHARED, True)

    def _in_threads(self, make: Callable[[Place], list[Any]]) -> Any:
        _, lanes, width, _ = self._sums.extents
        lane, thread = variable("lane"), variable("thread")
        body = make((self._block, lane, thread))
        return bound(lane, lanes, "threadIdx.y", [bound(thread, width, "threadIdx.x", body)])

    def _adding(self, stage: Stage, partial: Buffer, at: Place) -> Any:
        """The loop over the rounds of a lane, in which it sums up its terms."""
        own = {
            each: intermediate(f"read{number}", self._terms.extents, str(each.load.source.dtype), "local")
            for number, each in enumerate(self._found.fetched)
        }

        def fetch(each: Fetched, *at: Any) -> Stage:
            return Stage(own[each].name, (), own[each], at, self._at(each.load, at))

        def add(*at: Any) -> Stage:
            def held(load: Any) -> Any:
                return next((buffer[at] for each, buffer in own.items() if structural_equal(each.load, load)), None)

            value = self._at(rewrite_loads(stage.value, held), at)
            if inside := [*self._inside_columns(at), *self._inside_terms(at)]:  # some loads are not fetched before
                value = tirx.if_then_else(all_of(inside), value, stage.identity)
            place = (*at[:3], at[-1])
            return Stage("add", (), partial, place, combined(str(stage.combine), partial[place], value))

        turn = variable("round")

        def each_step(make: Callable[..., Stage], width: int = 0, sums: Sequence[int] = ()) -> Any:
            step = variable("step")
            place = (*at, turn, step)
            when = all_of([*self._inside_columns(place), *self._inside_terms(place)]) if width else True
            nest = self._terms.at(make, place, sums, width, when)
            return For(step, 0, self._terms.extents[4], ForKind.UNROLLED, nest)

        reads = [each_step(part_of(fetch, each), each.vector) for each in own]
        body = sequence([*reads, each_step(add, sums=(3, 4))])
        return For(turn, 0, self._terms.extents[3], ForKind.SERIAL, body)

    def _inside_columns(self, at: Place) -> list[Expr]:
        """The condition that a thread has columns, if some have none."""
        width = self._sums.extents[2]
        return [at[0] % self._groups * width + at[2] < self._vectors] if self._groups * width > self._vectors else []

    def _inside_terms(self, at: Place) -> list[Expr]:
        """The condition that a term is one of the function, if some are not."""
        terms, (_, lanes, _, rounds, steps, _) = self._found.term.extent, self._terms.extents
        return [self._term(*at[1:5]) < terms] if lanes * rounds * steps > terms else []

    def _term(self, lane: Any, thread: Any, turn: Any, step: Any) -> Expr:
        return (turn * self._terms.extents[4] + step) * self._terms.extents[1] + lane

    def _at(self, expression: Expr, at: Place) -> Expr:
        """An expression over the row, and over the term if the place has a round and a step, at a place."""
        _, _, width, vector = self._sums.extents
        column = (at[0] % self._groups * width + at[2]) * vector + at[-1]
        values = {self._found.row.var: at[0] // self._groups * self._found.columns + column}
        if len(at) == len(self._terms.extents):
            values[self._found.term.var] = self._term(*at[1:5])
        return substitute(expression, values)
