"""Where a worker's kernels run: on the CPU, on a GPU of which it is the only user, or on another machine."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.support import tar

from ..codegen.compile import Kernel, load_kernel
from ..machine import nvml as driver
from ..machine.contract import CUDA, Machine
from ..machine.rpc import connect
from .timing import Call, wall

Array = NDArray[Any]


class ExecutionDevice(Protocol):
    """Memory and time of what runs kernels.

    `own`: they run in this process, on its cores, and a kernel that fails leaves them as they were. `least`: executions
    back to back that tell how fast a kernel is; of fewer, launching one is much of the time.
    """

    own: bool
    least: int

    def load(self, module: Any) -> Kernel:
        """What was built here, ready to run."""

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
        """Whether a GPU runs below its usual speed right now."""

    def clock(self) -> int:
        """MHz of a GPU right now; 0 where that is not known."""


class CpuDevice:
    """This process's own memory. It comes from TVM, as it does in a compiled model: NumPy would ask for huge pages."""

    own = True
    least = 1

    def load(self, module: Any) -> Kernel:
        return load_kernel(module)

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
        return False

    def clock(self) -> int:
        return 0


class _OtherDevice:
    """Memory that is not this process's own, and time by TVM's evaluator on the device."""

    own = False
    least = 10

    def __init__(self, device: Any) -> None:
        self._device = device

    def load(self, module: Any) -> Kernel:
        return load_kernel(module)

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
        return False

    def clock(self) -> int:
        return 0


class RemoteDevice(_OtherDevice):
    """The CPU, or the first GPU, of the machine behind a runner (`machine/rpc.py`)."""

    def __init__(self, address: str, gpu: bool) -> None:
        self._session = connect(address)
        super().__init__(self._session.cuda(0) if gpu else self._session.cpu(0))
        self._scratch = tempfile.TemporaryDirectory(prefix="stormdrop-")
        self._sent = itertools.count()

    def load(self, module: Any) -> Kernel:
        file = Path(self._scratch.name) / f"kernel{next(self._sent)}.tar"
        module.export_library(str(file), fcompile=tar.tar)
        self._session.upload(str(file), file.name)
        file.unlink()
        module = self._session.load_module(file.name)
        self._session.remove(file.name)  # it is loaded
        return load_kernel(module)


class GpuDevice(_OtherDevice):
    """The only GPU that this process sees (CUDA_VISIBLE_DEVICES is its number), timed by CUDA's events.

    A kernel that accesses memory out of its bounds poisons the context: nothing of this process runs there any more.
    """

    def __init__(self) -> None:
        super().__init__(tvm.runtime.device("cuda", 0))
        self._number = int(os.environ[driver.VISIBLE_DEVICES])

    def slowed(self) -> bool:
        return driver.is_slowed(self._number)

    def clock(self) -> int:
        return driver.current_clock(self._number)


def device_of(target: Machine) -> ExecutionDevice:
    """Where kernels for a target run."""
    if target.runner:
        return RemoteDevice(target.runner, target.device == CUDA)
    return GpuDevice() if target.device == CUDA else CpuDevice()


@dataclass(frozen=True, eq=False)
class _Launch:
    kernel: Kernel
    arguments: Sequence[Any]

    def __call__(self) -> object:
        return self.kernel.call(*self.arguments)
