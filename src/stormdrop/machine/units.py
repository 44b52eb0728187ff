"""The arithmetic units of CPUs beside float32 multiply-adds: dot products of integers, half precision, tiles.

Which units a CPU has is what CPUID (on ARM the operating system) says. LLVM's model of a processor is no evidence: a
virtual machine may hide a unit that the model has, and the model that LLVM guesses may lack one. `unit_rates` measures
how fast they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

X86, ARM = "x86", "arm"


@dataclass(frozen=True)
class Unit:
    """One arithmetic unit.

    Attributes:
        name: Its name, as Linux writes it among the flags of a CPU.
        requires: LLVM's names of the instruction set extensions that its code needs.
        family: The CPUs that may have it: `X86` or `ARM`.
        operands: What it multiplies.
        sums: The type in which it adds up.
        operations: Multiplications and additions of one instruction.
        used: Whether kernels of this version use it.
        vectors: Whether all vector code needs its extension. LLVM then keeps it for a target without this unit.
    """

    name: str
    requires: tuple[str, ...]
    family: str
    operands: str
    sums: str
    operations: int
    used: bool = False
    vectors: bool = False


UNITS = (
    Unit("avx512_vnni", ("avx512vnni",), X86, "uint8 x int8", "int32", 128, used=True),
    Unit("avx_vnni", ("avxvnni",), X86, "uint8 x int8", "int32", 64, used=True),
    Unit("avx512bw", ("avx512bw",), X86, "int16", "int32", 64, used=True, vectors=True),
    Unit("avx2", ("avx2",), X86, "int16", "int32", 32, used=True, vectors=True),
    Unit("avx512_bf16", ("avx512bf16",), X86, "bfloat16", "float32", 64, used=True),
    Unit("avx512_fp16", ("avx512fp16",), X86, "float16", "float16", 64),
    Unit("amx_int8", ("amx-tile", "amx-int8"), X86, "uint8 x int8", "int32", 2 * 16 * 16 * 64, used=True),
    Unit("amx_bf16", ("amx-tile", "amx-bf16"), X86, "bfloat16", "float32", 2 * 16 * 16 * 32, used=True),
    Unit("amx_fp16", ("amx-tile", "amx-fp16"), X86, "float16", "float32", 2 * 16 * 16 * 32),
    Unit("asimddp", ("dotprod",), ARM, "int8", "int32", 32, used=True),
    Unit("i8mm", ("i8mm",), ARM, "uint8 x int8", "int32", 64, used=True),
    Unit("bf16", ("bf16",), ARM, "bfloat16", "float32", 32, used=True),
)
"""The units that are known, by families of CPUs."""


def unit_features(present: Iterable[str], family: str) -> tuple[str, ...]:
    """The extensions that the units of a CPU need, as far as the CPU has them.

    Args:
        present: LLVM's names of all extensions that the CPU has.
        family: The kind of CPU, `X86` or `ARM`.

    Example:
        >>> unit_features(["avx", "avxvnni", "amx-tile"], "x86")
        ('amx-tile', 'avxvnni')
    """
    having = set(present)
    return tuple(sorted({name for name in features_of_family(family) if name in having}))


def features_of_family(family: str) -> tuple[str, ...]:
    """LLVM's names of the extensions that any unit of a family of CPUs needs, sorted."""
    return tuple(sorted({name for unit in UNITS if unit.family == family for name in unit.requires}))


def features_that_may_be_hidden(family: str) -> frozenset[str]:
    """Of `features_of_family` those that a hypervisor may hide, while LLVM's model of the processor has them."""
    return frozenset(name for unit in UNITS if unit.family == family and not unit.vectors for name in unit.requires)


def units_with(features: Iterable[str]) -> tuple[Unit, ...]:
    """The units of a CPU that has some extensions.

    Args:
        features: LLVM's names of the extensions, such as the `features` of a target.

    Example:
        >>> [unit.name for unit in units_with(["dotprod", "i8mm"])]
        ['asimddp', 'i8mm']
    """
    having = set(features)
    return tuple(unit for unit in UNITS if having.issuperset(unit.requires))
