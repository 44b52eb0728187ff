"""Which nests share a loop over rows, and what their buffers hold then."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import te

from stormdrop import operators
from stormdrop.ir.stages import StageGraph, shape_of
from stormdrop.sketches.cpu.groups import Group, groups_of, shared_axes
from stormdrop.sketches.cpu.nests import nests_of


def graph_of(*tensors: Any) -> StageGraph:
    return StageGraph.parse(te.create_prim_func(list(tensors)))


def grouped(graph: StageGraph, min_rows: int | None) -> list[Group]:
    return groups_of(nests_of(graph), graph.parameters, min_rows)


def sizes(groups: list[Group]) -> list[tuple[int, int]]:
    """The number of nests and of shared axes of each group."""
    return [(len(group.nests), group.shared) for group in groups]


def shapes(groups: list[Group]) -> list[tuple[int, ...]]:
    """The shapes of the buffers that the nests write."""
    return [shape_of(nest.store.buffer) for group in groups for nest in group.nests]


def softmax_of_columns(a: int, b: int, c: int) -> StageGraph:
    x, r, s = te.placeholder((a, b, c)), te.reduce_axis((0, b)), te.reduce_axis((0, b))
    top = te.compute((a, c), lambda i, k: te.max(x[i, r, k], axis=r))
    exp = te.compute((a, b, c), lambda i, j, k: te.exp(x[i, j, k] - top[i, k]))
    total = te.compute((a, c), lambda i, k: te.sum(exp[i, s, k], axis=s))
    return graph_of(x, te.compute((a, b, c), lambda i, j, k: exp[i, j, k] / total[i, k]))


def test_a_softmax_is_one_loop_whose_buffers_hold_one_row() -> None:
    groups = grouped(operators.softmax(64, 100).graph, min_rows=4)
    assert sizes(groups) == [(4, 1)]
    assert shapes(groups) == [(1,), (100,), (1,), (64, 100)]


def test_without_grouping_the_buffers_hold_all_rows_in_one_dimension() -> None:
    groups = grouped(operators.softmax(64, 100).graph, min_rows=None)
    assert sizes(groups) == [(1, 0)] * 4
    assert shapes(groups) == [(64,), (6400,), (64,), (64, 100)]


@pytest.mark.parametrize(("min_rows", "shared"), [(1, True), (64, True), (65, False)])
def test_few_rows_are_not_shared(min_rows: int, shared: bool) -> None:
    assert sizes(grouped(operators.softmax(64, 100).graph, min_rows)) == ([(4, 1)] if shared else [(1, 0)] * 4)


def test_all_leading_axes_are_shared_that_every_nest_has() -> None:
    assert sizes(grouped(softmax_of_columns(3, 17, 35), min_rows=2)) == [(4, 1)]
    b, h, q, k = 2, 3, 5, 7
    x, r = te.placeholder((b, h, q, k)), te.reduce_axis((0, k))
    total = te.compute((b, h, q), lambda i, j, m: te.sum(x[i, j, m, r], axis=r))
    scaled = te.compute((b, h, q, k), lambda i, j, m, n: x[i, j, m, n] / total[i, j, m])
    assert sizes(grouped(graph_of(x, scaled), min_rows=2)) == [(2, 3)]


def test_one_axis_stays_with_the_longest_nest() -> None:
    x = te.placeholder((8, 16))
    first = te.compute((8, 16), lambda i, j: te.exp(x[i, j]))
    second = te.compute((8, 16), lambda i, j: te.exp(first[i, j]))
    groups = grouped(graph_of(x, second), min_rows=1)
    assert sizes(groups) == [(2, 1)]
    assert shapes(groups) == [(16,), (8, 16)]
    y = te.placeholder((16,))
    copied = te.compute((16,), lambda i: te.exp(y[i]))
    assert sizes(grouped(graph_of(y, te.compute((16,), lambda i: te.exp(copied[i]))), min_rows=1)) == [(1, 0)] * 2


def test_a_nest_that_reads_other_rows_runs_alone() -> None:
    x = te.placeholder((8, 8))
    exp = te.compute((8, 8), lambda i, j: te.exp(x[i, j]))
    transposed = graph_of(x, te.compute((8, 8), lambda i, j: exp[j, i]))
    assert shared_axes(nests_of(transposed), 1) == 0
    assert sizes(grouped(transposed, min_rows=1)) == [(1, 0)] * 2
    y = te.placeholder((9, 8))
    row_below = te.compute((9, 8), lambda i, j: te.exp(y[i, j]))
    shifted = graph_of(y, te.compute((8, 8), lambda i, j: row_below[i + 1, j]))
    assert sizes(grouped(shifted, min_rows=1)) == [(1, 0)] * 2


def test_what_another_group_reads_holds_all_rows() -> None:
    x, r = te.placeholder((8, 12)), te.reduce_axis((0, 12))
    exp = te.compute((8, 12), lambda i, j: te.exp(x[i, j]))
    total = te.compute((8,), lambda i: te.sum(exp[i, r], axis=r))
    scaled = te.compute((8, 12), lambda i, j: exp[i, j] / total[i])
    transposed = te.compute((12, 8), lambda i, j: exp[j, i] + 1.0)
    groups = grouped(graph_of(x, scaled, transposed), min_rows=2)
    assert sizes(groups) == [(3, 1), (1, 0)]
    assert shapes(groups) == [(8 * 12,), (1,), (8, 12), (12, 8)]


def test_parameters_stay_as_they_are() -> None:
    x = te.placeholder((8, 12))
    y = te.compute((8, 12), lambda i, j: te.exp(x[i, j]))
    z = te.compute((8, 12), lambda i, j: te.tanh(y[i, j]) + y[i, j])
    groups = grouped(graph_of(x, y, z), min_rows=1)
    assert sizes(groups) == [(2, 1)]
    assert shapes(groups) == [(8, 12), (8, 12)]
