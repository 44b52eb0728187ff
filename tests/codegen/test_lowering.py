"""What the passes of our own do to machine code."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm.script import tirx as T

from stand_ins.assembly import assembly
from stand_ins.cpus import cpu
from stormdrop import operators
from stormdrop.codegen.compile import TunedKernel, compile_kernel
from stormdrop.ir.attributes import UNALIGNED
from stormdrop.machine.cpu import Cpu, parse_machine
from stormdrop.sketches.cpu.non_temporal import NON_TEMPORAL, STORES
from stormdrop.sketches.registry import sketches_for

AVX2 = parse_machine("cpu/x86-64-v3")
WORKSPACE = "TVMBackendAllocWorkspace"  # how TVM asks its runtime for memory


@pytest.mark.parametrize(("scope", "on_stack"), [("local", True), ("global", False)])
def test_local_buffers_are_on_the_stack(scope: str, on_stack: bool) -> None:
    schedule = tvm.s_tir.Schedule(operators.elementwise((512,), kind="tanh").function)
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    schedule.cache_write(block, 0, scope)
    assert (WORKSPACE not in assembly(schedule.mod["main"], AVX2.tvm())) == on_stack


def test_parameters_may_begin_anywhere_if_the_function_says_so() -> None:
    workload = operators.elementwise((64,))
    (sketch, space), *_ = sketches_for(workload, AVX2)
    function = sketch.apply(workload, AVX2, space.config(space.origin)).main
    aligned = assembly(function, AVX2.tvm())
    assert re.search(r"vmovaps\s+%ymm\d+, .*\(", aligned)
    only_input = assembly(function.with_attr(UNALIGNED, [0]), AVX2.tvm())
    assert re.search(r"vmovaps\s+%ymm\d+, .*\(", only_input)  # the output is still aligned
    both = assembly(function.with_attr(UNALIGNED, [0, 1]), AVX2.tvm())
    assert not re.search(r"vmovaps\s+%ymm\d+, .*\(", both) and re.search(r"vmovups\s+%ymm\d+, .*\(", both)


def test_an_unaligned_parameter_is_computed_right() -> None:
    target, workload = Cpu.detect(), operators.elementwise((64,))
    (sketch, space), *_ = sketches_for(workload, target)
    function = sketch.apply(workload, target, space.config(space.origin)).main.with_attr(UNALIGNED, [0])
    values = np.arange(-32, 33, dtype="float32")
    output = tvm.runtime.empty((64,), "float32")
    shifted = tvm_ffi.from_dlpack(values[1:])  # 4 bytes after a multiple of 16
    compile_kernel(function, target.tvm()).call(shifted, output)
    np.testing.assert_array_equal(output.numpy(), np.maximum(values[1:], 0))


@pytest.mark.parametrize("act", ["relu", "relu6", "hardswish"])
def test_nan_passes_through_an_activation(act: str) -> None:
    target, workload = Cpu.detect(), operators.dense(4, 32, 8, bias=1, act=act)
    (sketch, space), *_ = sketches_for(workload, target)
    kernel = TunedKernel(workload, target, sketch.apply(workload, target, space.config(space.origin)))
    x, w, bias = (np.ones(spec.shape, "float32") for spec in workload.inputs)
    x[1, 3] = np.nan
    output = kernel(x, w, -20 * bias)
    np.testing.assert_array_equal(np.isnan(output), [[row == 1] * 32 for row in range(4)])
    np.testing.assert_array_equal(output[[0, 2, 3]], 0)


@pytest.mark.parametrize(("name", "lanes"), [("cpu/x86-64-v3", 8), ("cpu/x86-64-v4", 16)])
@pytest.mark.parametrize(
    ("channels", "aligned"),
    # Rows of 64 bytes; of 16 times an odd number, where LLVM splits the vectors; of what no such store takes.
    [(16, True), (20, True), (21, False)],
)
def test_whole_vectors_are_stored_so_where_they_are_aligned(
    name: str, lanes: int, channels: int, aligned: bool
) -> None:
    target = replace(cpu(name), l2=1, l3=1)
    workload = operators.depthwise_conv2d(n=1, h=8, w=8, ci=channels, kh=3, kw=3)
    (sketch, space), *_ = sketches_for(workload, target)
    config = {**space.config(space.origin), "columns": lanes, STORES: NON_TEMPORAL}
    code = assembly(sketch.apply(workload, target, config).main, target.tvm())
    assert bool(re.search(r"movntps", code)) == aligned
    assert ("sfence" in code) == aligned
    cached = assembly(sketch.apply(workload, target, {**config, STORES: "cached"}).main, target.tvm())
    assert "movnt" not in cached and "sfence" not in cached


@T.prim_func(s_tir=True)
def rotated(x: T.Buffer((6, 32), "float32"), a: T.Buffer((6, 4), "float32"), y: T.Buffer((6, 32), "float32")):  # type: ignore[no-untyped-def, valid-type]
    for i in range(6):
        for chunk in T.unroll(2):
            for lane in T.vectorized(16):
                y[i, chunk * 16 + lane] = T.if_then_else(
                    lane % 8 >= 4,
                    x[i, chunk * 16 + lane - 4] + a[i, lane % 8 - 4] * x[i, chunk * 16 + lane],
                    a[i, lane % 8] * x[i, chunk * 16 + lane] - x[i, chunk * 16 + lane + 4],
                )


@pytest.mark.parametrize("processor", ["native", "znver4"])
def test_lanes_that_take_different_branches_are_computed_right(processor: str) -> None:
    target = Cpu.detect()
    if processor == "znver4" and target.mcpu not in ("znver4", "znver5"):
        pytest.skip("this CPU may not run the code for Zen 4")
    rng = np.random.default_rng(0)
    x, a = rng.random((6, 4, 8), dtype="float32"), rng.random((6, 1, 4), dtype="float32")
    output = tvm.runtime.empty((6, 32), "float32")
    tvm_target = target.tvm() if processor == "native" else tvm.target.Target({"kind": "llvm", "mcpu": processor})
    arguments = [tvm.runtime.tensor(array) for array in (x.reshape(6, 32), a.reshape(6, 4))]
    compile_kernel(rotated, tvm_target).call(*arguments, output)
    first, second = x[..., :4], x[..., 4:]
    right = np.concatenate([a * first - second, first + a * second], axis=-1).reshape(6, 32)
    np.testing.assert_allclose(output.numpy(), right, atol=1e-6)
