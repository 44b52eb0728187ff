"""The statements of n schedules of a tiled contraction, none of which is made.

They are those that TVM would make of what `tiled_loops.py` schedules: two fetches into shared memory, the products, and
the store of the results.

    for B, V, t:                                        blocks, virtual threads, threads
        for r.0:
            for F, v: shared0[...] = operand0[...]      fetched by all threads together
            for F, v: shared1[...] = operand1[...]
            for r.1, i.3, r.2, i.4:
                sums[...] += shared0[...] * shared1[...]
        for o: result[...] = sums[...]                  with what follows

Covered are sums of products in floats, in one part and one stage. What is computed while fetching may be padding, and
what follows sums, products and maxima.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.ir import TensorLoad, Var
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm, IntImm

from ....errors import UnsupportedFunction
from ....ir.contractions.contraction import multiplied_loads
from ....ir.expressions import Expr, intrinsic, walk
from ....ir.stages import Stage, shape_of
from ...statements.indices import Atom, Index, Ints, Mask, Term, merged
from ...statements.nests import (
    BLOCKS,
    BOTH,
    READ,
    THREADS,
    VECTOR,
    VTHREAD,
    WRITE,
    Access,
    Buffer,
    Loop,
    Nest,
    Statement,
)
from ..tiling import BLOCK, INNER, OUTER, THREAD, VIRTUAL, Operand, Tilings
from .conditions import NO_CONDITIONS, Window, within
from .fetches import Fetch

_B, _V, _T = "B", "V", "t"
_GRID = (_B, _V, _T)
_LEVELS = {_B: BLOCK, _V: VIRTUAL, _T: THREAD}


def contraction_nest(
    stage: Stage,
    producers: Sequence[Stage],
    epilogue: Stage | None,
    tilings: Tilings,
    knobs: Mapping[str, NDArray[Any]],
) -> tuple[Nest, Mask]:
    """The loop nest of n tilings, and for which of them it is sure.

    Args:
        stage: The contraction.
        producers: What is computed when operands are staged.
        epilogue: What follows, if anything does.
        tilings: The tilings.
        knobs: n values of each other knob: `fetch0`, `fetch1` and `unroll`, and `parts` and `stages` if there are any.

    Raises:
        UnsupportedFunction: The function computes something that is not covered.
    """
    return _Nests(stage, producers, epilogue, tilings, knobs).nest()


class _Nests:
    """n tilings of a contraction as loop nests."""

    def __init__(
        self,
        stage: Stage,
        producers: Sequence[Stage],
        epilogue: Stage | None,
        tilings: Tilings,
        knobs: Mapping[str, NDArray[Any]],
    ) -> None:
        self.stage, self.producers, self.epilogue = stage, producers, epilogue
        self.loads, self.tilings, self.knobs = _multiplied(stage), tilings, knobs
        self.item = tilings.axes.item_bytes
        self.spatial = [name for name, _ in tilings.axes.spatial]
        self.reduced = [name for name, _ in tilings.axes.reductions]
        self.levels: dict[str, Any] = {name: list(factors.T) for name, factors in tilings.factors.items()}
        self.shape = tilings.threads.shape
        self.known: Mask = (np.ones(self.shape) * knobs.get("parts", 1) * knobs.get("stages", 1)) == 1
        self.loops: dict[str, Loop] = {}
        self.parameters: dict[str, Buffer] = {}
        yes = np.ones(self.shape, bool)
        for name, kind, extent in (
            (_B, BLOCKS, tilings.blocks),
            (_V, VTHREAD, tilings.virtual),
            (_T, THREADS, tilings.threads),
        ):
            self.loops[name] = Loop(extent, yes, kind)
        for axis in self.reduced:
            for level in range(3):
                self._serial(_loop(axis, level), self.levels[axis][level])
        for axis in self.spatial:
            for level in (OUTER, INNER):
                self._serial(_loop(axis, level), self.levels[axis][level])
            self._serial(_output(axis), self.levels[axis][OUTER] * self.levels[axis][INNER])
        self.steps = [_loop(axis, 0) for axis in self.reduced]
        sums = [self.levels[axis][OUTER] * self.levels[axis][INNER] for axis in self.spatial]
        self.sums = self._sums(sums)

    def nest(self) -> tuple[Nest, Mask]:
        """The nest, and of which tilings it is known."""
        shared = [self._shared(position) for position in range(2)]
        statements = [self._fetch(position, buffer) for position, buffer in enumerate(shared)]
        statements += [self._products(shared), self._results()]
        return Nest(self.loops, statements, self.knobs["unroll"].astype(np.int64)), self.known

    def _parameter(self, buffer: Any) -> Buffer:
        """A parameter, which is the same buffer in all statements."""
        return self.parameters.setdefault(buffer.name, Buffer(buffer.name, _item(buffer), shape_of(buffer)))

    def _serial(self, name: str, extent: Ints) -> None:
        self.loops[name] = Loop(extent, extent > 1)

    def _sums(self, extents: Sequence[Ints]) -> Buffer:
        stage = self.stage
        if not all(isinstance(index, Var | IntImm) for index in stage.indices):
            raise UnsupportedFunction("the sums are not stored along the axes")
        name = stage.buffer.name + ("_local" if self.epilogue is None else "")
        by_var = dict(zip((axis.var for axis in stage.spatial), extents, strict=True))
        shape = [by_var[index] if isinstance(index, Var) else np.ones(self.shape, np.int64) for index in stage.indices]
        return Buffer(name, _item(stage.buffer), shape, _GRID)

    def _shared(self, position: int) -> Buffer:
        load = self.loads[position]
        extents = [np.broadcast_to(extent, self.shape) for extent in self.tilings.shared_shapes[position]]
        return Buffer(f"{load.source.name}_shared", self.item, extents, (*_GRID, *self.steps))

    def _grid_part(self, axis: str, loop: str, factor: int) -> Term:
        """What a block, a virtual thread or a thread adds to an index along a spatial axis."""
        level = _LEVELS[loop]
        mine = self.levels[axis][level]
        position = self.spatial.index(axis)
        before = math.prod((self.levels[name][level] for name in self.spatial[:position]), start=np.ones_like(mine))
        after = math.prod((self.levels[name][level] for name in self.spatial[position + 1 :]), start=np.ones_like(mine))
        inner = self._product(axis, level + 1)
        return Term((Atom.of(loop, mine > 1, factor * inner, np.where(before > 1, mine * after, 0), after),))

    def _serial_part(self, axis: str, level: int, factor: int) -> Term:
        """What a serial loop adds to an index along an axis."""
        mine = self.levels[axis][level]
        inner = self._product(axis, level + 1)
        return Term((Atom.of(_loop(axis, level), mine > 1, factor * inner),))

    def _fetch(self, position: int, shared: Buffer) -> Statement:
        """The statement that brings an operand to shared memory."""
        operand, width = self.tilings.axes.operands[position], self.knobs[f"fetch{position}"].astype(np.int64)
        elements = math.prod(shared.shape, start=np.ones(self.shape, np.int64))
        threads = self.tilings.threads
        names = f"F{position}", f"v{position}"
        rounds = -(-elements // (threads * width))
        self._serial(names[0], rounds)
        self.loops[names[1]] = Loop(width, np.ones(self.shape, bool), VECTOR)
        fetch = Fetch(rounds, threads, width, (names[0], _T, names[1]))
        digits, known = fetch.digits(shared.shape, self._with_gaps(operand))
        self.known &= known
        starts = [self._staged_from(dimension) for dimension in operand.dimensions]
        indices = [Index(merged(start, digit.terms)) for start, digit in zip(starts, digits, strict=True)]
        source, indices, windows = self._source(position, indices)
        loops = (*_GRID, *self.steps, *names)
        last = {name: self.loops[name].extent - 1 for name in loops}
        counts, operations = NO_CONDITIONS, {}
        for start, digit, window in zip(starts, digits, windows, strict=True):
            counts = counts + within(start, digit, window, last)
        if any(window != Window() for window in windows):
            self.known = self.known & counts.known & (counts.comparisons > 0)
            operations = {"float_math_func": 1, "bool_op": counts.comparisons - 1, "int_cmp": counts.comparisons}
        own = _operations_of(indices)
        operations |= {
            "int_add_sub": own[0] + counts.adds,
            "int_mul": own[1] + counts.products,
            "int_div_mod": own[2] + counts.divisions,
        }
        stored = Access(shared, WRITE, [[Index(digit.terms) for digit in digits]])
        return Statement(loops, [stored, Access(source, READ, [indices])], operations)

    def _with_gaps(self, operand: Operand) -> Mask:
        """Where a block skips elements of an operand between those it reads, and TVM does not see how many it reads.

        It does if it reads fewer than the loop over steps has iterations. What it sees of larger gaps is not known.
        """
        found = np.zeros(self.shape, bool)
        for dimension in operand.dimensions:
            reduced = [(axis, factor) for axis, factor in dimension if axis in self.reduced]
            ones = np.ones(self.shape, np.int64)
            window = math.prod((self._product(axis, 1) for axis, _ in reduced), start=ones)
            outside = math.prod((self.levels[axis][0] for axis, _ in reduced), start=ones)
            for axis, factor in dimension:
                if axis in self.spatial:
                    steps = self._product(axis, 1)
                    found |= (self.levels[axis][BLOCK] > 1) & (steps > 1) & (window < factor) & (steps * 2 > outside)
                    usual = factor <= 2 and all(dilation == 1 for _, dilation in reduced)
                    self.known = self.known & ((window >= factor) | usual)
        return found

    def _product(self, axis: str, first: int) -> Ints:
        """The product of an axis's factors from a level on."""
        return math.prod(self.levels[axis][first:], start=np.ones(self.shape, np.int64))

    def _staged_from(self, dimension: Sequence[tuple[str, int]]) -> list[Term]:
        """Where what a block stages begins along a dimension of an operand."""
        spatial = [(axis, factor) for axis, factor in dimension if axis in self.spatial]
        if len(spatial) > 1:
            raise UnsupportedFunction("two axes of the results along one dimension")
        reduced = [self._serial_part(axis, 0, factor) for axis, factor in dimension if axis in self.reduced]
        return list(merged([self._grid_part(axis, _B, factor) for axis, factor in spatial], reduced))

    def _source(self, position: int, indices: list[Index]) -> tuple[Buffer, list[Index], list[Window]]:
        """What is fetched: the buffer, the indices in it, and the window of each outside of which are zeros."""
        load = self.loads[position]
        made = [stage for stage in self.producers if stage.buffer.same_as(load.source)]
        if not made:
            return self._parameter(load.source), indices, [Window()] * len(indices)
        (stage,) = made
        value, window = _padding(stage)
        by_var = {axis.var: (index, axis.var) for axis, index in zip(stage.axes, indices, strict=True)}
        moved, bounds = [], []
        for index in value.indices:
            variable, constant = _shifted(index)
            if variable not in by_var:
                raise UnsupportedFunction("what is fetched is not in the order of the operand")
            moved.append(Index(by_var[variable][0].terms, constant))
            bounds.append(window.pop(variable, Window()))
        if window or len(value.indices) != len(stage.axes):
            raise UnsupportedFunction("padding along an axis that is not read")
        return self._parameter(value.source), moved, bounds

    def _products(self, shared: Sequence[Buffer]) -> Statement:
        """The statement that adds a product."""
        loops = [
            *_GRID,
            *self.steps,
            *(_loop(axis, 1) for axis in self.reduced),
            *(_loop(axis, OUTER) for axis in self.spatial),
            *(_loop(axis, 2) for axis in self.reduced),
            *(_loop(axis, INNER) for axis in self.spatial),
        ]
        stage = self.stage
        names = dict(zip((axis.var for axis in stage.spatial), self.spatial, strict=True))
        sums = [
            Index(tuple(self._serial_part(names[index], level, 1) for level in (OUTER, INNER)))
            if isinstance(index, Var)
            else Index(())
            for index in stage.indices
        ]
        reads = [
            [Index(tuple(self._staged(dimension))) for dimension in operand.dimensions]
            for operand in self.tilings.axes.operands
        ]
        adds, products, divisions = _operations_of([*sums, *reads[0], *reads[1]])
        accesses = [Access(self.sums, BOTH, [sums])]
        accesses += [Access(buffer, READ, [indices]) for buffer, indices in zip(shared, reads, strict=True)]
        operations = {"float_add_sub": 1, "float_mul": 1, "int_add_sub": adds, "int_mul": products}
        return Statement(loops, accesses, {**operations, "int_div_mod": divisions})

    def _staged(self, dimension: Sequence[tuple[str, int]]) -> list[Term]:
        """The index of an operand in shared memory."""
        terms: tuple[Term, ...] = ()
        for axis, factor in dimension:
            if axis in self.spatial:
                own = [self._grid_part(axis, loop, factor) for loop in (_V, _T)]
                own += [self._serial_part(axis, level, factor) for level in (OUTER, INNER)]
            else:
                own = [self._serial_part(axis, level, factor) for level in (1, 2)]
            terms = merged(terms, own)
        return list(terms)

    def _results(self) -> Statement:
        """The statement that stores the results."""
        stage, epilogue = self.stage, self.epilogue
        loops = [*_GRID, *(_output(axis) for axis in self.spatial)]
        axes = epilogue.axes if epilogue else stage.spatial
        places: dict[Any, Index] = {}
        local: dict[Any, Index] = {}
        for variable, name in zip((axis.var for axis in axes), self.spatial, strict=True):
            extent = self.loops[_output(name)].extent
            own = Term((Atom.of(_output(name), extent > 1),))
            places[variable] = Index((*(self._grid_part(name, loop, 1) for loop in _GRID), own))
            local[variable] = Index((own,))
        if epilogue is None:
            result = [_place(index, places) for index in stage.indices]
            mine = [_place(index, local) for index in stage.indices]
            accesses = [Access(self._parameter(stage.buffer), WRITE, [result]), Access(self.sums, READ, [mine])]
            return Statement(loops, accesses, _counts([], mine))
        result = [_place(index, places) for index in epilogue.indices]
        reads: dict[str, tuple[Buffer, list[list[Index]]]] = {}
        indices: list[Index] = []
        floats = []
        for node in walk(epilogue.value):
            if isinstance(node, TensorLoad):
                of_sums = node.source.same_as(stage.buffer)
                if of_sums and [*node.indices] != [axis.var for axis in epilogue.axes]:
                    raise UnsupportedFunction("sums that are read in another order")
                buffer = self.sums if of_sums else self._parameter(node.source)
                found = [_place(index, local if of_sums else places) for index in node.indices]
                reads.setdefault(buffer.name, (buffer, []))[1].append(found)
                indices += found
            elif type(node) in _FLOATS and str(node.ty.dtype).startswith("float"):
                floats.append(_FLOATS[type(node)])
            elif not isinstance(node, FloatImm | Var | IntImm):
                raise UnsupportedFunction(f"an epilogue with a {type(node).__name__}")
        accesses = [Access(self._parameter(epilogue.buffer), WRITE, [result])]
        accesses += [Access(buffer, READ, elements) for buffer, elements in reads.values()]
        return Statement(loops, accesses, _counts(floats, indices))


_FLOATS = {
    prim.Add: "float_add_sub",
    prim.Sub: "float_add_sub",
    prim.Mul: "float_mul",
    prim.Max: "float_cmp",
    prim.Min: "float_cmp",
}
"""What follows the sums, by the feature that counts it."""


def _loop(axis: str, level: int) -> str:
    return f"{axis}.{level}"


def _output(axis: str) -> str:
    return f"{axis}.out"


def _item(buffer: Any) -> int:
    return np.dtype(str(buffer.dtype)).itemsize


def _multiplied(stage: Stage) -> tuple[Any, Any]:
    """The two loads whose product a stage sums in floats."""
    loads, value = multiplied_loads(stage), stage.value
    if loads is None or not isinstance(value, prim.Mul) or not str(value.ty.dtype).startswith("float"):
        raise UnsupportedFunction("not a sum of products in floats")
    if not isinstance(value.a, TensorLoad) or not isinstance(value.b, TensorLoad):
        raise UnsupportedFunction("factors that are converted")
    return loads


def _place(index: Expr, places: Mapping[Any, Index]) -> Index:
    if isinstance(index, IntImm):
        return Index((), int(index))
    if index not in places:
        raise UnsupportedFunction("an index that is more than an axis")
    return places[index]


def _operations_of(indices: Sequence[Index]) -> tuple[Any, Any, Any]:
    """The operations of several indices."""
    adds, products, divisions = zip(*(index.operations() for index in indices), strict=True)
    return sum(adds), sum(products), sum(divisions)


def _counts(floats: Sequence[str], indices: Sequence[Index]) -> dict[str, Any]:
    adds, products, divisions = _operations_of(indices)
    counts = {name: floats.count(name) for name in set(floats)}
    return {**counts, "int_add_sub": adds, "int_mul": products, "int_div_mod": divisions}


def _padding(stage: Stage) -> tuple[Any, dict[Any, Window]]:
    """The load of a stage that pads, and by axis the window that it reads in."""
    value = stage.value
    if [*stage.indices] != [axis.var for axis in stage.axes]:
        raise UnsupportedFunction("a producer in another order")
    if isinstance(value, TensorLoad):
        return value, {}
    if intrinsic(value) != "if_then_else" or not isinstance(value.args[1], TensorLoad):
        raise UnsupportedFunction("a producer that is no padding")
    if not isinstance(value.args[2], FloatImm):
        raise UnsupportedFunction("a producer that is no padding")
    window: dict[Any, Window] = {}
    todo = [value.args[0]]
    while todo:
        node = todo.pop()
        if isinstance(node, prim.And):
            todo += [node.a, node.b]
        elif isinstance(node, prim.LE) and isinstance(node.a, IntImm) and isinstance(node.b, Var):
            window[node.b] = replace(window.get(node.b, Window()), low=int(node.a))
        elif isinstance(node, prim.LT) and isinstance(node.a, Var) and isinstance(node.b, IntImm):
            window[node.a] = replace(window.get(node.a, Window()), high=int(node.b))
        else:
            raise UnsupportedFunction("a condition that is no window")
    return value.args[1], window


def _shifted(index: Expr) -> tuple[Any, int]:
    """An index as a variable and what is added to it."""
    if isinstance(index, Var):
        return index, 0
    if isinstance(index, prim.Sub | prim.Add) and isinstance(index.a, Var) and isinstance(index.b, IntImm):
        return index.a, int(index.b) if isinstance(index, prim.Add) else -int(index.b)
    raise UnsupportedFunction("an index that is more than a shifted axis")
