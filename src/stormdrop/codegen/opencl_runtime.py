"""Executes the kernels of candidates on an OpenCL device, by `runtime.device.opencl`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DeviceError, MeasureError
from ..runtime.device import opencl
from ..runtime.device.code import OPENCL_SOURCE, Image, Launch
from ..runtime.device.contract import Memory, Work
from .opencl import OpenClModule

Array = NDArray[Any]


class OpenClTensor:
    """An array in the memory of an OpenCL device, with the methods of TVM's tensors that are used here.

    Args:
        queue: The queue of the device.
        memory: Its memory.
        shape: The extents.
        dtype: The type of an element.
    """

    def __init__(self, queue: opencl.OpenClQueue, memory: Memory, shape: tuple[int, ...], dtype: str) -> None:
        self.memory, self.shape, self.dtype = memory, shape, dtype
        self._queue = queue

    def numpy(self) -> Array:
        """A copy of the elements, after all kernels have ended."""
        return self.copyto(np.empty(self.shape, self.dtype))

    def copyto(self, array: Array) -> Array:
        """Copies the elements into a contiguous array, after all kernels have ended.

        Args:
            array: An array of this shape and type.
        """
        self._queue.download(self.memory, array)
        self._queue.wait()
        return array

    def copyfrom(self, array: Array) -> None:
        """Copies an array's elements into this memory.

        Args:
            array: An array of this shape and type.
        """
        self._queue.upload(np.ascontiguousarray(array), self.memory)
        self._queue.wait()


class OpenClKernel:
    """A scheduled function that was built for one device. It is for one thread at a time.

    Args:
        runtime: The device.
        module: The source and how it is launched.

    Raises:
        MeasureError: The driver does not compile it, or cannot execute work-groups of this size.
    """

    def __init__(self, runtime: OpenClRuntime, module: OpenClModule) -> None:
        self._runtime, self._launches = runtime, module.kernel.launches
        device = runtime.device
        try:
            self._function = device.load([Image(OPENCL_SOURCE, "", module.source.encode())])
            for launch in self._launches:  # so that what does not fit fails here, and not when it is first run
                device.check_items(self._function(launch.entry), launch)
            self._handed_on = [device.allocate(size) for size in module.kernel.scratch]
            if runtime.on_cpu:
                self._compile_for_work_groups(module.sizes)
        except DeviceError as error:
            raise MeasureError(str(error)) from error

    def __call__(self, *tensors: OpenClTensor) -> None:
        """Enqueues the kernels.

        Args:
            tensors: An argument for each parameter of the scheduled function.
        """
        self.prepared(*tensors)()

    def prepared(self, *tensors: OpenClTensor) -> Work:
        """What enqueues the kernels with these arguments.

        Args:
            tensors: As for a call.
        """
        return self._work(self._launches, [*(each.memory for each in tensors), *self._handed_on])

    def _work(self, launches: Sequence[Launch], memory: Sequence[Memory]) -> Work:
        queue, prepare = self._runtime.queue, self._runtime.device.prepare
        ready = [
            prepare(self._function(launch.entry), launch, [memory[position] for position in launch.arguments])
            for launch in launches
        ]

        def work() -> None:
            for each in ready:
                queue.launch(each)

        return work

    def _compile_for_work_groups(self, sizes: Sequence[int]) -> None:
        """Executes one work-group of each kernel: PoCL compiles a kernel again for each size of work-groups.

        So that happens when a kernel is built, and not when it is first timed.
        """
        memory = [self._runtime.tensor(np.zeros(size, np.uint8)).memory for size in sizes]
        self._work([replace(launch, groups=(1, 1, 1)) for launch in self._launches], memory)()
        self._runtime.queue.wait()


class OpenClRuntime:
    """One OpenCL device in this process.

    Args:
        device: The device as pyopencl knows it.

    Attributes:
        device: The device.
        queue: Its queue.
        on_cpu: Whether the cores of this machine execute the kernels.
        simulated: Whether the device is the simulator Oclgrind.
    """

    def __init__(self, device: Any) -> None:
        import pyopencl as cl

        self.device = opencl.OpenClDevice(device)
        self.queue = self.device.queue()
        self.simulated = device.platform.name.startswith("Oclgrind")
        self.on_cpu = bool(device.type & cl.device_type.CPU) and not self.simulated

    def load(self, module: OpenClModule) -> OpenClKernel:
        """The kernels of a module, ready to run.

        Args:
            module: What `build_opencl` has made.

        Raises:
            MeasureError: As `OpenClKernel`.
        """
        return OpenClKernel(self, module)

    def tensor(self, array: Array) -> OpenClTensor:
        """A copy of an array on the device.

        Args:
            array: The array.
        """
        tensor = self.empty(array.shape, str(array.dtype))
        tensor.copyfrom(array)
        return tensor

    def empty(self, shape: Sequence[int], dtype: str) -> OpenClTensor:
        """A tensor whose elements are not defined.

        Args:
            shape: The extents.
            dtype: The type of an element.
        """
        return OpenClTensor(self.queue, self.device.allocate(_bytes(shape, dtype)), tuple(shape), dtype)

    def guarded(self, shape: Sequence[int], dtype: str, guard: int) -> tuple[OpenClTensor, list[OpenClTensor]]:
        """A tensor with memory before and after it that no kernel may write to.

        Args:
            shape: The extents.
            dtype: The type of an element.
            guard: The least number of bytes on either side.

        Returns:
            The tensor, and the memory before and after it as tensors of uint8.
        """
        size = max(1, _bytes(shape, dtype))
        begin = math.ceil(guard / self.device.alignment) * self.device.alignment
        whole = self.device.allocate(begin + size + guard)
        middle, *outside = (
            OpenClTensor(self.queue, self.device.part(whole, start, length), extents, kind)
            for start, length, extents, kind in (
                (begin, size, tuple(shape), dtype),
                (0, begin, (begin,), "uint8"),
                (begin + size, guard, (guard,), "uint8"),
            )
        )
        return middle, outside


def _bytes(shape: Sequence[int], dtype: str) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize
