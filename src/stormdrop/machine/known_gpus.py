"""NVIDIA's GPUs that kernels can be made for on any machine: families, GPUs by name, and any by its numbers.

Those of a family are from the CUDA C++ programming guide ("Compute Capabilities") and `cuda_occupancy.h` of the CUDA
toolkit. Those of a GPU are from its data sheet. FLOP/s are at its boost clock: as the sheet states them, and else
(GeForce GTX) 2 operations x lanes x that clock.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..errors import TargetError, hint

ARCH = "sm_"
"""Begins the name of an architecture, and of a GPU that is written by its numbers."""
EXAMPLE = "cuda/sm_86:multiprocessors=84:clock=1.8e9:bandwidth=768e9"
"""A target that is written by its numbers."""

# Of the numbers: the least, the most, and the unit.
_RANGES = {
    "multiprocessors": (1, 1024, ""),
    "clock": (10**8, 10**10, " Hz"),
    "bandwidth": (10**9, 10**14, " bytes/s"),
    "lanes": (32, 256, ""),
    "warps": (32, 128, ""),
    "blocks": (1, 128, ""),
    "shared": (48 << 10, 1 << 20, " bytes"),
}


class Family(NamedTuple):
    """What a multiprocessor of an architecture has, by the names of the fields of `Gpu`."""

    lanes: int
    warps: int
    blocks: int
    shared: int


FAMILIES = {
    "sm_61": Family(128, 64, 32, 96 << 10),
    "sm_70": Family(64, 64, 32, 96 << 10),
    "sm_75": Family(64, 32, 16, 64 << 10),
    "sm_80": Family(64, 64, 32, 164 << 10),
    "sm_86": Family(128, 48, 16, 100 << 10),
    "sm_87": Family(128, 48, 16, 164 << 10),
    "sm_89": Family(128, 48, 24, 100 << 10),
    "sm_90": Family(128, 64, 32, 228 << 10),
    "sm_100": Family(128, 64, 32, 228 << 10),
    "sm_103": Family(128, 64, 32, 228 << 10),
    "sm_120": Family(128, 48, 24, 100 << 10),
    "sm_121": Family(128, 48, 24, 100 << 10),
}

NEED_CUDA_12 = frozenset({"sm_61", "sm_70"})
"""The architectures that CUDA 13 no longer compiles for."""
BEFORE_SM_80 = NEED_CUDA_12 | {"sm_75"}
"""The architectures that take no shared memory for the system, and give it to blocks in larger units."""
WITHOUT_TENSOR_CORES = frozenset({"sm_61"})
"""The architectures that lack the instructions. GeForce GTX 16 (sm_75) has them, though no cores of their own."""

_TENSOR_RATES = {"sm_61": 0, "sm_80": 2048, "sm_90": 2048, "sm_100": 2048, "sm_103": 2048}
_TENSOR_RATE = 1024
_SLOW_SUMS = re.compile(r"rtx\d|a10g")


def tensor_rate(name: str, arch: str) -> int:
    """FLOP of a multiprocessor in a cycle on tensor cores, by `mma.sync`, for 16-bit factors and float32 sums.

    They follow from the FLOP/s of NVIDIA's white papers. GeForce sums up in float32 at half the rate of float16, and so
    does the A10G. Since sm_90 other instructions are twice as fast.

    Args:
        name: The name of the GPU, such as "rtx3090".
        arch: Its architecture, such as "sm_86".

    Example:
        >>> tensor_rate("a100", "sm_80"), tensor_rate("rtxa6000", "sm_86"), tensor_rate("rtx3090", "sm_86")
        (2048, 1024, 512)
    """
    return _TENSOR_RATES.get(arch, _TENSOR_RATE) // (2 if _SLOW_SUMS.match(name) else 1)


class KnownGpu(NamedTuple):
    """The properties of a `Gpu` that its name stands for: FLOP/s in float32 without tensor cores, bytes/s of memory."""

    arch: str
    multiprocessors: int
    flops: float
    bandwidth: float


KNOWN_GPUS = {
    "gtx1080ti": KnownGpu("sm_61", 28, 11.3e12, 484e9),
    "gtx1650": KnownGpu("sm_75", 14, 2.98e12, 128e9),  # with GDDR5
    "t4": KnownGpu("sm_75", 40, 8.1e12, 320e9),
    "a100": KnownGpu("sm_80", 108, 19.5e12, 2039e9),  # SXM, 80 GB
    "rtx3080": KnownGpu("sm_86", 68, 29.8e12, 760e9),  # 10 GB
    "rtx3090": KnownGpu("sm_86", 82, 35.6e12, 936e9),
    "rtxa6000": KnownGpu("sm_86", 84, 38.7e12, 768e9),
    "a10g": KnownGpu("sm_86", 80, 35.0e12, 600e9),
    "rtx4090": KnownGpu("sm_89", 128, 82.6e12, 1008e9),
    "l4": KnownGpu("sm_89", 58, 30.3e12, 300e9),
    "l40s": KnownGpu("sm_89", 142, 91.6e12, 864e9),
    "h100": KnownGpu("sm_90", 132, 66.9e12, 3350e9),  # SXM
    "h200": KnownGpu("sm_90", 132, 66.9e12, 4800e9),
    "rtx5090": KnownGpu("sm_120", 170, 104.8e12, 1792e9),
}


def by_numbers(text: str) -> tuple[str, Family, KnownGpu]:
    """A GPU that is written as an architecture and numbers.

    Args:
        text: Such as "sm_86:multiprocessors=84:clock=1.8e9:bandwidth=768e9". The clock is in Hz, the
            bandwidth in bytes/s. What the family has may be written, too.

    Returns:
        Its name, in which each number has one spelling and one place; its multiprocessors; its properties.

    Raises:
        TargetError: The architecture is not known, or a number is missing, unknown, given twice or out of its range.

    Example:
        >>> by_numbers("sm_75:clock=1.59e9:bandwidth=320e9:multiprocessors=40")[0]
        'sm_75:multiprocessors=40:clock=1590e6:bandwidth=320e9'
    """
    arch, *settings = text.split(":")
    if arch not in FAMILIES:
        raise TargetError(
            f"target cuda/{text}: nothing is known of {arch}: there are kernels for {', '.join(FAMILIES)}"
        )
    usual, given = FAMILIES[arch]._asdict(), dict[str, int]()
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise TargetError(f"target cuda/{text}: write a number as name=value, not {setting!r}")
        if key not in _RANGES:
            raise TargetError(f"target cuda/{text}: a GPU has no number {key!r}; {hint(key, _RANGES)}")
        if key in given:
            raise TargetError(f"target cuda/{text}: {key} is given twice")
        given[key] = _number(text, key, value)
    numbers = {**usual, **given}
    if missing := [key for key in _RANGES if key not in numbers]:
        raise TargetError(f"target cuda/{text}: it lacks {', '.join(missing)}; write for example {EXAMPLE}")
    unusual = [f"{key}={_spelled(numbers[key])}" for key in _RANGES if numbers[key] != usual.get(key)]
    family, multiprocessors = Family(*(numbers[key] for key in Family._fields)), numbers["multiprocessors"]
    flops = 2.0 * family.lanes * multiprocessors * numbers["clock"]
    return ":".join([arch, *unusual]), family, KnownGpu(arch, multiprocessors, flops, float(numbers["bandwidth"]))


def _number(text: str, key: str, value: str) -> int:
    least, most, unit = _RANGES[key]
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not (least <= number <= most and number.is_integer()):
        limits = f"from {_spelled(least)} to {_spelled(most)}{unit}"
        raise TargetError(f"target cuda/{text}: {key}={value} must be a whole number {limits}")
    return int(number)


def _spelled(number: int) -> str:
    """A whole number as short as 768e9 and 1695e6."""
    powers = (power for power in (9, 6) if number % 10**power == 0)
    return next((f"{number // 10**power}e{power}" for power in powers), str(number))
