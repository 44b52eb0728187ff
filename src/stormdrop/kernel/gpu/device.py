"""What a GPU offers a kernel: NVIDIA's tables (CUDA C++ programming guide, "Compute Capabilities"; data sheets)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    whose shared memory fits `shared`. `reserved` is what the system takes of it per block.
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
