"""bfloat16 in compiled kernels: widened and rounded to the last bit as `ml_dtypes` does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tvm import te, tirx

from stormdrop import operators
from stormdrop.codegen.compile import TunedKernel
from stormdrop.ir.dtypes import BFLOAT16
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.sketches.registry import sketches_for
from stormdrop.testing.sketches import check_point

pytestmark = pytest.mark.compiles
TARGET = Cpu.detect()


def compiled(*tensors: Any, target: Cpu = TARGET) -> TunedKernel:
    """The kernel of a function in TVM's tensor expressions with its default schedule."""
    workload = Workload.create("converted", te.create_prim_func(list(tensors)))
    (sketch, space), *_ = sketches_for(workload, target)
    return TunedKernel(workload, target, sketch.apply(workload, target, space.config(space.origin)))


def every_kind() -> NDArray[np.float32]:
    """Numbers at and beside every kind of boundary: ties, the largest, infinity, NaN of both signs, zeros."""
    upper = np.arange(0, 1 << 16, 37, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    special = np.array([0, 0x80000000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF], np.uint32)
    words = np.concatenate([(upper[:, None] | lower).ravel(), special])
    return words.view(np.float32)


def target_with(unit: bool, keep_denormals: bool) -> Cpu:
    """This machine, with or without an instruction that rounds to bfloat16."""
    units = {"avx512bf16", "bf16"}
    if unit and not units.intersection(TARGET.features):
        pytest.skip("this CPU has no instruction that rounds to bfloat16")
    features = tuple(name for name in TARGET.features if unit or name not in units)
    return replace(TARGET, features=features, keep_denormals=keep_denormals)


@pytest.mark.parametrize("unit", [False, True], ids=["by integers", "by the unit"])
@pytest.mark.parametrize("keep_denormals", [False, True], ids=["flush", "keep"])
@pytest.mark.parametrize("size", [None, 1, 5, 100])
def test_numbers_are_rounded_to_the_nearest_and_nan_stays_nan(
    unit: bool, keep_denormals: bool, size: int | None
) -> None:
    values = every_kind()[:size] if size is None else every_kind()[-size:]
    x = te.placeholder((values.size,), "float32", name="x")
    y = te.compute(x.shape, lambda i: x[i].astype(BFLOAT16), name="y")
    found = compiled(x, y, target=target_with(unit, keep_denormals))(values)
    with np.errstate(invalid="ignore"):
        expected = values.astype(BFLOAT16)
    if unit and not keep_denormals:
        small = np.abs(values) < np.finfo("float32").tiny
        expected[small] = np.copysign(0, values[small]).astype(BFLOAT16)
    nan = np.isnan(values)
    assert nan.any() and np.isnan(found[nan].astype("float32")).all()
    np.testing.assert_array_equal(found[~nan].view("uint16"), expected[~nan].view("uint16"))


def test_numbers_are_widened_as_they_are() -> None:
    values = np.arange(1 << 16, dtype=np.uint16).view(BFLOAT16)
    x = te.placeholder((values.size,), BFLOAT16, name="x")
    kernel = compiled(x, te.compute(x.shape, lambda i: x[i].astype("float32"), name="y"))
    np.testing.assert_array_equal(kernel(values).view("uint32"), values.view("uint16").astype("uint32") << 16)


def test_a_condition_chooses_between_bits() -> None:
    x = te.placeholder((5, 7), BFLOAT16, name="x")
    zero = tirx.const(0.0, BFLOAT16)
    padded = te.compute((7, 7), lambda i, j: tirx.if_then_else(tirx.all(i >= 1, i < 6), x[i - 1, j], zero), name="y")
    values = np.random.default_rng(0).standard_normal((5, 7)).astype(BFLOAT16)
    found = compiled(x, padded)(values)
    np.testing.assert_array_equal(found.view("uint16"), np.pad(values.view("uint16"), ((1, 1), (0, 0))))


def test_arithmetic_is_done_in_float32_and_rounded_once() -> None:
    x = te.placeholder((64,), BFLOAT16, name="x")
    y = te.compute((64,), lambda i: tirx.max(x[i] * x[i] + x[63 - i], tirx.const(0.5, BFLOAT16)), name="y")
    values = np.random.default_rng(0).standard_normal(64).astype(BFLOAT16)
    wide = values.astype("float32")
    expected = np.maximum(wide * wide + wide[::-1], 0.5).astype(BFLOAT16)
    np.testing.assert_array_equal(compiled(x, y)(values).view("uint16"), expected.view("uint16"))


def test_numbers_are_compared_and_converted_as_numbers() -> None:
    x = te.placeholder((64,), BFLOAT16, name="x")
    values = (10 * np.random.default_rng(0).standard_normal(64)).astype(BFLOAT16)
    positive = te.compute((64,), lambda i: tirx.Select(x[i] > tirx.const(0.0, BFLOAT16), 1.0, 0.0), name="y")
    np.testing.assert_array_equal(compiled(x, positive)(values), (values > 0).astype("float32"))
    whole = te.compute((64,), lambda i: x[i].astype("int32"), name="y")
    np.testing.assert_array_equal(compiled(x, whole)(values), values.astype("int32"))
    counts = te.placeholder((64,), "int32", name="n")
    numbers = np.arange(-32, 32, dtype="int32") * 1001
    found = compiled(counts, te.compute((64,), lambda i: counts[i].astype(BFLOAT16), name="y"))(numbers)
    np.testing.assert_array_equal(found.view("uint16"), numbers.astype(BFLOAT16).view("uint16"))


def test_a_value_that_is_rounded_on_the_way_stays_rounded() -> None:
    x = te.placeholder((64,), "float32", name="x")
    values = np.random.default_rng(0).standard_normal(64).astype("float32")
    kernel = compiled(x, te.compute((64,), lambda i: x[i].astype(BFLOAT16).astype("float32"), name="y"))
    np.testing.assert_array_equal(kernel(values), values.astype(BFLOAT16).astype("float32"))


@pytest.mark.parametrize("name", ["erf", "tanh", "exp", "sigmoid", "log"])
@pytest.mark.parametrize("wide", [False, True], ids=["bfloat16", "float32"])
def test_functions_that_name_what_they_compute(name: str, wide: bool) -> None:
    """Their expansions for CPUs hold variables, of the type in which the function is computed."""
    x = te.placeholder((64,), BFLOAT16, name="x")
    function = getattr(tirx, name)
    values = np.random.default_rng(0).uniform(0.1, 2, 64).astype(BFLOAT16)

    def value(i: Any) -> Any:
        return function(x[i].astype("float32")).astype(BFLOAT16) if wide else function(x[i])

    z = te.placeholder((64,), "float32", name="z")
    wanted = compiled(z, te.compute((64,), lambda i: function(z[i]), name="y"))
    found = compiled(x, te.compute((64,), value, name="y"))(values)
    np.testing.assert_array_equal(
        found.view("uint16"), wanted(values.astype("float32")).astype(BFLOAT16).view("uint16")
    )


def test_a_layer_with_gelu() -> None:
    workload = operators.dense(8, 64, 32, bias=1, act="gelu", dtype=BFLOAT16)
    for sketch, space in sketches_for(workload, TARGET):
        check_point(sketch, workload, TARGET, space, space.origin)
