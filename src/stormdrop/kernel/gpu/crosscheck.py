"""What can be said of a GPU's kernels where there is no such GPU: that they build, and what they compute.

Of each sketch some schedules, the default one and random ones, are lowered to CUDA source, compiled by `nvcc` where it
is installed, and run on the CPU with serial loops in place of blocks and threads (`serial`, which says what that leaves
open) where that takes seconds.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import numpy as np
import tvm

from ..compile import compile_kernel
from ..reference import evaluate_graph
from ..registry import sketches_for
from ..target import Target
from ..workload import Workload
from .build import cuda_source, resources
from .device import Device
from .serial import serial
from .tensor_core import GpuTensorCore, scheduled

_TENSORS = GpuTensorCore.name
_OPERATIONS = 2e8  # beyond which serial loops take too long
_TOLERANCE = 1e-4  # of max|difference| / max|reference|


@dataclass(frozen=True)
class CrossCheck:
    """How many `schedules` for `arch` were accepted by `nvcc` and computed the right answer; None: not tried."""

    arch: str
    schedules: int
    accepted: int | None
    right: int | None

    def __str__(self) -> str:
        parts = [f"of {self.schedules} schedules for {self.arch} all were built"]
        parts.append("there is no nvcc" if self.accepted is None else f"nvcc took {self.accepted}")
        told = "too large to run serially" if self.right is None else f"{self.right} computed the right answer serially"
        return ", ".join([*parts, told])


def cross_check(workload: Workload, device: Device, schedules: int = 4, seed: int = 0) -> CrossCheck:
    """Builds and checks so many schedules of each sketch. Raises what building raises."""
    rng = np.random.default_rng(seed)
    inputs = workload.random_inputs(seed)
    runs = workload.flops <= _OPERATIONS
    expected = evaluate_graph(workload.graph, inputs) if runs else []
    compiles = shutil.which("nvcc") is not None
    count = accepted = right = 0
    cpu = Target.detect().tvm()
    for sketch, space in sketches_for(workload, device):
        points = dict.fromkeys([space.origin, *(space.sample(rng) for _ in range(schedules - 1))])
        for point in points:
            function = sketch.apply(workload, device, space.config(point)).main
            source = cuda_source(function, device)
            count += 1
            accepted += bool(compiles and resources(source, device))
            if not runs:
                continue
            outputs = [tvm.runtime.empty(spec.shape, spec.dtype) for spec in workload.outputs]
            plain = scheduled(workload, space.config(point), tensorized=False) if sketch.name == _TENSORS else function
            compile_kernel(serial(plain), cpu).call(*(tvm.runtime.tensor(array) for array in inputs), *outputs)
            right += all(_close(output.numpy(), wanted) for output, wanted in zip(outputs, expected, strict=True))
    return CrossCheck(device.arch, count, accepted if compiles else None, right if runs else None)


def _close(actual: np.ndarray, expected: np.ndarray) -> bool:  # type: ignore[type-arg]
    scale = float(np.abs(expected).max(initial=0.0))
    return bool(np.abs(actual.astype(np.float64) - expected).max(initial=0.0) <= _TOLERANCE * scale)
