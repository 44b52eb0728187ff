"""exp, sigmoid, tanh and erf as arithmetic: their errors, and their results for infinities and NaN. And roundings."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from scipy import special
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from stand_ins.assembly import assembly
from stormdrop.codegen.compile import Kernel, compile_kernel
from stormdrop.ir.elementary import expand_for_cpu, expand_for_gpu
from stormdrop.ir.stages import StageGraph
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu, parse_machine

pytestmark = pytest.mark.compiles

TARGET = Cpu.detect()
N = 1 << 14

FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], float]] = {
    "exp": (te.exp, np.exp, 2e-7),
    "sigmoid": (te.sigmoid, special.expit, 3e-7),
    "tanh": (te.tanh, np.tanh, 7e-7),
    "erf": (te.erf, special.erf, 7e-7),
}


def swish(x: Any) -> Any:
    return x * te.sigmoid(x)


@lru_cache
def compiled(function: Callable[[Any], Any], target: Cpu = TARGET) -> Kernel:
    x = te.placeholder((N,), name="x")
    main = StageGraph.parse(te.create_prim_func([x, te.compute((N,), lambda i: function(x[i]))])).function()
    return compile_kernel(expand_for_cpu(main, target.keep_denormals), target.tvm())


def applied(function: Callable[[Any], Any], values: NDArray[np.float32], target: Cpu = TARGET) -> NDArray[np.float32]:
    """The function of up to N values, by the arithmetic that `expand_for_cpu` replaces it with."""
    padded = np.zeros(N, np.float32)
    padded[: values.size] = values
    result = tvm.runtime.empty((N,), "float32")
    compiled(function, target).call(tvm.runtime.tensor(padded), result)
    return result.numpy()[: values.size]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("most", [1e-30, 1e-3, 1.0, 10.0, 80.0])
def test_relative_error(name: str, most: float) -> None:
    function, exact, bound = FUNCTIONS[name]
    values = np.random.default_rng(0).uniform(-most, most, N).astype(np.float32)
    expected = exact(values.astype(np.float64))
    gap = np.abs(applied(function, values) - expected)
    assert np.max(gap / np.abs(expected)) <= bound


@pytest.mark.parametrize("product", [swish, lambda x: te.sigmoid(x) * x], ids=["behind", "before"])
@pytest.mark.parametrize("most", [1e-3, 1.0, 10.0, 80.0])
def test_a_product_with_a_sigmoid_is_one_quotient(product: Callable[[Any], Any], most: float) -> None:
    values = np.random.default_rng(0).uniform(-most, most, N).astype(np.float32)
    wide = values.astype(np.float64)
    expected = wide * special.expit(wide)
    found = applied(product, values)
    assert np.max(np.abs(found - expected) / np.abs(expected)) <= 3e-7
    x = te.placeholder((N,), name="x")
    main = StageGraph.parse(te.create_prim_func([x, te.compute((N,), lambda i: product(x[i]))])).function()
    stored = str(expand_for_cpu(main))
    assert re.search(r"x\[\w+\] / \w+", stored) and stored.count(" / ") == 1 and "sigmoid" not in stored
    ends = np.array([0, 100, -100, np.inf, np.nan, 3e38, -3e38], np.float32)
    np.testing.assert_array_equal(applied(product, ends), [0, 100, 0, np.inf, np.nan, np.float32(3e38), 0])


def test_two_sigmoids_are_both_replaced() -> None:
    values = np.random.default_rng(0).uniform(-10, 10, N).astype(np.float32)
    expected = special.expit(values.astype(np.float64)) ** 2
    found = applied(lambda x: te.sigmoid(x) * te.sigmoid(x), values)
    assert np.max(np.abs(found - expected) / expected) <= 6e-7


def test_the_tanh_of_gpus() -> None:
    x = te.placeholder((N,), name="x")
    main = StageGraph.parse(te.create_prim_func([x, te.compute((N,), lambda i: te.tanh(x[i]))])).function()
    values = np.random.default_rng(0).uniform(-12, 12, N).astype(np.float32)
    result = tvm.runtime.empty((N,), "float32")
    compile_kernel(expand_for_gpu(main), TARGET.tvm()).call(tvm.runtime.tensor(values), result)
    assert np.abs(result.numpy() - np.tanh(values.astype(np.float64))).max() < 3e-7
    values[:5] = np.nan, np.inf, -np.inf, 100.0, -100.0
    compile_kernel(expand_for_gpu(main), TARGET.tvm()).call(tvm.runtime.tensor(values), result)
    np.testing.assert_array_equal(result.numpy()[:5], [np.nan, 1, -1, 1, -1])


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("keep", [False, True], ids=["flush", "keep"])
def test_ends(name: str, keep: bool) -> None:
    """Arguments outside of the range in which the function changes, infinities, NaN, subnormal results."""
    function, exact, bound = FUNCTIONS[name]
    ends = [0, np.inf, -np.inf, np.nan, 88.7, 88.8, -87.4, -100, -103.9, -105, 1000, -1000, 3e38, -3e38, 1e-40]
    values = np.array(ends, np.float32)
    with np.errstate(over="ignore", under="ignore"):
        expected = exact(values.astype(np.float64)).astype(np.float32)
    if not keep:
        expected[np.abs(expected) < np.finfo(np.float32).tiny] = 0
    actual = applied(function, values, replace(TARGET, keep_denormals=keep))
    np.testing.assert_allclose(actual, expected, rtol=bound, atol=1e-38)
    if name == "exp":
        np.testing.assert_array_equal(actual[[1, 2, 9]], [np.inf, 0, 0])
        assert not keep or 0 < actual[8] < 1e-44  # subnormal numbers are right, too
        # Without them the least results of one power of two count as subnormal.
        near = np.linspace(-89, -86.64, 1000, dtype=np.float32)
        lost = applied(function, near, replace(TARGET, keep_denormals=keep)) == 0
        assert not lost[near > -86.642].any() and lost[near < -87.4].all() != keep
    if name in ("tanh", "erf"):
        assert np.nanmax(np.abs(actual)) <= 1


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a condition"])
def test_roundings_are_vectors(inside: bool) -> None:
    """TVM takes a condition apart, lane by lane, if it holds a call that it does not know as a vector."""
    x = te.placeholder((64,), name="x")

    def element(i: Any) -> Any:
        return tirx.if_then_else(i < 32, te.nearbyint(x[i]), 0.0) if inside else te.nearbyint(x[i])

    main = StageGraph.parse(te.create_prim_func([x, te.compute((64,), element)])).function()
    schedule = Schedule(tvm.IRModule({"main": main}))
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    (loop,) = schedule.get_loops(block)
    schedule.vectorize(schedule.split(loop, [None, 8])[1])
    text = assembly(expand_for_cpu(schedule.mod["main"]), parse_machine("cpu/x86-64-v3").tvm())
    assert "vroundps" in text and "vroundss" not in text
    values = np.array([0.5, 1.5, -0.5, 2.5000002, np.nan, np.inf, -0.0, 1e30], np.float32)
    np.testing.assert_array_equal(applied(te.nearbyint, values), np.rint(values))


def bounded(x: Any, low: float, high: float) -> Any:
    return tirx.max(tirx.min(te.nearbyint(x), tirx.const(high, "float32")), tirx.const(low, "float32"))


def converted(function: Callable[[Any], Any], dtype: str) -> PrimFunc:
    """A function with a schedule: elements in vectors of 16 become integers."""
    x = te.placeholder((N,), name="x")
    made = te.compute((N,), lambda i: function(x[i]).astype(dtype))
    main = StageGraph.parse(te.create_prim_func([x, made])).function()
    schedule = Schedule(tvm.IRModule({"main": main}))
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    schedule.vectorize(schedule.split(schedule.get_loops(block)[0], [None, 16])[1])
    return expand_for_cpu(schedule.mod["main"])


BOUNDED = {
    "bytes": (lambda x: bounded(x, 0, 255), "uint8"),
    "signed bytes": (lambda x: bounded(x, -128, 127), "int8"),
    "behind a ReLU": (lambda x: bounded(tirx.max(x, tirx.const(0.0, "float32")), 0, 255), "uint8"),
    "behind a bound above the lowest": (lambda x: bounded(tirx.max(x, tirx.const(2.5, "float32")), 0, 255), "uint8"),
    "other bounds first": (
        lambda x: tirx.min(tirx.max(te.nearbyint(x), tirx.const(-7.0, "float32")), tirx.const(9.0, "float32")),
        "int32",
    ),
    "three bounds": (
        lambda x: tirx.max(
            tirx.min(tirx.max(te.nearbyint(x), tirx.const(-20.0, "float32")), tirx.const(100.0, "float32")),
            tirx.const(7.0, "float32"),
        ),
        "uint8",
    ),
    "bounds that leave one number": (
        lambda x: tirx.min(tirx.max(te.nearbyint(x), tirx.const(30.0, "float32")), tirx.const(20.0, "float32")),
        "uint8",
    ),
    "the largest that one sum rounds": (lambda x: bounded(x, -(2.0**22), 2.0**22), "int32"),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_a_bounded_value_is_rounded_by_one_addition(name: str) -> None:
    function, dtype = BOUNDED[name]
    main = converted(function, dtype)
    assert "reinterpret" in str(main)
    assert not re.search("vround|vcvttps2dq", assembly(main, parse_machine("cpu/x86-64-v3").tvm()))
    ties = np.arange(-300, 300, 0.5, dtype=np.float32)
    near = np.concatenate([np.nextafter(ties, np.float32(side)) for side in (-1000, 1000)])
    far = np.array([2**22, 2**22 - 0.5, 2**23 + 1, 2**31, 1e30, np.inf], np.float32)
    values = np.zeros(N, np.float32)
    given = np.concatenate([ties, near, far, -far, np.random.default_rng(0).normal(0, 200, 9000).astype(np.float32)])
    values[: given.size] = given
    expected = Workload.create("bounded", plain(function, dtype)).reference([values])[0]
    result = tvm.runtime.empty((N,), dtype)
    compile_kernel(main, TARGET.tvm()).call(tvm.runtime.tensor(values), result)
    np.testing.assert_array_equal(result.numpy(), expected)
    assert np.unique(expected).size > 10 or (name == "bounds that leave one number" and (expected == 20).all())


def plain(function: Callable[[Any], Any], dtype: str) -> PrimFunc:
    x = te.placeholder((N,), name="x")
    return te.create_prim_func([x, te.compute((N,), lambda i: function(x[i]).astype(dtype))])


UNBOUNDED = {
    "no bounds": lambda x: te.nearbyint(x),
    "no upper bound": lambda x: tirx.max(te.nearbyint(x), tirx.const(0.0, "float32")),
    "bounds beyond the sum": lambda x: bounded(x, 0.0, 2.0**22 + 1),
    "a bound between integers": lambda x: bounded(x, 0.0, 254.5),
    "no rounding": lambda x: tirx.max(tirx.min(x, tirx.const(255.0, "float32")), tirx.const(0.0, "float32")),
    "a sum between": lambda x: tirx.max(
        tirx.min(te.nearbyint(x) + tirx.const(0.5, "float32"), tirx.const(255.0, "float32")), tirx.const(0.0, "float32")
    ),
}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_other_values_are_rounded_as_they_are_written(name: str) -> None:
    assert "reinterpret" not in str(converted(UNBOUNDED[name], "int32"))


def test_a_gpu_rounds_bounded_values_as_they_are_written() -> None:
    main = plain(*BOUNDED["bytes"])
    tvm.ir.assert_structural_equal(expand_for_gpu(main), main)


def test_nested_and_repeated() -> None:
    """Expanded functions may be arguments of each other."""

    def nested(x: Any) -> Any:
        return te.tanh(te.exp(x)) + te.sigmoid(te.exp(x))

    values = np.linspace(-5, 5, 1000, dtype=np.float32)
    wide = np.exp(values.astype(np.float64))
    np.testing.assert_allclose(applied(nested, values), np.tanh(wide) + special.expit(wide), rtol=1e-6)


def test_other_types_stay() -> None:
    x = te.placeholder((8,), "float64", name="x")
    main = Workload.create("wide", te.create_prim_func([x, te.compute((8,), lambda i: te.exp(x[i]))])).function
    tvm.ir.assert_structural_equal(expand_for_cpu(main), main)
