"""What the nests of functions are: their stores, their reductions, and what they read."""

from __future__ import annotations

from typing import Any

import pytest
from index_values import value_at
from tvm import te, tirx
from tvm.ir.prim.expr import IntImm

from stormdrop import operators
from stormdrop.ir.expressions import loads_in
from stormdrop.ir.stages import StageGraph, intermediate, variable
from stormdrop.sketches.cpu.nests import Nest, element_offset, load_stride, nests_of


def names(nest: Nest) -> list[str]:
    """The buffers that a nest reads, without the result of its own reduction."""
    return sorted({str(load.source.name) for load in nest.reads()})


def extents(axes: Any) -> list[int]:
    return [axis.extent for axis in axes]


def graph_of(*tensors: Any) -> StageGraph:
    return StageGraph.parse(te.create_prim_func(list(tensors)))


def test_a_softmax_has_four_nests() -> None:
    nests = nests_of(operators.softmax(17, 100).graph)
    assert [extents(nest.store.axes) for nest in nests] == [[17], [17, 100], [17], [17, 100]]
    assert [nest.reduction and nest.reduction.combine for nest in nests] == ["max", None, "sum", None]
    assert [[extents(term.axes) for term in nest.terms] for nest in nests] == [[[100]], [], [[100]], []]
    assert all(nest.lane is None for nest in nests)


def test_the_reciprocal_of_a_softmax_is_the_epilogue_of_its_sum() -> None:
    total = nests_of(operators.softmax(17, 100).graph)[2]
    assert total.reduction is not None
    assert not total.store.buffer.same_as(total.reduction.buffer)
    (load,) = loads_in(total.store.value)
    assert total.is_result(load)
    assert names(total) == ["t1"]  # the exponentials, but not the sum itself


def test_bias_and_activation_are_fused_into_a_matmul() -> None:
    (nest,) = nests_of(operators.dense(9, 35, 17, bias=1, act="relu").graph)
    assert extents(nest.store.axes) == [9, 35]
    assert [extents(term.axes) for term in nest.terms] == [[17]]
    assert names(nest) == ["x0", "x1", "x2"]
    assert str(nest.store.buffer.name) == "y0"


def test_a_matmul_alone_stores_its_result_as_it_is() -> None:
    (nest,) = nests_of(operators.matmul(9, 35, 17).graph)
    assert nest.reduction is not None and nest.store.buffer.same_as(nest.reduction.buffer)
    assert nest.is_result(nest.store.value)
    assert nest.store.combine is None


def test_a_concatenation_reduces_nothing() -> None:
    (nest,) = nests_of(operators.concatenate((5, 24), (5, 40), 1).graph)
    assert (nest.reduction, nest.terms) == (None, ())
    assert names(nest) == ["x0", "x1"]
    assert not any(nest.is_result(load) for load in nest.reads())


def test_what_is_read_from_outside_is_stored() -> None:
    graph = operators.dense(9, 35, 17, bias=1).graph
    product = graph.stages[0].buffer
    assert len(nests_of(graph)) == 1
    multiply, add = nests_of(graph, kept=[product])
    assert multiply.store.buffer.same_as(product)
    assert names(add) == sorted(["x2", str(product.name)])


def test_no_epilogue_reads_what_is_written_later() -> None:
    x, r = te.placeholder((8, 8)), te.reduce_axis((0, 8))
    total = te.compute((8,), lambda i: te.sum(x[i, r], axis=r), name="total")
    other = te.compute((8,), lambda i: te.exp(x[i, 0]), name="other")
    graph = graph_of(x, te.compute((8,), lambda i: total[i] + other[i], name="both"))
    assert [stage.name for stage in graph.stages] == ["total", "other", "both"]
    assert [str(nest.store.buffer.name) for nest in nests_of(graph)] == ["total", "other", "both"]


def test_an_element_in_place_of_the_result() -> None:
    (nest,) = nests_of(operators.dense(9, 35, 17, bias=1).graph)
    value = nest.with_result(tirx.const(1.0, "float32"))
    assert [str(load.source.name) for load in loads_in(value)] == ["x2"]


def test_substitution_leaves_the_axes() -> None:
    (nest,) = nests_of(operators.matmul(9, 35, 17).graph)
    row, column = nest.store.axes
    moved = nest.substituted({row.var: row.var + 3})
    assert moved.store.axes == nest.store.axes
    position = {row.var: 2, column.var: 4, nest.terms[0].axes[0].var: 6}
    assert value_at(moved.store.indices[0], position) == 5
    assert [value_at(index, position) for index in moved.terms[0].value.a.indices] == [5, 6]


def test_offsets_count_elements_in_row_major_order() -> None:
    indices = [IntImm("int32", number) for number in (1, 2, 3)]
    assert int(element_offset((3, 4, 5), indices)) == (1 * 4 + 2) * 5 + 3
    assert int(element_offset((), [])) == 0


@pytest.mark.parametrize(
    ("index", "stride"),
    [
        (lambda i, j: (i, j), 7),
        (lambda i, j: (j, i), 1),
        (lambda i, j: (j, j), 0),
        (lambda i, j: (i, i), 8),
        (lambda i, j: (2 * i + j, 3), 14),
        (lambda i, j: (i // 2, j), None),
    ],
)
def test_strides_of_loads(index: Any, stride: int | None) -> None:
    i, j = variable("i"), variable("j")
    buffer = intermediate("buffer", [5, 7], "float32")
    assert load_stride(buffer[index(i, j)], i) == stride
