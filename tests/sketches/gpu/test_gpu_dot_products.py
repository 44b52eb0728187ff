"""Contractions of bytes by words: what they compute, by which instructions, and where they come first."""

from __future__ import annotations

import math
import re
import shutil
from typing import Any

import numpy as np
import pytest
import tvm
from byte_products import convolution, inputs_of, product

from stand_ins.cuda_on_host import SANITIZERS, execute_on_host
from stand_ins.opencl_execution import EMULATED
from stormdrop import operators
from stormdrop.codegen.compile import compile_together
from stormdrop.codegen.cuda import cuda_source, launches, resources_of
from stormdrop.codegen.serial_loops import with_serial_loops
from stormdrop.ir.reference import evaluate_graph
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.gpu import GPUS
from stormdrop.sketches.gpu.contraction import GpuContraction
from stormdrop.sketches.gpu.dot_products.sketch import GpuDotProducts
from stormdrop.sketches.gpu.mma import GpuMma
from stormdrop.sketches.registry import sketches_for

A100, T4 = GPUS["a100"], GPUS["t4"]
SKETCH = GpuDotProducts()
UNOPTIMIZED = tvm.target.Target({**Cpu.detect().tvm().export(), "opt-level": 1})
"""With AVX-512 and more optimisations LLVM's SLP vectoriser makes wrong code of some of these loops."""
WORKLOADS = {
    "matmul": operators.matmul(16, 24, 64, dtype="int8"),
    "transposed": operators.batch_matmul(2, 12, 16, 32, transpose_b=1, dtype="uint8"),
    "odd": product((19, 23, 45), ("int8", 0), ("uint8", 0)),
    "odd_transposed": product((19, 23, 45), ("uint8", 0), ("uint8", 0), transposed=True),
    "constant": product((19, 23, 45), constant=True),
    "dense": operators.dense(24, 40, 72, bias=1, act="relu", dtype="uint8", zero_point=131, requantize=1),
    "batches": product((12, 16, 32), ("uint8", 7), ("uint8", 128), transposed=True, batch=2),
    "zero_points": product((19, 24, 48), ("uint8", 7), ("uint8", 255), batch=2),
    "convolution": operators.conv2d(1, 7, 6, 16, 24, 3, 3, pad=1, bias=1, act="relu", dtype="uint8", requantize=1),
    "few_channels": operators.conv2d(1, 7, 6, 6, 24, 3, 3, stride=2, pad=1, dtype="int8"),
    "groups": operators.conv2d(1, 6, 5, 32, 32, 3, 3, pad=1, groups=4, bias=1, dtype="int8"),
    "padded_with_a_zero_point": convolution(119),
}


def space_of(workload: Workload, device: Any = T4) -> Any:
    space = SKETCH.space(workload, device)
    assert space is not None
    return space


def default(workload: Workload, device: Any = T4) -> dict[str, Any]:
    space = space_of(workload, device)
    return dict(space.config(space.origin))


@pytest.mark.compiles
@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_the_right_answer_with_plain_loops(workload: Workload) -> None:
    space, rng = space_of(workload), np.random.default_rng(0)
    points = [space.origin, *(space.sample(rng) for _ in range(4))]
    variants = [SKETCH.apply(workload, T4, space.config(point)) for point in points]
    kernels = compile_together([with_serial_loops(each.anywhere) for each in variants], UNOPTIMIZED)
    for kind in ("random", "min", "max"):
        inputs = inputs_of(workload, kind)
        (expected,) = evaluate_graph(workload.graph, inputs)
        for point, variant, kernel in zip(points, variants, kernels, strict=True):
            output = tvm.runtime.empty(expected.shape, str(expected.dtype))
            kernel.call(*map(tvm.runtime.tensor, variant.arguments(inputs)), output)
            np.testing.assert_array_equal(output.numpy(), expected, err_msg=f"{kind} {space.config(point)}")


@pytest.mark.compiles
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ on the PATH")
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_right_answer_by_its_instructions(name: str) -> None:
    workload, space = WORKLOADS[name], space_of(WORKLOADS[name])
    inputs = inputs_of(workload)
    (expected,) = evaluate_graph(workload.graph, inputs)
    random = space.sample(np.random.default_rng(1))
    for point, sanitizers in ((space.origin, ("", *SANITIZERS)), (random, ("address",))):
        variant = SKETCH.apply(workload, T4, space.config(point))
        for execution in execute_on_host(variant.main, T4, variant.arguments(inputs), sanitizers):
            assert (execution.error, execution.complaints) == ("", ()), space.config(point)
            np.testing.assert_array_equal(execution.outputs[0], expected)


@pytest.mark.compiles
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ on the PATH")
@pytest.mark.parametrize(("name", "sums"), [("transposed", 0), ("batches", 2)])
def test_parts_and_stages_compute_the_same(name: str, sums: int) -> None:
    workload = WORKLOADS[name]
    inputs = inputs_of(workload)
    (expected,) = evaluate_graph(workload.graph, inputs)
    tiles = {"space0": (2, 1, 1, 1, 1), "space1": (3, 1, 4, 1, 1), "space2": (2, 1, 8, 1, 1), "reduce0": (4, 1, 2)}
    for parts, stages in ((2, 1), (1, 2)):
        config = {**default(workload), **tiles, "fetch0": 1, "fetch1": 1, "parts": parts, "stages": stages}
        space = space_of(workload)
        function = SKETCH.apply(workload, T4, space.config(space.point(config))).main
        assert len(launches(function, T4)) == parts + sums
        for execution in execute_on_host(function, T4, inputs, ("", *SANITIZERS)):
            assert (execution.error, execution.complaints) == ("", ())
            np.testing.assert_array_equal(execution.outputs[0], expected)


@pytest.mark.compiles
@pytest.mark.parametrize("device", ["t4", "a100", "rtx3080"])
def test_nvcc_takes_it(device: str) -> None:
    gpu, sources = GPUS[device], []
    for workload in WORKLOADS.values():
        space = space_of(workload, gpu)
        for point in (space.origin, space.sample(np.random.default_rng(2))):
            sources.append(cuda_source(SKETCH.apply(workload, gpu, space.config(point)).main, gpu))
            assert re.search(r"dp4a\.[us]32\.[us]32", sources[-1])
    if shutil.which("nvcc"):
        for kernels in resources_of(sources, gpu):
            assert kernels and all(0 < kernel.registers <= 255 for kernel in kernels)


@pytest.mark.compiles
def test_words_are_fetched_whole_where_bytes_are_neighbours_and_added_to_the_sums() -> None:
    dense, matmul = (
        cuda_source(SKETCH.apply(WORKLOADS[name], T4, default(WORKLOADS[name])).main, T4)
        for name in ("dense", "matmul")
    )
    assert not re.search(r"words\d_shared_ptr\[[^=]*= .*& 255", dense)
    assert re.search(r"words1_shared_ptr\[[^=]*= .*& 255", matmul) is not None, "w[k, j], byte by byte"
    sums = re.findall(r"(\w+_ptr\[\d+\]) = stormdrop_dot_u32_s32\(.*, (\w+_ptr\[\d+\])\);", dense)
    assert sums and all(written == added for written, added in sums)
    assert dense.count("stormdrop_dot_u32_s32(") == len(sums) + 1  # and the definition


def test_the_axes_are_those_of_words() -> None:
    for name, (axis, words) in {
        "dense": ("reduce0", 18),
        "odd": ("reduce0", 12),
        "few_channels": ("reduce2", 2),
    }.items():
        assert math.prod(default(WORKLOADS[name])[axis]) == words


@pytest.mark.parametrize(
    "workload",
    [
        operators.matmul(16, 24, 64),
        operators.matmul(16, 24, 3, dtype="int8"),  # less than a word
        operators.matmul(16, 1, 64, dtype="int8"),  # each byte is read once
    ],
    ids=["float32", "short", "vector"],
)
def test_where_it_does_not_apply(workload: Workload) -> None:
    assert SKETCH.space(workload, T4) is None


def test_it_is_for_devices_with_the_instruction() -> None:
    assert SKETCH.space(WORKLOADS["dense"], EMULATED) is None
    assert SKETCH.space(WORKLOADS["dense"], GPUS["gtx1080ti"]) is not None


@pytest.mark.parametrize("device", [A100, T4, GPUS["gtx1080ti"]], ids=lambda device: str(device.name))
def test_it_is_expected_to_be_faster_than_integers_one_by_one(device: Any) -> None:
    for workload in (
        operators.dense(512, 1024, 1024, dtype="uint8", zero_point=119, requantize=1),
        operators.matmul(512, 512, 512, dtype="int8"),
        operators.conv2d(1, 56, 56, 64, 64, 3, 3, pad=1, dtype="int8"),
    ):
        names = [sketch.name for sketch, _ in sketches_for(workload, device)]
        assert names == [*([GpuMma.name] if device is A100 else []), SKETCH.name, GpuContraction.name]


def test_bytes_one_by_one_take_longer_to_fetch() -> None:
    rows, columns = (product((64, 64, 256), ("int8", 0), transposed=transposed) for transposed in (False, True))
    tiles = {"space0": (4, 1, 8, 1, 2), "space1": (4, 1, 8, 1, 2), "reduce0": (8, 1, 8), "parts": 1, "stages": 1}
    seconds = []
    for workload in (rows, columns):
        space = space_of(workload)
        point = space.point({**default(workload), **tiles})
        seconds.append(float(SKETCH.estimate(workload, T4, space.columns([point]))[0]))
    assert seconds[0] > seconds[1]
