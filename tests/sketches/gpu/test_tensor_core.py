"""Matmuls in half precision: what the schedule computes with plain loops, and that `nvcc` takes it with fragments."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tvm

from stormdrop import operators
from stormdrop.codegen.compile import compile_together
from stormdrop.codegen.cuda import cuda_source, launches, resources_of
from stormdrop.codegen.serial_loops import with_serial_loops
from stormdrop.ir.reference import evaluate_graph
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.gpu import GPUS
from stormdrop.sketches.gpu.contraction import GpuContraction
from stormdrop.sketches.gpu.tensor_core import GpuTensorCore
from stormdrop.sketches.registry import sketches_for

pytestmark = pytest.mark.compiles

T4 = GPUS["t4"]
WORKLOADS = {
    "matmul": operators.matmul(64, 96, 128, dtype="float16"),
    "batch_matmul": operators.batch_matmul(2, 32, 64, 48, dtype="float16"),
    "transposed": operators.batch_matmul(2, 32, 64, 48, transpose_b=1, dtype="float16"),
}


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_the_right_answer_with_plain_loops(workload: Workload) -> None:
    space, rng = GpuTensorCore().space(workload, T4), np.random.default_rng(0)
    assert space is not None
    inputs = workload.random_inputs(0)
    (expected,) = evaluate_graph(workload.graph, inputs)
    configs = [space.config(point) for point in (space.origin, *(space.sample(rng) for _ in range(4)))]
    functions = [with_serial_loops(GpuTensorCore().apply(workload, T4, config).anywhere) for config in configs]
    for config, kernel in zip(configs, compile_together(functions, Cpu.detect().tvm()), strict=True):
        output = tvm.runtime.empty(expected.shape, "float16")
        kernel.call(*map(tvm.runtime.tensor, inputs), output)
        np.testing.assert_array_equal(output.numpy(), expected, err_msg=str(config))


def test_nvcc_takes_its_fragments() -> None:
    device, sketch, sources = T4, GpuTensorCore(), []
    for workload in WORKLOADS.values():
        space, rng = sketch.space(workload, device), np.random.default_rng(1)
        assert space is not None
        for point in [space.origin, *(space.sample(rng) for _ in range(2))]:
            config: Mapping[str, Any] = space.config(point)
            function = sketch.apply(workload, device, config).main
            sources.append(cuda_source(function, device))
            assert all(f"{name}_sync" in sources[-1] for name in ("mma", "load_matrix", "store_matrix"))
            (launch,) = launches(function, device)
            assert launch.threads == 32 * config["rows"][1] * config["columns"][1]
            assert launch.blocks % (config["rows"][0] * config["columns"][0]) == 0
    if shutil.which("nvcc"):
        assert all(0 < kernel.registers <= 255 for (kernel,) in resources_of(sources, device))


def test_where_it_applies() -> None:
    both = {sketch.name for sketch, _ in sketches_for(WORKLOADS["matmul"], T4)}
    assert both == {GpuTensorCore.name, GpuContraction.name}
    others = (
        operators.matmul(64, 64, 64),
        operators.matmul(64, 60, 64, dtype="float16"),
        operators.matmul(64, 64, 64, dtype="bfloat16"),
    )
    for other in others:
        assert GpuTensorCore().space(other, T4) is None
        assert [sketch.name for sketch, _ in sketches_for(other, T4)] == [GpuContraction.name]
    assert GpuTensorCore().space(WORKLOADS["matmul"], GPUS["a100"]) is None, "which has `gpu_mma`"
    without = GPUS["gtx1080ti"]
    assert [sketch.name for sketch, _ in sketches_for(WORKLOADS["matmul"], without)] == [GpuContraction.name]
