"""Tensors of torch in the memory of `CudaDriver`, and what torch says of its GPUs: A100s of this driver.

Their work goes into the stream that the driver has for torch's current one, so that what is read too early is wrong.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from stormdrop.machine import gpu as gpu_module
from stormdrop.machine.nvml import GpuInfo
from stormdrop.runtime.device import cuda
from stormdrop.runtime.device.device_array import DeviceArray
from stormdrop.runtime.sizes import TensorInfo

from .cuda_driver import CudaDriver

A100 = GpuInfo(0, "NVIDIA A100-SXM4-80GB", "580", "sm_80", 108 * 64, 5120, 1410, 1593, 400)


class TorchGpu:
    """A GPU of the driver, as torch has it.

    Args:
        driver: The driver.
        number: The number of the GPU.

    Attributes:
        stream: torch's current stream, as the driver numbers it.
    """

    def __init__(self, driver: CudaDriver, number: int = 0) -> None:
        self.driver, self.number, self.device = driver, number, torch.device("cuda", number)
        self._tensors = type("OnCuda", (_OnCuda,), {"gpu": self, "device": self.device})
        self.stream = self.call("cuStreamCreate", 1)

    def call(self, name: str, *arguments: Any) -> Any:
        """What a function of the driver gives in the context of this GPU."""
        self.driver.cuDevicePrimaryCtxRetain(self.number)
        self.driver.cuCtxPushCurrent(self.number)
        try:
            code, *values = getattr(self.driver, name)(*arguments)
        finally:
            self.driver.cuCtxPopCurrent()
            self.driver.cuDevicePrimaryCtxRelease(self.number)
        assert not code
        return values[0] if values else None

    def empty(self, shape: Any, dtype: torch.dtype) -> Any:
        """A tensor of this GPU that holds anything."""
        size = int(np.prod(shape)) * dtype.itemsize
        address = self.call("cuMemAlloc", max(size, 1))
        buffer = (ctypes.c_uint8 * max(size, 1)).from_address(address)
        weakref.finalize(buffer, self.call, "cuMemFree", address)
        return (
            torch.frombuffer(buffer, dtype=dtype, count=int(np.prod(shape))).reshape(shape).as_subclass(self._tensors)
        )

    def tensor(self, value: torch.Tensor) -> Any:
        """A copy of a tensor of this machine."""
        made = self.empty(value.shape, value.dtype)
        made.as_subclass(torch.Tensor).copy_(value)
        return made

    def finish(self) -> None:
        """Waits for the stream."""
        self.call("cuStreamSynchronize", self.stream)


class _OnCuda(torch.Tensor):
    """A tensor in the memory of the driver. It says that it is on its GPU."""

    gpu: TorchGpu

    def cpu(self) -> Any:
        self.gpu.finish()
        return self.as_subclass(torch.Tensor).clone()

    def to(self, device: torch.device) -> Any:
        assert device == self.device
        return self

    def contiguous(self) -> Any:
        return self if self.is_contiguous() else self.gpu.tensor(self.as_subclass(torch.Tensor))

    def copy_(self, source: Any) -> Any:
        assert self.is_contiguous() and source.is_contiguous()
        size = self.numel() * self.element_size()
        self.gpu.call("cuMemcpyDtoDAsync", self.data_ptr(), source.data_ptr(), size, self.gpu.stream)
        return self

    def __dlpack_device__(self) -> Any:
        return 2, self.gpu.number

    def __dlpack__(self, *, stream: int) -> Any:
        assert stream == self.gpu.stream
        info = TensorInfo("", tuple(self.shape), str(self.dtype).removeprefix("torch."))
        memory: Any = SimpleNamespace(address=self.data_ptr(), of=self)
        return DeviceArray(memory, info, self.gpu.number, stream, lambda *_: None).__dlpack__(stream=stream)


@contextmanager
def torch_gpus(driver: CudaDriver, patch: pytest.MonkeyPatch, count: int = 1) -> Iterator[list[TorchGpu]]:
    """The GPUs of a driver as those of torch and of this machine. What is not given back in the end is a failure.

    Args:
        driver: The driver.
        patch: Takes the changes back.
        count: How many GPUs torch is to use.
    """
    gpus = [TorchGpu(driver, number) for number in range(count)]
    empty, to, current = torch.empty, torch.Tensor.to, [gpus[0]]

    def made(shape: Any, *, dtype: torch.dtype, device: Any = None) -> Any:
        return current[-1].empty(shape, dtype) if device == current[-1].device else empty(shape, dtype=dtype)

    def moved(tensor: Any, device: Any) -> Any:
        return current[-1].tensor(tensor) if device == current[-1].device else to(tensor, device)

    @contextmanager
    def within(device: torch.device) -> Iterator[None]:
        current.append(gpus[device.index])
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(torch, "empty", made)
            inner.setattr(torch.Tensor, "to", moved)
            yield
        current.pop()

    patch.setattr(torch.cuda, "device", within)
    patch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=current[-1].stream))
    patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    found = SimpleNamespace(name=A100.name, major=8, minor=0)
    patch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    patch.setattr(cuda, "_bindings", lambda: driver)
    patch.setattr(gpu_module, "visible_gpus", lambda: (A100,))
    patch.setattr(gpu_module, "_runs_cuda", lambda: True)
    yield gpus
    gc.collect()
    for gpu in gpus:
        gpu.call("cuStreamDestroy", gpu.stream)
    assert driver.leaks() == []
