"""The seven analytical features of Ansor-AF (AF-DS paper, section 4.1), of n tilings at once, without compiling any.

    OI_Global_Mem         operations per element that is read from global memory into shared memory: the sizes of the
                          shared buffers times how often they are filled
    OI_Shared_Mem         operations per warp's transaction with shared memory, loads repeated by bank conflicts
    Reg_Reuse_Factor      operations per element that goes from registers to global memory
    ILP                   independent outputs of a thread: the tile in registers
    WLP                   warps that are active on a multiprocessor, bounded by registers, shared memory and threads;
                          and by the grid, where that has no block for each (the paper does not say)
    Estimated_Occupancy   these, as a share of what it can hold
    Wave_Efficiency       useful waves of blocks over executed waves

What the paper leaves open: the bank conflicts are counted over the first warp of a block, thread by thread; registers
are those of `Tiling.registers`, as far as a block of so many threads gets them. Reg_Reuse_Factor is the same for all
tilings of a function that divides its extents.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...machine.gpu import WARP, Device
from .tiling import Tiling

NAMES = (
    "OI_Global_Mem",
    "OI_Shared_Mem",
    "Reg_Reuse_Factor",
    "ILP",
    "WLP",
    "Estimated_Occupancy",
    "Wave_Efficiency",
)


_HIDING = 64.0  # warps, times the root of the independent outputs, that hide all latencies
_BESIDE = 0.2  # of what is not slowest: it is not hidden altogether


def features(tiling: Tiling, device: Device) -> NDArray[np.float64]:
    """Shape (n, 7), in the order of `NAMES`."""
    operations = tiling.contraction.operations
    fetched = np.sum(tiling.shared_elements, axis=0) * tiling.rounds * tiling.blocks
    transactions = sum(loads * conflicts for loads, conflicts in zip(tiling.loads, tiling.conflicts, strict=True))
    written = tiling.outputs * tiling.threads * tiling.blocks
    registers = np.minimum(tiling.registers, device.registers_per_thread(tiling.threads))
    resident = device.blocks_per_multiprocessor(tiling.threads, registers, tiling.shared_bytes)
    needed = tiling.blocks / np.maximum(1, resident * device.multiprocessors)
    # A grid that does not fill the device has no more warps than its blocks.
    active = np.minimum(resident, np.ceil(tiling.blocks / device.multiprocessors)) * -(-tiling.threads // WARP)
    return np.stack(
        [
            operations / fetched,
            operations / transactions,
            operations / written,
            tiling.outputs.astype(np.float64),
            active.astype(np.float64),
            active / device.warps,
            np.where(resident > 0, needed / np.ceil(needed), 0.0),
        ],
        axis=1,
    )


def seconds(tiling: Tiling, device: Device) -> NDArray[np.float64]:
    """A rough model, shape (n,): of computing and moving the slowest, over how evenly blocks fall on multiprocessors.

    Not from the paper. It picks the default schedule and is the analytic GPU of `benchmarks/gpu/analytic.py`; how well
    it orders measured kernels is in docs/gpu.md.
    """
    found = dict(zip(NAMES, features(tiling, device).T, strict=True))
    operations, item = tiling.contraction.operations, tiling.contraction.item
    hidden = np.minimum(1.0, found["WLP"] * np.sqrt(found["ILP"]) / _HIDING)
    compute = operations / device.flops / np.maximum(hidden, 1e-3)
    memory = operations / found["OI_Global_Mem"] * item / device.bandwidth
    # A multiprocessor moves a warp's word in a cycle, in which each lane does a multiplication and an addition.
    clock = device.flops / device.multiprocessors / (2 * device.lanes)
    shared = operations / found["OI_Shared_Mem"] / (device.multiprocessors * clock)
    parts = np.stack([compute, memory, shared])
    slowest = parts.max(axis=0)
    whole = slowest + _BESIDE * (parts.sum(axis=0) - slowest)
    # Of multiprocessors, not of waves: that a small grid has few warps on each is in WLP already.
    rounds = tiling.blocks / device.multiprocessors
    return np.asarray(whole * np.ceil(rounds) / rounds, dtype=np.float64)
