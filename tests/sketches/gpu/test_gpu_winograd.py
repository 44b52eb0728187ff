"""Winograd's convolutions for GPUs: what is computed, what it takes, and what it is not for."""

from __future__ import annotations

import itertools
import shutil
from typing import Any

import numpy as np
import pytest

from stand_ins.cuda_on_host import SANITIZERS, UNWRITTEN, execute_on_host
from stand_ins.memory_sectors import sectors_of
from stand_ins.opencl_execution import EMULATED, Job, execute
from stormdrop import operators
from stormdrop.codegen.cuda import cuda_source, launches, resources_of
from stormdrop.codegen.opencl import build_opencl
from stormdrop.ir.mixed_precision import in_tf32
from stormdrop.ir.reference import evaluate_graph
from stormdrop.ir.relative_error import relative_error
from stormdrop.ir.workload import Workload
from stormdrop.machine.gpu import GPUS, SECTOR
from stormdrop.machine.opencl import opencl_devices
from stormdrop.sketches.gpu.contraction import GpuContraction
from stormdrop.sketches.gpu.winograd import GpuWinograd
from stormdrop.sketches.registry import sketches_for
from stormdrop.space import Space

A100 = GPUS["a100"]
SKETCHES = [GpuWinograd(2), GpuWinograd(4)]


def _conv(n: int, h: int, w: int, ci: int, co: int, **more: Any) -> Workload:
    return operators.conv2d(**{"n": n, "h": h, "w": w, "ci": ci, "co": co, "kh": 3, "kw": 3, "pad": 1, **more})


def _in_tf32(work: Workload) -> Workload:
    return Workload.create("in_tf32", in_tf32(work.graph).function(), work.constants)


CONVOLUTIONS = [
    _conv(1, 14, 14, 8, 8, bias=1, act="relu"),
    _conv(1, 9, 7, 16, 24, pad=0, bias=1, residual=1, act="relu"),
    _conv(2, 13, 9, 3, 5),
    _conv(2, 9, 14, 7, 20, kh=1, pad=0),
    _conv(1, 6, 6, 8, 16).placed(16, 48),
    operators.conv1d(2, 19, 16, 24, 3, pad=1, bias=1, act="relu"),
]


def space_of(sketch: GpuWinograd, work: Workload, device: Any = A100) -> Space:
    space = sketch.space(work, device)
    assert space is not None
    return space


def _schedules(sketch: GpuWinograd, work: Workload, device: Any, count: int) -> list[Any]:
    """The schedules at the default and at random points."""
    space, rng = space_of(sketch, work, device), np.random.default_rng(0)
    points = [space.origin, *(space.sample(rng) for _ in range(count))]
    return [sketch.apply(work, device, space.config(point)) for point in points]


@pytest.mark.compiles
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("sketch", SKETCHES, ids=lambda sketch: sketch.name)
@pytest.mark.parametrize("work", CONVOLUTIONS, ids=lambda work: work.name)
def test_computes_the_convolution_within_its_buffers(sketch: GpuWinograd, work: Workload) -> None:
    """Also: two schedules agree in every bit, so tiles that overlap store each output once."""
    inputs, results = work.random_inputs(1), []
    (wanted,) = evaluate_graph(work.graph, inputs)
    for variant in _schedules(sketch, work, A100, 1):
        arrays = variant.arguments(inputs)
        for execution in execute_on_host(variant.main, A100, arrays, SANITIZERS):
            assert (execution.error, execution.complaints) == ("", ())
            (output,) = execution.outputs
            results.append(output)
            written = ~np.isnan(wanted)  # a part of a wider output is left alone
            assert relative_error(output[written], wanted[written]) < 1e-5
            assert (output[~written] == UNWRITTEN).all()
    assert all(np.array_equal(results[0], other) for other in results)


@pytest.mark.compiles
@pytest.mark.skipif(not opencl_devices(), reason="OpenCL finds no device here")
def test_opencl_executes_it() -> None:
    jobs, wanted = [], []
    for sketch, work in itertools.product(SKETCHES, CONVOLUTIONS[:2]):
        inputs = work.random_inputs(1)
        (variant,) = _schedules(sketch, work, EMULATED, 0)
        outputs = [(spec.shape, spec.dtype) for spec in work.outputs]
        jobs.append(Job(build_opencl(variant.main, EMULATED.tvm()), variant.arguments(inputs), outputs))
        wanted += evaluate_graph(work.graph, inputs)
    for execution, right in zip(execute(jobs), wanted, strict=True):
        assert not execution.error
        assert relative_error(execution.outputs[0], right) < 1e-5


@pytest.mark.compiles
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("device", ["t4", "a100", "rtx3080"])
def test_transforms_spill_no_registers(device: str) -> None:
    gpu, sources = GPUS[device], []
    for sketch, size in itertools.product(SKETCHES, (7, 56)):
        (variant,) = _schedules(sketch, _conv(1, size, size, 64, 64, bias=1, residual=1, act="relu"), gpu, 0)
        sources.append(cuda_source(variant.main, gpu))
    for kernels in resources_of(sources, gpu):
        by_name = {kernel.name: kernel for kernel in kernels}
        assert len(by_name) == 3
        assert [by_name[name].spilled for name in ("main_kernel", "main_kernel_2")] == [0, 0]


def test_three_launches_over_fewer_products() -> None:
    """A 3 x 3 convolution by tiles of 4 x 4 outputs has 36 products a tile, where the plain sum has 144."""
    work = _conv(1, 56, 56, 64, 64)
    (variant,) = _schedules(GpuWinograd(4), work, A100, 0)
    transform_input, products, transform_output = launches(variant.main, A100)
    assert [each.arguments for each in (transform_input, products, transform_output)] == [
        ("V", "x0"),
        ("M", "U", "V"),
        ("M", "y0"),
    ]
    assert transform_output.blocks * transform_output.threads == 14 * 14 * 64
    assert [tuple(map(int, each.shape)) for each in variant.transforms[1].params] == [(64, 3, 3, 64), (36, 64, 64)]


def test_a_thread_fetches_each_element_of_its_tiles_once() -> None:
    (variant,) = _schedules(GpuWinograd(4), _conv(1, 56, 56, 64, 64), A100, 0)
    sectors, elements = sectors_of(variant.main, A100), 14 * 14 * 36 * 64
    assert sectors["x0"] <= elements * 4 / SECTOR
    assert sectors["y0"] == 56 * 56 * 64 * 4 / SECTOR


@pytest.mark.parametrize(
    "work",
    [
        _conv(1, 14, 14, 8, 8, stride=2),
        _conv(1, 14, 14, 8, 8, dilation=2),
        _conv(1, 14, 14, 8, 8, groups=2),
        _conv(1, 14, 14, 8, 8, kh=1, kw=1, pad=0),
        _conv(1, 14, 14, 8, 8, kh=7, kw=7, pad=3),
        _conv(1, 14, 14, 8, 8, layout="NCHW"),
        _conv(1, 14, 14, 8, 8, dtype="bfloat16"),
        _in_tf32(_conv(1, 14, 14, 8, 8)),
        _conv(128, 224, 224, 64, 64),  # what kernels hand on takes gigabytes
        operators.depthwise_conv2d(1, 14, 14, 8, 3, 3, pad=1),
        operators.matmul(64, 64, 64),
    ],
    ids=lambda work: work.name,
)
def test_it_is_for_convolutions_of_stride_one_only(work: Workload) -> None:
    assert [sketch.space(work, A100) for sketch in SKETCHES] == [None, None]


def test_an_image_smaller_than_a_tile_has_the_smaller_tile_only() -> None:
    work = _conv(1, 3, 3, 8, 8)
    assert [sketch.space(work, A100) is None for sketch in SKETCHES] == [False, True]


def test_it_is_offered_where_its_error_is_allowed() -> None:
    work = _conv(1, 14, 14, 8, 8)
    assert [sketch.name for sketch, _ in sketches_for(work, A100, max_error=0)] == ["gpu_contraction"]
    assert {sketch.name for sketch, _ in sketches_for(work, A100)} == {
        "gpu_contraction",
        "gpu_winograd_4",
        "gpu_winograd_2",
    }


@pytest.mark.parametrize("size", [28, 56])
def test_fewer_products_are_expected_to_take_less_time(size: int) -> None:
    work, seconds = _conv(1, size, size, 256, 256), []
    sketches: list[GpuContraction | GpuWinograd] = [GpuContraction(), *SKETCHES]
    for sketch in sketches:
        space = sketch.space(work, A100)
        assert space is not None
        seconds.append(float(sketch.estimate(work, A100, space.columns([space.origin]))[0]))
    assert seconds == sorted(seconds, reverse=True)


def test_transforms_take_the_time_of_their_bytes() -> None:
    work = _conv(1, 224, 224, 64, 64)
    for sketch, grown in zip(SKETCHES, (4.0, 2.25), strict=True):
        space = space_of(sketch, work)
        elements = 224 * 224 * 64 * (grown + 1)  # of the image and what it becomes, and of the results likewise
        assert sketch.estimate(work, A100, space.columns([space.origin]))[0] > 2 * 4 * elements / A100.bandwidth
