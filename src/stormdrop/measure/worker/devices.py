"""The devices that a worker's kernels run on: this process's CPU, a GPU, or the device of another machine.

    CpuDevice      the cores of this process
    GpuDevice      the only GPU that this process sees
    RemoteDevice   the CPU or the first GPU of a machine behind a runner
    OpenClDevice   a device that OpenCL drives (`opencl_device.py`)

`device_of` chooses the one for a target in a worker, `device_here` that in any other process.
"""

from __future__ import annotations

import itertools
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.support import tar

from ...codegen.compile import Kernel, load_kernel
from ...errors import one_line
from ...ir.dtypes import BFLOAT16
from ...machine import nvml
from ...machine.contract import CUDA, OPENCL, Machine
from ...machine.remote.rpc import connect
from ..timing import Call, time_calls
from .execution_device import GUARD, GUARD_BYTE, ExecutionDevice, trespassing
from .opencl_device import OpenClDevice

Array = NDArray[Any]


class DeviceLost(Exception):
    """A device of another machine cannot be reached any more, and no kernel is at fault. It never leaves a worker."""


class CpuDevice(ExecutionDevice):
    """The cores and the memory of this process.

    The memory comes from TVM, as it does in a compiled model, because NumPy would ask for huge pages. Before and after
    each output lies memory that no kernel may write to.
    """

    in_process = True
    on_cores = True
    fewest_executions = 1

    def __init__(self) -> None:
        self._guards: list[Array] = []

    def tensor(self, array: Array) -> Any:
        return tvm.runtime.tensor(array)

    def outputs(self, shapes: Sequence[tuple[tuple[int, ...], str]]) -> tuple[list[Any], list[Array]]:
        views = []
        for shape, dtype in shapes:
            size = math.prod(shape) * np.dtype(dtype).itemsize
            whole = np.from_dlpack(tvm.runtime.empty((GUARD + size + GUARD,), "uint8"))
            whole.fill(GUARD_BYTE)
            self._guards += [whole[:GUARD], whole[GUARD + size :]]
            views.append(whole[GUARD : GUARD + size].view(dtype).reshape(shape))
        return [tvm.runtime.from_dlpack(_exchanged(view)) for view in views], views

    def view(self, tensor: Any) -> Array:
        view: Array = tensor.numpy() if str(tensor.dtype) == BFLOAT16 else np.from_dlpack(tensor)
        return view

    def trespass(self) -> str:
        counts = []
        for guard in self._guards:
            counts.append(int(np.count_nonzero(guard != GUARD_BYTE)))
            if counts[-1]:
                guard.fill(GUARD_BYTE)
        return trespassing(counts)

    def push(self, tensors: Sequence[Any], views: Sequence[Array]) -> None:
        """Does nothing: the views are the tensors' own memory."""

    def pull(self, tensors: Sequence[Any], views: Sequence[Array]) -> None:
        """Does nothing: the views are the tensors' own memory."""

    def time_calls(self, call: Call, number: int) -> float:
        return time_calls(call, number)


class EvaluatorDevice(ExecutionDevice):
    """A device with memory of its own, on which TVM's evaluator times kernels. It takes the first arguments only.

    Args:
        device: The device as TVM's runtime knows it.
    """

    def __init__(self, device: Any) -> None:
        self._device = device

    def tensor(self, array: Array) -> Any:
        return tvm.runtime.tensor(array, self._device)

    def outputs(self, shapes: Sequence[tuple[tuple[int, ...], str]]) -> tuple[list[Any], list[Array]]:
        tensors = [tvm.runtime.empty(shape, dtype, self._device) for shape, dtype in shapes]
        return tensors, [np.empty(shape, dtype) for shape, dtype in shapes]

    def call(self, kernel: Kernel, turns: Sequence[Sequence[Any]]) -> Call:
        return _Launch(kernel, turns[0])

    def time_calls(self, call: Call, number: int) -> float:
        assert isinstance(call, _Launch)
        # The evaluator executes the kernel once more before, which warms up.
        evaluate = call.kernel.module.time_evaluator("main", self._device, number=number, repeat=1)
        return float(evaluate(*call.arguments).mean)


class RemoteDevice(EvaluatorDevice):
    """The CPU, or the first GPU, of the machine behind a runner (`machine/remote/rpc.py`).

    Args:
        address: The runner's address, `host:port`.
        gpu: Whether kernels run on its first GPU.
    """

    def __init__(self, address: str, gpu: bool) -> None:
        self._session = connect(address)
        self._sign_of_life = self._session.get_function("runtime.NumThreads")
        super().__init__(self._session.cuda(0) if gpu else self._session.cpu(0))
        self._scratch = tempfile.TemporaryDirectory(prefix="stormdrop-")
        self._sent = itertools.count()

    def load(self, module: Any) -> Kernel:
        """The kernel on the other machine, which links what it is sent.

        Raises:
            DeviceLost: The connection is broken.
        """
        file = Path(self._scratch.name) / f"kernel{next(self._sent)}.tar"
        module.export_library(str(file), fcompile=tar.tar)
        try:
            self._session.upload(str(file), file.name)
            module = self._session.load_module(file.name)
            self._session.remove(file.name)  # the runner has loaded it
            return load_kernel(module)
        except Exception:
            self._reach()
            raise
        finally:
            file.unlink()

    def push(self, tensors: Sequence[Any], views: Sequence[Array]) -> None:
        """Copies what was written to the views into the tensors.

        Raises:
            DeviceLost: The connection is broken. Whoever has found it broken after this has lost it to the kernel.
        """
        self._reach()
        super().push(tensors, views)

    def _reach(self) -> None:
        """Raises `DeviceLost` if the connection is broken."""
        try:
            self._sign_of_life()
        except RuntimeError as error:
            raise DeviceLost(one_line(error)) from error


class GpuDevice(EvaluatorDevice):
    """The only GPU that this process sees (CUDA_VISIBLE_DEVICES is its number), timed by CUDA's events.

    A kernel that accesses memory out of its bounds poisons the context: no kernel of this process runs there any more.
    """

    def __init__(self) -> None:
        super().__init__(tvm.runtime.device("cuda", 0))
        self._number = int(os.environ[nvml.VISIBLE_DEVICES])

    def slowed(self) -> bool:
        return nvml.is_slowed(self._number)

    def clock(self) -> int:
        return nvml.current_clock(self._number)


def _exchanged(view: Array) -> Array:
    """An array as other libraries take it: bfloat16, of which NumPy's exchange knows nothing, as integers."""
    return view.view(np.uint16) if str(view.dtype) == BFLOAT16 else view


def device_of(target: Machine) -> ExecutionDevice:
    """The device that kernels for a target run on."""
    if target.runner:
        return RemoteDevice(target.runner, target.device == CUDA)
    if target.device == OPENCL:
        return OpenClDevice(target)
    return GpuDevice() if target.device == CUDA else CpuDevice()


def device_here(target: Machine) -> ExecutionDevice:
    """The device of this process, which may see several GPUs, that kernels for a target run on.

    Args:
        target: A machine without a runner.

    Raises:
        TargetError: There is no such device here.

    Example:
        >>> import numpy as np
        >>> from stormdrop.machine.cpu import Cpu
        >>> device_here(Cpu.detect()).tensor(np.ones(4, "float32")).shape
        (4,)
    """
    local = target.local_device()
    return OpenClDevice(target) if target.device == OPENCL else EvaluatorDevice(local)


@dataclass(frozen=True, eq=False)
class _Launch:
    """A kernel with the arguments of all its executions, so that the evaluator finds both."""

    kernel: Kernel
    arguments: Sequence[Any]

    def __call__(self) -> object:
        return self.kernel.call(*self.arguments)
