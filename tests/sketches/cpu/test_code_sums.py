"""Products with codes, with zero points subtracted from sums: each point is right, other functions are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tvm import te, tirx

from stormdrop import operators
from stormdrop.errors import UnsupportedFunction
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu, keeping_denormals
from stormdrop.operators.weight_only import product_with_codes
from stormdrop.sketches.cpu.code_sums.sketch import CodeSums
from stormdrop.sketches.registry import sketches_for
from stormdrop.testing.sketches import check_sketch

TARGET = Cpu.detect()
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
@pytest.mark.parametrize("group", [32, 128])
def test_words_are_fetched_ahead_if_they_are_larger_than_a_second_cache(group: int) -> None:
    workload, small = operators.weight_only_dense(1, 48, 256, group=group), replace(TARGET, l2=1024)
    whole = CodeSums().space(workload, TARGET)
    assert whole is not None and "ahead" not in whole.config(whole.origin)
    space = CodeSums().space(workload, small)
    assert space is not None
    config = {**space.config(space.origin), "columns": 16, "unroll": 2}
    ahead = str(CodeSums().apply(workload, small, {**config, "ahead": 2048}).main)
    assert ahead.count("llvm.prefetch") == 2, "two words of 16 columns are two lines, fetched in each step"
    assert "llvm.prefetch" not in str(CodeSums().apply(workload, small, {**config, "ahead": 0}).main)
    check_sketch(CodeSums(), workload, small, samples=6)


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


@pytest.mark.parametrize(("max_error", "taken"), [(1e-4, True), (1e-5, True), (9e-6, False), (0.0, False)])
def test_the_error_that_is_allowed_decides(max_error: float, taken: bool) -> None:
    """The difference is taken after the sum, so it rounds otherwise than the function says."""
    workload = operators.weight_only_dense(1, 64, 64)
    assert ("code_sums" in [sketch.name for sketch, _ in sketches_for(workload, TARGET, max_error=max_error)]) == taken


def test_kept_denormals_leave_it_out() -> None:
    assert CodeSums().space(operators.weight_only_dense(1, 64, 64), keeping_denormals(TARGET)) is None


@pytest.mark.parametrize(
    "code",
    [
        lambda load, half: (load.astype("int32") >> (half * 4)) & 7,
        lambda load, half: ((load & tirx.const(31, "uint8")).astype("int32") >> (half * 4)) & 15,
        lambda load, half: (load.astype("int32") >> (half * 3)) & 15,
        lambda load, half: load.astype("int32") + half,
    ],
    ids=["mask", "inner mask", "shift", "sum"],
)
def test_other_codes_are_refused(code: Callable[[Any, Any], Any]) -> None:
    data, codes, scale = te.placeholder((2, 64)), te.placeholder((24, 32), "uint8"), te.placeholder((24, 2))
    group, byte, half = (te.reduce_axis((0, extent)) for extent in (2, 16, 2))

    def element(i: Any, j: Any) -> Any:
        weight = (code(codes[j, group * 16 + byte], half) - 8).astype("float32") * scale[j, group]
        return te.sum(data[i, group * 32 + byte * 2 + half] * weight, axis=[group, byte, half])

    function = te.create_prim_func([data, codes, scale, te.compute((2, 24), element)])
    assert CodeSums().space(Workload.create("codes", function, constants=(1, 2)), TARGET) is None


def test_signed_codes_are_refused() -> None:
    data, codes, scale = te.placeholder((2, 64)), te.placeholder((24, 64), "int8"), te.placeholder((24, 2))
    group, byte = te.reduce_axis((0, 2)), te.reduce_axis((0, 32))

    def element(i: Any, j: Any) -> Any:
        weight = codes[j, group * 32 + byte].astype("int32").astype("float32") * scale[j, group]
        return te.sum(data[i, group * 32 + byte] * weight, axis=[group, byte])

    function = te.create_prim_func([data, codes, scale, te.compute((2, 24), element)])
    assert CodeSums().space(Workload.create("codes", function, constants=(1, 2)), TARGET) is None
