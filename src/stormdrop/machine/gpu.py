"""What a GPU offers a kernel: NVIDIA's tables (CUDA C++ programming guide, "Compute Capabilities"; data sheets)."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import TargetError
from .nvml import Gpu, gpus
from .rpc import connect
from .threads import chosen

WARP = 32
BANKS = 32
"""Of shared memory."""
WORD = 4
"""Bytes: the width of a bank."""

_REGISTERS = 65536  # of a multiprocessor
REGISTERS_PER_THREAD = 255
_REGISTER_UNIT = 256  # registers that a warp is given at a time
_WARP_UNIT = 4  # a multiprocessor's quarters hold as many warps each
_SHARED_UNIT = 128  # bytes
_RESERVED = 1 << 10  # bytes of shared memory that the system takes per block


@dataclass(frozen=True)
class Device:
    """A GPU by name; sizes in bytes, `flops` (float32, no tensor cores) and `bandwidth` as NVIDIA states them.

    Each of its `multiprocessors` has `lanes` of float32 and holds at most `blocks` blocks of `warps` warps together,
    whose shared memory fits `shared`. `runner` is the HOST:PORT of TVM's RPC server on the machine that has the GPU;
    empty for this machine.
    """

    name: str
    arch: str
    lanes: int
    warps: int
    blocks: int
    shared: int
    multiprocessors: int
    flops: float
    bandwidth: float
    threads_per_block: int = 1024
    shared_per_block: int = 48 << 10  # that a kernel has without asking for more when it is launched
    runner: str = ""

    @property
    def kind(self) -> str:
        """TVM's kind of target, and what code is generated for."""
        return f"cuda {self.arch}"

    @property
    def cores(self) -> int:
        """Of this machine, on which code for the GPU is generated."""
        return chosen()

    @property
    def numbers(self) -> list[int]:
        """Which of this machine's GPUs are such a device."""
        return [gpu.number for gpu in self._here]

    @property
    def conditions(self) -> dict[str, str]:
        """What times that are measured here depend on beside the GPU's name: its driver, clocks and limits at most."""
        return {} if self.runner else {f"gpu {gpu.number}": str(gpu) for gpu in self._here}

    @property
    def place(self) -> int:
        """CUDA's number, in this process, of the first of this machine's GPUs that are such a device: there is one."""
        return gpus().index(self._here[0])

    @property
    def _here(self) -> list[Gpu]:
        return [gpu for gpu in gpus() if detected(gpu) == replace(self, runner="")]

    @property
    def machine(self) -> str:
        """The identity under which measurements are recorded: the GPU's name.

        Raises `TargetError` where no such GPU is here, no measurement taken on another one may pass as its; and where
        TVM cannot use it.
        """
        if self.runner:
            return self._elsewhere
        if self._here:
            if not _runs_cuda():
                raise TargetError(
                    f"target cuda/{self.name}: TVM's CUDA runtime does not load here: it wants CUDA 13, and its"
                    " libcudart.so.13 where the loader looks (LD_LIBRARY_PATH)"
                )
            return self._here[0].name
        there = f"the GPU here is an {gpus()[0].name}" if gpus() else "there is no NVIDIA GPU here"
        raise TargetError(f"target cuda/{self.name}: {there}: its kernels are built and checked, not measured")

    @cached_property
    def _elsewhere(self) -> str:
        session = connect(self.runner)
        try:
            name = str(session.cuda(0).device_name)
        except RuntimeError as error:
            raise TargetError(
                f"target cuda/{self.name}: the TVM behind {self.runner} finds no NVIDIA GPU: it wants CUDA 13, and its"
                " libcudart.so.13 where the loader looks"
            ) from error
        if self.name not in _names(name):
            raise TargetError(f"target cuda/{self.name}: the GPU at {self.runner} is an {name}")
        return f"{name} at {self.runner}"

    @cached_property
    def _tvm_target(self) -> Any:
        import tvm

        if not _has_bindings() and shutil.which("nvcc"):
            os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")  # TVM's default is NVRTC, which it calls by them
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # in which the driver counts, too
        return tvm.target.Target(
            {
                "kind": "cuda",
                "arch": self.arch,
                "max_threads_per_block": self.threads_per_block,
                "max_shared_memory_per_block": self.shared_per_block,
                "thread_warp_size": WARP,
            }
        )

    def tvm(self) -> Any:
        """The target for TVM's compiler."""
        return self._tvm_target

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in {"_tvm_target", "_elsewhere"}}

    def warps_by_registers(self, registers: Any) -> Any:
        """How many warps a multiprocessor has registers for, given those of a thread."""
        per_warp = -(-registers * WARP // _REGISTER_UNIT) * _REGISTER_UNIT
        return _REGISTERS // per_warp // _WARP_UNIT * _WARP_UNIT

    def registers_per_thread(self, threads: Any) -> Any:
        """The most that a thread gets where a multiprocessor has to hold a block of so many: `__launch_bounds__`."""
        warps = -(-threads // (WARP * _WARP_UNIT)) * _WARP_UNIT
        return np.minimum(REGISTERS_PER_THREAD, _REGISTERS // warps // _REGISTER_UNIT * _REGISTER_UNIT // WARP)

    def blocks_per_multiprocessor(
        self, threads: NDArray[Any], registers: NDArray[Any], shared: NDArray[Any]
    ) -> NDArray[np.int64]:
        """How many blocks run on a multiprocessor at once; 0 for one that it cannot hold.

        `threads` and `shared` bytes are those of a block, `registers` those of a thread: what is beyond the most that
        there may be is spilled.
        """
        warps = -(-threads // WARP)
        per_block = -(-(shared + _RESERVED) // _SHARED_UNIT) * _SHARED_UNIT
        limits = [
            np.full(np.shape(threads), self.blocks),
            self.warps // warps,
            self.warps_by_registers(np.minimum(registers, REGISTERS_PER_THREAD)) // warps,
            self.shared // per_block,
        ]
        found = np.minimum.reduce(np.broadcast_arrays(*limits)).astype(np.int64)
        return np.where((threads <= self.threads_per_block) & (shared <= self.shared_per_block), found, 0)


# By compute capability: lanes of float32, warps, blocks and bytes of shared memory of a multiprocessor.
_FAMILIES = {
    "sm_75": (64, 32, 16, 64 << 10),
    "sm_80": (64, 64, 32, 164 << 10),
    "sm_86": (128, 48, 16, 100 << 10),
    "sm_89": (128, 48, 24, 100 << 10),
    "sm_90": (128, 64, 32, 228 << 10),
    "sm_100": (128, 64, 32, 228 << 10),
    "sm_120": (128, 48, 24, 100 << 10),
}

DEVICES = {
    name: Device(name, arch, *_FAMILIES[arch], multiprocessors, flops, bandwidth)
    for name, arch, multiprocessors, flops, bandwidth in (
        ("a100", "sm_80", 108, 19.5e12, 2039e9),
        ("h100", "sm_90", 132, 66.9e12, 3350e9),
        ("h200", "sm_90", 132, 66.9e12, 4800e9),
        ("rtx3090", "sm_86", 82, 35.6e12, 936e9),
        ("rtx4090", "sm_89", 128, 82.6e12, 1008e9),
    )
}
"""By name."""


def parse(name: str) -> Device:
    """The GPU "cuda/NAME", or with "cuda" the first one here. Raises `TargetError` for one that is not known."""
    _, slash, model = name.partition("/")
    here = [device for device in map(detected, gpus()) if device is not None]
    if slash:
        known = {device.name: device for device in (*DEVICES.values(), *here)}
        if model not in known:
            raise TargetError(f"unknown GPU {model!r}: there is {', '.join(known)}")
        return known[model]
    if here:
        return here[0]
    if not gpus():
        raise TargetError(f"target cuda: there is no NVIDIA GPU here; to build for one: cuda/{', cuda/'.join(DEVICES)}")
    raise TargetError(
        f"target cuda: nothing is known of {gpus()[0].arch}, what the GPU here, {gpus()[0].name}, is; there are kernels"
        f" for {', '.join(_FAMILIES)}"
    )


def detected(gpu: Gpu) -> Device | None:
    """A GPU of this machine: the one of `DEVICES` that it is, or as the driver describes it; None where it is too old.

    There are several H100s: only the one with as many multiprocessors is that of the table.
    """
    if gpu.arch not in _FAMILIES:
        return None
    family, names = _FAMILIES[gpu.arch], _names(gpu.name)
    multiprocessors = gpu.lanes // family[0]
    for listed in filter(None, map(DEVICES.get, names)):
        if listed.multiprocessors == multiprocessors:
            return listed
    flops, bandwidth = 2e6 * gpu.lanes * gpu.clock, 2e6 * gpu.memory * gpu.bus / 8
    return Device(names[-1], gpu.arch, *family, multiprocessors, flops, bandwidth)


def named(gpu: Gpu) -> str | None:
    """The target for a GPU of this machine, such as "cuda/h200"; None where it is too old."""
    device = detected(gpu)
    return None if device is None else f"cuda/{device.name}"


def _names(marketing: str) -> list[str]:
    """ "NVIDIA GeForce RTX 4090" is "rtx" or "rtx4090", "NVIDIA H100 PCIe" is "h100" or "h100pcie"."""
    words = marketing.lower().replace("-", " ").split()
    words = [word for word in words if word not in {"nvidia", "geforce", "tesla"}]
    return [words[0], "".join(words)]


def _runs_cuda() -> bool:
    import tvm

    return bool(tvm.runtime.enabled("cuda"))


def _has_bindings() -> bool:
    """Whether NVIDIA's package `cuda-bindings` is installed."""
    return importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.bindings") is not None
