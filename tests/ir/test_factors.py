"""The factors of a contraction: loads, widened or not, less a zero point."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import te

from stormdrop import operators
from stormdrop.ir.contractions.contraction import find_contraction, is_contraction
from stormdrop.ir.contractions.factors import factor_of, factors_of
from stormdrop.ir.dtypes import is_integer
from stormdrop.ir.reference import evaluate_graph
from stormdrop.ir.stages import StageGraph, intermediate, variable
from stormdrop.ir.workload import Workload


def quantised_product(left: int, right: int, dtypes: tuple[str, str] = ("uint8", "uint8")) -> Workload:
    """The product of two matrices of bytes, each less its zero point."""
    a, b = te.placeholder((5, 9), dtypes[0], name="a"), te.placeholder((9, 20), dtypes[1], name="b")
    k = te.reduce_axis((0, 9), name="k")

    def element(i: Any, j: Any) -> Any:
        return te.sum((a[i, k].astype("int32") - left) * (b[k, j].astype("int32") - right), axis=k)

    return Workload.create("product", te.create_prim_func([a, b, te.compute((5, 20), element, name="c")]))


def test_a_factor_is_a_load_widened_less_a_zero_point() -> None:
    i, buffer = variable("i"), intermediate("x", (8,), "uint8")
    load = buffer[i]
    factor = factor_of(load)
    assert factor is not None and (factor.widened, factor.zero_point, factor.dtype) == (False, 0, "uint8")
    wide = load.astype("int32")
    shifted = [factor_of(node) for node in (wide, wide - 7, wide + 7)]
    assert [(each.widened, each.zero_point) for each in shifted if each is not None] == [
        (True, 0),
        (True, 7),
        (True, -7),
    ]
    assert factor_of(wide * 2) is None
    assert factor_of((load - load.astype("uint8")).astype("int32")) is None


def test_factors_load_from_different_buffers() -> None:
    (stage,) = operators.matmul(4, 5, 6).graph.stages
    factors = factors_of(stage)
    assert factors is not None
    assert [factor.load.source.name for factor in factors] == ["x0", "x1"]
    reduction, *_ = operators.reduce((4, 5), 1).graph.stages
    assert factors_of(reduction) is None


@pytest.mark.parametrize("zero_points", [(0, 0), (3, 128), (0, -4)])
def test_products_of_bytes_are_contractions(zero_points: tuple[int, int]) -> None:
    workload = quantised_product(*zero_points)
    (stage,) = workload.graph.stages
    assert is_contraction(stage)
    contraction = find_contraction(workload.graph, ())
    assert (contraction.operand.source.name, contraction.other.source.name) == ("x1", "x0")


def test_integers_are_widened_and_floats_are_not() -> None:
    assert [is_integer(dtype) for dtype in ("int8", "uint8", "int32", "bool", "float16")] == [True] * 3 + [False] * 2
    (wide, *_) = operators.matmul(4, 5, 6, dtype="float16").graph.stages
    assert factors_of(wide) is not None and not is_contraction(wide)


@pytest.mark.parametrize("zero_points", [(0, 0), (3, 128), (255, 0)])
def test_the_reference_of_bytes_is_exact(zero_points: tuple[int, int]) -> None:
    workload = quantised_product(*zero_points)
    a, b = workload.random_inputs(1)
    assert a.min() < 40 and a.max() > 215  # all values of the type
    (result,) = evaluate_graph(StageGraph.parse(workload.function), [a, b])
    expected = (a.astype("int64") - zero_points[0]) @ (b.astype("int64") - zero_points[1])
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, expected)
    assert workload.tolerance([result]) == 0.0


def test_large_sums_of_bytes_have_no_tolerance() -> None:
    workload = operators.dense(2, 16, 4096, dtype="uint8")
    inputs = [np.full((2, 4096), 255, "uint8"), np.full((16, 4096), -128, "int8")]
    (sums,) = workload.reference(inputs)
    assert np.all(sums == -255 * 128 * 4096)  # more than float32 holds exactly
    assert workload.tolerance([sums]) == 0.0


def test_rounded_bytes_may_differ_by_one_step() -> None:
    workload = operators.dense(8, 16, 64, dtype="uint8", requantize=1)
    outputs = workload.reference(workload.random_inputs(0))
    largest = int(np.abs(outputs[0].astype("int32")).max())
    assert 3 < largest < 128  # few are clipped
    assert workload.tolerance(outputs) == pytest.approx(1 / largest)
