"""CPUs that kernels can be compiled for on any machine, by names that `parse_machine` takes: "cpu/neoverse-n1"."""

from __future__ import annotations

from typing import NamedTuple

_KIB, _MIB = 1024, 1024**2
_LINUX_X86, _LINUX_ARM, _MACOS = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "arm64-apple-macos"
_LINUX_ARMV7 = "armv7a-unknown-linux-gnueabihf"
_VECTOR_UNITS = ("avx2", "avx512bf16", "avx512bw", "avx512vnni", "avxvnni")


class KnownCpu(NamedTuple):
    """The properties of a `Cpu` that its name stands for, by the names of its own fields."""

    cpu: str
    mcpu: str
    cores: int
    lanes: int
    registers: int
    l1: int
    l2: int
    l3: int
    triple: str
    sve_bits: int = 0
    features: tuple[str, ...] = ()


_ZEN_5 = KnownCpu(
    "AMD Zen 5",
    "znver5",
    cores=8,
    lanes=16,
    registers=32,
    l1=48 * _KIB,
    l2=1 * _MIB,
    l3=32 * _MIB,
    triple=_LINUX_X86,
    features=_VECTOR_UNITS,
)
_SAPPHIRE_RAPIDS = KnownCpu(
    "Intel Sapphire Rapids",
    "sapphirerapids",
    cores=32,
    lanes=16,
    registers=32,
    l1=48 * _KIB,
    l2=2 * _MIB,
    l3=60 * _MIB,
    triple=_LINUX_X86,
    features=("amx-bf16", "amx-int8", "amx-tile", *_VECTOR_UNITS),
)

KNOWN_CPUS = {
    f"cpu/{known.mcpu}": known
    for known in (
        KnownCpu("x86-64 with AVX2", "x86-64-v3", 4, 8, 16, 32 * _KIB, 256 * _KIB, 8 * _MIB, _LINUX_X86),
        KnownCpu("x86-64 with AVX-512", "x86-64-v4", 4, 16, 32, 32 * _KIB, 1 * _MIB, 16 * _MIB, _LINUX_X86),
        _SAPPHIRE_RAPIDS,
        _ZEN_5,
        KnownCpu("Arm Cortex-A7", "cortex-a7", 4, 4, 16, 32 * _KIB, 512 * _KIB, 0, _LINUX_ARMV7),
        KnownCpu("Arm Cortex-A53", "cortex-a53", 4, 4, 32, 32 * _KIB, 512 * _KIB, 0, _LINUX_ARM),
        KnownCpu("Arm Cortex-A72", "cortex-a72", 4, 4, 32, 32 * _KIB, 1 * _MIB, 0, _LINUX_ARM),
        KnownCpu("Arm Cortex-A76", "cortex-a76", 4, 4, 32, 64 * _KIB, 512 * _KIB, 2 * _MIB, _LINUX_ARM),
        KnownCpu("Fujitsu A64FX", "a64fx", 48, 16, 32, 64 * _KIB, 8 * _MIB, 0, _LINUX_ARM, sve_bits=512),
        KnownCpu("Arm Neoverse N1", "neoverse-n1", 64, 4, 32, 64 * _KIB, 1 * _MIB, 32 * _MIB, _LINUX_ARM),
        KnownCpu("Arm Neoverse N2", "neoverse-n2", 128, 4, 32, 64 * _KIB, 1 * _MIB, 64 * _MIB, _LINUX_ARM),
        KnownCpu("Arm Neoverse V1", "neoverse-v1", 64, 4, 32, 64 * _KIB, 1 * _MIB, 32 * _MIB, _LINUX_ARM),
        KnownCpu("Arm Neoverse V2", "neoverse-v2", 96, 4, 32, 64 * _KIB, 2 * _MIB, 36 * _MIB, _LINUX_ARM),
        KnownCpu("Apple M1", "apple-m1", 4, 4, 32, 128 * _KIB, 12 * _MIB, 0, _MACOS),
        KnownCpu("Apple M2", "apple-m2", 4, 4, 32, 128 * _KIB, 16 * _MIB, 0, _MACOS),
        KnownCpu("Apple M3", "apple-m3", 4, 4, 32, 128 * _KIB, 16 * _MIB, 0, _MACOS),
        KnownCpu("Apple M4", "apple-m4", 4, 4, 32, 128 * _KIB, 16 * _MIB, 0, _MACOS),
    )
}
"""By the target's name: `cpu/` and LLVM's name of the processor.

If a processor comes in several sizes, these are the cores and caches of a common one: the Raspberry Pi 2 (Cortex-A7),
3 (A53), 4 (A72) and 5 (A76); a Xeon Gold 6430 (Sapphire Rapids) and a Ryzen 7 9700X (Zen 5); Graviton 2, 3 and 4
(Neoverse N1, V1 and V2) and Cobalt 100 (N2); the performance cores of an M1, M2, M3 and M4 without Pro or Max. A runner
says how many cores its machine has. For another size, change a target with `dataclasses.replace`.

Vectors of ARM processors are those of NEON, which have 128 bits, except on the A64FX, whose SVE has 512. The Neoverse
V1 also has SVE, of 256 bits: a target with `lanes=8` and `sve_bits=256` uses it.
"""
