"""The machine that kernels are made for: cores, vector unit, caches, CPU model."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import TargetError
from . import gpu as device
from .gpu import Device
from .threads import chosen

_CPUINFO = Path("/proc/cpuinfo")
_CPUS = Path("/sys/devices/system/cpu")
_CACHES = _CPUS / "cpu0" / "cache"


@dataclass(frozen=True)
class Target:
    """A CPU.

    `lanes` are float32 values per vector register, `registers` the number of vector registers; `l1`, `l2` and
    `l3` are bytes of data cache that one core sees (0 where unknown); of the third level there are `l3s`. `mcpu` and
    `triple` are LLVM's names; the triple is empty for this machine. Kernels for another machine can be compiled, but
    not measured.
    """

    name: str
    cpu: str
    mcpu: str
    cores: int
    lanes: int
    registers: int
    l1: int
    l2: int
    l3: int
    triple: str = ""
    runner: str = ""
    l3s: int = 1

    @classmethod
    def parse(cls, text: str | None = None) -> Machine:
        """The target with this name. None, "cpu", "llvm" and "native" are this machine; `OTHERS` has the rest.

        Raises `TargetError` for a target that is unknown, or that this version makes no kernels for.
        """
        name = (text or "cpu").strip().lower()
        if name in {"cpu", "llvm", "native", "host"}:
            return cls.detect()
        if name in OTHERS:
            return OTHERS[name]
        if name.split("/")[0] == "cuda":
            return device.parse(name)
        if name.split("/")[0] in {"nvidia", "gpu", "rocm", "metal", "vulkan", "opencl"}:
            raise TargetError(f"target {text!r}: the GPUs that there are kernels for are NVIDIA's; use --target cuda")
        others = ", ".join(OTHERS)
        raise TargetError(
            f"unknown target {text!r}: use --target cpu or cuda (this machine); only to compile: {others}"
        )

    @classmethod
    def detect(cls) -> Target:
        """This machine, with the cores that this process may use, or as many as TVM_NUM_THREADS says."""
        mcpu, features = _llvm_host()
        lanes, registers = _vector_unit(features)
        l1, l2, l3 = _caches()
        return cls("cpu", cpu_model(), mcpu, chosen(), lanes, registers, l1, l2, l3, l3s=_third_levels())

    @property
    def kind(self) -> str:
        """TVM's kind of target, and what code is generated for."""
        return f"llvm {self.mcpu}"

    @property
    def machine(self) -> str:
        """The identity under which measurements are recorded: CPU model and cores used.

        Raises `TargetError` for another machine: no measurement taken here may pass as one of it.
        """
        if self.runner:
            return f"{self.cpu} at {self.runner}, {self.cores} cores"
        if self.triple:
            raise TargetError(
                f"target {self.name} is another machine: its kernels are compiled here, and measured with --runner"
            )
        return f"{self.cpu}, {self.cores} core{'s' if self.cores > 1 else ''}"

    @property
    def caches(self) -> int:
        """Bytes that all caches together hold; 0 where that is unknown."""
        return self.cores * self.l2 + self.l3s * self.l3

    @cached_property
    def _tvm_target(self) -> Any:
        import tvm

        triple = {"mtriple": self.triple} if self.triple else {}
        level = {"opt-level": 2}  # see `compile`: 3 takes longer and makes nothing faster
        return tvm.target.Target({"kind": "llvm", "mcpu": self.mcpu, "num-cores": self.cores, **level, **triple})

    def tvm(self) -> Any:
        """The target for TVM's compiler."""
        return self._tvm_target

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_tvm_target"}


Machine = Target | Device
"""What a kernel is made for: a CPU or a GPU."""

_KIB, _MIB = 1024, 1024**2
_LINUX_X86, _LINUX_ARM, _MACOS = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "arm64-apple-macos"

OTHERS: Mapping[str, Target] = {
    f"cpu/{mcpu}": Target(f"cpu/{mcpu}", cpu, mcpu, cores, lanes, registers, l1, l2, l3, triple)
    for mcpu, cpu, cores, lanes, registers, l1, l2, l3, triple in (
        ("x86-64-v3", "x86-64 with AVX2", 4, 8, 16, 32 * _KIB, 256 * _KIB, 8 * _MIB, _LINUX_X86),
        ("x86-64-v4", "x86-64 with AVX-512", 4, 16, 32, 32 * _KIB, 1 * _MIB, 16 * _MIB, _LINUX_X86),
        ("cortex-a76", "Arm Cortex-A76", 4, 4, 32, 64 * _KIB, 512 * _KIB, 2 * _MIB, _LINUX_ARM),
        ("neoverse-n1", "Arm Neoverse N1", 64, 4, 32, 64 * _KIB, 1 * _MIB, 32 * _MIB, _LINUX_ARM),
        ("neoverse-v1", "Arm Neoverse V1", 64, 4, 32, 64 * _KIB, 1 * _MIB, 32 * _MIB, _LINUX_ARM),
        ("apple-m1", "Apple M1", 4, 4, 32, 128 * _KIB, 12 * _MIB, 0, _MACOS),
    )
}
"""Machines that kernels can be compiled for (a `runner` measures there), by name: `cpu/` and LLVM's processor.

Where a processor comes in several sizes, these are the cores and caches of one that is common: the Raspberry Pi 5
(A76), Graviton 2 and 3 (N1, V1; vectors of 128 bits, not SVE), the performance cores of an M1. Others are made with
`dataclasses.replace`.
"""


def cpu_model() -> str:
    """The marketing name of the CPU, with family, model and stepping where the system tells them.

    LLVM's own guess is a code-generation target, not an identity: it names different machines alike.
    """
    if _CPUINFO.exists():
        lines = _CPUINFO.read_text().split("\n\n")[0].splitlines()
        fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        name = fields.get("model name") or fields.get("Processor") or fields.get("CPU part") or platform.processor()
        numbers = [fields[key] for key in ("cpu family", "model", "stepping") if key in fields]
        name = " ".join(name.split())
        return f"{name} ({'/'.join(numbers)})" if numbers else name
    return platform.processor() or platform.machine()


def _llvm_host() -> tuple[str, frozenset[str]]:
    import tvm
    from tvm.target import codegen

    mcpu = str(codegen.llvm_get_system_cpu())
    features = codegen.llvm_get_cpu_features(tvm.target.Target({"kind": "llvm", "mcpu": mcpu}))
    return mcpu, frozenset(str(feature) for feature in features)


def _vector_unit(features: frozenset[str]) -> tuple[int, int]:
    """float32 lanes and number of vector registers."""
    if "avx512f" in features:
        return 16, 32
    if "avx2" in features or "avx" in features:
        return 8, 16
    if platform.machine().lower() in {"aarch64", "arm64"}:
        return 4, 32
    return 4, 16


def _third_levels(root: Path = _CPUS) -> int:
    """How many caches of the third level the cores of this process have; 1 where that is unknown."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    lists = [root / f"cpu{core}" / "cache" / "index3" / "shared_cpu_list" for core in cores]
    return max(1, len({entry.read_text() for entry in lists if entry.exists()}))


def _caches(root: Path = _CACHES) -> tuple[int, int, int]:
    """Bytes of the first three levels of data cache; 0 where unknown."""
    sizes = {1: 0, 2: 0, 3: 0}
    for entry in sorted(root.glob("index*")):
        # A cache whose size the kernel does not know has no such file.
        if not (entry / "size").exists() or (entry / "type").read_text().strip() == "Instruction":
            continue
        size = (entry / "size").read_text().strip()
        factor = {"K": 1024, "M": 1024**2}.get(size[-1], 1)
        level = int((entry / "level").read_text())
        sizes[level] = int(size.rstrip("KM")) * factor
    return sizes[1], sizes[2], sizes[3]
