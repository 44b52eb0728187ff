"""A stand-in for `cuda.bindings.driver`: it records the calls, refuses misuse, and executes the work.

Memory of the device is memory of this machine between guards. Work waits in its stream until somebody waits for it, as
on a GPU: what is read too early, or changed too early, is wrong. A kernel is a Python function, or one of a library
that `cuda_on_host.library_of` has compiled from CUDA source.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from enum import IntEnum
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

PYTHON = b"the Python kernels of the stand-in"
"""The code of the kernels that are Python functions."""

LIBRARY = b"library "
"""What the code of kernels in a library begins with; its path follows."""

_GUARD, _FILL, _ALIGNMENT = 256, 0xAB, 256


class Misuse(AssertionError):
    """What no program may do, and what a driver may or may not notice."""


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_STUB_LIBRARY = 34
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_DEVICE = 101
    CUDA_ERROR_INVALID_IMAGE = 200
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222
    CUDA_ERROR_NOT_FOUND = 500
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905


class Kernel(NamedTuple):
    """A kernel: how many parameters it has, and what it does, given (blocks, threads, addresses)."""

    parameters: int
    run: Callable[..., Any]


class _Stream:
    """Work that waits, and what a capture has recorded."""

    def __init__(self, gpu: int) -> None:
        self.gpu = gpu
        self.pending: deque[Callable[[], None]] = deque()
        self.captured: list[tuple[Any, Callable[[], None]]] | None = None


class _Event:
    def __init__(self, timed: bool) -> None:
        self.timed, self.mark = timed, _Mark(None)


class _Mark:
    """A place in a stream."""

    def __init__(self, stream: _Stream | None) -> None:
        self.stream, self.seconds = stream, None if stream else 0.0


class _Memory(NamedTuple):
    size: int
    buffer: Any
    gpu: int


def _driver_function(values: int = 0, context: bool = True) -> Callable[[Callable[..., Any]], Any]:
    """A function of the driver: how many values it gives after its code, and whether it needs a context."""

    def decorated(function: Callable[..., Any]) -> Any:
        name = function.__name__

        @functools.wraps(function)
        def called(self: CudaDriver, *arguments: Any) -> tuple[Any, ...]:
            with self._lock:
                if context and not self._stack:
                    raise Misuse(f"{name}: no context is current in this thread")
                code = self.refused.get(name) or (self.lost if context else None)
                if code is None:
                    result = function(self, *arguments)
                    if not isinstance(result, CUresult):
                        return (CUresult.CUDA_SUCCESS, *(() if values == 0 else result if values > 1 else (result,)))
                    code = result
                return (code, *[None] * values)

        return called

    return decorated


class CudaDriver:
    """NVIDIA's module as an object, for so many equal GPUs.

    Args:
        kernels: The kernels that are Python functions, by name.
        capability: The compute capability of the GPUs.
        version: The version of CUDA that the driver knows.
        gpus: How many GPUs there are.
        memory: The bytes of memory of each.
        threads: The most threads of a block.

    Attributes:
        calls: What was done: the name of a function, and what tells its calls apart. Streams are "s1", "s2" and so on.
        graphs: The work of each graph, as in `calls`.
        refused: The errors that functions return, by their names.
        lost: The error that everything returns since a kernel has failed.
        shared: The bytes of shared memory that each kernel may ask for, if they are more than usual.
    """

    CUresult = CUresult
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=16,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=75,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=76,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=97,
    )
    CUfunction_attribute = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK=0, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8
    )
    CUpointer_attribute = SimpleNamespace(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL=9)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)

    def __init__(
        self,
        kernels: Mapping[str, Kernel] | None = None,
        capability: tuple[int, int] = (8, 6),
        version: int = 13_000,
        gpus: int = 1,
        memory: int = 1 << 30,
        threads: int = 1024,
    ) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.graphs: list[list[tuple[Any, ...]]] = []
        self.refused: dict[str, CUresult] = {}
        self.lost: CUresult | None = None
        self.shared: dict[str, int] = {}
        self._kernels, self._capability, self._version = kernels or {}, capability, version
        self._gpus, self._limit, self._threads = gpus, memory, threads
        self._lock = threading.RLock()
        self._numbers = itertools.count(3)  # 1 and 2 are the default streams
        self._things: dict[int, Any] = {1: _Stream(0), 2: _Stream(0)}
        self._retained: list[int] = [0] * gpus
        self._memory: dict[int, _Memory] = {}
        self._pinned: dict[int, Any] = {}
        self._damaged: list[str] = []
        self._local = threading.local()
        self._started = False

    def leaks(self) -> list[str]:
        """What was not given back, and memory beside which something was written."""
        things = [f"{type(thing).__name__} {number}" for number, thing in self._things.items() if number > 2]
        memory = [f"{memory.size} bytes" for memory in self._memory.values()]
        contexts = [f"context {gpu}" for gpu, count in enumerate(self._retained) if count]
        return [*self._damaged, *things, *memory, *(["pinned"] * len(self._pinned)), *contexts, *map(str, self._stack)]

    @property
    def used(self) -> int:
        """The bytes of the memory that is allocated."""
        return sum(memory.size for memory in self._memory.values())

    @property
    def gpus_in_use(self) -> set[int]:
        """The numbers of the GPUs that have memory allocated."""
        return {memory.gpu for memory in self._memory.values()}

    @property
    def _stack(self) -> list[int]:
        """The contexts of this thread, each as the number of its GPU."""
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        return self._local.stack

    # ---------------------------------------------------------------------------------------------- GPUs and contexts
    @_driver_function(1, context=False)
    def cuDriverGetVersion(self) -> Any:
        return self._version

    @_driver_function(context=False)
    def cuInit(self, flags: int) -> Any:
        if not self._gpus:
            return CUresult.CUDA_ERROR_NO_DEVICE
        self._started = True

    @_driver_function(1, context=False)
    def cuDeviceGetCount(self) -> Any:
        _expect(self._started, "cuInit was not called")
        return self._gpus

    @_driver_function(1, context=False)
    def cuDeviceGet(self, index: int) -> Any:
        return index if 0 <= index < self._gpus else CUresult.CUDA_ERROR_INVALID_DEVICE

    @_driver_function(1, context=False)
    def cuDeviceGetName(self, length: int, device: int) -> Any:
        return b"Stand-in\0".ljust(length)  # spaces, as the package has them

    @_driver_function(1, context=False)
    def cuDeviceGetAttribute(self, attribute: int, device: int) -> Any:
        major, minor = self._capability
        return {16: 84, 75: major, 76: minor, 97: 100 << 10}[attribute]

    @_driver_function(1, context=False)
    def cuDevicePrimaryCtxRetain(self, device: int) -> Any:
        self._retained[device] += 1
        return device

    @_driver_function(context=False)
    def cuDevicePrimaryCtxRelease(self, device: int) -> Any:
        _expect(self._retained[device] > 0, "the context was released too often")
        self._retained[device] -= 1

    @_driver_function(context=False)
    def cuCtxPushCurrent(self, context: int) -> Any:
        _expect(self._retained[context] > 0, "the context is not retained")
        self._stack.append(context)

    @_driver_function(1)
    def cuCtxPopCurrent(self) -> Any:
        return self._stack.pop()

    def cuGetErrorString(self, code: int) -> tuple[Any, bytes]:
        return CUresult.CUDA_SUCCESS, f"text of {int(code)}".encode()

    # --------------------------------------------------------------------------------------------------------- memory
    @_driver_function(2)
    def cuMemGetInfo(self) -> Any:
        return self._limit - self.used, self._limit

    @_driver_function(1)
    def cuMemAlloc(self, size: int) -> Any:
        _expect(size > 0, "nothing is allocated")
        if self.used + size > self._limit:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY
        buffer = np.full(size + 2 * _GUARD + _ALIGNMENT, _FILL, np.uint8)
        address = -(-(buffer.ctypes.data + _GUARD) // _ALIGNMENT) * _ALIGNMENT
        self._memory[address] = _Memory(size, buffer, self._stack[-1])
        return address

    @_driver_function()
    def cuMemFree(self, address: int) -> Any:
        _expect(address in self._memory, "memory is freed that is not allocated")
        for thing in list(self._things.values()):  # the driver waits for work on it
            if isinstance(thing, _Stream):
                self._finish(thing)
        memory = self._memory.pop(address)
        begin = address - memory.buffer.ctypes.data
        outside = np.concatenate([memory.buffer[:begin], memory.buffer[begin + memory.size :]])
        if (outside != _FILL).any():  # whoever frees memory may not be able to raise
            self._damaged.append(f"memory beside {memory.size} bytes was written")

    @_driver_function(1)
    def cuMemHostAlloc(self, size: int, flags: int) -> Any:
        buffer = np.full(size, _FILL, np.uint8)
        self._pinned[buffer.ctypes.data] = buffer
        return buffer.ctypes.data

    @_driver_function()
    def cuMemFreeHost(self, address: int) -> Any:
        _expect(address in self._pinned, "pinned memory is freed that is not there")
        del self._pinned[address]

    @_driver_function(1)
    def cuPointerGetAttribute(self, attribute: int, address: int) -> Any:
        for begin, memory in self._memory.items():
            if begin <= address < begin + memory.size:
                return memory.gpu
        return CUresult.CUDA_ERROR_INVALID_VALUE

    @_driver_function()
    def cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: int) -> Any:
        self._inside(target, size)
        self._copy("upload", target, source, size, stream, host=source)

    @_driver_function()
    def cuMemcpyDtoHAsync(self, target: int, source: int, size: int, stream: int) -> Any:
        self._inside(source, size)
        self._copy("download", target, source, size, stream, host=target)

    @_driver_function()
    def cuMemcpyDtoDAsync(self, target: int, source: int, size: int, stream: int) -> Any:
        self._inside(source, size)
        self._inside(target, size)
        self._copy("copy", target, source, size, stream)

    # -------------------------------------------------------------------------------------------------------- kernels
    @_driver_function(1)
    def cuModuleLoadData(self, code: bytes) -> Any:
        if code.startswith(PYTHON):
            return self._new(dict(self._kernels))
        if code.startswith(LIBRARY):
            return self._new(_kernels_of(code.removeprefix(LIBRARY).decode()))
        return CUresult.CUDA_ERROR_INVALID_IMAGE

    @_driver_function()
    def cuModuleUnload(self, module: int) -> Any:
        self._destroy(module, dict)

    @_driver_function(1)
    def cuModuleGetFunction(self, module: int, name: bytes) -> Any:
        kernel = self._thing(module, dict).get(name.decode())
        return CUresult.CUDA_ERROR_NOT_FOUND if kernel is None else (module, name.decode())

    @_driver_function(1)
    def cuFuncGetAttribute(self, attribute: int, function: tuple[int, str]) -> Any:
        _expect(attribute == 0, "an attribute that the stand-in does not know")
        return self._threads

    @_driver_function()
    def cuFuncSetAttribute(self, function: tuple[int, str], attribute: int, value: int) -> Any:
        if value > 100 << 10:
            return CUresult.CUDA_ERROR_INVALID_VALUE
        self.shared[function[1]] = value

    @_driver_function()
    def cuLaunchKernel(
        self,
        function: Any,
        gx: int,
        gy: int,
        gz: int,
        x: int,
        y: int,
        z: int,
        shared: int,
        stream: int,
        at: Any,
        _: int,
    ) -> Any:
        module, name = function
        kernel = self._thing(module, dict)[name]
        _expect(len(at) == kernel.parameters, f"{name} takes {kernel.parameters} parameters, not {len(at)}")
        _expect(x * y * z <= self._threads, f"{name} has too many threads")
        _expect(shared <= self.shared.get(name, 48 << 10), f"{name} was not given so much shared memory")
        addresses = [ctypes.c_uint64.from_address(int(each)).value for each in at]
        for address in addresses:
            self._inside(address, 1)

        def run() -> None:
            for address in addresses:
                self._inside(address, 1)
            try:
                kernel.run((gx, gy, gz), (x, y, z), *addresses)
            except MemoryError:
                self.lost = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS

        self.put(stream, ("launch", name, (gx, gy, gz), (x, y, z)), run)

    # ------------------------------------------------------------------------------------------------ streams, events
    @_driver_function(1)
    def cuStreamCreate(self, flags: int) -> Any:
        return self._new(_Stream(self._stack[-1]))

    @_driver_function()
    def cuStreamDestroy(self, stream: int) -> Any:
        self._finish(self._thing(stream, _Stream))
        self._destroy(stream, _Stream)

    @_driver_function()
    def cuStreamSynchronize(self, stream: int) -> Any:
        self.calls.append(("wait", f"s{stream}"))
        self._finish(self._free(stream))
        return self.lost

    @_driver_function()
    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> Any:
        mark = self._thing(event, _Event).mark
        if self._thing(stream, _Stream).captured is not None:
            return CUresult.CUDA_ERROR_STREAM_CAPTURE_ISOLATION
        source = next((number for number, thing in self._things.items() if thing is mark.stream), 0)
        self.put(stream, ("after", f"s{source}"), lambda: self._finish(mark.stream, mark))

    @_driver_function(1)
    def cuEventCreate(self, flags: int) -> Any:
        return self._new(_Event(flags & 2 == 0))

    @_driver_function()
    def cuEventDestroy(self, event: int) -> Any:
        self._destroy(event, _Event)

    @_driver_function()
    def cuEventRecord(self, event: int, stream: int) -> Any:
        mark = self._thing(event, _Event).mark = _Mark(self._free(stream))

        def passed() -> None:
            mark.seconds = time.perf_counter()

        self._free(stream).pending.append(passed)

    @_driver_function()
    def cuEventSynchronize(self, event: int) -> Any:
        mark = self._thing(event, _Event).mark
        self._finish(mark.stream, mark)
        return self.lost

    @_driver_function(1)
    def cuEventElapsedTime(self, begin: int, end: int) -> Any:
        events = [self._thing(event, _Event) for event in (begin, end)]
        _expect(all(event.timed and event.mark.seconds is not None for event in events), "an event has no time yet")
        return (events[1].mark.seconds - events[0].mark.seconds) * 1e3

    # --------------------------------------------------------------------------------------------------------- graphs
    @_driver_function()
    def cuStreamBeginCapture(self, stream: int, mode: int) -> Any:
        _expect(stream != 1, "the default stream cannot be captured")
        self._free(stream).captured = []

    @_driver_function(1)
    def cuStreamEndCapture(self, stream: int) -> Any:
        captured = self._thing(stream, _Stream).captured
        _expect(captured is not None, "the stream is not being captured")
        self._thing(stream, _Stream).captured = None
        return self._new(list(captured))

    @_driver_function(1)
    def cuGraphInstantiate(self, graph: int, flags: int) -> Any:
        work = self._thing(graph, list)
        self.graphs.append([call for call, _ in work])
        return self._new((len(self.graphs) - 1, [function for _, function in work]))

    @_driver_function()
    def cuGraphDestroy(self, graph: int) -> Any:
        self._destroy(graph, list)

    @_driver_function()
    def cuGraphExecDestroy(self, executable: int) -> Any:
        self._destroy(executable, tuple)

    @_driver_function()
    def cuGraphUpload(self, executable: int, stream: int) -> Any:
        self._thing(executable, tuple)
        self._free(stream)

    @_driver_function()
    def cuGraphLaunch(self, executable: int, stream: int) -> Any:
        number, work = self._thing(executable, tuple)
        self._free(stream)

        def run() -> None:
            for each in work:
                each()

        self.put(stream, ("graph", number), run)

    # -------------------------------------------------------------------------------------------------------- helpers
    def _new(self, thing: Any) -> int:
        number = next(self._numbers)
        self._things[number] = thing
        return number

    def _thing(self, number: int, kind: type) -> Any:
        thing = self._things.get(number)
        _expect(isinstance(thing, kind), f"{number} is no {kind.__name__}, or was destroyed")
        return thing

    def _free(self, stream: int) -> _Stream:
        """A stream that is not being captured."""
        found: _Stream = self._thing(stream, _Stream)
        _expect(found.captured is None, "the stream is being captured")
        return found

    def _destroy(self, number: int, kind: type) -> None:
        self._thing(number, kind)
        del self._things[number]

    def _inside(self, address: int, size: int) -> None:
        fits = any(begin <= address and address + size <= begin + each.size for begin, each in self._memory.items())
        _expect(fits, f"{size} bytes are not inside of memory that is allocated")

    def _copy(self, name: str, target: int, source: int, size: int, stream: int, host: int | None = None) -> None:
        if host is not None and self._thing(stream, _Stream).captured is not None:
            pinned = any(begin <= host and host + size <= begin + each.nbytes for begin, each in self._pinned.items())
            _expect(pinned, "a captured copy needs pinned memory")
        device = [each for each in (target, source) if each != host]

        def run() -> None:
            for each in device:
                self._inside(each, size)
            ctypes.memmove(target, source, size)

        self.put(stream, (name, size), run)

    def put(self, stream: int, call: tuple[Any, ...], run: Callable[[], None]) -> None:
        """Puts work into a stream, or into the graph that is captured from it.

        Args:
            stream: The number of the stream.
            call: What `calls` says about the work.
            run: Does the work.
        """
        found = self._thing(stream, _Stream)
        if found.captured is not None:
            found.captured.append((call, run))
            return
        self.calls.append((*call, f"s{stream}"))
        found.pending.append(run)

    def _finish(self, stream: _Stream | None, mark: _Mark | None = None) -> None:
        """Does the work of a stream, up to a mark if there is one."""
        while stream is not None and stream.pending and (mark is None or mark.seconds is None):
            work = stream.pending.popleft()
            if self.lost is None:
                work()


def in_context(driver: CudaDriver, name: str, *arguments: Any, gpu: int = 0) -> Any:
    """What a function of a driver gives to somebody else who uses it.

    Args:
        driver: The driver.
        name: The function.
        *arguments: Its arguments.
        gpu: The number of the GPU whose context is current.
    """
    driver.cuDevicePrimaryCtxRetain(gpu)
    driver.cuCtxPushCurrent(gpu)
    try:
        code, *values = getattr(driver, name)(*arguments)
    finally:
        driver.cuCtxPopCurrent()
        driver.cuDevicePrimaryCtxRelease(gpu)
    assert not code
    return values[0] if values else None


def _expect(right: bool, otherwise: str) -> None:
    if not right:
        raise Misuse(otherwise)


def _kernels_of(path: str) -> dict[str, Kernel]:
    """The kernels of a library. It lists them, each with the number of its parameters."""
    library = ctypes.CDLL(path)
    listed = ctypes.c_char_p.in_dll(library, "host_kernels").value or b""
    entries = (entry.split() for entry in listed.decode().splitlines())
    return {name: Kernel(int(count), _runner(library[f"host_run_{name}"])) for name, count in entries}


def _runner(function: Any) -> Callable[..., None]:
    def run(groups: tuple[int, ...], items: tuple[int, ...], *addresses: int) -> None:
        function((ctypes.c_uint64 * len(addresses))(*addresses), (ctypes.c_int * 6)(*groups, *items))

    return run
