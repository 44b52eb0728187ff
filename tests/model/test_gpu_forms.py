"""Sorts, the largest elements and cumulative sums on GPUs: on an OpenCL device, with NumPy compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import parser
from tvm import relax

import stormdrop as sd
from stormdrop.machine.cpu import parse_machine
from stormdrop.machine.opencl import opencl_devices
from stormdrop.model.building.compile import build
from stormdrop.model.importer.any_model import import_model

pytestmark = pytest.mark.compiles

Array = np.ndarray
LENGTHS = (1, 1000, 2500)
"""The last one is several runs, of which one has no other to be merged with in the first step."""


@pytest.fixture(autouse=True)
def _needs_opencl() -> None:
    if not opencl_devices():
        pytest.skip("OpenCL finds no device here (it needs pyopencl and a driver such as PoCL)")


def run(operator: Callable[..., Any], *arrays: Array) -> list[Array]:
    """What an operator computes, with plain schedules on an OpenCL device."""
    builder = relax.BlockBuilder()
    types = [relax.TensorType(array.shape, str(array.dtype)) for array in arrays]
    inputs = [relax.Var(f"x{index}", each) for index, each in enumerate(types)]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(operator(*inputs))
        builder.emit_func_output(result)
    model = build(import_model(builder.get()), {}, parse_machine("opencl"))
    return list(model.run({f"x{index}": array for index, array in enumerate(arrays)}).values())


def numbers(*shape: int) -> Array:
    """Many equal numbers, both zeros, infinities and NaN."""
    rng = np.random.default_rng(0)
    values = rng.integers(-20, 21, shape).astype(np.float32)
    odd = np.array([np.nan, np.inf, -np.inf, -0.0], np.float32)[rng.integers(0, 4, shape)]
    return np.where(rng.random(shape) < 0.1, odd, values)


def order(x: Array, axis: int, descending: bool) -> Array:
    """Of equal elements the first one first; NaN is the largest."""
    nan = np.isnan(x)
    value = np.where(nan, np.float32(0), x)
    return np.lexsort((-value, ~nan) if descending else (value, nan), axis=axis)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("descending", [False, True])
def test_orders_are_stable_and_nan_is_the_largest(length: int, descending: bool) -> None:
    x = numbers(3, length)
    (indices,) = run(lambda x: relax.op.argsort(x, -1, descending, "int64"), x)
    np.testing.assert_array_equal(indices, order(x, -1, descending))
    (values,) = run(lambda x: relax.op.sort(x, -1, descending), x)
    np.testing.assert_array_equal(values, np.take_along_axis(x, indices, -1))


def test_an_axis_in_the_middle() -> None:
    x = numbers(3, 149, 7)
    (indices,) = run(lambda x: relax.op.argsort(x, 1, False, "int32"), x)
    np.testing.assert_array_equal(indices, order(x, 1, False))


@pytest.mark.parametrize("k", [1, 5, 149])
@pytest.mark.parametrize("largest", [0, 1])
def test_largest_elements_as_onnxruntime_has_them(k: int, largest: int) -> None:
    text = f"(float[7, 149] x) => (float[7, {k}] v, int64[7, {k}] i) <int64[1] k = {{{k}}}>"
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> topk {text} {{ v, i = TopK<largest = {largest}>(x, k) }}'
    )
    x = np.random.default_rng(0).integers(-20, 21, (7, 149)).astype(np.float32)
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    model = sd.compile_model(proto, target=parse_machine("opencl"), fresh=True)
    for output, wanted in zip(model.run({"x": x}).values(), expected, strict=True):
        np.testing.assert_array_equal(output, wanted)


@pytest.mark.parametrize("axis", [0, 1, 2, None])
@pytest.mark.parametrize("exclusive", [False, True])
def test_sums_along_each_axis(axis: int | None, exclusive: bool) -> None:
    x = np.random.default_rng(0).integers(-4, 5, (3, 149, 7)).astype(np.float32)
    (sums,) = run(lambda x: relax.op.cumsum(x, axis, exclusive=exclusive), x)
    expected = np.cumsum(x, axis)
    np.testing.assert_array_equal(sums, expected - x.reshape(expected.shape) if exclusive else expected)


def test_a_long_row_in_another_type() -> None:
    x = np.random.default_rng(0).integers(-100, 101, (2, 5000)).astype(np.int32)
    (sums,) = run(lambda x: relax.op.cumsum(x, 1, "int64"), x)
    assert sums.dtype == np.int64
    np.testing.assert_array_equal(sums, np.cumsum(x, 1, np.int64))


def test_products() -> None:
    x = np.random.default_rng(0).choice([-1, 1], (5, 600)).astype(np.float32)
    np.testing.assert_array_equal(run(lambda x: relax.op.cumprod(x, 1), x)[0], np.cumprod(x, 1))


@pytest.mark.parametrize("right", [False, True])
def test_places_in_a_sorted_row(right: bool) -> None:
    x, boundaries = numbers(7, 149), np.arange(-10, 11, 2).astype(np.float32)
    x = np.where(np.isnan(x), np.float32(0), x)
    (places,) = run(lambda x, bounds: relax.op.bucketize(x, bounds, False, right), x, boundaries)
    np.testing.assert_array_equal(places, np.searchsorted(boundaries, x, "right" if right else "left"))
