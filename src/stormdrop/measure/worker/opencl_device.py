"""The OpenCL device that a worker's kernels run on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...codegen.compile import Kernel
from ...codegen.opencl import OpenClModule
from ...codegen.opencl_runtime import OpenClRuntime, OpenClTensor
from ...machine.contract import Machine
from ..timing import Call
from .execution_device import GUARD, GUARD_BYTE, ExecutionDevice, trespassing

Array = NDArray[Any]


class OpenClDevice(ExecutionDevice):
    """An OpenCL device as an `ExecutionDevice`: times are those of the device's own clock (profiling events).

    Before and after each output lies memory that no kernel may write to.

    Args:
        target: The device.
    """

    def __init__(self, target: Machine) -> None:
        self._runtime = OpenClRuntime(target.local_device())
        self.on_cores = self._runtime.on_cpu
        self._guards: list[OpenClTensor] = []

    def load(self, module: OpenClModule) -> Kernel:
        return Kernel(self._runtime.load(module), module)

    def tensor(self, array: Array) -> OpenClTensor:
        return self._runtime.tensor(array)

    def outputs(self, shapes: Sequence[tuple[tuple[int, ...], str]]) -> tuple[list[OpenClTensor], list[Array]]:
        tensors = []
        for shape, dtype in shapes:
            tensor, outside = self._runtime.guarded(shape, dtype, GUARD)
            tensors.append(tensor)
            self._guards += outside
        for guard in self._guards:
            guard.copyfrom(np.full(guard.shape, GUARD_BYTE, "uint8"))
        return tensors, [np.empty(shape, dtype) for shape, dtype in shapes]

    def trespass(self) -> str:
        counts = []
        for guard in self._guards:
            counts.append(int(np.count_nonzero(guard.numpy() != GUARD_BYTE)))
            if counts[-1]:
                guard.copyfrom(np.full(guard.shape, GUARD_BYTE, "uint8"))
        return trespassing(counts)

    def pull(self, tensors: Sequence[OpenClTensor], views: Sequence[Array]) -> None:
        for tensor, view in zip(tensors, views, strict=True):
            tensor.copyto(view)

    def call(self, kernel: Kernel, turns: Sequence[Sequence[Any]]) -> Call:
        following = itertools.cycle([kernel.call.prepared(*arguments) for arguments in turns])  # type: ignore[attr-defined]
        return lambda: next(following)()

    def time_calls(self, call: Call, number: int) -> float:
        def calls() -> None:
            for _ in range(number):
                call()

        return self._runtime.queue.seconds(calls) / number
