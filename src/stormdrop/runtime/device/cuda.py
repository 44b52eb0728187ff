"""A device that CUDA drives, by the driver's interface in NVIDIA's package `cuda-bindings`."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...errors import DeviceError, one_line
from ..inputs import Array, address_of
from .code import CUBIN, PTX, Image, Launch
from .contract import Work
from .cuda_context import CudaContext

_BRANDS = {"nvidia", "geforce", "tesla"}  # which names of targets leave out
_ALIGNMENT = 256  # bytes, as of all that CUDA allocates
_USUAL_SHARED = 48 << 10  # bytes of shared memory that a kernel gets without being asked
_TEGRA = {(7, 2), (8, 7), (11, 0)}  # compute capabilities whose machine code is no other GPU's, nor another's theirs
_ARCHITECTURE = re.compile(r"(?:sm|compute)_(\d+)(\d)([af]?)")


class _Allocation:
    """Memory that CUDA has given. It is given back with the last part of it; the driver waits for work on it then."""

    def __init__(self, context: CudaContext, address: int) -> None:
        self.address = address
        context.release_with(self, context.driver.cuMemFree, address)


class CudaMemory(NamedTuple):
    """A part of the memory of a GPU.

    Attributes:
        address: Where it begins.
        size: Its bytes.
        whole: What it is a part of; None for memory of somebody else.
    """

    address: int
    size: int
    whole: _Allocation | None


class _Module:
    """Kernels that were loaded. They are unloaded with the last of them."""

    def __init__(self, context: CudaContext, image: Image) -> None:
        driver = context.driver
        code = image.code + b"\0" if image.form == PTX else image.code  # a text ends with it
        doing = (
            f"load the kernels, which are damaged, or for a newer CUDA than the driver's {context.version}"
            f" ({image.form}, {image.arch})"
        )
        self.handle = context.call(doing, driver.cuModuleLoadData, code)
        context.release_with(self, driver.cuModuleUnload, self.handle)


class _Function(NamedTuple):
    """A kernel.

    Attributes:
        handle: The driver's.
        module: Where it comes from.
    """

    handle: Any
    module: _Module


class _Prepared(NamedTuple):
    """A launch with its arguments.

    Attributes:
        entry: The kernel's name.
        before: The driver's arguments before the stream.
        parameters: Where each argument of the kernel is.
        kept: What these point to.
    """

    entry: str
    before: tuple[Any, ...]
    parameters: Array
    kept: tuple[Any, ...]


def open_cuda(name: str, driver: Any = None) -> CudaDevice:
    """The first GPU with a name if there is one here, else the first one.

    Args:
        name: The name of a target, such as "rtx4090" for an "NVIDIA GeForce RTX 4090".
        driver: As for `CudaDevice`.

    Raises:
        DeviceError: As `CudaDevice`.
    """
    first = CudaDevice(0, driver)
    others = (CudaDevice(index, driver) for index in range(1, first.gpus_here))
    return next((device for device in (first, *others) if name in short_names(device.name)), first)


def short_names(marketing: str) -> list[str]:
    """The two names that a target may have for a GPU: "a100" and "a100sxm480gb" for "NVIDIA A100-SXM4-80GB".

    Args:
        marketing: The name that the driver gives it.
    """
    words = [word for word in marketing.lower().replace("-", " ").split() if word not in _BRANDS]
    return [*words[:1], "".join(words)]


class CudaDevice:
    """An NVIDIA GPU as a `Device`. Several threads may use one.

    Args:
        index: Its number in this process.
        driver: NVIDIA's module `cuda.bindings.driver`; None imports it.

    Attributes:
        name: Its name.
        alignment: Where memory that kernels read may begin.
        gpu: Its number.
        gpus_here: How many there are.
        arch: Its architecture, such as "sm_80".
        multiprocessors: How many multiprocessors it has.

    Raises:
        DeviceError: The package is not installed; there is no driver, or it is too old; there is no such GPU.
    """

    alignment = _ALIGNMENT

    def __init__(self, index: int = 0, driver: Any = None) -> None:
        self._context = CudaContext(index, driver or _bindings())
        self._driver, self.name, self.gpu = self._context.driver, self._context.name, index
        self.gpus_here = self._context.count
        major, minor = (self._context.attribute(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
        self._capability, self.arch = (major, minor), f"sm_{major}{minor}"
        self.multiprocessors = self._context.attribute("MULTIPROCESSOR_COUNT")

    def allocate(self, size: int) -> CudaMemory:
        """See `Device`."""
        with self._context as context:
            doing = f"allocate {size / 1e6:,.1f} MB in one piece"
            address = int(context.call(doing, self._driver.cuMemAlloc, max(size, 1)))
        return CudaMemory(address, max(size, 1), _Allocation(context, address))

    def part(self, memory: CudaMemory, offset: int, size: int) -> CudaMemory:
        """See `Device`."""
        return CudaMemory(memory.address + offset, max(size, 1), memory.whole)

    def staging(self, size: int) -> Array:
        """See `Device`. Its pages are pinned: the GPU copies from and to them while the caller goes on."""
        with self._context as context:
            doing = f"pin {size / 1e6:,.1f} MB of this machine's memory"
            address = int(context.call(doing, self._driver.cuMemHostAlloc, max(size, 1), 0))
        memory = (ctypes.c_uint8 * max(size, 1)).from_address(address)
        context.release_with(memory, self._driver.cuMemFreeHost, address)
        return np.ctypeslib.as_array(memory)[:size]

    def load(self, images: Sequence[Image]) -> Callable[[str], _Function]:
        """See `Device`."""
        with self._context as context:
            modules = [_Module(context, image) for image in self._fitting(images)]

        @cache
        def function(name: str) -> _Function:
            with context:
                for module in modules:
                    code, handle = self._driver.cuModuleGetFunction(module.handle, name.encode())
                    if code.name != "CUDA_ERROR_NOT_FOUND":
                        context.check(f"find kernel {name}", code)
                        return _Function(handle, module)
            raise DeviceError(f"{self.name}: the code has no kernel {name}")

        return function

    def prepare(self, function: _Function, launch: Launch, arguments: Sequence[CudaMemory]) -> _Prepared:
        """See `Device`. The arguments are packed here, once for all launches."""
        threads, kinds = math.prod(launch.items), self._driver.CUfunction_attribute
        with self._context as context:
            most = context.call(
                f"ask about {launch.entry}",
                self._driver.cuFuncGetAttribute,
                kinds.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                function.handle,
            )
            if threads > most:
                raise DeviceError(
                    f"{self.name}: {launch.entry} has {threads} threads in a block; the GPU executes at most {most}"
                    " with what the kernel needs"
                )
            if launch.shared > _USUAL_SHARED:
                limit = context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
                context.call(
                    f"give {launch.entry} {launch.shared:,} bytes of shared memory, of {limit:,} that a block can have",
                    self._driver.cuFuncSetAttribute,
                    function.handle,
                    kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    launch.shared,
                )
        values = np.array([memory.address for memory in arguments], np.uint64)
        parameters = values.ctypes.data + 8 * np.arange(len(values), dtype=np.uint64)
        before = (function.handle, *launch.groups, *launch.items, launch.shared)
        return _Prepared(launch.entry, before, parameters, (values, function, arguments))

    def queue(self) -> CudaQueue:
        """See `Device`."""
        return CudaQueue(self._context)

    def at(self, address: int) -> CudaMemory:
        """Memory of somebody else.

        Args:
            address: Where it begins.
        """
        return CudaMemory(address, 0, None)

    def gpu_of(self, address: int) -> int | None:
        """The number of the GPU in whose memory an address is; None for one that CUDA does not know.

        Args:
            address: The address.
        """
        kind = self._driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        with self._context:
            failed, number = self._driver.cuPointerGetAttribute(kind, address)
        return None if failed else int(number)

    def order(self, first: int, then: int) -> None:
        """Has what is put into a stream from now on wait for what another one has.

        Args:
            first: The stream that is waited for.
            then: The stream that waits.
        """
        order(self._context, first, then)

    def _fitting(self, images: Sequence[Image]) -> list[Image]:
        """The images of machine code for this GPU, else those of portable code."""
        ours = [image for image in images if image.form in (CUBIN, PTX)]
        if images and not ours:
            raise DeviceError(f"{self.name}: takes kernels of CUDA, and these are {images[0].form}")
        fitting = [image for image in ours if self._runs(image)]
        if images and not fitting:
            made = ", ".join(dict.fromkeys(image.arch for image in ours))
            raise DeviceError(
                f"{self.name} is an {self.arch}, and the kernels were made for {made}: compile the model for"
                f" {self.arch} (--arch)"
            )
        # The nearest machine code, else the nearest portable code.
        best = max(((image.form == CUBIN, _capability(image.arch)) for image in fitting), default=None)
        return [image for image in fitting if (image.form == CUBIN, _capability(image.arch)) == best]

    def _runs(self, image: Image) -> bool:
        """Whether this GPU executes an image: as CUDA's guide says, Binary and PTX Compatibility."""
        made, only = _capability(image.arch)
        if only == "a" or (image.form == CUBIN and _TEGRA & {made, self._capability}):
            return made == self._capability
        same_major = made[0] == self._capability[0] or (image.form == PTX and not only)
        return same_major and made <= self._capability


class CudaQueue:
    """A stream of a GPU as a `Queue`.

    Args:
        context: The context of the GPU.

    Attributes:
        stream: The driver's number of the stream that its work goes into.
    """

    def __init__(self, context: CudaContext) -> None:
        self._context, self._driver = context, context.driver
        with context:
            flags = self._driver.CUstream_flags.CU_STREAM_NON_BLOCKING
            self.stream = int(context.call("make a stream", self._driver.cuStreamCreate, int(flags)))
        context.release_with(self, self._driver.cuStreamDestroy, self.stream)

    def upload(self, array: Array, memory: CudaMemory) -> None:
        """See `Queue`."""
        if array.nbytes:
            source = address_of(array)
            self._put("copy to it", self._driver.cuMemcpyHtoDAsync, memory.address, source, array.nbytes)

    def download(self, memory: CudaMemory, array: Array) -> None:
        """See `Queue`."""
        if array.nbytes:
            target = address_of(array)
            self._put("copy from it", self._driver.cuMemcpyDtoHAsync, target, memory.address, array.nbytes)

    def copy(self, source: CudaMemory, target: CudaMemory, size: int) -> None:
        """See `Queue`."""
        if size:
            self._put("copy in its memory", self._driver.cuMemcpyDtoDAsync, target.address, source.address, size)

    def launch(self, prepared: _Prepared) -> None:
        """See `Queue`."""
        with self._context as context:
            context.call(
                f"launch {prepared.entry}",
                self._driver.cuLaunchKernel,
                *prepared.before,
                self.stream,
                prepared.parameters,
                0,
            )

    def capture(self, work: Work) -> Work:
        """See `Queue`: the work is a CUDA graph, which one launch puts into the stream."""
        driver, stream = self._driver, self.stream
        with self._context as context, context.capturing():
            # Relaxed: what other threads allocate meanwhile does not end the capture.
            relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            context.call("begin a capture", driver.cuStreamBeginCapture, stream, relaxed)
            try:
                work()
            except BaseException:
                failed, graph = driver.cuStreamEndCapture(stream)
                if not failed:
                    driver.cuGraphDestroy(graph)
                raise
            graph = context.call("end a capture", driver.cuStreamEndCapture, stream)
            try:
                executable = context.call("make a graph", driver.cuGraphInstantiate, graph, 0)
            finally:
                driver.cuGraphDestroy(graph)

        def replay() -> None:
            self._put("launch a graph", driver.cuGraphLaunch, executable)

        context.release_with(replay, driver.cuGraphExecDestroy, executable)
        self._put("upload a graph", driver.cuGraphUpload, executable)
        return replay

    def wait(self) -> None:
        """See `Queue`."""
        self._put("finish its work", self._driver.cuStreamSynchronize)

    def seconds(self, work: Work) -> float:
        """See `Queue`: between two events."""
        driver, stream = self._driver, self.stream
        with self._context as context, _event(context, 0) as begin, _event(context, 0) as end:
            context.call("record an event", driver.cuEventRecord, begin, stream)
            work()
            context.call("record an event", driver.cuEventRecord, end, stream)
            context.call("finish its work", driver.cuEventSynchronize, end)
            milliseconds = context.call("take the time", driver.cuEventElapsedTime, begin, end)
        return float(milliseconds) * 1e-3

    @contextmanager
    def on(self, stream: int) -> Iterator[None]:
        """Puts work into a stream of somebody else, after what is in this one, which then waits for the work.

        Args:
            stream: The stream.
        """
        own = self.stream
        order(self._context, own, stream)
        self.stream = stream
        try:
            yield
        finally:
            self.stream = own
        order(self._context, stream, own)

    def _put(self, doing: str, function: Callable[..., Any], *arguments: Any) -> None:
        with self._context as context:
            context.call(doing, function, *arguments, self.stream)


def order(context: CudaContext, first: int, then: int) -> None:
    """Has what is put into a stream from now on wait for what another one has.

    Args:
        context: The context of both.
        first: The stream that is waited for.
        then: The stream that waits.
    """
    driver = context.driver
    if first != then:
        with context, _event(context, int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)) as event:
            context.call("record an event", driver.cuEventRecord, event, first)
            context.call("wait for an event", driver.cuStreamWaitEvent, then, event, 0)


@contextmanager
def _event(context: CudaContext, flags: int) -> Iterator[Any]:
    """An event. The driver keeps it, once it is destroyed, as long as a stream has to wait for it."""
    event = context.call("make an event", context.driver.cuEventCreate, flags)
    try:
        yield event
    finally:
        context.driver.cuEventDestroy(event)


def _capability(arch: str) -> tuple[tuple[int, int], str]:
    """The compute capability of an architecture, and "a" or "f" if code for it runs on this one or its family only."""
    found = _ARCHITECTURE.fullmatch(arch)
    if found is None:
        raise DeviceError(f"{arch!r} is no architecture of a GPU, as sm_80 is")
    return (int(found[1]), int(found[2])), found[3]


def _bindings() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceError(
            "CUDA needs the package cuda-bindings, which cannot be imported:"
            f" {one_line(error)}: pip install 'stormdrop[cuda]'"
        ) from error
    return driver
