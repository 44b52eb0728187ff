"""CUDA source of a scheduled function, how it is launched, and the resources it needs. Nothing here needs a GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tvm.tirx import PrimFunc

from ..errors import MeasureError, TargetError
from ..machine.contract import CUDA, Machine
from ..machine.gpu import Gpu, lacks_compiler
from ..machine.known_gpus import ARCH
from ..machine.process.scratch import scratch_folder
from .compile import build_module
from .gpu_lowering import KernelLaunch, launches_of, lower_for_gpu

_FUNCTION = re.compile(r"Compiling entry function '(\w+)'")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
# How TVM calls nvcc.
_TVM_OPTIONS = ("--use_fast_math", "--expt-relaxed-constexpr", "-Xptxas", "--register-usage-level=10")
_FIRST = 'extern "C" __global__'  # begins the first kernel of a source; before it are headers
_KERNEL = re.compile(r"(extern \"C\" __global__ void (?:__launch_bounds__\(\d+\) )?\w+)\(")
_OF = "_of_"  # stands between the name of a kernel and the number of its source
_NO_NVCC = "there is no nvcc on the PATH; it is part of the CUDA toolkit"
_SPILLED = re.compile(r"(\d+) bytes spill stores")


@dataclass(frozen=True)
class Resources:
    """What `ptxas` says that a kernel needs.

    Args:
        name: The kernel.
        registers: Registers per thread.
        shared: Bytes of shared memory per block.
        spilled: Bytes that each thread spills from registers to memory.
    """

    name: str
    registers: int
    shared: int
    spilled: int


def check_nvcc(machine: Machine) -> None:
    """Checks that the code of a model can be compiled, before the work that ends with it.

    Args:
        machine: The machine that the model is for.

    Raises:
        TargetError: It is an NVIDIA GPU, and no `nvcc` here compiles for it.
    """
    if not isinstance(machine, Gpu) or machine.device != CUDA:
        return
    if reason := _NO_NVCC if shutil.which("nvcc") is None else lacks_compiler(machine.arch):
        raise TargetError(f"target {machine.target_name}: {reason}")


def cuda_source(function: PrimFunc, device: Gpu) -> str:
    """The CUDA source of all kernels of a function. Raises whatever TVM raises."""
    built = build_module(function, device.tvm())
    (kernels,) = [module for module in built.imports if module.kind == "cuda"]
    return str(kernels.inspect_source("cuda"))


def launches(function: PrimFunc, device: Gpu) -> tuple[KernelLaunch, ...]:
    """How each kernel of a function is launched if TVM lowers it."""
    return launches_of(*lower_for_gpu(function, device.tvm()))


def resources(source: str, device: Gpu) -> list[Resources]:
    """Compiles a CUDA source with `nvcc` as TVM does, and reads what each kernel needs.

    Args:
        source: The kernels, as `cuda_source` returns them.
        device: The GPU to compile for.

    Returns:
        The resources of each kernel.

    Raises:
        MeasureError: There is no `nvcc`, or it does not know the architecture, or the source does not compile.
    """
    with scratch_folder() as folder:
        return _resources_in(_nvcc(source, device.arch, folder)[1])


def resources_of(sources: Sequence[str], device: Gpu) -> list[list[Resources]]:
    """What `resources` returns for each of several sources.

    Sources that begin with the same headers are compiled together: reading these takes `nvcc` 0.4 s, a kernel 0.03 s.

    Raises:
        MeasureError: There is no `nvcc`, or it does not know the architecture, or one of the sources does not compile.
    """
    by_headers: dict[str, list[int]] = {}
    parts = [source.partition(_FIRST) for source in sources]
    for position, (headers, *_) in enumerate(parts):
        by_headers.setdefault(headers, []).append(position)
    found: list[list[Resources]] = [[] for _ in sources]
    for headers, positions in by_headers.items():
        if len(positions) == 1:
            found[positions[0]] = resources(sources[positions[0]], device)
            continue
        bodies = ("".join(parts[position][1:]) for position in positions)
        named = [_KERNEL.sub(rf"\1{_OF}{number}(", body) for number, body in enumerate(bodies)]
        for kernel in resources(headers + "\n".join(named), device):
            name, _, number = kernel.name.rpartition(_OF)
            found[positions[int(number)]].append(replace(kernel, name=name))
    return found


def compile_for(source: str, arch: str) -> tuple[bytes, list[Resources]]:
    """The code of a CUDA source, compiled with `nvcc` as TVM does, and the resources that each kernel needs.

    Args:
        source: The kernels.
        arch: The architecture: "sm_80" for its machine code, "compute_80" for its PTX, whose resources nobody knows.

    Raises:
        MeasureError: There is no `nvcc`, or it does not know the architecture, or the source does not compile, or a
            kernel does not fit the architecture.
    """
    with scratch_folder() as folder:
        code, said = _nvcc(source, arch, folder)
        return code.read_bytes(), _resources_in(said)


def _nvcc(source: str, arch: str, folder: Path) -> tuple[Path, str]:
    """Writes the code of a source to a file in a folder. Returns the file and what `ptxas` says about its kernels."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise MeasureError(_NO_NVCC)
    if reason := lacks_compiler(arch):
        raise MeasureError(reason)
    file, code = folder / "kernels.cu", folder / "kernels.code"
    file.write_text(source)
    form = ["-cubin", "-Xptxas", "-v"] if arch.startswith(ARCH) else ["-ptx"]
    options = [f"-arch={arch}", *_TVM_OPTIONS, *form, "-o", str(code)]
    done = subprocess.run([nvcc, *options, str(file)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line or "fatal" in line]
        raise MeasureError(f"nvcc for {arch}: {(lines or ['it failed'])[0]}")
    return code, done.stderr


def _resources_in(said: str) -> list[Resources]:
    """The resources of each kernel that `ptxas` tells of."""
    kernels, name, spilled = [], "", 0
    for line in said.splitlines():
        if entry := _FUNCTION.search(line):
            name = entry[1]
        elif lost := _SPILLED.search(line):
            spilled = int(lost[1])
        elif used := _USED.search(line):
            kernels.append(Resources(name, int(used[1]), int(used[2] or 0), spilled))
    return kernels
