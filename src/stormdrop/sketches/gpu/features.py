"""The seven analytical features of Ansor-AF (AF-DS paper, section 4.1) for n tilings at once, compiling none of them.

    OI_Global_Mem         operations per element that is read from global memory into shared memory: the sizes of the
                          shared buffers times how often they are filled
    OI_Shared_Mem         operations per transaction of a warp with shared memory; bank conflicts repeat transactions
    Reg_Reuse_Factor      operations per element that goes from registers to global memory
    ILP                   independent outputs of a thread: the tile in registers
    WLP                   active warps of a multiprocessor, limited by registers, shared memory and threads, and by the
                          grid if it has fewer blocks than there are multiprocessors (which the paper does not say)
    Estimated_Occupancy   active warps as a share of what a multiprocessor can hold
    Wave_Efficiency       useful waves of blocks over executed waves

The paper leaves some things open. Here, bank conflicts are counted over the first warp of a block, thread by thread. A
thread has the registers of `Tilings.registers`, but no more than its block can get. Reg_Reuse_Factor is the same for
all tilings of a function if the tiles divide its extents.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...machine.gpu import WARP, Gpu
from .tiling import Tilings

NAMES = (
    "OI_Global_Mem",
    "OI_Shared_Mem",
    "Reg_Reuse_Factor",
    "ILP",
    "WLP",
    "Estimated_Occupancy",
    "Wave_Efficiency",
)
"""The names of the features, in the order of their columns."""

_HIDING_WARPS = 64.0  # warps times the root of the independent outputs; as many hide all latencies
_NOT_HIDDEN = 0.2  # the share of the faster parts' time that the slowest part does not hide


def analytic_features(tilings: Tilings, device: Gpu) -> NDArray[np.float64]:
    """The seven features of n tilings.

    Args:
        tilings: The tilings of one contraction.
        device: The GPU.

    Returns:
        Shape (n, 7), in the order of `NAMES`.
    """
    operations = tilings.axes.operations
    fetched = np.sum(tilings.shared_elements, axis=0) * tilings.rounds * tilings.blocks
    transactions = sum(loads * conflicts for loads, conflicts in zip(tilings.loads, tilings.conflicts, strict=True))
    written = tilings.outputs * tilings.threads * tilings.blocks
    registers = np.minimum(tilings.registers, device.registers_per_thread(tilings.threads))
    resident = device.blocks_per_multiprocessor(tilings.threads, registers, tilings.shared_bytes)
    needed = tilings.blocks / np.maximum(1, resident * device.multiprocessors)
    # If a grid does not fill the device, a multiprocessor has no more warps than the blocks that it gets.
    active = np.minimum(resident, np.ceil(tilings.blocks / device.multiprocessors)) * -(-tilings.threads // WARP)
    return np.stack(
        [
            operations / fetched,
            operations / transactions,
            operations / written,
            tilings.outputs.astype(np.float64),
            active.astype(np.float64),
            active / device.warps,
            np.where(resident > 0, needed / np.ceil(needed), 0.0),
        ],
        axis=1,
    )


def estimated_seconds(tilings: Tilings, device: Gpu) -> NDArray[np.float64]:
    """A rough model of the time that n tilings take. It is not from the paper.

    The slowest of computing, global memory and shared memory takes its time, the others add a part of theirs. The sum
    grows if the blocks do not divide evenly among the multiprocessors. The model picks the default schedule, and it is
    the analytic GPU of `benchmarks/gpu/analytic.py`. docs/explanation/gpu.md says how well it orders measured kernels.

    Args:
        tilings: The tilings of one contraction.
        device: The GPU.

    Returns:
        Seconds, shape (n,).
    """
    columns = dict(zip(NAMES, analytic_features(tilings, device).T, strict=True))
    operations = tilings.axes.operations
    hidden = np.minimum(1.0, columns["WLP"] * np.sqrt(columns["ILP"]) / _HIDING_WARPS)
    compute = operations / device.flops / np.maximum(hidden, 1e-3)
    memory = operations / columns["OI_Global_Mem"] * tilings.axes.item_bytes / device.bandwidth
    # In a cycle a multiprocessor moves one word for each thread of a warp, and each lane multiplies and adds once.
    clock = device.flops / device.multiprocessors / (2 * device.lanes)
    shared = operations / columns["OI_Shared_Mem"] / (device.multiprocessors * clock)
    parts = np.stack([compute, memory, shared])
    slowest = parts.max(axis=0)
    whole = slowest + _NOT_HIDDEN * (parts.sum(axis=0) - slowest)
    # Rounds of multiprocessors, not of waves, because WLP already counts that a small grid has few warps on each.
    rounds = tilings.blocks / device.multiprocessors
    return np.asarray(whole * np.ceil(rounds) / rounds, dtype=np.float64)
