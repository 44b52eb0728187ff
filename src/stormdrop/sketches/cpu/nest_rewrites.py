"""Rewrites of loop nests that make them fast.

fuse_contiguous_axes     makes one axis of neighbouring axes if every access goes on from one to the next
vectorize_reduction      gives a reduction along the contiguous axis of its input a partial result per vector lane
parallelize_reduction    splits a reduction of few results into parts that run in parallel, and their combination
split_into_segments      makes a nest of each segment of an axis on which a concatenation reads one input only
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm

from ...ir.expressions import Expr, loads_in, simplified, substitute, transform, unraveled, variables_outside_loads
from ...ir.segments import segments_of
from ...ir.stages import Axis, Stage, intermediate, variable
from .nests import Nest, Term, load_stride

_FUSED = "flat"  # the name of an axis that stands for several


def fuse_contiguous_axes(nest: Nest, shared: int, keep_store_axes: bool) -> Nest:
    """Makes one axis of neighbouring axes if that is free, and drops axes of extent 1.

    Before:     y[n, h, w, c] = max(x[n, h, w, c] + b[c], 0)
    After:      y[i / (H W), i / W % H, i % W, c] = ...          addresses i C + c

    Args:
        nest: The nest to rewrite.
        shared: The number of leading axes of the store that run outside of the nest; they stay as they are.
        keep_store_axes: Fuse axes of the reduction only. It has to be true if the nest stores to an intermediate
            buffer of several dimensions, see `at_vector`.

    Returns:
        A nest that computes the same elements.
    """
    nest = _without_unit_axes(nest, shared)
    accesses = [*nest.reads(), nest.store.buffer[nest.store.indices]]
    values = (nest.store.value, *(term.value for term in nest.terms))
    used_as_numbers = set().union(*(variables_outside_loads(value) for value in values))
    store_axes, mapping = _fused(nest.store.axes[shared:], accesses, used_as_numbers)
    if keep_store_axes:
        store_axes, mapping = list(nest.store.axes[shared:]), {}
    (first, *_) = nest.terms or (Term((), nest.store.value),)
    term_axes, term_mapping = _fused(first.axes, accesses, used_as_numbers)
    mapping.update(term_mapping)
    if not mapping:
        return nest
    nest = nest.substituted(mapping)
    terms = tuple(replace(term, axes=tuple(term_axes)) for term in nest.terms)
    return replace(nest, store=replace(nest.store, axes=(*nest.store.axes[:shared], *store_axes)), terms=terms)


def at_vector(node: Expr, axis_variable: Any, start: Expr, inner: Expr) -> Expr:
    """The expression at position `start + inner` of an axis, where `inner` runs over a vector.

    An axis that `fuse_contiguous_axes` made stands for several dimensions. Then the last dimension takes `inner` as it
    is, past its end if need be. So TVM sees that the address moves by one with `inner`, and no vector is divided.
    However, TVM allocates no more of an intermediate buffer than it sees written. Therefore a nest that stores in this
    way has to write a parameter or a buffer of one dimension.
    """

    def visit(part: Expr) -> Expr | None:
        is_division = isinstance(part, prim.FloorDiv | prim.FloorMod)
        if is_division and axis_variable.name == _FUSED and axis_variable.same_as(part.a):
            if isinstance(part, prim.FloorDiv):
                return prim.FloorDiv(start, part.b)
            return prim.FloorMod(start, part.b) + inner
        return start + inner if axis_variable.same_as(part) else None

    return transform(node, visit)


def unravel_axes(axes: Sequence[Axis], position: Expr) -> dict[Any, Expr]:
    """The position on each of some nested axes, by variable, from the position on the one axis that they form."""
    positions = unraveled(position, [axis.extent for axis in axes])
    return {axis.var: axis_position for axis, axis_position in zip(axes, positions, strict=True)}


def _without_unit_axes(nest: Nest, shared: int) -> Nest:
    axes = (*nest.store.axes[shared:], *(axis for term in nest.terms for axis in term.axes))
    unit = {axis.var: IntImm("int32", 0) for axis in axes if axis.extent == 1}
    if not unit:
        return nest
    nest = nest.substituted(unit)
    store_axes = tuple(axis for axis in nest.store.axes if axis.var not in unit)
    store = replace(nest.store, axes=store_axes, value=simplified(nest.store.value))
    terms = (
        Term(tuple(axis for axis in term.axes if axis.var not in unit), simplified(term.value)) for term in nest.terms
    )
    return replace(nest, store=store, terms=tuple(terms))


def _fused(
    axes: Sequence[Axis], accesses: Sequence[Any], used_as_numbers: set[Any]
) -> tuple[list[Axis], dict[Any, Expr]]:
    """The axes after fusion, and where each of those that are gone is in terms of the new ones."""
    runs: list[list[Axis]] = [[axis] for axis in axes[:1]]
    for left, right in pairwise(axes):
        only_index = not {left.var, right.var} & used_as_numbers
        if only_index and all(_consecutive(access, left, right) for access in accesses):
            runs[-1].append(right)
        else:
            runs.append([right])
    fused: list[Axis] = []
    mapping: dict[Any, Expr] = {}
    for run in runs:
        if len(run) == 1:
            fused += run
            continue
        whole = Axis(variable(_FUSED), math.prod(axis.extent for axis in run), run[0].reduce)
        mapping.update(unravel_axes(run, whole.var))
        fused.append(whole)
    return fused, mapping


def _consecutive(access: Any, left: Axis, right: Axis) -> bool:
    """Whether the end of the right axis is followed in memory by the next step of the left one."""
    if any(map(loads_in, access.indices)):
        # A look-up moves as its index does, which is an access of its own.
        return not {left.var, right.var} & set().union(*map(variables_outside_loads, access.indices))
    outer, inner = load_stride(access, left.var), load_stride(access, right.var)
    return inner is not None and outer == inner * right.extent


def vectorize_reduction(nest: Nest, shared: int, lanes: int, vectors: int) -> Nest:
    """Splits a reduction along the contiguous axis of its input into partial results per vector lane.

    Before:     y[i] = sum over r < 100 of x[i, r]
    After:      y[i] = sum over l < 32 of (sum over s < 3 of x[i, 32 s + l] + (x[i, 68 + l] if l >= 28 else 0))

    Args:
        nest: A nest with at most one term.
        shared: The number of leading axes of the store that run outside of the nest.
        lanes: The elements of a vector.
        vectors: The vectors of partial results, at most.

    Returns:
        The nest with a `lane`; the same nest if it does not reduce along memory, or if vectors along one of its own
        spatial axes do better.
    """
    if nest.reduction is None:
        return nest
    (term,) = nest.terms
    if not term.axes:
        return nest
    *other_axes, along = term.axes
    spatial = [axis.var for axis in nest.store.axes[shared:] if axis.extent > 1]
    loads = loads_in(term.value)
    if not any(load_stride(load, along.var) == 1 for load in loads) or along.extent < 4:
        return nest
    if spatial and (any(load_stride(load, spatial[-1]) == 1 for load in loads) or along.extent < lanes // 2):
        return nest
    width = min(lanes * vectors, 1 << (along.extent.bit_length() - 1))
    steps = along.extent // width
    rest = along.extent - steps * width
    lane, step = Axis(variable("lane"), width), Axis(variable("step"), steps, True)
    terms = [Term((*other_axes, step), at_vector(term.value, along.var, step.var * width, lane.var))]
    if rest:
        # One more vector that ends at the end of the axis; its lanes that were counted already add nothing.
        last = at_vector(term.value, along.var, IntImm("int32", along.extent - width), lane.var)
        terms.append(Term(tuple(other_axes), prim.Select(lane.var >= width - rest, last, nest.reduction.identity)))
    return replace(nest, terms=tuple(terms), lane=lane)


def parallelize_reduction(nest: Nest, parts: int) -> list[Nest]:
    """Splits the longest axis of a reduction into parts with a result each, which can run in parallel.

    Before:     y = sum over r < 103 of x[r]
    After:      partial[p] = sum over r < 25 of x[25 p + r]             p < 4
                y = sum over p < 4 of partial[p] + sum over r < 3 of x[100 + r]

    Args:
        nest: Any nest.
        parts: The number of parts; an axis that is shorter has one part per element.

    Returns:
        The nest of the partial results and the one that combines them; the nest alone if there is nothing to split.
    """
    if nest.reduction is None or not nest.terms[0].axes:
        return [nest]
    main, *other_terms = nest.terms
    longest = max(main.axes, key=lambda axis: axis.extent)
    parts = min(parts, longest.extent)
    if parts < 2:
        return [nest]
    size = longest.extent // parts

    def over(new: Axis, position: Expr) -> Term:
        axes = tuple(new if axis is longest else axis for axis in main.axes)
        return Term(axes, substitute(main.value, {longest.var: position}))

    part, inner = Axis(variable("part"), parts), Axis(variable("inner"), size, True)
    axes = (part, *nest.store.axes, *(() if nest.lane is None else (nest.lane,)))
    indices = tuple(axis.var for axis in axes)
    dtype = str(nest.reduction.buffer.dtype)
    partial = intermediate(f"{nest.reduction.name}_partial", [axis.extent for axis in axes], dtype)
    store = Stage(f"{nest.reduction.name}_part", axes, partial, indices, partial[indices])
    partial_results = Nest(store, replace(nest.reduction, buffer=partial), (over(inner, part.var * size + inner.var),))
    combined = Axis(variable("part"), parts, True)
    of_part = (combined.var, *indices[1:])
    terms = [Term((combined,), partial[of_part])]
    if longest.extent > parts * size:
        rest = Axis(variable("rest"), longest.extent - parts * size, True)
        terms.append(over(rest, rest.var + parts * size))
    return [partial_results, replace(nest, terms=(*terms, *other_terms))]


def split_into_segments(nest: Nest) -> list[Nest]:
    """Makes a nest of each segment of the last axis on which the value makes the same choices.

    Before:     y[i] = i < 17 ? a[i] : b[i - 17]
    After:      y[i] = a[i]  i < 17,        y[17 + j] = b[j]  j < 18

    Args:
        nest: Any nest.

    Returns:
        The nests of the segments; the nest alone if it reduces, if one of the other axes is longer than 1, or if
        there is only one segment.
    """
    *others, last = nest.store.axes or (Axis(variable("one"), 1),)
    if nest.reduction is not None or last.var.name == _FUSED or any(axis.extent > 1 for axis in others):
        return [nest]
    segments = segments_of(nest.store.value, last)
    if len(segments) == 1:
        return [nest]
    nests = []
    for segment in segments:
        axis = Axis(variable(last.var.name), segment.end - segment.start)
        store = replace(nest.store, axes=(*others, axis), value=segment.value)
        nests.append(replace(nest, store=store).substituted({last.var: axis.var + segment.start}))
    return nests
