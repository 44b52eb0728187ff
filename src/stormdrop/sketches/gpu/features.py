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

from typing import Any

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


def analytic_features(tilings: Tilings, device: Gpu, parts: Any = 1, stages: Any = 1) -> NDArray[np.float64]:
    """The seven features of n tilings.

    Args:
        tilings: The tilings of one contraction.
        device: The GPU.
        parts: The parts of the longest reduction, which blocks of their own sum up: an integer or shape (n,).
        stages: The steps whose operands are in shared memory at a time: an integer or shape (n,).

    Returns:
        Shape (n, 7), in the order of `NAMES`.
    """
    operations, blocks = tilings.axes.operations, tilings.blocks * parts
    fetched = np.sum(tilings.shared_elements, axis=0) * tilings.rounds * tilings.blocks
    transactions = sum(loads * conflicts for loads, conflicts in zip(tilings.loads, tilings.conflicts, strict=True))
    written = tilings.outputs * tilings.threads * blocks
    registers = np.minimum(tilings.registers, device.registers_per_thread(tilings.threads))
    resident = device.blocks_per_multiprocessor(tilings.threads, registers, tilings.shared_bytes_in(stages))
    needed = blocks / np.maximum(1, resident * device.multiprocessors)
    # If a grid does not fill the device, a multiprocessor has no more warps than the blocks that it gets.
    active = np.minimum(resident, np.ceil(blocks / device.multiprocessors)) * -(-tilings.threads // WARP)
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
