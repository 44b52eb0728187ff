"""This machine as a CPU with fewer arithmetic units, if the environment variable STORMDROP_CPU names one.

What asks the system or LLVM what this CPU has (`detect`, `cpu_flags`) hides here what that CPU lacks. Child processes
inherit the variable, and so they see the same CPU. Its name becomes a part of the CPU's model, which records and kept
measurements have in their keys. Units can only be taken away: a kernel never needs what the real CPU lacks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import TargetError

VARIABLE = "STORMDROP_CPU"
"""The environment variable. It is set before a process starts: what a process knows of its CPU may be kept in it."""

_FAMILIES = ("avx512", "avx10", "avxvnni", "avxneconvert", "avxifma", "amx-")
"""How LLVM's names of the extensions begin that the CPUs below differ in."""


@dataclass(frozen=True)
class FewerUnits:
    """A CPU that this machine may pass for.

    Attributes:
        mcpu: LLVM's name of the processor for which code is generated. It has none of the extensions that are hidden.
        keeps: LLVM's names of the extensions of `_FAMILIES` that it has.
    """

    mcpu: str
    keeps: frozenset[str] = frozenset()


_AVX512 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})

CPUS = {
    "x86-64-v3": FewerUnits("x86-64-v3"),
    "avx_vnni": FewerUnits("x86-64-v3", frozenset({"avxvnni"})),
    "x86-64-v4": FewerUnits("x86-64-v4", _AVX512),
    "avx512_vnni": FewerUnits("x86-64-v4", _AVX512 | {"avx512vnni"}),
    "avx512_bf16": FewerUnits("x86-64-v4", _AVX512 | {"avx512vnni", "avx512bf16", "avxvnni"}),
}
"""The CPUs that this machine may pass for, by the value of the variable.

In this order they have the units of a Haswell or Zen 1 to 3, an Alder Lake, a Skylake-X, a Cascade Lake, and a Zen 5,
which has what a Sapphire Rapids has except tiles and float16.
"""


def pretended_cpu() -> FewerUnits | None:
    """The CPU that this machine passes for; None if it is what it is.

    Raises:
        TargetError: The variable has another value than those in `CPUS`.
    """
    name = _name()
    if name and name not in CPUS:
        raise TargetError(f"{VARIABLE}={name}: no CPU that this machine can pass for: use one of {', '.join(CPUS)}")
    return CPUS[name] if name else None


def model_name(model: str) -> str:
    """The model of this CPU, with the name of what it passes for.

    Args:
        model: What the system calls the CPU.

    Example:
        >>> model_name("A CPU").startswith("A CPU")
        True
    """
    return f"{model} as {_name()}" if pretended_cpu() else model


def hidden_features(features: Iterable[str]) -> frozenset[str]:
    """The extensions that the CPU which this machine passes for does not have.

    Args:
        features: LLVM's names of extensions.
    """
    cpu = pretended_cpu()
    return frozenset(name for name in features if cpu and name.startswith(_FAMILIES) and name not in cpu.keeps)


def remaining_features(present: frozenset[str]) -> frozenset[str]:
    """The extensions that this machine has as the CPU which it passes for.

    Args:
        present: LLVM's names of the extensions that the real CPU has.

    Raises:
        TargetError: The real CPU lacks some that the other one has.
    """
    cpu = pretended_cpu()
    if cpu is None:
        return present
    lacking = sorted({"avx2", *cpu.keeps} - present)
    if lacking:
        raise TargetError(f"{VARIABLE}={_name()}: this CPU lacks {', '.join(lacking)}; units can only be taken away")
    return present - hidden_features(present)


def _name() -> str:
    return os.environ.get(VARIABLE, "")
