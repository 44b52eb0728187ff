"""A rough prediction of the seconds that a kernel takes on a GPU, of its launches and of what `ptxas` says of them.

It assumes that
- each input is read from memory once and each output written once: what blocks read again comes from the caches;
- arithmetic runs at the peak of float32 if each lane of a multiprocessor has four independent sums at a time, because a
  result is there after four cycles; with fewer threads, or outputs in the registers of a thread, at their share;
- a thread has four words on their way from memory, which takes 500 ns: few threads do not fill the bandwidth;
- multiprocessors take the same number of blocks as far as that is possible, and all wait for the one with the most;
- no launch of a captured graph takes less than 2 us;
- a kernel's launches share its operations and bytes by their numbers of threads.

It knows neither spills, nor bank conflicts, nor accesses that do not coalesce. It orders kernels of a model by what
they could cost, and shows those whose launches leave the device idle. It is no measurement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stormdrop.machine.gpu import Gpu

_CYCLES = 4  # until the result of an operation is there
_IN_FLIGHT, _MEMORY_LATENCY = 16.0, 500e-9  # bytes of a thread, seconds
_LAUNCH = 2e-6  # seconds


@dataclass(frozen=True)
class CompiledLaunch:
    """A launch, and the resources that its kernel needs: threads of a block, registers of a thread, bytes."""

    blocks: int
    threads: int
    registers: int
    shared: int
    spilled: int


def predicted_seconds(
    launches: Sequence[CompiledLaunch], flops: float, bytes_moved: float, gpu: Gpu, independent: float = 1.0
) -> list[float]:
    """The seconds of each launch of a kernel.

    Args:
        launches: The launches.
        flops: Operations of all of them.
        bytes_moved: Bytes that all of them read and write at least.
        gpu: The GPU.
        independent: The sums that a thread computes independently of each other.
    """
    total = sum(launch.blocks * launch.threads for launch in launches)
    shares = [launch.blocks * launch.threads / total for launch in launches]
    return [
        _seconds(launch, flops * share, bytes_moved * share, gpu, independent)
        for launch, share in zip(launches, shares, strict=True)
    ]


def _seconds(launch: CompiledLaunch, flops: float, bytes_moved: float, gpu: Gpu, independent: float) -> float:
    resources = (np.array([value]) for value in (launch.threads, launch.registers, launch.shared))
    resident = max(1, int(gpu.blocks_per_multiprocessor(*resources)[0]))
    most = math.ceil(launch.blocks / gpu.multiprocessors)  # blocks of the busiest multiprocessor
    together = min(resident, most) * launch.threads  # threads that it has at once
    everywhere = min(resident * gpu.multiprocessors, launch.blocks) * launch.threads
    arithmetic = flops / gpu.flops * most * gpu.multiprocessors / launch.blocks
    filled = everywhere * _IN_FLIGHT / (_MEMORY_LATENCY * gpu.bandwidth)
    memory = bytes_moved / gpu.bandwidth / min(1.0, filled)
    return max(arithmetic / min(1.0, together * independent / (_CYCLES * gpu.lanes)), memory, _LAUNCH)
