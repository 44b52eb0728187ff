"""A device that OpenCL drives, by the package `pyopencl`."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...errors import DeviceError, one_line
from ..inputs import Array
from .code import OPENCL_SOURCE, Image, Launch
from .contract import Work

_LEAST_ALIGNMENT = 256  # bytes


def keep_no_programs() -> None:
    """Tells pyopencl to keep no programs on the disk, unless the user wants it, before it is imported.

    Each candidate of a tuning is another program: its cache would only grow.
    """
    os.environ.setdefault("PYOPENCL_NO_CACHE", "1")


def opencl_devices() -> list[Any]:
    """The OpenCL devices of this machine as pyopencl knows them, GPUs first; none without a driver.

    Raises:
        DeviceError: The package `pyopencl` is not installed, or cannot load OpenCL's library.
    """
    keep_no_programs()
    try:
        import pyopencl as cl
    except ImportError as error:
        raise DeviceError(f"OpenCL needs the package pyopencl, which cannot be imported: {one_line(error)}") from error
    try:
        platforms = cl.get_platforms()
    except cl.LogicError:  # the loader finds no driver
        return []
    devices: list[Any] = []
    for platform in platforms:
        try:
            devices += platform.get_devices()
        except cl.RuntimeError:  # a driver without a device
            continue
    return sorted(devices, key=lambda device: not device.type & cl.device_type.GPU)  # stable: else in OpenCL's order


def open_opencl(name: str) -> OpenClDevice:
    """The device with a name if there is one here, else the first one.

    Args:
        name: The name that OpenCL reports.

    Raises:
        DeviceError: There is no device, or it cannot be used.
    """
    devices = opencl_devices()
    if not devices:
        raise DeviceError("OpenCL finds no device here; it needs a driver (ICD), for a CPU pocl-opencl-icd")
    return OpenClDevice(next((each for each in devices if str(each.name).strip() == name), devices[0]))


class _Memory:
    """A part of a buffer."""

    def __init__(self, whole: Any, offset: int, size: int) -> None:
        self.whole, self.offset, self.size = whole, offset, size

    @cached_property
    def buffer(self) -> Any:
        """The part as kernels take it."""
        if self.offset == 0 and self.size == self.whole.size:
            return self.whole
        return self.whole.get_sub_region(self.offset, self.size)


class OpenClDevice:
    """An OpenCL device as a `Device`.

    Args:
        device: The device as pyopencl knows it.

    Attributes:
        name: Its name.
        alignment: Where memory that kernels read may begin.

    Raises:
        DeviceError: The driver makes no context for it.
    """

    def __init__(self, device: Any) -> None:
        import pyopencl as cl

        self._cl, self._device = cl, device
        self.name = str(device.name).strip()
        self.alignment = max(_LEAST_ALIGNMENT, device.mem_base_addr_align // 8)
        try:
            self._context = cl.Context([device])
        except cl.Error as error:
            raise DeviceError(f"{self.name}: cannot be used: {one_line(error)}") from error

    def allocate(self, size: int) -> _Memory:
        """See `Device`."""
        most = int(self._device.max_mem_alloc_size)
        if size > most:
            raise DeviceError(
                f"{self.name}: {size / 1e6:,.0f} MB are needed in one piece, and it gives {most / 1e6:,.0f}"
            )
        try:
            return _Memory(self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, max(size, 1)), 0, max(size, 1))
        except self._cl.Error as error:
            raise self._out_of_memory(size, error) from error

    def part(self, memory: _Memory, offset: int, size: int) -> _Memory:
        """See `Device`."""
        return _Memory(memory.whole, memory.offset + offset, max(size, 1))

    def staging(self, size: int) -> Array:
        """See `Device`. OpenCL copies from any memory."""
        return np.zeros(size, np.uint8)

    def load(self, images: Sequence[Image]) -> Callable[[str], Any]:
        """See `Device`."""
        programs = [self._built(image.code.decode()) for image in images if image.form == OPENCL_SOURCE]
        if images and not programs:
            raise DeviceError(f"{self.name}: takes kernels of OpenCL, and these are {images[0].form}")
        names: Mapping[str, Any] = {
            name: program for program in programs for name in str(program.kernel_names).split(";")
        }

        def function(name: str) -> Any:
            if name not in names:
                raise DeviceError(f"{self.name}: the code has no kernel {name}")
            return self._cl.Kernel(names[name], name)  # it holds the arguments of a launch

        return function

    def prepare(self, function: Any, launch: Launch, arguments: Sequence[_Memory]) -> Any:
        """See `Device`."""
        self.check_items(function, launch)
        if launch.shared:
            raise DeviceError(f"{self.name}: {launch.entry} asks for local memory at its launch, which OpenCL cannot")
        try:
            function.set_args(*(memory.buffer for memory in arguments))
        except self._cl.Error as error:
            raise DeviceError(f"{self.name}: {launch.entry}: {one_line(error)}") from error
        extents = tuple(groups * items for groups, items in zip(launch.groups, launch.items, strict=True))
        return function, extents, launch.items, tuple(arguments)  # which nothing else may keep

    def check_items(self, function: Any, launch: Launch) -> None:
        """Checks the size of the work-groups of a launch.

        Args:
            function: The kernel.
            launch: How it is launched.

        Raises:
            DeviceError: They are larger than the device can execute.
        """
        threads = math.prod(launch.items)
        group = self._cl.kernel_work_group_info.WORK_GROUP_SIZE
        if threads > (most := int(function.get_work_group_info(group, self._device))):
            raise DeviceError(
                f"{self.name}: {launch.entry} has {threads} work-items in a work-group; the device executes at most"
                f" {most} with what the kernel needs"
            )

    def queue(self) -> OpenClQueue:
        """See `Device`."""
        profiling = self._cl.command_queue_properties.PROFILING_ENABLE
        return OpenClQueue(self.name, self._cl, self._cl.CommandQueue(self._context, self._device, profiling))

    def _built(self, source: str) -> Any:
        if "cl_khr_fp16" in source and "cl_khr_fp16" not in self._device.extensions.split():
            raise DeviceError(f"{self.name}: does not compute in float16 (cl_khr_fp16)")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._cl.CompilerWarning)  # the compiler has said something
            try:
                return self._cl.Program(self._context, source).build()
            except self._cl.Error as error:
                raise DeviceError(
                    f"{self.name}: its compiler refuses the kernels: {first_error(str(error))}"
                ) from error

    def _out_of_memory(self, size: int, error: Exception) -> DeviceError:
        return DeviceError(f"{self.name}: has no {size / 1e6:,.0f} MB of memory left: {one_line(error)}")


class OpenClQueue:
    """A queue of an OpenCL device as a `Queue`.

    Args:
        name: The name of the device.
        cl: The package.
        queue: pyopencl's queue, which takes the time of each command.
    """

    def __init__(self, name: str, cl: Any, queue: Any) -> None:
        self._name, self._cl, self._queue = name, cl, queue
        self._recorded: list[Any] | None = None  # the commands of a work that is captured
        self._timed: list[Any] | None = None  # the events of a work that is timed

    def upload(self, array: Array, memory: _Memory) -> None:
        """See `Queue`."""
        if array.nbytes:
            self._put(self._copy, memory.whole, array, {"dst_offset": memory.offset})

    def download(self, memory: _Memory, array: Array) -> None:
        """See `Queue`."""
        if array.nbytes:
            self._put(self._copy, array, memory.whole, {"src_offset": memory.offset})

    def copy(self, source: _Memory, target: _Memory, size: int) -> None:
        """See `Queue`."""
        if size:
            self._put(self._copy_inside, source, target, size)

    def launch(self, prepared: Any) -> None:
        """See `Queue`."""
        self._put(self._start, *prepared)

    def capture(self, work: Work) -> Work:
        """See `Queue`. OpenCL has no graphs that all drivers know: the commands are put into the queue again."""
        self._recorded = []
        try:
            work()
            commands = self._recorded
        finally:
            self._recorded = None

        def replay() -> None:
            for function, arguments in commands:
                self._put(function, *arguments)

        return replay

    def wait(self) -> None:
        """See `Queue`."""
        try:
            self._queue.finish()
        except self._cl.Error as error:
            raise self._failed(error) from error

    def seconds(self, work: Work) -> float:
        """See `Queue`: from the start of the first command to the end of the last one."""
        self.wait()
        self._timed = []
        try:
            work()
            self.wait()
            events = self._timed
        finally:
            self._timed = None
        return float(events[-1].profile.end - events[0].profile.start) * 1e-9 if events else 0.0

    def _put(self, function: Callable[..., Any], *arguments: Any) -> None:
        if self._recorded is not None:
            self._recorded.append((function, arguments))
            return
        try:
            event = function(*arguments)
        except self._cl.Error as error:
            raise self._failed(error) from error
        if self._timed is not None:
            self._timed.append(event)

    def _copy(self, target: Any, source: Any, offset: Mapping[str, int]) -> Any:
        return self._cl.enqueue_copy(self._queue, target, source, is_blocking=False, **offset)

    def _copy_inside(self, source: _Memory, target: _Memory, size: int) -> Any:
        begins = {"src_offset": source.offset, "dst_offset": target.offset}
        return self._cl.enqueue_copy(self._queue, target.whole, source.whole, byte_count=size, **begins)

    def _start(self, kernel: Any, extents: Any, items: Any, _: Any) -> Any:
        return self._cl.enqueue_nd_range_kernel(self._queue, kernel, extents, items)

    def _failed(self, error: Exception) -> DeviceError:
        return DeviceError(f"{self._name}: a command has failed: {one_line(error)}")


def first_error(text: str) -> str:
    """The first line of a compiler's message that names an error; else its first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "no message")
