"""What each loop nest of a function computes, and rewrites of nests that make them fast.

A nest stores one value per element, which may read the result of a reduction. `nests_of` reads them off the stages.

    flattened   walks neighbouring axes as one where every access goes on from one to the next
    by_lanes    gives a reduction along the contiguous axis of its input a partial result per vector lane
    in_parts    splits a reduction of few results into parts that run in parallel, and their combination
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from tvm.ir import TensorLoad, Var
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm
from tvm.sym import Analyzer

from ...ir.expressions import (
    Expr,
    children,
    coefficients,
    rewrite_loads,
    simplified,
    substitute,
    transform,
    unraveled,
    walk,
)
from ...ir.roles import fused_epilogue
from ...ir.segments import decided, pieces_of
from ...ir.stages import Axis, Stage, StageGraph, intermediate, shape_of, variable

_FLAT = "flat"  # the name of an axis that stands for several


@dataclass(frozen=True, eq=False)
class Term:
    """Something that a reduction combines: a value over the axes of the nest, and over axes of its own."""

    axes: tuple[Axis, ...]
    value: Expr


@dataclass(frozen=True, eq=False)
class Nest:
    """A store over spatial axes.

    Where `reduction` is given, the store's loads of that stage's buffer stand for the combination of all terms. With
    a `lane`, the terms have one more spatial axis, over which their results are combined last.
    """

    store: Stage
    reduction: Stage | None = None
    terms: tuple[Term, ...] = ()
    lane: Axis | None = None

    def reads(self) -> list[Any]:
        """All loads but those of the reduction's result."""
        loads = [load for load in self.store.loads() if not self.is_result(load)]
        for term in self.terms:
            loads += _loads(term.value)
        return loads

    def with_result(self, element: Expr) -> Expr:
        """The value to store, with an element in place of the reduction's result."""
        return rewrite_loads(self.store.value, lambda load: element if self.is_result(load) else None)

    def substituted(self, mapping: Mapping[Any, Expr]) -> Nest:
        """The nest with variables replaced in all that it reads and stores; its axes stay."""
        store = replace(
            self.store,
            indices=tuple(substitute(index, mapping) for index in self.store.indices),
            value=substitute(self.store.value, mapping),
        )
        terms = tuple(replace(term, value=substitute(term.value, mapping)) for term in self.terms)
        return replace(self, store=store, terms=terms)

    def is_result(self, load: Any) -> bool:
        """Whether a load in the store's value stands for the combination of the terms."""
        return self.reduction is not None and bool(load.source.same_as(self.reduction.buffer))


def nests_of(graph: StageGraph, kept: Collection[Any] = ()) -> list[Nest]:
    """The loop nests of the stages in their order, epilogues fused into reductions.

    Buffers in `kept` are read from outside: what writes them stays as it is.
    """
    nests: list[Nest] = []
    taken: set[Any] = set()
    later = {stage.buffer for stage in graph.stages}
    for stage in graph.stages:
        later.discard(stage.buffer)
        if stage.buffer in taken:
            continue
        if stage.combine is None:
            nests.append(Nest(stage))
            continue
        store, fused = fused_epilogue(graph, stage, alone=stage.buffer in kept)
        if len(fused) > 1 and any(load.source in later - taken for load in store.loads()):
            store, fused = fused_epilogue(graph, stage, alone=True)
        taken |= {item.buffer for item in fused}
        nests.append(Nest(replace(store, name=f"{stage.name}_store"), stage, (Term(stage.reductions, stage.value),)))
    return nests


def offset(shape: Sequence[int], indices: Sequence[Expr]) -> Expr:
    """Where an element of a buffer of this shape is in memory, in elements."""
    terms = (index * math.prod(shape[at + 1 :]) for at, index in enumerate(indices))
    return Analyzer().simplify(sum(terms, IntImm("int32", 0)))


def flattened(nest: Nest, shared: int, exact: bool) -> Nest:
    """The nest with neighbouring axes (spatial ones beyond the shared, reductions) walked as one where that is free.

    Before:     y[n, h, w, c] = max(x[n, h, w, c] + b[c], 0)
    After:      y[i / (H W), i / W % H, i % W, c] = ...          addresses i C + c

    Where the store is `exact` its axes stay, see `walked`.
    """
    nest = _without_unit_axes(nest, shared)
    accesses = [*nest.reads(), nest.store.buffer[nest.store.indices]]
    loose = set().union(*(_loose(value) for value in (nest.store.value, *(term.value for term in nest.terms))))
    store_axes, mapping = _merged(nest.store.axes[shared:], accesses, loose)
    if exact:
        store_axes, mapping = list(nest.store.axes[shared:]), {}
    (first, *_) = nest.terms or (Term((), nest.store.value),)
    term_axes, more = _merged(first.axes, accesses, loose)
    mapping.update(more)
    if not mapping:
        return nest
    nest = nest.substituted(mapping)
    terms = tuple(replace(term, axes=tuple(term_axes)) for term in nest.terms)
    return replace(nest, store=replace(nest.store, axes=(*nest.store.axes[:shared], *store_axes)), terms=terms)


def walked(node: Expr, name: Any, start: Expr, inner: Expr) -> Expr:
    """The expression at `start + inner` of an axis, where `inner` runs over a vector.

    Of an axis that `flattened` made, the last dimension takes `inner` as it is, past its end if need be: so the address
    moves by one with it for all to see, and no vector is divided. TVM allocates no more of an intermediate buffer than
    it sees written, therefore what is written so has to be a parameter or one-dimensional.
    """

    def visit(item: Expr) -> Expr | None:
        if isinstance(item, prim.FloorDiv | prim.FloorMod) and name.name == _FLAT and name.same_as(item.a):
            return (
                prim.FloorDiv(start, item.b)
                if isinstance(item, prim.FloorDiv)
                else prim.FloorMod(start, item.b) + inner
            )
        return start + inner if name.same_as(item) else None

    return transform(node, visit)


def unflattened(axes: Sequence[Axis], position: Expr) -> dict[Any, Expr]:
    """Where each of some consecutive axes is when they are walked as one."""
    places = unraveled(position, [axis.extent for axis in axes])
    return {axis.var: place for axis, place in zip(axes, places, strict=False)}  # of no axes there is one place


def stride(load: Any, name: Any) -> int | None:
    """How many elements a load moves by when a variable moves by one; None where that is no constant."""
    factors = coefficients(offset(shape_of(load.source), load.indices), {name})
    return None if factors is None else factors.get(name, 0)


def _without_unit_axes(nest: Nest, shared: int) -> Nest:
    axes = (*nest.store.axes[shared:], *(axis for term in nest.terms for axis in term.axes))
    unit = {axis.var: IntImm("int32", 0) for axis in axes if axis.extent == 1}
    if not unit:
        return nest
    nest = nest.substituted(unit)
    kept = tuple(axis for axis in nest.store.axes if axis.var not in unit)
    store = replace(nest.store, axes=kept, value=simplified(nest.store.value))
    terms = (
        Term(tuple(axis for axis in term.axes if axis.var not in unit), simplified(term.value)) for term in nest.terms
    )
    return replace(nest, store=store, terms=tuple(terms))


def _merged(axes: Sequence[Axis], accesses: Sequence[Any], loose: set[Any]) -> tuple[list[Axis], dict[Any, Expr]]:
    runs: list[list[Axis]] = [[axis] for axis in axes[:1]]
    for left, right in pairwise(axes):
        together = not {left.var, right.var} & loose and all(_consecutive(load, left, right) for load in accesses)
        if together:
            runs[-1].append(right)
        else:
            runs.append([right])
    merged: list[Axis] = []
    mapping: dict[Any, Expr] = {}
    for run in runs:
        if len(run) == 1:
            merged += run
            continue
        whole = Axis(variable(_FLAT), math.prod(axis.extent for axis in run), run[0].reduce)
        mapping.update(unflattened(run, whole.var))
        merged.append(whole)
    return merged, mapping


def _consecutive(load: Any, left: Axis, right: Axis) -> bool:
    """Whether a load goes on with the next of the left axis where it leaves the right one."""
    outer, inner = stride(load, left.var), stride(load, right.var)
    return inner is not None and outer == inner * right.extent


def by_lanes(nest: Nest, shared: int, lanes: int, vectors: int) -> Nest:
    """Splits a reduction along the contiguous axis of its input into partial results per lane.

    Before:     y[i] = sum over r < 100 of x[i, r]
    After:      y[i] = sum over l < 32 of (sum over s < 3 of x[i, 32 s + l] + (x[i, 68 + l] if l >= 28 else 0))

    Not where vectors along a spatial axis beyond the shared ones do better.
    """
    if nest.reduction is None:
        return nest
    (term,) = nest.terms
    if not term.axes:
        return nest
    along = term.axes[-1]
    free = [axis.var for axis in nest.store.axes[shared:] if axis.extent > 1]
    loads = _loads(term.value)
    if not any(stride(load, along.var) == 1 for load in loads) or along.extent < 4:
        return nest
    if free and (any(stride(load, free[-1]) == 1 for load in loads) or along.extent < lanes // 2):
        return nest
    width = min(lanes * vectors, 1 << (along.extent.bit_length() - 1))
    steps = along.extent // width
    rest = along.extent - steps * width
    lane, step = Axis(variable("lane"), width), Axis(variable("step"), steps, True)
    others = term.axes[:-1]
    terms = [Term((*others, step), walked(term.value, along.var, step.var * width, lane.var))]
    if rest:
        # The last lanes once more from the end; those that were counted already stay out.
        last = walked(term.value, along.var, IntImm("int32", along.extent - width), lane.var)
        terms.append(Term(others, prim.Select(lane.var >= width - rest, last, nest.reduction.identity)))
    return replace(nest, terms=tuple(terms), lane=lane)


def in_parts(nest: Nest, parts: int) -> list[Nest]:
    """Splits the longest axis of a reduction into parts, which are spatial: each has a result of its own.

    Before:     y = sum over r < 103 of x[r]
    After:      partial[p] = sum over r < 25 of x[25 p + r]             p < 4
                y = sum over p < 4 of partial[p] + sum over r < 3 of x[100 + r]
    """
    if nest.reduction is None or not nest.terms[0].axes:
        return [nest]
    main, *terms = nest.terms
    axis = max(main.axes, key=lambda item: item.extent)
    parts = min(parts, axis.extent)
    if parts < 2:
        return [nest]
    size = axis.extent // parts
    part, which = Axis(variable("part"), parts), Axis(variable("part"), parts, True)
    inner = Axis(variable("inner"), size, True)
    lane = () if nest.lane is None else (nest.lane,)
    axes = (part, *nest.store.axes, *lane)
    buffer = intermediate(
        f"{nest.reduction.name}_partial", [item.extent for item in axes], str(nest.reduction.buffer.dtype)
    )
    at = tuple(item.var for item in axes)

    def over(new: Axis, position: Expr) -> Term:
        swapped = tuple(new if item is axis else item for item in main.axes)
        return Term(swapped, substitute(main.value, {axis.var: position}))

    store = Stage(f"{nest.reduction.name}_part", axes, buffer, at, buffer[at])
    first = Nest(store, replace(nest.reduction, buffer=buffer), (over(inner, part.var * size + inner.var),))
    of_part = (which.var, *at[1:])
    found = [Term((which,), buffer[of_part])]
    if axis.extent > parts * size:
        rest = Axis(variable("rest"), axis.extent - parts * size, True)
        found.append(over(rest, rest.var + parts * size))
    return [first, replace(nest, terms=(*found, *terms))]


def in_pieces(nest: Nest) -> list[Nest]:
    """A nest for each piece of the last axis, where all other axes are of extent 1; else the nest itself.

    Before:     y[i] = i < 17 ? a[i] : b[i - 17]
    After:      y[i] = a[i]  i < 17,        y[17 + j] = b[j]  j < 18
    """
    *others, axis = nest.store.axes or (Axis(variable("one"), 1),)
    pieces = pieces_of(nest.store.value, axis)
    if nest.reduction is not None or len(pieces) == 1 or axis.var.name == _FLAT or any(a.extent > 1 for a in others):
        return [nest]
    found = []
    for first, last in pieces:
        own = Axis(variable(axis.var.name), last - first)
        store = replace(nest.store, axes=(*others, own), value=decided(nest.store.value, axis.var, first))
        found.append(replace(nest, store=store).substituted({axis.var: own.var + first}))
    return found


def _loads(value: Expr) -> list[Any]:
    return [node for node in walk(value) if isinstance(node, TensorLoad)]


def _loose(node: Expr) -> set[Any]:
    """The variables that a value uses outside of its loads' indices."""
    if isinstance(node, TensorLoad):
        return set()
    if isinstance(node, Var):
        return {node}
    return set().union(*(_loose(child) for child in children(node)))
