"""What NVIDIA's driver says of this machine's GPUs (NVML). Where there is no driver, there are none."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pynvml

VISIBLE = "CUDA_VISIBLE_DEVICES"
# Power is limited under any heavy load: that is the GPU's speed, and nothing that passes.
_SLOWED = (
    pynvml.nvmlClocksThrottleReasonHwSlowdown
    | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
)


@dataclass(frozen=True)
class Gpu:
    """One GPU: `number` as nvidia-smi counts; its highest `clock` in MHz; the limit of its power in watts.

    `lanes` of float32 in all multiprocessors, of the architecture `arch`; `memory` is its highest clock, `bus` its
    bits. 0 is what the driver does not tell. Nothing here changes while it works.
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


def gpus() -> tuple[Gpu, ...]:
    """Those that this process may use: all, or what CUDA_VISIBLE_DEVICES names by number or by UUID."""
    if not _started():
        return ()
    visible = os.environ.get(VISIBLE)
    every = range(pynvml.nvmlDeviceGetCount())
    numbers = list(every) if visible is None else [_number(word.strip()) for word in visible.split(",")]
    return tuple(_gpu(number) for number in numbers if number in every)


def slowed(number: int) -> bool:
    """Whether heat or a fault holds a GPU's clocks back right now; False where the driver does not tell."""
    if not _started():
        return False
    handle = pynvml.nvmlDeviceGetHandleByIndex(number)
    return bool(_told(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) & _SLOWED)


def clock(number: int) -> int:
    """MHz of a GPU's multiprocessors right now; 0 where the driver does not tell."""
    if not _started():
        return 0
    return _told(pynvml.nvmlDeviceGetClockInfo, pynvml.nvmlDeviceGetHandleByIndex(number), pynvml.NVML_CLOCK_SM)


@lru_cache(maxsize=1)
def _started() -> bool:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver, or no device of it here
        return False
    return True


def _number(word: str) -> int:
    """Of a GPU that is named by number or UUID; -1 where there is no such GPU."""
    if not word.startswith("GPU-"):
        return int(word) if word.isdigit() else -1
    try:
        return int(pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(word)))
    except pynvml.NVMLError:
        return -1


def _gpu(number: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(number)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        number,
        pynvml.nvmlDeviceGetName(handle),
        pynvml.nvmlSystemGetDriverVersion(),
        f"sm_{major}{minor}",
        _told(pynvml.nvmlDeviceGetNumGpuCores, handle),
        _told(pynvml.nvmlDeviceGetMemoryBusWidth, handle),
        _told(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
        _told(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        _told(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle) // 1000,
    )


def _told(question: Callable[..., int], *arguments: Any) -> int:
    """What a driver answers; 0 where this GPU, or a share of it, has no answer."""
    try:
        return int(question(*arguments))
    except pynvml.NVMLError:
        return 0
