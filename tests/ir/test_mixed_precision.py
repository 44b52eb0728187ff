"""Functions whose parameters are stored in bfloat16, or which multiply TF32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import te, tirx

from stormdrop import operators
from stormdrop.ir.dtypes import BFLOAT16
from stormdrop.ir.mixed_precision import copied_positions, factor_positions, in_low_precision, in_tf32, keeps_elements
from stormdrop.ir.reference import evaluate_graph
from stormdrop.ir.stages import StageGraph
from stormdrop.ir.workload import Workload


def of(*tensors: Any) -> StageGraph:
    return StageGraph.parse(te.create_prim_func(list(tensors)))


def tf32(array: Any) -> Any:
    """10 bits of the mantissa, ties away from 0."""
    return ((array.view("u4") + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view("f4")


@pytest.mark.parametrize("workload", [operators.dense(5, 7, 9, bias=1), operators.conv2d(1, 6, 6, 4, 8, 3, 3, pad=1)])
def test_a_function_in_tf32_multiplies_rounded_factors(workload: Workload) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(spec.shape, "f4") for spec in workload.inputs]
    factors = [tf32(each) for each in inputs[:2]]
    (expected,) = evaluate_graph(workload.graph, [*factors, *inputs[2:]])
    (found,) = evaluate_graph(in_tf32(workload.graph), inputs)
    np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(found, evaluate_graph(workload.graph, inputs)[0])


WORKLOADS = [
    operators.conv2d(1, 6, 6, 4, 8, 3, 3, pad=1, bias=1, act="relu"),
    operators.dense(5, 7, 9, bias=1),
    operators.batch_matmul(2, 5, 7, 9, transpose_b=1),
    operators.softmax(4, 9),
    operators.pool2d(1, 6, 6, 4, 3, 3, pad=1, kind="max"),
    operators.reduce((4, 6), 1, kind="sum"),
]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_a_lowered_function_computes_the_same_from_rounded_inputs(workload: Workload) -> None:
    graph = workload.graph
    low = in_low_precision(graph, range(len(graph.parameters)))
    assert {str(buffer.dtype) for buffer in low.parameters} == {BFLOAT16}
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(0.5, 1.5, spec.shape).astype(BFLOAT16) for spec in workload.inputs]
    (expected,) = evaluate_graph(graph, [array.astype("float32") for array in inputs], rounded=False)
    (found,) = evaluate_graph(low, inputs)
    assert str(found.dtype) == BFLOAT16
    np.testing.assert_array_equal(found.astype("float32"), expected.astype(BFLOAT16).astype("float32"))
    assert Workload.create("low", low.function(), workload.constants).graph.outputs  # sketches can read it


def test_what_is_only_moved_stays_in_bfloat16_and_sums_are_in_float32() -> None:
    graph = operators.conv2d(1, 6, 6, 4, 8, 3, 3, pad=1, act="relu").graph
    low = in_low_precision(graph, [0, 1, 2])
    assert [str(stage.buffer.dtype) for stage in low.stages] == [BFLOAT16, "float32", BFLOAT16]
    mixed = in_low_precision(graph, [1])
    assert [str(stage.buffer.dtype) for stage in mixed.stages] == ["float32"] * 3


def test_an_input_that_is_padded_is_only_copied() -> None:
    assert copied_positions(operators.conv2d(1, 6, 6, 4, 8, 3, 3, pad=1, bias=1).graph) == {0}


def test_what_is_computed_with_or_returned_is_no_copy() -> None:
    assert copied_positions(operators.conv2d(1, 6, 6, 4, 8, 3, 3).graph) == set()  # the sum reads the data
    x = te.placeholder((4, 6), name="x")
    assert copied_positions(of(x, te.compute((4, 6), lambda i, j: x[i, j], name="y"))) == set()


def test_a_reduction_is_rounded_once_at_its_end() -> None:
    low = in_low_precision(operators.matmul(4, 5, 6).graph, [2])
    assert [stage.combine for stage in low.stages] == ["sum", None]
    assert [str(stage.buffer.dtype) for stage in low.stages] == ["float32", BFLOAT16]


def test_factors_are_found_behind_what_moves_them() -> None:
    assert factor_positions(operators.conv2d(1, 6, 6, 4, 8, 3, 3, pad=1, bias=1).graph) == [(0, 1)]
    assert factor_positions(operators.softmax(4, 9).graph) == []
    a, b = te.placeholder((4, 6), name="a"), te.placeholder((6, 5), name="b")
    doubled = te.compute((4, 6), lambda i, j: a[i, j] * 2.0, name="doubled")
    r = te.reduce_axis((0, 6), name="r")
    c = te.compute((4, 5), lambda i, j: te.sum(doubled[i, r] * b[r, j], axis=r), name="c")
    assert factor_positions(of(a, b, c)) == []


def clipped(most: float) -> Workload:
    x = te.placeholder((4, 6), name="x")
    bounded = te.compute((4, 6), lambda i, j: tirx.min(tirx.max(x[i, j], 0.0), most), name="bounded")
    return Workload.create(f"clipped to {most}", te.create_prim_func([x, bounded]))


@pytest.mark.parametrize(
    ("workload", "keeps"),
    [
        (operators.pool2d(1, 6, 6, 4, 3, 3, pad=1, kind="max"), True),
        (operators.pool2d(1, 6, 6, 4, 3, 3, pad=1, kind="avg"), False),
        (operators.transpose((4, 6), (1, 0)), True),
        (operators.softmax(4, 9), False),
        (clipped(6.0), True),
        (clipped(6.1), False),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_which_functions_keep_the_elements_as_they_are(workload: Workload, keeps: bool) -> None:
    assert keeps_elements(workload.graph) == keeps
