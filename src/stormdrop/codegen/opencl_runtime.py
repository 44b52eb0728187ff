"""Executes kernels on an OpenCL device: memory, programs, launches. The package `pyopencl` (an extra) does the work."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import MeasureError
from ..runtime.device.opencl import first_error
from .opencl import OpenClModule

Array = NDArray[Any]


class OpenClTensor:
    """An array in the memory of an OpenCL device, with the methods of TVM's tensors that are used here."""

    def __init__(self, queue: Any, buffer: Any, shape: tuple[int, ...], dtype: str, offset: int = 0) -> None:
        """Describes memory that was allocated.

        Args:
            queue: pyopencl's queue.
            buffer: pyopencl's buffer.
            shape: The extents.
            dtype: The type of an element.
            offset: The bytes of the buffer before the first element. Such a tensor is no argument for kernels.
        """
        self.buffer, self.shape, self.dtype = buffer, shape, dtype
        self._queue, self._offset = queue, offset

    def numpy(self) -> Array:
        """A copy of the elements, after all kernels have ended."""
        return self.copyto(np.empty(self.shape, self.dtype))

    def copyto(self, array: Array) -> Array:
        """Copies the elements into a contiguous array, after all kernels have ended.

        Args:
            array: An array of this shape and type.
        """
        import pyopencl

        if array.nbytes:
            pyopencl.enqueue_copy(self._queue, array, self.buffer, src_offset=self._offset)
        return array

    def copyfrom(self, array: Array) -> None:
        """Copies an array's elements into this memory.

        Args:
            array: An array of this shape and type.
        """
        import pyopencl

        if array.nbytes:
            values = np.ascontiguousarray(array)
            pyopencl.enqueue_copy(self._queue, self.buffer, values, dst_offset=self._offset)


class OpenClKernel:
    """A scheduled function that was built for one device. It is for one thread at a time.

    Args:
        runtime: The device.
        module: The source and how it is launched.

    Raises:
        MeasureError: The driver does not compile it, or cannot execute work-groups of this size.
    """

    def __init__(self, runtime: OpenClRuntime, module: OpenClModule) -> None:
        self._runtime, self._module = runtime, module
        program = runtime.build(module.source)
        self._kernels = [getattr(program, launch.kernel) for launch in module.launches]
        for kernel, launch in zip(self._kernels, module.launches, strict=True):
            if launch.threads > (most := runtime.most_work_items(kernel)):
                raise MeasureError(
                    f"{launch.kernel} has {launch.threads} work-items in a work-group; the device executes at"
                    f" most {most} with what the kernel needs"
                )
        inner = {name for launch in module.launches for name in launch.arguments} - set(module.parameters)
        self._handed_on = {name: runtime.allocate(module.sizes[name]) for name in inner}
        if runtime.on_cpu:
            self._compile_for_work_groups()

    def __call__(self, *tensors: OpenClTensor) -> list[Any]:
        """Enqueues the kernels. Returns their events, in order.

        Args:
            tensors: An argument for each parameter of the scheduled function.
        """
        memory = {
            **self._handed_on,
            **{name: each.buffer for name, each in zip(self._module.parameters, tensors, strict=True)},
        }
        return [self._launch(position, memory) for position in range(len(self._kernels))]

    def _launch(self, position: int, memory: dict[str, Any], groups: tuple[int, ...] | None = None) -> Any:
        launch = self._module.launches[position]
        arguments = [memory[name] for name in launch.arguments]
        return self._kernels[position](
            self._runtime.queue, groups or launch.groups, launch.items, *arguments, g_times_l=True
        )

    def _compile_for_work_groups(self) -> None:
        """Executes one work-group of each kernel: PoCL compiles a kernel again for each size of work-groups.

        So that happens when a kernel is built, and not when it is first timed.
        """
        memory = {name: self._runtime.zeros(size) for name, size in self._module.sizes.items()}
        for position in range(len(self._kernels)):
            self._launch(position, memory, (1, 1, 1))
        self._runtime.queue.finish()


class OpenClRuntime:
    """One OpenCL device in this process.

    Attributes:
        queue: pyopencl's queue, which takes the time of each kernel.
        on_cpu: Whether the cores of this machine execute the kernels.
        simulated: Whether the device is the simulator Oclgrind.
    """

    def __init__(self, device: Any) -> None:
        """Makes a context and a queue.

        Args:
            device: The device as pyopencl knows it.
        """
        import pyopencl as cl

        self.context = cl.Context([device])
        self.queue = cl.CommandQueue(self.context, properties=cl.command_queue_properties.PROFILING_ENABLE)
        self.simulated = device.platform.name.startswith("Oclgrind")
        self.on_cpu = bool(device.type & cl.device_type.CPU) and not self.simulated
        self._device = device
        self._half = "cl_khr_fp16" in device.extensions.split()
        self._alignment = device.mem_base_addr_align // 8

    def load(self, module: OpenClModule) -> OpenClKernel:
        """The kernels of a module, ready to run.

        Args:
            module: What `build_opencl` has made.

        Raises:
            MeasureError: The driver does not compile the source.
        """
        return OpenClKernel(self, module)

    def build(self, source: str) -> Any:
        """The program of a source.

        Args:
            source: OpenCL's C.

        Raises:
            MeasureError: The driver does not compile it, or it needs float16, which the device lacks.
        """
        import pyopencl as cl

        if "cl_khr_fp16" in source and not self._half:
            raise MeasureError("this OpenCL device does not compute in float16 (cl_khr_fp16)")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cl.CompilerWarning)  # the compiler has said something
            try:
                return cl.Program(self.context, source).build()
            except cl.RuntimeError as error:
                raise MeasureError(f"the OpenCL compiler: {first_error(str(error))}") from error

    def most_work_items(self, kernel: Any) -> int:
        """The most work-items of a work-group with which the device executes a kernel.

        Args:
            kernel: pyopencl's kernel.
        """
        import pyopencl as cl

        return int(kernel.get_work_group_info(cl.kernel_work_group_info.WORK_GROUP_SIZE, self._device))

    def allocate(self, size: int) -> Any:
        """Memory of the device that kernels read and write.

        Args:
            size: Bytes.
        """
        import pyopencl as cl

        return cl.Buffer(self.context, cl.mem_flags.READ_WRITE, max(1, size))

    def zeros(self, size: int) -> Any:
        """The same, filled with zeros.

        Args:
            size: Bytes.
        """
        buffer = self.allocate(size)
        OpenClTensor(self.queue, buffer, (size,), "uint8").copyfrom(np.zeros(size, "uint8"))
        return buffer

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
        size = math.prod(shape) * np.dtype(dtype).itemsize
        return OpenClTensor(self.queue, self.allocate(size), tuple(shape), dtype)

    def guarded(self, shape: Sequence[int], dtype: str, guard: int) -> tuple[OpenClTensor, list[OpenClTensor]]:
        """A tensor with memory before and after it that no kernel may write to.

        Args:
            shape: The extents.
            dtype: The type of an element.
            guard: The least number of bytes on either side.

        Returns:
            The tensor, and the memory before and after it as tensors of uint8.
        """
        import pyopencl as cl

        size = max(1, math.prod(shape) * np.dtype(dtype).itemsize)
        begin = -(-guard // self._alignment) * self._alignment
        whole = self.allocate(begin + size + guard)
        middle = whole.get_sub_region(begin, size, cl.mem_flags.READ_WRITE)
        outside = [
            OpenClTensor(self.queue, whole, (length,), "uint8", start)
            for start, length in ((0, begin), (begin + size, guard))
        ]
        return OpenClTensor(self.queue, middle, tuple(shape), dtype), outside

    def seconds(self, events: Sequence[Any]) -> float:
        """The seconds from the start of the first kernel to the end of the last one, after they have ended.

        Args:
            events: What executions of a kernel have returned, in order.
        """
        events[-1].wait()
        return float(events[-1].profile.end - events[0].profile.start) * 1e-9
