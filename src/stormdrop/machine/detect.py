"""What CPU this machine has: its model, vector unit and caches, as the operating system and LLVM report them."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from . import fewer_units

_CPUINFO = Path("/proc/cpuinfo")
_CPUS = Path("/sys/devices/system/cpu")
_CACHES = _CPUS / "cpu0" / "cache"


def cpu_model() -> str:
    """The marketing name of this CPU, with family, model and stepping if the system reports them.

    LLVM's name of the processor is no identity: it is what code is generated for, and different machines share it. If
    this machine passes for a CPU with fewer units, the name says so (see `fewer_units`).
    """
    return fewer_units.model_name(_model())


def _model() -> str:
    if _CPUINFO.exists():
        lines = _CPUINFO.read_text().split("\n\n")[0].splitlines()
        fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        name = fields.get("model name") or fields.get("Processor") or fields.get("CPU part") or platform.processor()
        numbers = [fields[key] for key in ("cpu family", "model", "stepping") if key in fields]
        name = " ".join(name.split())
        return f"{name} ({'/'.join(numbers)})" if numbers else name
    return platform.processor() or platform.machine()


def llvm_host() -> tuple[str, frozenset[str]]:
    """LLVM's name of this processor, and LLVM's names of its instruction set extensions."""
    import tvm
    from tvm.target import codegen

    fewer = fewer_units.pretended_cpu()
    mcpu = fewer.mcpu if fewer else str(codegen.llvm_get_system_cpu())
    features = codegen.llvm_get_cpu_features(tvm.target.Target({"kind": "llvm", "mcpu": mcpu}))
    return mcpu, frozenset(str(feature) for feature in features)


def has_llvm() -> bool:
    """Whether this process has LLVM, without which `llvm_host` and `host_features` fail (see `cpu_flags`)."""
    return _host_features(allow_missing=True) is not None


def host_features() -> frozenset[str]:
    """LLVM's names of the instruction set extensions that this CPU has, as CPUID or the operating system reports them.

    `llvm_host` says instead what LLVM's model of the processor has, of which a virtual machine may hide a part.
    """
    reported = _host_features()().items()
    return fewer_units.remaining_features(frozenset(str(feature) for feature, present in reported if bool(present)))


def _host_features(allow_missing: bool = False) -> Any:
    import tvm_ffi

    return tvm_ffi.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures", allow_missing)


def cpu_family() -> str:
    """The family of this CPU, of which `units` knows the units: "x86", "arm" or another name of the system's."""
    machine = platform.machine().lower()
    return "x86" if machine in {"x86_64", "amd64"} else "arm" if machine in {"aarch64", "arm64"} else machine


def vector_unit(features: frozenset[str]) -> tuple[int, int]:
    """The float32 lanes of a vector register and the number of vector registers, given LLVM's feature names."""
    if "avx512f" in features:
        return 16, 32
    if "avx2" in features or "avx" in features:
        return 8, 16
    if platform.machine().lower() in {"aarch64", "arm64"}:
        return 4, 32
    return 4, 16


def data_caches(root: Path = _CACHES) -> tuple[int, int, int]:
    """The bytes of the first three levels of data cache that one core sees; 0 for a level that is unknown.

    Args:
        root: The folder that describes the caches of one core, as Linux lays it out.
    """
    sizes = {1: 0, 2: 0, 3: 0}
    for entry in sorted(root.glob("index*")):
        # If the kernel does not know a cache's size, the file is missing.
        if not (entry / "size").exists() or (entry / "type").read_text().strip() == "Instruction":
            continue
        size = (entry / "size").read_text().strip()
        factor = {"K": 1024, "M": 1024**2}.get(size[-1], 1)
        level = int((entry / "level").read_text())
        sizes[level] = int(size.rstrip("KM")) * factor
    return sizes[1], sizes[2], sizes[3]


def third_level_caches(root: Path = _CPUS) -> int:
    """The number of third-level caches that the cores of this process have; 1 if that is unknown.

    Args:
        root: The folder that describes all cores, as Linux lays it out.
    """
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    shared_lists = [root / f"cpu{core}" / "cache" / "index3" / "shared_cpu_list" for core in cores]
    return max(1, len({entry.read_text() for entry in shared_lists if entry.exists()}))
