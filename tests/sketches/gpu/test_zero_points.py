"""Products of bytes less their zero points: what both sketches compute, what they launch, and what is expected."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tvm
from byte_products import convolution, inputs_of, product
from tvm import te

from stand_ins.cuda_on_host import SANITIZERS, execute_on_host
from stand_ins.opencl_execution import EMULATED, Job, execute
from stormdrop import operators
from stormdrop.codegen.compile import compile_together
from stormdrop.codegen.cuda import cuda_source, launches, resources_of
from stormdrop.codegen.opencl import build_opencl
from stormdrop.codegen.serial_loops import with_serial_loops
from stormdrop.ir.reference import evaluate, evaluate_graph
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.gpu import GPUS
from stormdrop.machine.opencl import opencl_devices
from stormdrop.sketches.contract import Estimator
from stormdrop.sketches.gpu.contraction import GpuContraction
from stormdrop.sketches.gpu.dot_products.sketch import GpuDotProducts
from stormdrop.sketches.gpu.mma import GpuMma
from stormdrop.sketches.gpu.streaming import GpuStreaming
from stormdrop.sketches.gpu.zero_points import of_bare_bytes
from stormdrop.sketches.registry import sketches_for

A100, T4 = GPUS["a100"], GPUS["t4"]
BOTH = (GpuMma(), GpuContraction())


WORKLOADS = {
    "constant": product((19, 23, 45), constant=True),
    "constant_transposed": product((32, 40, 70), ("uint8", 255), transposed=True, constant=True),
    "both_constant": product((24, 40, 64), ("uint8", 128), ("uint8", 128), transposed=True, constant=True),
    "batches_constant": product((20, 24, 33), ("uint8", 77), ("int8", 0), batch=3, constant=True),
    "first": product((19, 23, 45), ("int8", -128)),
    "second": product((19, 23, 45), ("int8", 0), ("uint8", 128), transposed=True),
    "both": product((19, 24, 48), ("uint8", 7), ("uint8", 255), batch=2),
    "dense": operators.dense(24, 40, 72, bias=1, act="relu", dtype="uint8", zero_point=131, requantize=1),
    "whole_fragments": product((32, 32, 64), ("uint8", 3), constant=True),
    "convolution": convolution(119),
    "convolution_of_data": convolution(7, constant=False),
}
LANES = ("both", "dense", "convolution")
"""Those whose CUDA source without tensor cores is executed, too."""


def config_of(sketch: Any, workload: Workload, device: Any = A100) -> dict[str, Any]:
    space = sketch.space(workload, device)
    assert space is not None
    return dict(space.config(space.origin))


@pytest.mark.compiles
@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_the_right_answer_with_plain_loops(workload: Workload) -> None:
    cases, functions = [], []
    for sketch in BOTH:
        space, rng = sketch.space(workload, A100), np.random.default_rng(0)
        assert space is not None
        for point in (space.origin, *(space.sample(rng) for _ in range(3))):
            cases.append(sketch.apply(workload, A100, space.config(point)))
            functions.append(with_serial_loops(cases[-1].anywhere))
    kernels = compile_together(functions, Cpu.detect().tvm())
    for kind in ("random", "min", "max"):
        inputs = inputs_of(workload, kind)
        (expected,) = evaluate_graph(workload.graph, inputs)
        for variant, kernel in zip(cases, kernels, strict=True):
            output = tvm.runtime.empty(expected.shape, str(expected.dtype))
            kernel.call(*map(tvm.runtime.tensor, variant.arguments(inputs)), output)
            np.testing.assert_array_equal(output.numpy(), expected, err_msg=kind)


@pytest.mark.compiles
@pytest.mark.parametrize(
    "workload",
    [
        operators.conv2d(1, 3, 3, 32, 16, 3, 3, dtype="int8", zero_point=3),
        operators.conv2d(1, 3, 3, 32, 16, 3, 3, groups=2, bias=1, act="relu", dtype="bfloat16"),
        operators.conv2d(1, 8, 8, 32, 1, 3, 3, bias=1, act="relu", dtype="bfloat16"),
    ],
    ids=["one_pixel", "one_pixel_of_groups", "one_column"],
)
def test_one_row_or_column(workload: Workload) -> None:
    variant = GpuMma().apply(workload, A100, config_of(GpuMma(), workload))
    inputs = inputs_of(workload) if workload.inputs[0].dtype == "int8" else workload.random_inputs(0)
    (expected,) = evaluate_graph(workload.graph, inputs)
    (kernel,) = compile_together([with_serial_loops(variant.anywhere)], Cpu.detect().tvm())
    output = tvm.runtime.empty(expected.shape, str(expected.dtype))
    kernel.call(*map(tvm.runtime.tensor, variant.arguments(inputs)), output)
    np.testing.assert_allclose(output.numpy().astype("f4"), expected.astype("f4"), rtol=1e-2)


@pytest.mark.compiles
def test_the_correction_wraps_around_as_sums_do() -> None:
    """Of more than 33,025 products of 255 and 255, the products of the zero points are more than 32 bits hold."""
    workload = product((16, 16, 33_030), ("uint8", 255), ("uint8", 255), transposed=True)
    inputs = inputs_of(workload)
    (expected,) = evaluate_graph(workload.graph, inputs)
    variant = GpuMma().apply(workload, A100, config_of(GpuMma(), workload))
    (kernel,) = compile_together([with_serial_loops(variant.anywhere)], Cpu.detect().tvm())
    output = tvm.runtime.empty(expected.shape, str(expected.dtype))
    kernel.call(*map(tvm.runtime.tensor, variant.arguments(inputs)), output)
    np.testing.assert_array_equal(output.numpy(), expected)


def test_a_window_without_channels_stays_with_lanes() -> None:
    """The sums of its weights are one number, which no axis of the output reads."""
    x, f = te.placeholder((9, 9), "uint8", "x"), te.placeholder((3, 3), "int8", "f")
    u, v = te.reduce_axis((0, 3)), te.reduce_axis((0, 3))

    def value(i: Any, j: Any) -> Any:
        return te.sum((x[i + u, j + v].astype("int32") - 7) * f[u, v].astype("int32"), axis=[u, v])

    function = te.create_prim_func([x, f, te.compute((7, 7), value)])
    names = [sketch.name for sketch, _ in sketches_for(Workload.create("window", function, [1]), A100)]
    assert names and "gpu_mma" not in names


@pytest.mark.compiles
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ on the PATH")
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_right_answer_by_its_instructions(name: str) -> None:
    workload = WORKLOADS[name]
    inputs = inputs_of(workload)
    (expected,) = evaluate_graph(workload.graph, inputs)
    for sketch in BOTH if name in LANES else (GpuMma(),):
        variant = sketch.apply(workload, A100, config_of(sketch, workload))
        for execution in execute_on_host(variant.main, A100, variant.arguments(inputs), ("", *SANITIZERS)):
            assert (execution.error, execution.complaints) == ("", ())
            np.testing.assert_array_equal(execution.outputs[0], expected)


@pytest.mark.compiles
def test_lanes_without_tensor_cores_compute_it_without_races() -> None:
    if not opencl_devices() or shutil.which("oclgrind") is None:
        pytest.skip("this needs OpenCL and oclgrind")
    works, jobs, sketch = [WORKLOADS["both"], WORKLOADS["convolution"]], [], GpuContraction()
    for work in works:
        module = build_opencl(sketch.apply(work, EMULATED, config_of(sketch, work, EMULATED)).main, EMULATED.tvm())
        jobs.append(Job(module, inputs_of(work), [(spec.shape, spec.dtype) for spec in work.outputs]))
    for work, execution in zip(works, execute(jobs, oclgrind=True), strict=True):
        (expected,) = evaluate_graph(work.graph, inputs_of(work))
        assert not execution.error and not execution.complaints, work.name
        np.testing.assert_array_equal(execution.outputs[0], expected)


@pytest.mark.compiles
@pytest.mark.parametrize("device", ["t4", "a100", "rtx3080"])
def test_nvcc_takes_it(device: str) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("there is no nvcc on the PATH")
    gpu, cases, sources = GPUS[device], [], []
    for name, workload in WORKLOADS.items():
        for sketch, _ in sketches_for(workload, gpu):
            function = sketch.apply(workload, gpu, config_of(sketch, workload, gpu)).main
            cases.append((name, sketch.name))
            sources.append(cuda_source(function, gpu))
    assert (("dense", GpuMma.name) in cases) == (device != "t4")
    for case, kernels in zip(cases, resources_of(sources, gpu), strict=True):
        assert kernels and all(0 < kernel.registers <= 255 and kernel.spilled == 0 for kernel in kernels), case


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("name", "kernels", "packed"),
    [
        ("constant", 1, (1,)),
        ("dense", 1, (1,)),
        ("both_constant", 2, (1,)),
        ("first", 2, ()),
        ("second", 2, ()),
        ("both", 3, ()),
    ],
)
def test_sums_of_constants_are_packed_and_others_are_kernels(name: str, kernels: int, packed: tuple[int, ...]) -> None:
    workload = WORKLOADS[name]
    variant = GpuMma().apply(workload, A100, config_of(GpuMma(), workload))
    assert len(launches(variant.main, A100)) == kernels
    assert tuple(variant.transforms) == packed
    assert of_bare_bytes(workload).transforms.keys() == variant.transforms.keys()
    lanes = GpuContraction().apply(workload, A100, config_of(GpuContraction(), workload))
    assert len(launches(lanes.main, A100)) == 1 and not lanes.transforms


def test_packed_constants_hold_their_elements_and_then_their_sums() -> None:
    workload = WORKLOADS["constant"]
    (function,) = of_bare_bytes(workload).transforms.values()
    weights = inputs_of(workload)[1]
    (packed,) = evaluate(function, [weights])
    np.testing.assert_array_equal(packed[:45], weights)
    digits = packed[45:].reshape(-1)[: 4 * 23].copy()
    np.testing.assert_array_equal(digits.view("<i4"), -3 * weights.sum(axis=0, dtype="i4"))


@pytest.mark.parametrize("device", [A100, T4], ids=lambda device: str(device.name))
def test_large_products_are_expected_to_be_fastest_where_their_units_are(device: Any) -> None:
    for workload in (
        operators.dense(512, 1024, 1024, dtype="uint8", zero_point=119, requantize=1),
        product((256, 256, 512), ("uint8", 3), ("uint8", 128), batch=12),
    ):
        sketches = {sketch.name: (sketch, space) for sketch, space in sketches_for(workload, device)}
        names = [GpuMma.name] if device is A100 else []
        assert list(sketches) == [*names, GpuDotProducts.name, GpuContraction.name]
        slow = GpuStreaming()
        streaming = slow.space(workload, device)
        assert streaming is not None
        least = float(slow.estimate(workload, device, streaming.columns([streaming.origin]))[0])
        for sketch, space in sketches.values():
            assert isinstance(sketch, Estimator)
            assert 3 * float(sketch.estimate(workload, device, space.columns([space.origin]))[0]) < least


def test_sums_that_are_kernels_take_their_launch() -> None:
    constant, other = (product((128, 256, 512), constant=constant) for constant in (True, False))
    config: Mapping[str, Any] = config_of(GpuMma(), constant)
    seconds = []
    for workload in (constant, other):
        space = GpuMma().space(workload, A100)
        assert space is not None
        seconds.append(float(GpuMma().estimate(workload, A100, space.columns([space.point(config)]))[0]))
    assert seconds[1] > seconds[0] + 2e-6


@pytest.mark.compiles
def test_a_zero_point_that_is_no_byte_is_left_to_lanes() -> None:
    workload = product((16, 32, 48), ("int8", 200))
    assert GpuMma().space(workload, A100) is None
    variant = GpuContraction().apply(workload, A100, config_of(GpuContraction(), workload))
    inputs = inputs_of(workload, "max")
    (expected,) = evaluate_graph(workload.graph, inputs)
    (kernel,) = compile_together([with_serial_loops(variant.main)], Cpu.detect().tvm())
    output = tvm.runtime.empty(expected.shape, "int32")
    kernel.call(*map(tvm.runtime.tensor, inputs), output)
    np.testing.assert_array_equal(output.numpy(), expected)
