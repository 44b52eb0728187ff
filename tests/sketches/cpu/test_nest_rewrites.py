"""Rewrites of nests: every element is still read and written, exactly once."""

from __future__ import annotations

from collections import Counter

import pytest
from index_values import positions, value_at, written
from tvm import te, tirx
from tvm.ir import Call

from stormdrop import operators
from stormdrop.ir.expressions import loads_in, walk
from stormdrop.ir.stages import StageGraph, shape_of
from stormdrop.ir.workload import Workload
from stormdrop.sketches.cpu.nest_rewrites import (
    at_vector,
    fuse_contiguous_axes,
    parallelize_reduction,
    split_into_segments,
    unravel_axes,
    vectorize_reduction,
)
from stormdrop.sketches.cpu.nests import Nest, Term, element_offset, load_stride, nests_of


def only_nest(workload: Workload) -> Nest:
    (nest,) = nests_of(workload.graph)
    return nest


def name_of(value: object) -> str:
    return str(getattr(value, "name", value))


def extents(nest: Nest) -> list[int]:
    return [axis.extent for axis in nest.store.axes]


def reads_of(nest: Nest, term: Term, source: str) -> Counter[int]:
    """The offsets at which a term reads a buffer, where it counts the element."""
    lane = () if nest.lane is None else (nest.lane,)
    counted: Counter[int] = Counter()
    for position in positions((*nest.store.axes, *lane, *term.axes)):
        value = term.value
        if hasattr(value, "condition"):
            if not value_at(value.condition, position):
                continue
            value = value.true_value
        for load in loads_in(value):
            if load.source.name == source:
                counted[value_at(element_offset(shape_of(load.source), load.indices), position)] += 1
    return counted


# One axis in place of several


def test_axes_that_every_access_passes_in_memory_order_become_one() -> None:
    nest = fuse_contiguous_axes(only_nest(operators.elementwise((4, 3, 5))), 0, keep_store_axes=False)
    assert extents(nest) == [60]
    assert written(nest.store) == list(range(60))
    (load,) = nest.reads()
    offset = element_offset(shape_of(load.source), load.indices)
    assert [value_at(offset, position) for position in positions(nest.store.axes)] == list(range(60))


@pytest.mark.parametrize(
    ("workload", "fused"),
    [
        (operators.elementwise((2, 7, 35), kind="bias_add"), [14, 35]),  # the bias is read along the last axis alone
        (operators.elementwise((4, 1, 5)), [20]),
        (operators.transpose((6, 4), (1, 0)), [4, 6]),
        (operators.transpose((2, 3, 5), (1, 0, 2)), [3, 2, 5]),
        (operators.transpose((2, 3, 5), (2, 0, 1)), [5, 6]),
        (operators.concatenate((5, 4), (5, 6), 1), [5, 10]),
    ],
    ids=name_of,
)
def test_other_axes_stay(workload: Workload, fused: list[int]) -> None:
    nest = fuse_contiguous_axes(only_nest(workload), 0, keep_store_axes=False)
    assert extents(nest) == fused
    assert sorted(written(nest.store)) == list(range(len(written(nest.store))))


def test_an_axis_that_is_more_than_an_index_stays() -> None:
    """Every access passes both axes in memory order, but the value compares one of them with a constant."""
    x = te.placeholder((4, 5))
    masked = te.compute((4, 5), lambda i, j: tirx.if_then_else(j < 3, x[i, j], 0.0))
    (nest,) = nests_of(StageGraph.parse(te.create_prim_func([x, masked])))
    assert extents(fuse_contiguous_axes(nest, 0, keep_store_axes=False)) == [4, 5]


def test_axes_outside_of_the_nest_and_of_an_exact_store_stay() -> None:
    nest = only_nest(operators.elementwise((4, 3, 5)))
    assert extents(fuse_contiguous_axes(nest, 1, keep_store_axes=False)) == [4, 15]
    assert extents(fuse_contiguous_axes(nest, 0, keep_store_axes=True)) == [4, 3, 5]


def test_reductions_become_one_axis_even_if_the_store_stays() -> None:
    nest = only_nest(operators.reduce((6, 35, 4), (1, 2)))
    (term,) = fuse_contiguous_axes(nest, 0, keep_store_axes=True).terms
    assert [axis.extent for axis in term.axes] == [140]


def test_a_vector_moves_by_one_element_per_lane() -> None:
    nest = fuse_contiguous_axes(only_nest(operators.elementwise((4, 3, 5))), 0, keep_store_axes=False)
    (flat,) = nest.store.axes
    lane = unravel_axes([flat], flat.var)[flat.var]
    (load,) = loads_in(at_vector(nest.store.value, flat.var, flat.var * 0 + 28, lane))
    assert load_stride(load, lane) == 1
    offset = element_offset(shape_of(load.source), load.indices)
    assert [value_at(offset, {lane: number}) for number in range(4)] == [28, 29, 30, 31]  # across a row's end


# Reductions along memory


@pytest.mark.parametrize("extent", [4, 7, 16, 31, 32, 33, 100])
def test_lanes_count_every_element_once(extent: int) -> None:
    nest = vectorize_reduction(only_nest(operators.reduce((2, extent), 1)), 0, lanes=8, vectors=2)
    assert nest.lane is not None and nest.lane.extent == min(16, 1 << (extent.bit_length() - 1))
    total = sum((reads_of(nest, term, "x0") for term in nest.terms), Counter())
    assert total == Counter(dict.fromkeys(range(2 * extent), 1))


@pytest.mark.parametrize(
    "workload",
    [
        operators.elementwise((8, 64)),
        operators.reduce((64, 8), 0),  # vectors along the 8 results
        operators.reduce((8, 3), 1),
        operators.matmul(8, 64, 64),
    ],
    ids=name_of,
)
def test_no_lanes_if_vectors_are_along_the_results(workload: Workload) -> None:
    nest = only_nest(workload)
    assert vectorize_reduction(nest, 0, lanes=8, vectors=2) is nest


# Reductions of few results


@pytest.mark.parametrize(("extent", "parts"), [(103, 4), (100, 4), (3, 4), (7, 2)])
def test_parts_count_every_element_once(extent: int, parts: int) -> None:
    partial, combination = parallelize_reduction(only_nest(operators.reduce((extent,), 0)), parts)
    count = min(extent, parts)
    assert partial.store.axes[0].extent == count and not partial.store.axes[0].reduce
    first, *rest = combination.terms
    assert reads_of(combination, first, str(partial.store.buffer.name)) == Counter(dict.fromkeys(range(count), 1))
    read = sum((reads_of(nest, term, "x0") for nest in (partial, combination) for term in nest.terms), Counter())
    assert read == Counter(dict.fromkeys(range(extent), 1))
    assert len(rest) == (extent % count > 0)


def test_parts_keep_their_lanes() -> None:
    nest = vectorize_reduction(only_nest(operators.reduce((1000,), 0)), 0, lanes=8, vectors=2)
    partial, combination = parallelize_reduction(nest, 4)
    assert nest.lane is not None
    assert shape_of(partial.store.buffer) == (4, 1, nest.lane.extent)
    assert partial.lane is None and combination.lane is nest.lane
    read = sum((reads_of(combination, term, "x0") for term in combination.terms), Counter())
    partly = Counter[int]()
    for term in partial.terms:
        partly += reads_of(partial, term, "x0")
    assert read + partly == Counter(dict.fromkeys(range(1000), 1))


def test_the_longest_axis_is_split() -> None:
    partial, _ = parallelize_reduction(only_nest(operators.reduce((1, 3, 50, 4), (1, 2, 3))), 5)
    assert [axis.extent for axis in partial.terms[0].axes] == [3, 10, 4]


@pytest.mark.parametrize(
    ("workload", "parts"), [(operators.elementwise((8, 64)), 4), (operators.reduce((8, 64), 1), 1)], ids=name_of
)
def test_nothing_to_split(workload: Workload, parts: int) -> None:
    nest = only_nest(workload)
    assert parallelize_reduction(nest, parts) == [nest]


# Segments


def test_a_concatenation_has_a_nest_for_each_input() -> None:
    nests = split_into_segments(only_nest(operators.concatenate((17,), (18,), 0)))
    assert [written(nest.store) for nest in nests] == [list(range(17)), list(range(17, 35))]
    for number, nest in enumerate(nests):
        assert [str(load.source.name) for load in nest.reads()] == [f"x{number}"]
        assert not any(isinstance(node, Call) for node in walk(nest.store.value))
        (load,) = nest.reads()
        read = [value_at(load.indices[0], position) for position in positions(nest.store.axes)]
        assert read == list(range(len(read)))


@pytest.mark.parametrize(
    "workload",
    [
        operators.concatenate((2, 17), (2, 18), 1),  # its rows run in parallel
        operators.elementwise((35,)),
        operators.reduce((35,), 0),
    ],
    ids=name_of,
)
def test_other_nests_stay_whole(workload: Workload) -> None:
    nest = only_nest(workload)
    assert split_into_segments(nest) == [nest]
