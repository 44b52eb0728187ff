"""Matmuls in half precision since sm_80: what the schedule computes on this machine's cores; `nvcc` takes it."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te

from stand_ins.cuda_on_host import SANITIZERS, execute_on_host
from stormdrop import operators
from stormdrop.codegen.compile import compile_together
from stormdrop.codegen.cuda import cuda_source, launches, resources_of
from stormdrop.codegen.serial_loops import with_serial_loops
from stormdrop.ir.mixed_precision import in_tf32
from stormdrop.ir.reference import evaluate_graph
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.gpu import GPUS
from stormdrop.sketches.gpu.contraction import GpuContraction
from stormdrop.sketches.gpu.matrix_product import find_matmul
from stormdrop.sketches.gpu.mma import GpuMma
from stormdrop.sketches.registry import sketches_for
from stormdrop.space import Space

pytestmark = pytest.mark.compiles

A100 = GPUS["a100"]


def dense(rows: int, columns: int, depth: int) -> Workload:
    """relu(A W^T + bias), with A, W and the result in half precision."""
    a, w = te.placeholder((rows, depth), "float16", name="a"), te.placeholder((columns, depth), "float16", name="w")
    bias, k = te.placeholder((columns,), name="bias"), te.reduce_axis((0, depth), name="k")
    sums = te.compute(
        (rows, columns),
        lambda i, j: te.sum(a[i, k].astype("float32") * w[j, k].astype("float32"), axis=k),
        name="sums",
    )
    y = te.compute((rows, columns), lambda i, j: te.max(sums[i, j] + bias[j], 0.0).astype("float16"), name="y")
    return Workload.create("dense", te.create_prim_func([a, w, bias, y]))


def pixels_in_groups(pixels: int, groups: int, columns: int, depth: int) -> Workload:
    """A convolution 1 x 1 of pixels whose channels are in groups, with weights as [column, depth]."""
    x = te.placeholder((pixels, groups * depth), "float16", name="x")
    w, k = te.placeholder((groups * columns, depth), "float16", name="w"), te.reduce_axis((0, depth), name="k")
    sums = te.compute(
        (pixels, groups * columns),
        lambda i, j: te.sum(x[i, j // columns * depth + k].astype("float32") * w[j, k].astype("float32"), axis=k),
        name="sums",
    )
    y = te.compute(sums.shape, lambda i, j: te.max(sums[i, j], 0.0).astype("float16"), name="y")
    return Workload.create("pixels_in_groups", te.create_prim_func([x, w, y]), (1,))


def rounded(workload: Workload) -> Workload:
    """The same function in TF32."""
    return Workload.create(workload.name, in_tf32(workload.graph).function(), workload.constants)


WORKLOADS = {
    "matmul": operators.matmul(64, 96, 128, dtype="float16"),
    "batch_matmul": operators.batch_matmul(2, 32, 64, 48, dtype="float16"),
    "transposed": operators.batch_matmul(2, 32, 64, 48, transpose_b=1, dtype="float16"),
    "bfloat16": operators.matmul(64, 96, 128, dtype="bfloat16"),
    "transposed_bfloat16": operators.batch_matmul(2, 32, 64, 48, transpose_b=1, dtype="bfloat16"),
    "remainders": operators.matmul(24, 40, 72, dtype="float16"),
    "odd": operators.batch_matmul(2, 19, 23, 45, dtype="bfloat16"),
    "odd_transposed": operators.batch_matmul(2, 35, 17, 37, transpose_b=1, dtype="float16"),
    "convolution": operators.conv2d(1, 7, 7, 8, 16, 3, 3, pad=1, bias=1, act="relu", dtype="bfloat16"),
    "strided": operators.conv2d(2, 9, 9, 3, 10, 3, 3, stride=2, pad=1, residual=1, dtype="bfloat16"),
    "dilated": operators.conv2d(1, 8, 8, 12, 24, 3, 3, dilation=2, pad=2, dtype="bfloat16"),
    "tf32": rounded(operators.matmul(64, 96, 128)),
    "tf32_transposed": rounded(operators.batch_matmul(2, 32, 64, 48, transpose_b=1)),
    "tf32_odd": rounded(operators.batch_matmul(2, 35, 18, 42, transpose_b=1)),
    "tf32_remainders": rounded(operators.matmul(24, 40, 72)),
    "tf32_dense": rounded(operators.dense(24, 40, 72, bias=1, act="relu", residual=1)),
    "tf32_convolution": rounded(operators.conv2d(1, 7, 7, 8, 16, 3, 3, pad=1, bias=1, act="relu")),
    "bytes": operators.matmul(64, 96, 128, dtype="int8"),
    "bytes_transposed": operators.batch_matmul(2, 32, 64, 48, transpose_b=1, dtype="uint8"),
    "bytes_odd": operators.batch_matmul(2, 19, 23, 45, dtype="uint8"),
    "bytes_dense": operators.dense(24, 40, 72, bias=1, act="relu", dtype="int8", requantize=1),
    "bytes_convolution": operators.conv2d(
        1, 7, 7, 16, 16, 3, 3, pad=1, bias=1, act="relu", dtype="uint8", requantize=1
    ),
    "pixels": operators.conv2d(1, 5, 5, 32, 48, 1, 1, bias=1, dtype="bfloat16"),
    "groups": operators.conv2d(1, 7, 7, 32, 48, 3, 3, pad=1, groups=2, bias=1, act="relu", dtype="bfloat16"),
    "groups_strided": operators.conv2d(2, 7, 5, 51, 57, 3, 3, stride=2, pad=1, groups=3, residual=1, dtype="bfloat16"),
    "groups_float16": pixels_in_groups(30, 3, 24, 40),
    "groups_tf32": rounded(operators.conv2d(1, 7, 7, 40, 64, 3, 3, pad=1, groups=2, bias=1)),
    "groups_1d": rounded(operators.conv1d(1, 20, 32, 64, 3, groups=2)),
    "groups_bytes": operators.conv2d(
        1, 6, 5, 64, 64, 3, 3, pad=1, groups=4, bias=1, act="relu", dtype="uint8", requantize=1
    ),
}


def space_of(workload: Workload) -> Space:
    space = GpuMma().space(workload, A100)
    assert space is not None
    return space


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_the_right_answer_with_plain_loops(workload: Workload) -> None:
    space, rng = space_of(workload), np.random.default_rng(0)
    inputs = workload.random_inputs(0)
    (expected,) = evaluate_graph(workload.graph, inputs)
    configs = [space.config(point) for point in (space.origin, *(space.sample(rng) for _ in range(4)))]
    functions = [with_serial_loops(GpuMma().apply(workload, A100, config).anywhere) for config in configs]
    for config, kernel in zip(configs, compile_together(functions, Cpu.detect().tvm()), strict=True):
        output = tvm.runtime.empty(expected.shape, str(expected.dtype))
        kernel.call(*map(tvm.runtime.tensor, inputs), output)
        np.testing.assert_array_equal(output.numpy(), expected, err_msg=str(config))


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ on the PATH")
@pytest.mark.parametrize(("name", "stages"), [("matmul", 1), ("convolution", 1), *((name, 3) for name in WORKLOADS)])
def test_the_right_answer_by_its_instructions(name: str, stages: int) -> None:
    workload = WORKLOADS[name]
    space, inputs = space_of(workload), workload.random_inputs(0)
    default: Mapping[str, Any] = space.config(space.origin)
    steps = math.prod(default["steps"])
    config = {**default, "steps": (steps, 1), "stages": min(stages, steps)}
    (expected,) = evaluate_graph(workload.graph, inputs)
    for execution in execute_on_host(GpuMma().apply(workload, A100, config).main, A100, inputs, ("", *SANITIZERS)):
        assert (execution.error, execution.complaints) == ("", ())
        np.testing.assert_array_equal(execution.outputs[0], expected)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ on the PATH")
def test_what_follows_is_computed_from_registers() -> None:
    workload = dense(32, 48, 64)
    space, inputs = space_of(workload), workload.random_inputs(0)
    function = GpuMma().apply(workload, A100, space.config(space.origin)).main
    source = cuda_source(function, A100)
    assert "*(half2*)(y0_ptr" in source and "shfl" not in source
    (expected,) = evaluate_graph(workload.graph, inputs)
    (execution,) = execute_on_host(function, A100, inputs)
    np.testing.assert_allclose(execution.outputs[0].astype("f4"), expected.astype("f4"), rtol=2**-10, atol=1e-6)


@pytest.mark.parametrize("name", ["a100", "rtx3080", "h100", "rtx5090"])
def test_nvcc_takes_it(name: str) -> None:
    device, sources = GPUS[name], []
    for workload in (*WORKLOADS.values(), operators.matmul(1024, 2048, 512, dtype="float16")):
        space, rng = GpuMma().space(workload, device), np.random.default_rng(1)
        assert space is not None
        for point in (space.origin, space.sample(rng)):
            config: Mapping[str, Any] = space.config(point)
            function = GpuMma().apply(workload, device, config).main
            sources.append(cuda_source(function, device))
            copies = re.findall(r"cp\.async\.c[ag]\.shared\.global", sources[-1])
            row = workload.inputs[1].shape[-1] * np.dtype(workload.inputs[1].dtype).itemsize
            assert bool(copies) == (config["stages"] > 1 and row % 4 == 0)
            depth = 8 if "tf32" in sources[-1] else 32 if "s8.s32" in sources[-1] else 16
            assert f"mma.sync.aligned.m16n8k{depth}" in sources[-1] and "ldmatrix.sync.aligned" in sources[-1]
            (launch,) = launches(function, device)
            assert launch.threads == 32 * config["rows"][1] * config["columns"][1]
            assert 0 < launch.shared <= device.shared_opt_in
    if shutil.which("nvcc"):
        for position, (kernel,) in enumerate(resources_of(sources, device)):
            assert 0 < kernel.registers <= 255
            # For sm_120 ptxas spills 8 bytes of one default, with 40 of 255 registers: more would be there.
            by_choice = name == "rtx5090" and kernel.registers < 64 and kernel.spilled <= 8
            assert kernel.spilled == 0 or position % 2 or by_choice, "a default"


def test_large_matmuls_have_large_tiles_that_need_more_shared_memory_than_usual() -> None:
    workload = operators.matmul(4096, 4096, 4096, dtype="float16")
    space = space_of(workload)
    config: Mapping[str, Any] = space.config(space.origin)
    assert config["panel"] == 8
    assert config["rows"][1] * config["rows"][2] >= 8 and config["columns"][1] * config["columns"][2] >= 8
    (launch,) = launches(GpuMma().apply(workload, A100, config).main, A100)
    assert launch.shared > A100.shared_per_block


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ on the PATH")
@pytest.mark.parametrize("name", ["bfloat16", "strided"])
def test_an_instruction_rounds_to_bfloat16(name: str) -> None:
    workload = WORKLOADS[name]
    space = space_of(workload)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(spec.shape, "f4").astype(spec.dtype) for spec in workload.inputs]
    inputs[1].reshape(-1)[0] = np.nan
    function = GpuMma().apply(workload, A100, space.config(space.origin)).main
    assert "cvt.rn.bf16x2.f32" in cuda_source(function, A100)
    (expected,) = evaluate_graph(workload.graph, inputs)
    (execution,) = execute_on_host(function, A100, inputs)
    np.testing.assert_allclose(execution.outputs[0].astype("f4"), expected.astype("f4"), rtol=2**-7, atol=1e-5)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ on the PATH")
@pytest.mark.parametrize("name", ["tf32", "tf32_transposed", "tf32_odd"])
def test_tf32_is_rounded_to_the_nearest(name: str) -> None:
    workload = WORKLOADS[name]
    space, rng = space_of(workload), np.random.default_rng(0)
    inputs = [rng.standard_normal(spec.shape, "f4") for spec in workload.inputs]
    inputs[0].reshape(-1)[0] = np.nan
    function = GpuMma().apply(workload, A100, space.config(space.origin)).main
    (expected,) = evaluate_graph(workload.graph, inputs)
    (execution,) = execute_on_host(function, A100, inputs)
    np.testing.assert_allclose(execution.outputs[0], expected, rtol=1e-6, atol=1e-5)


def slice_of(begin: int) -> Workload:
    """A product whose first factor begins within the rows of a matrix."""
    a, b = te.placeholder((32, 72), "float16", name="a"), te.placeholder((64, 48), "float16", name="b")
    k = te.reduce_axis((0, 64), name="k")
    part = te.compute((32, 64), lambda i, j: a[i, begin + j], name="part")
    y = te.compute(
        (32, 48),
        lambda i, j: te.sum(part[i, k].astype("float32") * b[k, j].astype("float32"), axis=k),
        name="y",
    )
    return Workload.create("slice", te.create_prim_func([a, b, y]))


@pytest.mark.parametrize(("begin", "vector"), [(0, 8), (3, 1), (4, 4), (6, 2), (8, 8)])
def test_copies_are_as_wide_as_what_they_copy_is_aligned(begin: int, vector: int) -> None:
    assert find_matmul(slice_of(begin)).vectors == (vector, 8)


@pytest.mark.parametrize(
    ("name", "batches", "sides", "vectors", "written"),
    [
        ("groups", 2, (64, 32, 160), (8, 8), 2),
        ("groups_strided", 3, (32, 32, 160), (1, 1), 1),
        ("groups_float16", 3, (32, 32, 48), (8, 8), 2),
        ("groups_tf32", 2, (64, 32, 192), (4, 4), 2),
        ("groups_bytes", 4, (32, 16, 160), (16, 16), 2),
    ],
)
def test_groups_are_products_of_their_own(
    name: str, batches: int, sides: tuple[int, int, int], vectors: tuple[int, int], written: int
) -> None:
    matmul = find_matmul(WORKLOADS[name])
    assert (matmul.batches, (matmul.rows, matmul.columns, matmul.depth)) == (batches, sides)
    assert (matmul.vectors, matmul.written, matmul.direct) == (vectors, written, False)
    first, *_, last = [sketch.name for sketch, _ in sketches_for(WORKLOADS[name], A100)]
    assert (first, last) == (GpuMma.name, GpuContraction.name)


@pytest.mark.parametrize(("extent", "padded"), [(1000, 1024), (197, 224), (96, 96), (100, 112), (4096, 4096)])
def test_axes_are_filled_up_to_fragments_that_divide_into_tiles(extent: int, padded: int) -> None:
    space = space_of(operators.matmul(extent, 64, 64, dtype="float16"))
    config: Mapping[str, Any] = space.config(space.origin)
    assert 16 * math.prod(config["rows"]) == padded


def test_where_it_applies() -> None:
    names = [sketch.name for sketch, _ in sketches_for(WORKLOADS["matmul"], A100)]
    assert names == [GpuMma.name, GpuContraction.name]
    for other in (operators.matmul(64, 64, 64), operators.matmul(64, 1, 64, dtype="float16")):
        assert GpuMma().space(other, A100) is None
    assert GpuMma().space(WORKLOADS["matmul"], GPUS["t4"]) is None
