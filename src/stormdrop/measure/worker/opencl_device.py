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

Array = NDArray[Any]

_GUARD = 16 << 10  # bytes before and after an output
_GUARD_BYTE = 0x5A


class OpenClDevice:
    """An OpenCL device as an `ExecutionDevice`: times are those of the device's own clock (profiling events).

    Before and after each output lies memory that no kernel may write to.

    Args:
        target: The device.
    """

    in_process = False
    fewest_executions = 10

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
            tensor, outside = self._runtime.guarded(shape, dtype, _GUARD)
            tensors.append(tensor)
            self._guards += outside
        for guard in self._guards:
            guard.copyfrom(np.full(guard.shape, _GUARD_BYTE, "uint8"))
        return tensors, [np.empty(shape, dtype) for shape, dtype in shapes]

    def view(self, tensor: OpenClTensor) -> Array:
        return tensor.numpy()

    def trespass(self) -> str:
        lines = []
        for position, guard in enumerate(self._guards):
            if count := int(np.count_nonzero(guard.numpy() != _GUARD_BYTE)):
                place = "after" if position % 2 else "before"
                lines.append(f"the kernel writes to {count} bytes {place} output {position // 2}")
                guard.copyfrom(np.full(guard.shape, _GUARD_BYTE, "uint8"))
        return next(iter(lines), "")

    def push(self, tensors: Sequence[OpenClTensor], views: Sequence[Array]) -> None:
        for tensor, view in zip(tensors, views, strict=True):
            tensor.copyfrom(view)

    def pull(self, tensors: Sequence[OpenClTensor], views: Sequence[Array]) -> None:
        for tensor, view in zip(tensors, views, strict=True):
            tensor.copyto(view)

    def call(self, kernel: Kernel, turns: Sequence[Sequence[OpenClTensor]]) -> Call:
        following = itertools.cycle(turns)
        return lambda: kernel.call(*next(following))

    def time_calls(self, call: Call, number: int) -> float:
        events: list[Any] = [event for _ in range(number) for event in call()]  # type: ignore[attr-defined]
        return self._runtime.seconds(events) / number

    def slowed(self) -> bool:
        return False

    def clock(self) -> int:
        return 0
