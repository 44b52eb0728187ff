"""What a GPU offers a kernel: NVIDIA's tables (CUDA C++ programming guide, "Compute Capabilities"; data sheets)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import TargetError
from ...threads import chosen
from ..runner import connect
from .driver import Gpu, gpus

WARP = 32
BANKS = 32
"""Of shared memory, one word of 4 bytes wide each."""

_THREADS_PER_BLOCK = 1024
_REGISTERS = 65536  # of a multiprocessor
_REGISTERS_PER_THREAD = 255
_REGISTER_UNIT = 256  # registers that a warp is given at a time
_SHARED_UNIT = 128  # bytes
_SHARED_PER_BLOCK = 48 << 10  # that a kernel has without asking for more when it is launched


@dataclass(frozen=True)
class Device:
    """A GPU by name; sizes in bytes, `flops` (float32, no tensor cores) and `bandwidth` as NVIDIA states them.

    `multiprocessors` share a second-level cache of `l2`; each holds at most `blocks` blocks of `warps` warps together,
    whose shared memory fits `shared`. `reserved` is what the system takes of it per block. `runner` is the HOST:PORT of
    TVM's RPC server on the machine that has the GPU; empty for this machine.
    """

    name: str
    arch: str
    multiprocessors: int
    warps: int
    blocks: int
    shared: int
    l2: int
    flops: float
    bandwidth: float
    reserved: int = 1 << 10
    threads_per_block: int = _THREADS_PER_BLOCK
    shared_per_block: int = _SHARED_PER_BLOCK
    registers: int = _REGISTERS
    registers_per_thread: int = _REGISTERS_PER_THREAD
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
        """What measured times depend on beside the GPU's name: its driver, clocks and limits now."""
        return {f"gpu {gpu.number}": str(gpu) for gpu in self._here}

    @property
    def _here(self) -> list[Gpu]:
        return [gpu for gpu in gpus() if _key(gpu.name) == self.name]

    @property
    def machine(self) -> str:
        """The identity under which measurements are recorded: the GPU's name.

        Raises `TargetError` where no such GPU is here: no measurement taken on another one may pass as its.
        """
        if self.runner:
            return self._elsewhere
        if self._here:
            return self._here[0].name
        there = f"the GPU here is an {gpus()[0].name}" if gpus() else "there is no NVIDIA GPU here"
        raise TargetError(f"target cuda/{self.name}: {there}: its kernels are built and checked, not measured")

    @property
    def measurable(self) -> bool:
        """Whether there is such a GPU, here or behind the runner."""
        return bool(self.runner or self._here)

    @cached_property
    def _elsewhere(self) -> str:
        name = str(connect(self.runner).cuda(0).device_name)
        if _key(name) != self.name:
            raise TargetError(f"target cuda/{self.name}: the GPU at {self.runner} is an {name}")
        return f"{name} at {self.runner}"

    @cached_property
    def _tvm_target(self) -> Any:
        import tvm

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

    def blocks_per_multiprocessor(
        self, threads: NDArray[Any], registers: NDArray[Any], shared: NDArray[Any]
    ) -> NDArray[np.int64]:
        """How many blocks run on a multiprocessor at once; 0 for one that it cannot hold.

        `threads` and `shared` bytes are those of a block, `registers` those of a thread.
        """
        warps = -(-threads // WARP)
        per_warp = -(-registers * WARP // _REGISTER_UNIT) * _REGISTER_UNIT
        per_block = -(-(shared + self.reserved) // _SHARED_UNIT) * _SHARED_UNIT
        limits = [
            np.full(np.shape(threads), self.blocks),
            self.warps // warps,
            self.registers // (per_warp * warps),
            self.shared // per_block,
        ]
        found = np.minimum.reduce(np.broadcast_arrays(*limits)).astype(np.int64)
        fits = (threads <= self.threads_per_block) & (registers <= self.registers_per_thread)
        return np.where(fits & (shared <= self.shared_per_block), found, 0)


DEVICES = {
    device.name: device
    for device in (
        Device("a100", "sm_80", 108, 64, 32, 164 << 10, 40 << 20, 19.5e12, 2039e9),
        Device("h100", "sm_90", 132, 64, 32, 228 << 10, 50 << 20, 66.9e12, 3350e9),
        Device("h200", "sm_90", 132, 64, 32, 228 << 10, 50 << 20, 66.9e12, 4800e9),
        Device("rtx3090", "sm_86", 82, 48, 16, 100 << 10, 6 << 20, 35.6e12, 936e9),
        Device("rtx4090", "sm_89", 128, 48, 24, 100 << 10, 72 << 20, 82.6e12, 1008e9),
    )
}
"""By name."""


def parse(name: str) -> Device:
    """The GPU "cuda/NAME", or with "cuda" the first one here. Raises `TargetError` for one that is not known."""
    _, slash, model = name.partition("/")
    if slash:
        if model not in DEVICES:
            raise TargetError(f"unknown GPU {model!r}: there is {', '.join(DEVICES)}")
        return DEVICES[model]
    if not gpus():
        raise TargetError(f"target cuda: there is no NVIDIA GPU here; to build for one: cuda/{', cuda/'.join(DEVICES)}")
    name = gpus()[0].name
    if _key(name) not in DEVICES:
        raise TargetError(f"target cuda: the GPU here, {name}, is not one of those known: {', '.join(DEVICES)}")
    return DEVICES[_key(name)]


def named(gpu: Gpu) -> str | None:
    """The target for a GPU of this machine, such as "cuda/h200"; None where it is not known."""
    return f"cuda/{_key(gpu.name)}" if _key(gpu.name) in DEVICES else None


def _key(marketing: str) -> str:
    """ "NVIDIA GeForce RTX 4090" is "rtx4090", "NVIDIA A100-SXM4-80GB" is "a100"."""
    joined = marketing.lower().replace(" ", "").replace("-", "")
    return next((name for name in sorted(DEVICES, key=len, reverse=True) if name in joined), joined)
