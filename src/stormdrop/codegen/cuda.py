"""CUDA source of a scheduled function, how it is launched, what `ptxas` says that it takes; none of it needs a GPU."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm.tirx import AttrStmt, PrimFunc, SeqStmt

from ..errors import MeasureError
from ..machine.gpu import Device
from .compile import build_module, gpu_pass_config

_FUNCTION = re.compile(r"Compiling entry function '(\w+)'")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
_AS_TVM = ("--use_fast_math", "--expt-relaxed-constexpr", "-Xptxas", "--register-usage-level=10")  # how TVM calls nvcc
_SPILLED = re.compile(r"(\d+) bytes spill stores")


@dataclass(frozen=True)
class Launch:
    """A kernel by name: its blocks, and the threads of each."""

    name: str
    blocks: int
    threads: int


@dataclass(frozen=True)
class Resources:
    """What `ptxas` gives a kernel: registers per thread, bytes of shared memory per block, bytes that are spilled."""

    name: str
    registers: int
    shared: int
    spilled: int


def cuda_source(function: PrimFunc, device: Device) -> str:
    """The CUDA source of all kernels of a function. Raises what TVM raises."""
    built = build_module(function, device.tvm())
    (kernels,) = [each for each in built.imports if each.kind == "cuda"]
    return str(kernels.inspect_source("cuda"))


def launches(function: PrimFunc, device: Device) -> list[Launch]:
    """How each kernel of a function is launched, as TVM lowers it."""
    target = device.tvm().with_host(tvm.target.Target("llvm"))
    lower, *_ = tvm.tirx.get_default_tir_pipeline(target)
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    with tvm.transform.PassContext(config=gpu_pass_config(function)):
        lowered = lower(tvm.tirx.transform.BindTarget(target)(module))
    found = []
    for name, each in lowered.functions_items():
        extents = _thread_extents(each.body)
        if extents:
            counts = [
                math.prod(extent for tag, extent in extents.items() if tag.startswith(kind))
                for kind in ("blockIdx", "threadIdx")
            ]
            found.append(Launch(str(name.name_hint), *counts))
    return found


def _thread_extents(node: Any) -> dict[str, int]:
    """The extents of the thread axes that a statement binds, by name."""
    if isinstance(node, SeqStmt):
        return {tag: extent for each in node.seq for tag, extent in _thread_extents(each).items()}
    if not isinstance(node, AttrStmt):
        return {}
    own = {str(node.node.thread_tag): int(node.value)} if node.attr_key == "thread_extent" else {}
    return {**own, **_thread_extents(node.body)}


def resources(source: str, device: Device) -> list[Resources]:
    """What each kernel of a source takes. Raises `MeasureError` without `nvcc`, or where it does not compile."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise MeasureError("there is no nvcc on the PATH")
    with tempfile.TemporaryDirectory(prefix="stormdrop-") as folder:
        file = Path(folder) / "kernels.cu"
        file.write_text(source)
        options = [f"-arch={device.arch}", *_AS_TVM, "-cubin", "-Xptxas", "-v", "-o", f"{folder}/kernels.cubin"]
        command = [nvcc, *options, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["nvcc failed"]
        raise MeasureError(f"nvcc: {lines[0]}")
    found, name, spilled = [], "", 0
    for line in done.stderr.splitlines():
        if entry := _FUNCTION.search(line):
            name = entry[1]
        elif lost := _SPILLED.search(line):
            spilled = int(lost[1])
        elif used := _USED.search(line):
            found.append(Resources(name, int(used[1]), int(used[2] or 0), spilled))
    return found
