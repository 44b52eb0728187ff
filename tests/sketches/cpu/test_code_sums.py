"""Products with codes, with zero points subtracted from sums: each point is right, other functions are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tvm import te

from stormdrop import operators
from stormdrop.errors import UnsupportedFunction
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Target
from stormdrop.operators.weight_only import product_with_codes
from stormdrop.sketches.cpu.code_sums import CodeSums
from stormdrop.sketches.registry import sketches_for
from stormdrop.testing.sketches import check_sketch

TARGET = Target.detect()
WIDE = replace(TARGET, lanes=8, registers=16)


def in_three_dimensions() -> Workload:
    """As a model has it: data [1, rows, k]."""
    data, codes = te.placeholder((1, 5, 64), name="a"), te.placeholder((24, 32), "uint8", name="codes")
    scale = te.placeholder((24, 2), name="scale")
    element = product_with_codes(data, codes, None, scale, 4)
    product = te.compute((1, 5, 24), element, name="product")
    return Workload.create("three dimensions", te.create_prim_func([data, codes, scale, product]), constants=(1, 2))


@pytest.mark.compiles
@pytest.mark.parametrize(
    "workload",
    [
        operators.weight_only_dense(1, 149, 96),
        operators.weight_only_dense(3, 35, 96, zero_points=1, bias=1, act="gelu"),
        operators.weight_only_dense(16, 17, 64, group=64, residual=1),
        operators.weight_only_dense(1, 100, 72, bits=8, group=36),
        operators.weight_only_dense(2, 24, 128, bits=8, group=128, zero_points=1, bias=1),
        operators.weight_only_dense(1, 3, 32, group=8),
        operators.weight_only_dense(1, 40, 64, bits=8, group=4),
        in_three_dimensions(),
    ],
    ids=lambda workload: workload.name,
)
def test_every_point_is_right(workload: Workload) -> None:
    check_sketch(CodeSums(), workload, TARGET, samples=5)


@pytest.mark.compiles
def test_narrower_vectors() -> None:
    check_sketch(CodeSums(), operators.weight_only_dense(3, 35, 96, zero_points=1), WIDE, samples=4)


@pytest.mark.parametrize(
    "workload",
    [
        operators.dense(1, 64, 64),
        operators.dense(4, 64, 64, dtype="uint8", zero_point=3),
        operators.softmax(8, 8),
        operators.weight_only_dense(17, 64, 64),  # so many rows share the decoding
        operators.weight_only_dense(1, 64, 64, group=4),  # two bytes: no word
        operators.weight_only_dense(1, 64, 66, bits=8, group=33),
        operators.attention(1, 8, 8, 8, 8),
    ],
    ids=lambda workload: workload.name,
)
def test_other_functions_have_no_space(workload: Workload) -> None:
    assert CodeSums().space(workload, TARGET) is None


def test_a_product_without_codes_is_refused() -> None:
    with pytest.raises(UnsupportedFunction, match="codes"):
        CodeSums().apply(operators.dense(1, 64, 64), TARGET, {})


def test_codes_that_are_no_constants_stay_with_the_other_sketches() -> None:
    whole = operators.weight_only_dense(1, 64, 64)
    assert CodeSums().space(Workload.create("varying", whole.function), TARGET) is None


def test_max_error_0_leaves_it_out() -> None:
    """The difference is taken after the sum, so it rounds otherwise than the function says."""
    workload = operators.weight_only_dense(1, 64, 64)
    assert "code_sums" in [sketch.name for sketch, _ in sketches_for(workload, TARGET)]
    assert "code_sums" not in [sketch.name for sketch, _ in sketches_for(workload, TARGET, max_error=0.0)]
