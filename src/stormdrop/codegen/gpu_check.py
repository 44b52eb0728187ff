"""What can be said of a GPU's kernels where there is no such GPU: that they build, and what they compute.

Of each sketch some schedules, the default one and random ones, are lowered to CUDA source, compiled by `nvcc` where it
is installed, and run on the CPU with serial loops in place of blocks and threads (`serial`, which says what that leaves
open) where that takes seconds.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.tirx import PrimFunc

from ..errors import one_line
from ..ir.reference import evaluate_graph
from ..ir.workload import Workload
from ..machine.cpu import Target
from ..machine.gpu import Device
from ..sketches.gpu.tensor_core import GpuTensorCore, scheduled
from ..sketches.registry import sketches_for
from .compile import compile_kernel
from .cuda import cuda_source, resources
from .serial_loops import serial

Array = NDArray[Any]

_TENSORS = GpuTensorCore.name
_OPERATIONS = 2e8  # beyond which serial loops take too long
_TOLERANCE = 1e-4  # of max|difference| / max|reference|


@dataclass(frozen=True)
class CrossCheck:
    """How many `schedules` for `arch` were built, accepted by `nvcc`, and right as serial loops; None: not tried.

    `complaints`: what the others fail with, by how many of them do.
    """

    arch: str
    schedules: int
    built: int
    accepted: int | None
    right: int | None
    complaints: Mapping[str, int]

    @property
    def passed(self) -> bool:
        """Whether all that was tried went well."""
        return all(count in (None, self.schedules) for count in (self.built, self.accepted, self.right))

    def __str__(self) -> str:
        parts = [f"of {self.schedules} schedules for {self.arch} {self.built} were built"]
        parts.append("there is no nvcc" if self.accepted is None else f"nvcc took {self.accepted}")
        told = "too large to run serially" if self.right is None else f"{self.right} computed the right answer serially"
        return ", ".join([*parts, told, *self.complaints])


def cross_check(workload: Workload, device: Device, schedules: int = 4, seed: int = 0) -> CrossCheck:
    """Builds and checks so many schedules of each sketch."""
    rng = np.random.default_rng(seed)
    inputs = workload.random_inputs(seed)
    runs = workload.flops <= _OPERATIONS
    expected = evaluate_graph(workload.graph, inputs) if runs else []
    compiles = shutil.which("nvcc") is not None
    count = built = accepted = right = 0
    complaints: Counter[str] = Counter()
    for sketch, space in sketches_for(workload, device):
        points = dict.fromkeys([space.origin, *(space.sample(rng) for _ in range(schedules - 1))])
        for point in points:
            count += 1
            try:
                function = sketch.apply(workload, device, space.config(point)).main
                source = cuda_source(function, device)
                built += 1
                if compiles:
                    resources(source, device)
                    accepted += 1
                if runs:
                    if sketch.name == _TENSORS:
                        function = scheduled(workload, space.config(point), tensorized=False)
                    right += _is_right(workload, function, inputs, expected)
            except Exception as error:  # noqa: BLE001  whatever a sketch or TVM raises is what is to be found out
                complaints[one_line(error)] += 1
    shown = dict(complaints.most_common(3))
    return CrossCheck(device.arch, count, built, accepted if compiles else None, right if runs else None, shown)


def _is_right(workload: Workload, function: PrimFunc, inputs: Sequence[Array], expected: Sequence[Array]) -> bool:
    outputs = [tvm.runtime.empty(spec.shape, spec.dtype) for spec in workload.outputs]
    kernel = compile_kernel(serial(function), Target.detect().tvm())
    kernel.call(*(tvm.runtime.tensor(array) for array in inputs), *outputs)
    return all(_close(output.numpy(), wanted) for output, wanted in zip(outputs, expected, strict=True))


def _close(actual: Array, expected: Array) -> bool:
    scale = float(np.abs(expected).max(initial=0.0))
    return bool(np.abs(actual.astype(np.float64) - expected).max(initial=0.0) <= _TOLERANCE * scale)
