"""The loops of stages over rows and terms, in blocks of threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx import For, ForKind, PrimFunc
from tvm_ffi import structural_equal

from ....ir.attributes import DISJOINT_SHARED
from ....ir.expressions import Expr, rewrite_loads, substitute
from ....ir.stages import Buffer, Stage, assemble, combined, intermediate, sequence, variable
from ....machine.gpu import WORD
from .nests import Nests, Place, all_of, bound
from .stages import Fetched, RowStages

_KEPT = 64  # registers of a thread for what several stages read

Registers = Mapping[Fetched, Buffer]
"""Where what was read is."""


def rows_kernel(found: RowStages, threads: int, lanes: int, vector: int, ahead: int) -> PrimFunc:
    """A function over rows and terms as a kernel.

    Args:
        found: The function.
        threads: The threads of a block.
        lanes: The threads that share a row.
        vector: The elements that a thread reads and writes at a time, where so many are aligned.
        ahead: The vectors of a lane that are read before it computes with them.
    """
    return _Kernel(found, min(threads // lanes, found.row.extent), lanes, vector, ahead).function()


class _Kernel:
    """A place is a row, a lane, a round, a step of the round and an element of its vector, or the first ones of these.

    A lane has vectors that are `lanes` apart. It goes through them in rounds of `ahead` steps.

    If there are no sums, each round has blocks of its own.
    """

    def __init__(self, found: RowStages, group: int, lanes: int, vector: int, ahead: int) -> None:
        self._found = found
        self._vectors = found.term.extent // vector
        steps = -(-self._vectors // lanes)
        ahead = min(ahead, steps)
        self._extents = (-(-found.row.extent // group) * group, lanes, -(-steps // ahead), ahead, vector)
        words = sum(np.dtype(str(each.load.source.dtype)).itemsize for each in found.repeated) / WORD
        self._kept = self._registers("kept", found.repeated if steps * vector * words <= _KEPT else ())
        self._totals: dict[Buffer, Buffer] = {}
        self._nests = Nests(self._extents)
        self._group = group
        self._block, self._within = variable("block"), variable("within")
        self._parts = 1 if found.sums else self._extents[2]

    def function(self) -> PrimFunc:
        """The kernel."""
        body = [self._over_lanes(self._in_rounds(lambda at: self._read(self._kept, at)))] if self._kept else []
        for stage in self._found.stages:
            body += self._sum(stage) if stage.reductions else [self._output(stage)]
        rows, *_ = self._extents
        body = [bound(self._within, self._group, "threadIdx.y", body)]
        nest = bound(self._block, rows // self._group * self._parts, "blockIdx.x", body)
        # Else TVM takes what threads have in registers for what they have put together in shared memory.
        return assemble(self._found.parameters, self._nests.stages, [nest]).with_attr(DISJOINT_SHARED, True)

    def _sum(self, stage: Stage) -> list[Any]:
        """Partial sums of the lanes, and their sum."""
        combine, dtype = str(stage.combine), str(stage.buffer.dtype)
        parts = intermediate(f"{stage.name}_partial", self._extents[:2], dtype, "local")
        total = intermediate(f"{stage.name}_total", self._extents[:1], dtype, "local")
        known = self._totals[stage.buffer] = intermediate(stage.buffer.name, self._extents[:2], dtype, "local")
        own = self._own(stage)

        def start(*at: Any) -> Stage:
            return Stage(f"{stage.name}_start", (), parts, at, stage.identity)

        def add(*at: Any) -> Stage:
            value = self._value(stage, at, own)
            if inside := [*self._inside_rows(at), *self._inside_terms(at)]:  # some loads are not fetched before
                value = tirx.if_then_else(all_of(inside), value, stage.identity)
            return Stage(f"{stage.name}_add", (), parts, at[:2], combined(combine, parts[at[:2]], value))

        def all_lanes(row: Any, lane: Any) -> Stage:
            return Stage(stage.name, (), total, (row,), parts[row, lane], combine, stage.identity)

        def know(*at: Any) -> Stage:  # what several warps have summed up is in shared memory
            return Stage(f"{stage.name}_known", (), known, at, total[at[0]])

        def adding(at: Place) -> list[Any]:
            return [
                *self._read(own, at),
                self._in_steps(at, lambda place: [self._nests.at(add, place, sums=(2, 3, 4))]),
            ]

        rounds = self._in_rounds(adding)
        return [
            self._over_lanes(lambda at: [self._nests.at(start, at), *rounds(at)]),
            self._over_lanes(lambda at: [self._nests.at(all_lanes, at, sums=(1,))]),
            self._over_lanes(lambda at: [self._nests.at(know, at)]),
        ]

    def _output(self, stage: Stage) -> Any:
        """An output: an element of each row, which the first lane writes, or of each term, written in vectors."""

        def store(*at: Any) -> Stage:
            indices = tuple(self._at(index, at) for index in stage.indices)
            return Stage(stage.name, (), stage.buffer, indices, made[at] if by_term else self._value(stage, at, {}))

        by_term = self._found.term in stage.axes
        if not by_term:
            return self._over_lanes(
                lambda at: [self._nests.at(store, at, when=all_of([at[1] < 1, *self._inside_rows(at)]))]
            )
        own = self._own(stage)
        made = intermediate(f"{stage.name}_made", self._extents, str(stage.buffer.dtype), "local")

        def make(*at: Any) -> Stage:
            return Stage(f"{stage.name}_make", (), made, at, self._value(stage, at, own))

        def step(at: Place) -> list[Any]:
            when = all_of([*self._inside_rows(at), *self._inside_terms(at)])
            return [
                self._nests.at(make, at, when=when),
                self._nests.at(store, at, width=self._found.written, when=when),
            ]

        return self._over_lanes(self._in_rounds(lambda at: [*self._read(own, at), self._in_steps(at, step)]))

    def _own(self, stage: Stage) -> Registers:
        """What a stage alone reads, in the registers of a round."""
        names = (each for each in self._found.fetched if stage.name in each.stages and each not in self._kept)
        return self._registers(f"{stage.name}_read", tuple(names))

    def _registers(self, name: str, fetched: Sequence[Fetched]) -> Registers:
        return {
            each: intermediate(f"{name}{number}", self._extents, str(each.load.source.dtype), "local")
            for number, each in enumerate(fetched)
        }

    def _read(self, registers: Registers, at: Place) -> list[Any]:
        """The statements that read what a round computes with."""
        return [self._in_steps(at, partial(self._fetch, *each)) for each in registers.items()]

    def _fetch(self, each: Fetched, buffer: Buffer, place: Place) -> list[Any]:
        def fetch(*at: Any) -> Stage:
            return Stage(buffer.name, (), buffer, at, self._at(each.load, at))

        when = all_of([*self._inside_rows(place), *self._inside_terms(place)])
        return [self._nests.at(fetch, place, width=each.vector, when=when)]

    def _value(self, stage: Stage, at: Place, own: Registers) -> Expr:
        """The value of a stage, of what is in registers."""
        registers = {**self._kept, **own}

        def held(load: Any) -> Any:
            if load.source in self._totals:
                return self._totals[load.source][at[:2]]
            return next((buffer[at] for each, buffer in registers.items() if structural_equal(each.load, load)), None)

        return self._at(rewrite_loads(stage.value, held), at)

    def _at(self, expression: Expr, at: Place) -> Expr:
        """An expression over the row and the term at a place."""
        values = {self._found.row.var: at[0]}
        if len(at) == len(self._extents):
            values[self._found.term.var] = self._vector_at(at) * self._extents[-1] + at[-1]
        return substitute(expression, values)

    def _vector_at(self, at: Place) -> Expr:
        """The number of a vector in its row."""
        _, lane, turn, step, *_ = at
        _, lanes, _, steps, _ = self._extents
        return (turn * steps + step) * lanes + lane

    def _inside_terms(self, at: Place) -> list[Expr]:
        """The condition that a vector is in its row, if some are not."""
        _, lanes, turns, steps, _ = self._extents
        return [self._vector_at(at) < self._vectors] if lanes * turns * steps > self._vectors else []

    def _inside_rows(self, at: Place) -> list[Expr]:
        """The condition that a row is one of the function, if some are not."""
        rows = self._found.row.extent
        return [at[0] < rows] if self._extents[0] > rows else []

    def _over_lanes(self, make: Callable[[Place], list[Any]]) -> Any:
        lane = variable("lane")
        row = self._block // self._parts * self._group + self._within
        return bound(lane, self._extents[1], "threadIdx.x", make((row, lane)))

    def _in_rounds(self, make: Callable[[Place], list[Any]]) -> Callable[[Place], list[Any]]:
        def rounds(at: Place) -> list[Any]:
            if not self._found.sums:
                return make((*at, self._block % self._parts))
            turn, count = variable("round"), self._extents[2]
            kind = ForKind.UNROLLED if self._kept else ForKind.SERIAL
            return [For(turn, 0, count, kind, sequence(make((*at, turn))))]

        return rounds

    def _in_steps(self, at: Place, make: Callable[[Place], list[Any]]) -> Any:
        step = variable("step")
        return For(step, 0, self._extents[3], ForKind.UNROLLED, sequence(make((*at, step))))
