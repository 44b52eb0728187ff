"""CPUs that kernels can be compiled for on any machine, by names that `parse_machine` takes: "cpu/neoverse-n1"."""

from __future__ import annotations

from typing import Any

from .cpu import Cpu

_KIB, _MIB = 1024, 1024**2
_X86, _LINUX_ARM, _MACOS = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "arm64-apple-macos"
_LINUX_ARMV7 = "armv7a-unknown-linux-gnueabihf"
_VECTOR_UNITS = ("avx2", "avx512bf16", "avx512bw", "avx512vnni", "avxvnni")
_AMX = ("amx-bf16", "amx-int8", "amx-tile", *_VECTOR_UNITS)


def _known(cpu: str, mcpu: str, *sizes: Any, **others: Any) -> Cpu:
    return Cpu(f"cpu/{mcpu}", cpu, mcpu, *sizes, **others)


KNOWN_CPUS = {
    known.name: known
    for known in (
        _known("x86-64 with AVX2", "x86-64-v3", 4, 8, 16, 32 * _KIB, 256 * _KIB, 8 * _MIB, _X86),
        _known("x86-64 with AVX-512", "x86-64-v4", 4, 16, 32, 32 * _KIB, 1 * _MIB, 16 * _MIB, _X86),
        _known(
            "Intel Sapphire Rapids", "sapphirerapids", 32, 16, 32, 48 * _KIB, 2 * _MIB, 60 * _MIB, _X86, features=_AMX
        ),
        _known("AMD Zen 5", "znver5", 8, 16, 32, 48 * _KIB, 1 * _MIB, 32 * _MIB, _X86, features=_VECTOR_UNITS),
        _known("Arm Cortex-A7", "cortex-a7", 4, 4, 16, 32 * _KIB, 512 * _KIB, 0, _LINUX_ARMV7),
        _known("Arm Cortex-A53", "cortex-a53", 4, 4, 32, 32 * _KIB, 512 * _KIB, 0, _LINUX_ARM),
        _known("Arm Cortex-A72", "cortex-a72", 4, 4, 32, 32 * _KIB, 1 * _MIB, 0, _LINUX_ARM),
        _known("Arm Cortex-A76", "cortex-a76", 4, 4, 32, 64 * _KIB, 512 * _KIB, 2 * _MIB, _LINUX_ARM),
        _known("Fujitsu A64FX", "a64fx", 48, 16, 32, 64 * _KIB, 8 * _MIB, 0, _LINUX_ARM, sve_bits=512),
        _known("Arm Neoverse N1", "neoverse-n1", 64, 4, 32, 64 * _KIB, 1 * _MIB, 32 * _MIB, _LINUX_ARM),
        _known("Arm Neoverse N2", "neoverse-n2", 128, 4, 32, 64 * _KIB, 1 * _MIB, 64 * _MIB, _LINUX_ARM),
        _known("Arm Neoverse V1", "neoverse-v1", 64, 4, 32, 64 * _KIB, 1 * _MIB, 32 * _MIB, _LINUX_ARM),
        _known("Arm Neoverse V2", "neoverse-v2", 96, 4, 32, 64 * _KIB, 2 * _MIB, 36 * _MIB, _LINUX_ARM),
        _known("Apple M1", "apple-m1", 4, 4, 32, 128 * _KIB, 12 * _MIB, 0, _MACOS),
        _known("Apple M2", "apple-m2", 4, 4, 32, 128 * _KIB, 16 * _MIB, 0, _MACOS),
        _known("Apple M3", "apple-m3", 4, 4, 32, 128 * _KIB, 16 * _MIB, 0, _MACOS),
        _known("Apple M4", "apple-m4", 4, 4, 32, 128 * _KIB, 16 * _MIB, 0, _MACOS),
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
