"""The seconds that a compiled kernel is expected to take on a GPU, which need not be here.

What its sketch expects of its schedule (`stormdrop/sketches/gpu/times/`) counts. It knows neither what `ptxas` spills,
nor what a fused epilogue computes. A kernel without a sketch is expected to move its bytes in waves of blocks, as many
as the registers that `ptxas` gives its threads allow. No launch of a captured graph takes less than 2 us. It orders
kernels of a model by what they could cost, and is no measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stormdrop.machine.gpu import Gpu
from stormdrop.sketches.gpu.times.waves import CHOSEN, overlapped, seconds_in_waves
from stormdrop.sketches.knowledge import prior
from stormdrop.trial import Candidate
from stormdrop.tuning.kernel import KernelTask


@dataclass(frozen=True)
class CompiledLaunch:
    """A launch, and the resources that its kernel needs: threads of a block, registers of a thread, bytes."""

    blocks: int
    threads: int
    registers: int
    shared: int
    spilled: int


def seconds_by_sketch(kernel: KernelTask, choice: tuple[str, Any], gpu: Gpu) -> float:
    """The seconds that the sketch of a schedule expects of it; NaN if it expects nothing.

    Args:
        kernel: The kernel.
        choice: The sketch's name, and the configuration.
        gpu: The GPU.
    """
    name, config = choice
    expected = prior(kernel.sketches, kernel.workload, gpu)
    space = next((space for _, space in kernel.sketches if space.name == name), None)
    if expected is None or space is None:
        return float("nan")
    return float(expected([Candidate(name, space.point(config))])[0])


def seconds_by_bytes(launches: Sequence[CompiledLaunch], bytes_moved: float, gpu: Gpu) -> float:
    """The seconds of the launches of a kernel that moves bytes, which they share by their numbers of threads.

    Args:
        launches: The launches.
        bytes_moved: The bytes that all of them read and write.
        gpu: The GPU.
    """
    total = sum(launch.blocks * launch.threads for launch in launches)
    return sum(_seconds(launch, bytes_moved * launch.threads / total, gpu) for launch in launches)


def _seconds(launch: CompiledLaunch, bytes_of_block: float, gpu: Gpu) -> float:
    resident = gpu.blocks_per_multiprocessor(launch.threads, launch.registers, launch.shared)

    def wave(count: Any) -> Any:
        return overlapped(CHOSEN, count * bytes_of_block / CHOSEN.cache_bytes, np.asarray(CHOSEN.latency))

    return float(seconds_in_waves(gpu, launch.blocks, resident, wave, bytes_of_block * launch.blocks))
