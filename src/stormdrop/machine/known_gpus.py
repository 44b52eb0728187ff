"""NVIDIA's GPUs that kernels can be made for on any machine: the figures of families and of single GPUs.

Those of a family are from the CUDA C++ programming guide ("Compute Capabilities") and `cuda_occupancy.h` of the CUDA
toolkit. Those of a GPU are from its data sheet. FLOP/s are at its boost clock: as the sheet states them, and else
(GeForce GTX) 2 operations x lanes x that clock.
"""

from __future__ import annotations

from typing import NamedTuple


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
