"""Opens the device that a model was made for."""

from __future__ import annotations

from ...errors import DeviceError
from .contract import Device

CUDA, OPENCL = "cuda", "opencl"


def open_device(kind: str, name: str = "", number: int | None = None) -> Device:
    """A device of this machine.

    Args:
        kind: "cuda" or "opencl".
        name: Its name: that which OpenCL reports, or for CUDA that of a target, such as "rtx4090". The first device
            with the name is taken if there is one, else the first device.
        number: The number of an NVIDIA GPU in this process, which is then taken whatever its name.

    Raises:
        DeviceError: There is none, or it cannot be used.
    """
    if kind == OPENCL:
        from .opencl import open_opencl

        return open_opencl(name)
    if kind == CUDA:
        from .cuda import CudaDevice, open_cuda

        return open_cuda(name) if number is None else CudaDevice(number)
    raise DeviceError(f"a device of the kind {kind!r} is not known; there is {CUDA} and {OPENCL}")
