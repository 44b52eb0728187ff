"""Checks of a GPU's schedules without such a GPU: that they build, and that they compute the right answer.

The default schedule and a few random ones of each sketch are lowered to CUDA source. `nvcc` compiles them if it is
installed. If that takes only seconds, they also run on the CPU with serial loops in place of blocks and threads
(`serial_loops` says what that cannot check), and every index of every thread is compared with the bounds of its buffer.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.tirx import PrimFunc

from ..errors import one_line
from ..ir.reference import evaluate_graph
from ..ir.relative_error import relative_error
from ..ir.workload import Workload
from ..machine.contract import Machine
from ..machine.cpu import Cpu
from ..machine.gpu import require_gpu
from ..sketches.registry import sketches_for
from .compile import compile_together
from .cuda import cuda_source, resources_of
from .serial_loops import with_serial_loops
from .thread_bounds import accesses_out_of_bounds

Array = NDArray[Any]
Item = TypeVar("Item")
Result = TypeVar("Result")
_Loops = tuple[PrimFunc, Sequence[Array]]
"""A schedule as serial loops, and what it takes."""

_MOST_OPERATIONS = 2e8  # of a workload that runs as serial loops in seconds
_TOLERANCE = 1e-4  # of the relative error, unless the function rounds to fewer digits


@dataclass(frozen=True)
class CrossCheck:
    """How many schedules passed each check.

    Args:
        arch: The architecture that they were built for, such as "sm_80".
        schedules: How many were checked.
        built: How many were lowered to CUDA source.
        accepted: How many `nvcc` compiled; None if there is no `nvcc`.
        right: How many computed the right answer as serial loops, and accessed nothing out of bounds; None if the
            workload is too large for that.
        errors: What the others failed with, and how many of them did: the three most frequent errors.
    """

    arch: str
    schedules: int
    built: int
    accepted: int | None
    right: int | None
    errors: Mapping[str, int]

    @property
    def passed(self) -> bool:
        """Whether all schedules passed all checks that were made."""
        return all(count in (None, self.schedules) for count in (self.built, self.accepted, self.right))

    def __str__(self) -> str:
        accepted = "there is no nvcc" if self.accepted is None else f"nvcc accepted {self.accepted}"
        right = "the workload is too large to run as serial loops"
        if self.right is not None:
            right = f"{self.right} computed the right answer as serial loops"
        built = f"{self.built} of {self.schedules} schedules for {self.arch} were built"
        return ", ".join([built, accepted, right, *self.errors])


def cross_check(
    workload: Workload, machine: Machine, schedules: int = 4, seed: int = 0, sketches: str | None = None
) -> CrossCheck:
    """Builds and checks schedules of each sketch for a GPU.

    Args:
        workload: The function to schedule.
        machine: The GPU.
        schedules: The number of schedules of each sketch: the default one and random ones.
        seed: Of the random schedules and inputs.
        sketches: Where the sketches come from, such as "rules"; by default the built-in ones.

    Returns:
        How many schedules passed each check.

    Raises:
        TargetError: The machine is no GPU.
    """
    device = require_gpu(machine)
    rng = np.random.default_rng(seed)
    inputs = workload.random_inputs(seed)
    runs = workload.flops <= _MOST_OPERATIONS
    expected = evaluate_graph(workload.graph, inputs) if runs else []
    compiles = shutil.which("nvcc") is not None
    count, errors = 0, Counter[str]()
    sources: list[str] = []
    inside: list[_Loops] = []  # the functions that access nothing out of bounds
    for sketch, space in sketches_for(workload, device, sketches):
        points = dict.fromkeys([space.origin, *(space.sample(rng) for _ in range(schedules - 1))])
        for point in points:
            count += 1
            config = space.config(point)
            try:
                variant = sketch.apply(workload, device, config)
                function = variant.main
                sources.append(cuda_source(function, device))
                if runs:
                    outside = accesses_out_of_bounds(function, device)
                    errors.update(outside[:1])
                    if not outside:
                        inside.append((with_serial_loops(variant.anywhere), variant.arguments(inputs)))
            except Exception as error:  # noqa: BLE001  whatever a sketch or TVM raises is what the check is to find
                errors[one_line(error)] += 1
    accepted = _results(lambda some: resources_of(some, device), sources if compiles else [], errors)
    right = _results(lambda some: _are_right(workload, some, expected), inside, errors)
    counts = count, len(sources), len(accepted) if compiles else None, sum(right) if runs else None
    return CrossCheck(device.arch, *counts, dict(errors.most_common(3)))


def _results(make: Callable[[list[Item]], list[Result]], items: list[Item], errors: Counter[str]) -> list[Result]:
    """What is made of items together, which is cheaper; if that fails, of each alone. What fails then is an error."""
    try:
        return make(items) if items else []
    except Exception as error:  # noqa: BLE001  whatever nvcc or TVM raises is what the check is to find
        if len(items) > 1:
            return [result for item in items for result in _results(make, [item], errors)]
        errors[one_line(error)] += 1
        return []


def _are_right(workload: Workload, loops: Sequence[_Loops], expected: Sequence[Array]) -> list[bool]:
    right, tolerance = [], max(_TOLERANCE, workload.step)
    functions = [function for function, _ in loops]
    for kernel, (_, inputs) in zip(compile_together(functions, Cpu.detect().tvm()), loops, strict=True):
        outputs = [tvm.runtime.empty(spec.shape, spec.dtype) for spec in workload.outputs]
        kernel.call(*(tvm.runtime.tensor(array) for array in inputs), *outputs)
        errors = (relative_error(output.numpy(), wanted) for output, wanted in zip(outputs, expected, strict=True))
        right.append(all(error <= tolerance for error in errors))
    return right
