"""The primary context of an NVIDIA GPU, by the driver's interface, and what the driver's error codes mean.

torch, CuPy, JAX and TVM use the primary context too: memory, streams and events of theirs are valid in ours.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ...errors import DeviceError, one_line

_OLDEST = 12_000  # the version of CUDA that a driver has to know at least, as the driver writes it

_MEANINGS = {
    "CUDA_ERROR_OUT_OF_MEMORY": "there is not enough memory",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "a kernel has accessed memory that is not there",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "a kernel has accessed memory at an address that its type does not allow",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "a kernel took longer than a GPU with a display allows",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "its threads need more registers or shared memory than a multiprocessor has",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "libcuda.so.1 is not of the driver that the system runs: restart the machine",
    "CUDA_ERROR_STREAM_CAPTURE_ISOLATION": "the stream is being captured, and models cannot be captured by others",
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": "a stream is being captured, and models cannot be captured by others",
}

_LOST = {
    f"CUDA_ERROR_{name}"
    for name in (
        *("ILLEGAL_ADDRESS", "MISALIGNED_ADDRESS", "LAUNCH_TIMEOUT", "LAUNCH_FAILED", "ILLEGAL_INSTRUCTION"),
        *("HARDWARE_STACK_ERROR", "INVALID_ADDRESS_SPACE", "INVALID_PC", "ASSERT", "ECC_UNCORRECTABLE"),
    )
}
"""What leaves a context in which nothing works any more."""


class _GivenBack(NamedTuple):
    """What is given back to a GPU, which has one context for all the `CudaContext`s of a process.

    Attributes:
        things: Handles that wait for it, and the functions that take them.
        turn: Is held while one is given back, or a stream is captured.
    """

    things: deque[tuple[Callable[[Any], Any], Any]]
    turn: threading.Lock


_given_back: WeakKeyDictionary[Any, dict[int, _GivenBack]] = WeakKeyDictionary()  # by driver and number


class CudaContext:
    """The primary context of a GPU. It is current in a thread inside of `with`, and what was current is so afterwards.

    Args:
        index: The number of the GPU in this process.
        driver: NVIDIA's module `cuda.bindings.driver`.

    Attributes:
        driver: The module.
        gpu: The number of the GPU.
        device: The driver's handle of the GPU.
        name: The GPU's name.
        count: How many GPUs there are.
        version: The version of CUDA that the driver knows, such as "12.4".

    Raises:
        DeviceError: There is no driver, or it is too old; there is no such GPU, or it cannot be used.
    """

    def __init__(self, index: int, driver: Any) -> None:
        self.driver, self.gpu, self.name = driver, index, f"GPU {index}"
        try:
            code, version = driver.cuDriverGetVersion()
        except RuntimeError as error:
            raise DeviceError("there is no NVIDIA driver here, which CUDA needs: libcuda.so.1 does not load") from error
        self.check("ask for the driver's version", code)
        self.version = f"{version // 1000}.{version % 1000 // 10}"
        if version < _OLDEST:
            raise DeviceError(
                f"the NVIDIA driver here is for CUDA {self.version}, and CUDA 12 or newer is needed: install driver"
                " 525 or newer"
            )
        (code,) = driver.cuInit(0)
        if code.name == "CUDA_ERROR_NO_DEVICE":
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            hidden = "" if visible is None else f" that CUDA_VISIBLE_DEVICES={visible} lets this process use"
            raise DeviceError(f"there is no NVIDIA GPU here{hidden}")
        self.check("start the driver", code)
        self.count = count = self.call("count the GPUs", driver.cuDeviceGetCount)
        if not 0 <= index < count:
            raise DeviceError(f"there is no GPU {index}: this process has {count}, numbered from 0")
        self.device = self.call("open it", driver.cuDeviceGet, index)
        self.name = self.call("ask for its name", driver.cuDeviceGetName, 256, self.device).partition(b"\0")[0].decode()
        self._given_back = _given_back.setdefault(driver, {}).setdefault(index, _GivenBack(deque(), threading.Lock()))
        self._context = self.call("make a context", driver.cuDevicePrimaryCtxRetain, self.device)
        weakref.finalize(self, driver.cuDevicePrimaryCtxRelease, self.device)

    def __enter__(self) -> CudaContext:
        self.call("use its context", self.driver.cuCtxPushCurrent, self._context)
        return self

    def __exit__(self, *raised: object) -> None:
        self.driver.cuCtxPopCurrent()

    def call(self, doing: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of the driver gives.

        Args:
            doing: What is done, for the message if it fails: "GPU 0: cannot ...".
            function: The function.
            *arguments: Its arguments.

        Raises:
            DeviceError: It has failed, or the driver has no such function.
        """
        try:
            code, *values = function(*arguments)
        except RuntimeError as error:
            raise DeviceError(
                f"{self.name}: cannot {doing}: the driver, which is for CUDA {self.version}, is too old for this"
                f" cuda-bindings ({one_line(error)}): install a newer driver or an older cuda-bindings"
            ) from error
        if code:
            self.check(doing, code)
        return values[0] if values else None

    def check(self, doing: str, code: Any) -> None:
        """Checks what a function of the driver has returned.

        Args:
            doing: What was done.
            code: The driver's `CUresult`.

        Raises:
            DeviceError: It is an error. The message is one line.
        """
        if not code:
            return
        _, text = self.driver.cuGetErrorString(code)
        message = f"{self.name}: cannot {doing}: {_MEANINGS.get(code.name) or text.decode()} ({code.name})"
        if code.name == "CUDA_ERROR_OUT_OF_MEMORY":
            failed, free, total = self.driver.cuMemGetInfo()
            message += "" if failed else f"; {free / 1e6:,.0f} MB of the GPU's {total / 1e6:,.0f} are free"
        if code.name in _LOST:
            message += "; CUDA's context is lost, and with it all that this process has on the GPU: start another one"
        raise DeviceError(message)

    def attribute(self, name: str) -> int:
        """A property of the GPU.

        Args:
            name: Its name without what all of them begin with, such as "COMPUTE_CAPABILITY_MAJOR".
        """
        attribute = getattr(self.driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.call(f"ask for {name}", self.driver.cuDeviceGetAttribute, attribute, self.device))

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Keeps what this process gives back to the GPU meanwhile, by whatever thread, until nothing is captured.

        cuMemFree waits for the GPU, and nothing may wait for a stream that is captured. One is captured at a time.
        """
        try:
            with self._given_back.turn:
                yield
        finally:
            self._give_back()

    def release_with(self, owner: Any, function: Callable[[Any], Any], handle: Any) -> None:
        """Gives something of the driver back when an object is gone.

        Args:
            owner: The object.
            function: The driver's function that takes the thing back.
            handle: The thing.
        """
        weakref.finalize(owner, self._release, function, handle)

    def _release(self, function: Callable[[Any], Any], handle: Any) -> None:
        self._given_back.things.append((function, handle))
        self._give_back()

    def _give_back(self) -> None:
        """Gives back what waits. Where that fails the context is lost, or of another process, and nothing is left.

        It never waits for its turn: it may be called amid anything, by the garbage collector. Whoever has the turn
        gives back the rest.
        """
        things, turn = self._given_back
        while things and turn.acquire(blocking=False):
            try:
                function, handle = things.popleft()
                (failed,) = self.driver.cuCtxPushCurrent(self._context)
                if not failed:
                    function(handle)
                    self.driver.cuCtxPopCurrent()
            finally:
                turn.release()
