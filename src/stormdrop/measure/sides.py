"""Where a worker's kernels run: on the CPU, or on a GPU of which the worker is the only user in its process."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tvm
from numpy.typing import NDArray

from ..kernel.compile import Kernel
from ..kernel.gpu import driver
from .timing import Call, wall

Array = NDArray[Any]


class Side(Protocol):
    """Memory and time of what runs kernels. `lasting`: what a kernel broke does not outlive it."""

    lasting: bool

    def tensor(self, array: Array) -> Any:
        """The array where kernels see it."""

    def outputs(self, shapes: Sequence[tuple[tuple[int, ...], str]]) -> tuple[list[Any], list[Array]]:
        """Tensors for kernels to write to, and what of them is seen here."""

    def push(self, tensors: Sequence[Any], views: Sequence[Array]) -> None:
        """Takes over what was written to the views."""

    def pull(self, tensors: Sequence[Any], views: Sequence[Array]) -> None:
        """Makes the views show what kernels have written."""

    def call(self, kernel: Kernel, turns: Sequence[Sequence[Any]]) -> Call:
        """A kernel with the arguments of its executions, which are taken in turns."""

    def executions(self, call: Call, number: int) -> float:
        """Mean seconds of so many executions, back to back."""

    def slowed(self) -> bool:
        """Whether it runs below its usual speed right now."""


class CpuSide:
    """This process's own memory. It comes from TVM, as it does in a compiled model: NumPy would ask for huge pages."""

    lasting = True

    def tensor(self, array: Array) -> Any:
        return tvm.runtime.tensor(array)

    def outputs(self, shapes: Sequence[tuple[tuple[int, ...], str]]) -> tuple[list[Any], list[Array]]:
        tensors = [tvm.runtime.empty(shape, dtype) for shape, dtype in shapes]
        return tensors, [np.from_dlpack(tensor) for tensor in tensors]

    def push(self, tensors: Sequence[Any], views: Sequence[Array]) -> None:
        """The views are the tensors' own memory."""

    def pull(self, tensors: Sequence[Any], views: Sequence[Array]) -> None:
        """The views are the tensors' own memory."""

    def call(self, kernel: Kernel, turns: Sequence[Sequence[Any]]) -> Call:
        function = kernel.call
        if len(turns) == 1:
            (arguments,) = turns
            return lambda: function(*arguments)
        following = itertools.cycle(turns)
        return lambda: function(*next(following))

    def executions(self, call: Call, number: int) -> float:
        return wall(call, number)

    def slowed(self) -> bool:
        return False  # the counters of `load` tell


class GpuSide:
    """The only GPU that this process sees (CUDA_VISIBLE_DEVICES is its number), timed by CUDA's events.

    A kernel that accesses memory out of its bounds poisons the context: nothing of this process runs there any more.
    """

    lasting = False

    def __init__(self) -> None:
        self._device = tvm.runtime.device("cuda", 0)
        self._number = int(os.environ[driver.VISIBLE])

    def tensor(self, array: Array) -> Any:
        return tvm.runtime.tensor(array, self._device)

    def outputs(self, shapes: Sequence[tuple[tuple[int, ...], str]]) -> tuple[list[Any], list[Array]]:
        tensors = [tvm.runtime.empty(shape, dtype, self._device) for shape, dtype in shapes]
        return tensors, [np.empty(shape, dtype) for shape, dtype in shapes]

    def push(self, tensors: Sequence[Any], views: Sequence[Array]) -> None:
        for tensor, view in zip(tensors, views, strict=True):
            tensor.copyfrom(view)

    def pull(self, tensors: Sequence[Any], views: Sequence[Array]) -> None:
        for tensor, view in zip(tensors, views, strict=True):
            view[...] = tensor.numpy()

    def call(self, kernel: Kernel, turns: Sequence[Sequence[Any]]) -> Call:
        return _Launch(kernel, turns[0])

    def executions(self, call: Call, number: int) -> float:
        assert isinstance(call, _Launch)
        # It executes once more before, which warms up.
        evaluate = call.kernel.module.time_evaluator("main", self._device, number=number, repeat=1)
        return float(evaluate(*call.arguments).mean)

    def slowed(self) -> bool:
        return driver.slowed(self._number)


@dataclass(frozen=True, eq=False)
class _Launch:
    kernel: Kernel
    arguments: Sequence[Any]

    def __call__(self) -> object:
        return self.kernel.call(*self.arguments)
