"""What NVIDIA's driver (NVML) reports about the GPUs of this machine. Without a driver there are no GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pynvml

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
"""The environment variable that limits the GPUs that a process may use."""

# The limit of power is left out: any heavy load reaches it, so it belongs to the GPU's normal speed.
_SLOWED = (
    pynvml.nvmlClocksThrottleReasonHwSlowdown
    | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
)


@dataclass(frozen=True)
class GpuInfo:
    """The properties of one GPU that stay the same while it works. A number is 0 if the driver does not report it.

    Attributes:
        number: The GPU's number, as nvidia-smi counts.
        name: The marketing name, such as "NVIDIA H200".
        driver: The version of the driver.
        arch: The architecture, such as "sm_90".
        lanes: float32 lanes of all multiprocessors together.
        bus: The width of the memory bus in bits.
        clock: The highest clock of the multiprocessors in MHz.
        memory: The highest clock of the memory in MHz.
        watts: The limit of the GPU's power in watts.
    """

    number: int
    name: str
    driver: str
    arch: str
    lanes: int
    bus: int
    clock: int
    memory: int
    watts: int

    def __str__(self) -> str:
        return f"{self.clock} MHz, memory {self.memory} MHz, {self.watts} W, driver {self.driver}"


def visible_gpus() -> tuple[GpuInfo, ...]:
    """The GPUs that this process may use: all, or those that CUDA_VISIBLE_DEVICES names by number or by UUID."""
    if not _driver_loads():
        return ()
    visible = os.environ.get(VISIBLE_DEVICES)
    existing = range(pynvml.nvmlDeviceGetCount())
    numbers = list(existing) if visible is None else [_number(word.strip()) for word in visible.split(",")]
    return tuple(_describe(number) for number in numbers if number in existing)


def is_slowed(number: int) -> bool:
    """Whether heat or a fault reduces a GPU's clocks at this moment; False if the driver does not report it.

    Args:
        number: The GPU's number, as in `GpuInfo`.
    """
    if not _driver_loads():
        return False
    handle = pynvml.nvmlDeviceGetHandleByIndex(number)
    return bool(_value_or_zero(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) & _SLOWED)


def current_clock(number: int) -> int:
    """The clock of a GPU's multiprocessors at this moment in MHz; 0 if the driver does not report it.

    Args:
        number: The GPU's number, as in `GpuInfo`.
    """
    if not _driver_loads():
        return 0
    handle = pynvml.nvmlDeviceGetHandleByIndex(number)
    return _value_or_zero(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM)


def free_memory(number: int) -> int | None:
    """The bytes of a GPU's memory that nobody uses at this moment; None if the driver does not report them.

    Args:
        number: The GPU's number, as in `GpuInfo`.
    """
    if not _driver_loads():
        return None
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(number)).free)
    except pynvml.NVMLError:
        return None


@lru_cache(maxsize=1)
def _driver_loads() -> bool:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # there is no driver, or no GPU that it drives
        return False
    return True


def _number(word: str) -> int:
    """The number of a GPU that CUDA_VISIBLE_DEVICES names by number or UUID; -1 if there is no such GPU."""
    if not word.startswith("GPU-"):
        return int(word) if word.isdigit() else -1
    try:
        return int(pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(word)))
    except pynvml.NVMLError:
        return -1


def _describe(number: int) -> GpuInfo:
    handle = pynvml.nvmlDeviceGetHandleByIndex(number)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return GpuInfo(
        number,
        pynvml.nvmlDeviceGetName(handle),
        pynvml.nvmlSystemGetDriverVersion(),
        f"sm_{major}{minor}",
        _value_or_zero(pynvml.nvmlDeviceGetNumGpuCores, handle),
        _value_or_zero(pynvml.nvmlDeviceGetMemoryBusWidth, handle),
        _value_or_zero(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
        _value_or_zero(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        _value_or_zero(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle) // 1000,
    )


def _value_or_zero(query: Callable[..., int], *arguments: Any) -> int:
    """What the driver answers to a query; 0 if it has no answer for this GPU, or for this share of one."""
    try:
        return int(query(*arguments))
    except pynvml.NVMLError:
        return 0
