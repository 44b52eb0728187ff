"""Products with codes and digits of the data: right at each point, as exact as float32, and refused elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import te

from stormdrop import operators
from stormdrop.errors import UnsupportedFunction
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu, keeping_denormals, parse_machine
from stormdrop.operators.weight_only import product_with_codes
from stormdrop.sketches.cpu.code_sums.dots import CodeDots
from stormdrop.sketches.cpu.code_sums.sketch import CodeSums
from stormdrop.sketches.cpu.contractions.dot_products import unit_for_bytes
from stormdrop.sketches.registry import sketches_for
from stormdrop.testing.sketches import check_sketch, run, run_all, some_points


def known(name: str) -> Cpu:
    """A CPU by name."""
    target = parse_machine(name)
    assert isinstance(target, Cpu)
    return target


DOTS = CodeDots()
TARGET = Cpu.detect()
VNNI, V4, V3 = map(known, ("cpu/znver5", "cpu/x86-64-v4", "cpu/x86-64-v3"))
needs_unit = pytest.mark.skipif(unit_for_bytes(TARGET) is None, reason="this machine multiplies no bytes")


def in_three_dimensions() -> Workload:
    """As a model has it: data [1, rows, k]."""
    data, codes = te.placeholder((1, 5, 64), name="a"), te.placeholder((24, 32), "uint8", name="codes")
    scale = te.placeholder((24, 2), name="scale")
    element = product_with_codes(data, codes, None, scale, 4)
    product = te.compute((1, 5, 24), element, name="product")
    return Workload.create("three dimensions", te.create_prim_func([data, codes, scale, product]), constants=(1, 2))


def inputs_of(workload: Workload, data: Callable[[tuple[int, ...]], Any] | None = None) -> list[Any]:
    """Data around 0, codes of the whole range, zero points and scales."""
    rng = np.random.default_rng(0)
    largest = 2 ** int(workload.arguments["bits"]) - 1
    arrays: list[Any] = []
    for number, spec in enumerate(workload.inputs):
        if spec.dtype == "uint8":
            arrays.append(rng.integers(0, 256 if number == 1 else largest + 1, spec.shape).astype("uint8"))
        elif number == 0:
            drawn = rng.normal(0, 1, spec.shape) if data is None else data(spec.shape)
            arrays.append(np.asarray(drawn, "float32"))
        else:
            arrays.append(rng.uniform(0.5, 1.5, spec.shape).astype("float32"))
    return arrays


def in_float64(workload: Workload, inputs: list[Any]) -> Any:
    """The product by the formula of the operator."""
    bits, group = int(workload.arguments["bits"]), int(workload.arguments["group"])
    data, codes, *rest = inputs
    if bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), -1)
    zero = rest.pop(0) if workload.arguments["zero_points"] else np.full_like(rest[0], 2 ** (bits - 1))
    zero, scale = (np.repeat(values.astype("float64"), group, axis=1) for values in (zero, rest[0]))
    return data.astype("float64") @ ((codes.astype("float64") - zero) * scale).T


def outputs_of(workload: Workload, inputs: list[Any], target: Cpu = TARGET, sketch: Any = DOTS) -> Any:
    """What the default schedule computes."""
    space = sketch.space(workload, target)
    return run(sketch.apply(workload, target, space.config(space.origin)), workload, target, inputs)[0]


def error_of(actual: Any, expected: Any) -> float:
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


@needs_unit
@pytest.mark.compiles
@pytest.mark.parametrize(
    "workload",
    [
        operators.weight_only_dense(1, 149, 96),
        operators.weight_only_dense(3, 35, 96, zero_points=1, bias=1, act="gelu"),
        operators.weight_only_dense(17, 17, 64, group=64, residual=1),
        operators.weight_only_dense(1, 100, 72, bits=8, group=36),
        operators.weight_only_dense(2, 24, 512, bits=8, group=256, zero_points=1, bias=1),
        operators.weight_only_dense(40, 33, 48, group=16, zero_points=1),
        operators.weight_only_dense(6, 40, 1024, bits=8, group=1024),
        in_three_dimensions(),
    ],
    ids=lambda workload: workload.name,
)
def test_every_point_is_right(workload: Workload) -> None:
    check_sketch(CodeDots(), workload, TARGET, samples=5)


@needs_unit
@pytest.mark.compiles
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero_points", [0, 1])
@pytest.mark.parametrize("group", [16, 32, 64, 128, 256, 768])
def test_as_exact_as_float32_in_all_groups(bits: int, zero_points: int, group: int) -> None:
    """The largest error is that of the rounded data, at most 1 in 2 ** 23 of the largest number, and of few sums."""
    workload = operators.weight_only_dense(3, 37, 768, bits, group, zero_points)
    inputs = inputs_of(workload)
    space = CodeDots().space(workload, TARGET)
    assert space is not None
    configs = [space.config(point) for point in some_points(space, 2)]
    expected = in_float64(workload, inputs)
    variants = [CodeDots().apply(workload, TARGET, config) for config in configs]
    for (actual,) in run_all(variants, workload, TARGET, inputs):
        assert error_of(actual, expected) < 5e-7


@needs_unit
@pytest.mark.compiles
@pytest.mark.parametrize("rows", range(1, 18))
def test_all_numbers_of_rows(rows: int) -> None:
    workload = operators.weight_only_dense(rows, 21, 96, 4, 32, 1)
    inputs = inputs_of(workload)
    assert error_of(outputs_of(workload, inputs), in_float64(workload, inputs)) < 5e-7


@needs_unit
@pytest.mark.compiles
@pytest.mark.parametrize("number", [1.0, -1.0, 1.9921, -1.9922, 1.9999999, -1.9999999, 1e30, 1e-25])
@pytest.mark.parametrize("bits", [4, 8])
def test_sums_of_the_largest_digits_fit(bits: int, number: float) -> None:
    """All data are as large as the digits reach, and all codes as far from the zero point as they may be."""
    for zero_points, group in ((0, 32), (1, 32), (0, 256), (1, 256)):
        workload = operators.weight_only_dense(2, 16, 512, bits, group, zero_points)
        inputs = inputs_of(workload, lambda shape: np.full(shape, number))
        for code in (0, 255):
            inputs[1][:] = code
            if zero_points:
                inputs[2][:] = 0 if code else 2**bits - 1
            assert error_of(outputs_of(workload, inputs), in_float64(workload, inputs)) < 5e-7


@needs_unit
@pytest.mark.compiles
def test_a_row_with_infinity_or_nan_is_nan_and_the_others_are_not() -> None:
    workload = operators.weight_only_dense(5, 32, 512)
    inputs = inputs_of(workload)
    inputs[0][0, 5], inputs[0][1, 7], inputs[0][2, 100] = np.nan, np.inf, -np.inf
    inputs[0].view("int32")[3, 511] = -1  # the NaN with all bits set
    np.testing.assert_array_equal(np.isnan(outputs_of(workload, inputs)).all(axis=1), [True] * 4 + [False])


@needs_unit
@pytest.mark.compiles
def test_one_large_number_costs_no_more_than_in_sums_of_float32() -> None:
    workload = operators.weight_only_dense(4, 64, 256, 8, 256)
    inputs = inputs_of(workload)
    inputs[0][:, 3] *= 1e4
    expected = in_float64(workload, inputs)
    ours, floats = (outputs_of(workload, inputs, sketch=sketch) for sketch in (CodeDots(), CodeSums()))
    assert error_of(ours, expected) <= 2 * error_of(floats, expected)


@needs_unit
@pytest.mark.compiles
def test_zeros_give_zeros() -> None:
    workload = operators.weight_only_dense(2, 32, 64, zero_points=1)
    assert not outputs_of(workload, inputs_of(workload, np.zeros)).any()


@pytest.mark.parametrize(
    ("workload", "target"),
    [
        (operators.weight_only_dense(1, 64, 64), V4),
        (operators.weight_only_dense(1, 64, 64), V3),
        (operators.weight_only_dense(1, 64, 64), keeping_denormals(VNNI)),
        (operators.weight_only_dense(1, 3, 64), VNNI),  # no vector
        (operators.weight_only_dense(1, 64, 64, group=4), VNNI),  # no word
        (operators.weight_only_dense(1, 64, 1 << 16, bits=8, group=1 << 16), VNNI),  # sums that do not fit
        (operators.dense(1, 64, 64), VNNI),
        (operators.softmax(8, 8), VNNI),
    ],
    ids=lambda value: value.name if isinstance(value, Workload) else "",
)
def test_other_functions_and_machines_have_no_space(workload: Workload, target: Cpu) -> None:
    assert CodeDots().space(workload, target) is None


def test_it_comes_first_where_the_machine_multiplies_bytes() -> None:
    workload = operators.weight_only_dense(128, 64, 64)
    assert sketches_for(workload, VNNI)[0][0].name == "code_dots"
    assert sketches_for(workload, VNNI, max_error=1e-6)[0][0].name == "register_blocked"
    without = replace(VNNI, features=tuple(name for name in VNNI.features if name != "avx512vnni"))
    assert "code_dots" not in [sketch.name for sketch, _ in sketches_for(workload, without)]


def test_a_machine_without_the_unit_is_refused() -> None:
    with pytest.raises(UnsupportedFunction, match="dot products"):
        CodeDots().apply(operators.weight_only_dense(1, 64, 64), V4, {})
