"""Opens the device that a model was made for."""

from __future__ import annotations

from ...errors import DeviceError
from .contract import Device

CUDA, OPENCL = "cuda", "opencl"


def open_device(kind: str, name: str = "", index: int = 0) -> Device:
    """A device of this machine.

    Args:
        kind: "cuda" or "opencl".
        name: The name of an OpenCL device, which is taken if it is here; else the first one is.
        index: The number of a CUDA device in this process.

    Raises:
        DeviceError: There is none, or it cannot be used.
    """
    if kind == OPENCL:
        from .opencl import open_opencl

        return open_opencl(name)
    if kind == CUDA:
        from .cuda import CudaDevice

        return CudaDevice(index)
    raise DeviceError(f"a device of the kind {kind!r} is not known; there is {CUDA} and {OPENCL}")
