"""What all models of time for GPUs share: parts that run at once, waves of blocks, the bytes of memory, and a launch.

    wave       `resident` blocks share a multiprocessor, and take what a sketch's own model says
    cycles     full waves, and a last one with as many blocks as are left
    seconds    the cycles and the bytes of memory, which run at once, and the launch

What a device is known for comes from `Gpu`. The constants were chosen for tilings of contractions (`tilings.py`), on
five of the thirteen recorded spaces of `benchmarks/gpu/model_of_time.py`. Other sketches use them as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....machine.gpu import Gpu

LAUNCH = 2e-6
"""Seconds that no launch of a captured graph falls below."""

SCHEDULERS = 4
"""Of a multiprocessor; each issues an instruction of a warp in a cycle."""

CACHE_PORT = 64.0
"""Bytes of the second cache that reach a multiprocessor in a cycle at most, in pieces of 16 bytes a thread."""

Array = NDArray[Any]


@dataclass(frozen=True)
class Constants:
    """What no data sheet says, and was chosen on recorded spaces. Half or twice of each changes little.

    Attributes:
        not_hidden: The share of the faster parts' time that the slowest part does not hide.
        latency: Cycles of a fetch from memory into shared memory, with its barriers.
        another_fetch: Cycles that each further fetch of a thread adds.
        fetch: Instructions of a fetch, most of them for addresses.
        wait: Cycles of an iteration that is not unrolled: its loads, and the loop.
        unrolled: Steps that `nvcc` unrolls on its own account.
        spill: Transactions of a register that goes to memory or comes back.
        store: What a sector that is written costs, in sectors that are read.
        cache_bytes: What a multiprocessor gets from the second cache in a cycle while its threads fetch words.
    """

    not_hidden: float = 0.7
    latency: float = 600.0
    another_fetch: float = 50.0
    fetch: float = 20.0
    wait: float = 100.0
    unrolled: float = 128.0
    spill: float = 16.0
    store: float = 3.0
    cache_bytes: float = CACHE_PORT / 2


CHOSEN = Constants()
"""The constants that the model has."""


def overlapped(constants: Constants, *parts: Array) -> Array:
    """What parts take that run at once."""
    several = np.stack(np.broadcast_arrays(*parts))
    slowest = several.max(axis=0)
    return np.asarray(slowest + constants.not_hidden * (several.sum(axis=0) - slowest))


def seconds_in_waves(
    device: Gpu,
    blocks: Any,
    resident: Any,
    wave: Callable[[Array], Array],
    moved: Any,
    constants: Constants = CHOSEN,
) -> NDArray[np.float64]:
    """The seconds of n launches.

    Args:
        device: The GPU.
        blocks: The blocks of each, an integer or shape (n,).
        resident: How many of them share a multiprocessor, an integer or shape (n,).
        wave: The cycles that a multiprocessor takes for some blocks at once, of shape (n,) from shape (n,).
        moved: The bytes of memory that each reads and writes, a number or shape (n,).
        constants: Other constants, to choose them.

    Returns:
        Shape (n,).

    Example:
        >>> from stormdrop.machine.gpu import GPUS
        >>> full = 2 * GPUS["a100"].multiprocessors
        >>> launches = np.array([full, full + 1])
        >>> one, two = seconds_in_waves(GPUS["a100"], launches, 2, lambda blocks: 14100.0 * blocks, 0) - LAUNCH
        >>> round(float(one), 6), round(float(two), 6)
        (2e-05, 3e-05)
    """
    resident = np.maximum(resident, 1)
    together = resident * device.multiprocessors
    full = blocks // together
    left = -(-(blocks - full * together) // device.multiprocessors)
    cycles = full * wave(resident) + np.where(left > 0, wave(left), 0)
    seconds = overlapped(constants, cycles / device.clock, np.asarray(moved / device.bandwidth))
    return np.asarray(seconds + LAUNCH, dtype=np.float64)
