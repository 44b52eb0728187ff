"""CPUs that kernels can be compiled for on any machine, by names that `Target.parse` takes: "cpu/neoverse-n1"."""

from __future__ import annotations

from typing import NamedTuple

_KIB, _MIB = 1024, 1024**2
_LINUX_X86, _LINUX_ARM, _MACOS = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "arm64-apple-macos"


class KnownCpu(NamedTuple):
    """The properties of a `Target` that its name stands for, in the order of the target's own fields."""

    cpu: str
    mcpu: str
    cores: int
    lanes: int
    registers: int
    l1: int
    l2: int
    l3: int
    triple: str


KNOWN_CPUS = {
    f"cpu/{known.mcpu}": known
    for known in (
        KnownCpu("x86-64 with AVX2", "x86-64-v3", 4, 8, 16, 32 * _KIB, 256 * _KIB, 8 * _MIB, _LINUX_X86),
        KnownCpu("x86-64 with AVX-512", "x86-64-v4", 4, 16, 32, 32 * _KIB, 1 * _MIB, 16 * _MIB, _LINUX_X86),
        KnownCpu("Arm Cortex-A76", "cortex-a76", 4, 4, 32, 64 * _KIB, 512 * _KIB, 2 * _MIB, _LINUX_ARM),
        KnownCpu("Arm Neoverse N1", "neoverse-n1", 64, 4, 32, 64 * _KIB, 1 * _MIB, 32 * _MIB, _LINUX_ARM),
        KnownCpu("Arm Neoverse V1", "neoverse-v1", 64, 4, 32, 64 * _KIB, 1 * _MIB, 32 * _MIB, _LINUX_ARM),
        KnownCpu("Apple M1", "apple-m1", 4, 4, 32, 128 * _KIB, 12 * _MIB, 0, _MACOS),
    )
}
"""By the target's name: `cpu/` and LLVM's name of the processor.

If a processor comes in several sizes, these are the cores and caches of a common one: the Raspberry Pi 5 (A76),
Graviton 2 and 3 (N1 and V1, with vectors of 128 bits and without SVE), the performance cores of an M1. For another
size, change a target with `dataclasses.replace`.
"""
