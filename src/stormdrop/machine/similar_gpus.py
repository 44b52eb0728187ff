"""How much alike two GPUs are, one of which is known from records only."""

from __future__ import annotations

import math

from ..runtime.device.cuda import short_names
from .gpu import GPUS, Gpu

_OF_A_FAMILY = 1e-6
"""How far apart two GPUs are at least whose names differ."""


def recorded_gpu(kind: str, machine: str) -> Gpu | None:
    """The GPU that measurements were recorded on; None if it is none of `GPUS`.

    Args:
        kind: The target of the records, as `Gpu.kind`.
        machine: Their machine, as `Gpu.machine`.

    Example:
        >>> gpu = recorded_gpu("cuda sm_86", "NVIDIA GeForce RTX 3090 at board:9190")
        >>> gpu.name
        'rtx3090'
    """
    names = short_names(machine.partition(" at ")[0])
    return next((gpu for name in names if (gpu := GPUS.get(name)) is not None and gpu.kind == kind), None)


def unlikeness(kind: str, gpu: Gpu | None, recorded_kind: str, recorded_machine: str) -> tuple[bool, float]:
    """How little a GPU of the records is like another one, for sorting: the nearest comes first.

    Args:
        kind: The `Gpu.kind` of the other one.
        gpu: The other one; None if its numbers are not known.
        recorded_kind: The target of the records.
        recorded_machine: Their machine.

    Returns:
        Whether its architecture is another one; and the sum of |log ratio| of the numbers of multiprocessors, their
        clocks, the bandwidths and the shared memories, which is infinite if one is not known. It is 0 for a GPU of the
        same name only: an A100 with 40 GB counts as the known one with 80 GB, and is another one.

    Example:
        >>> rtx3090 = GPUS["rtx3090"]
        >>> near = unlikeness(rtx3090.kind, rtx3090, "cuda sm_86", "NVIDIA RTX A6000")
        >>> near < unlikeness(rtx3090.kind, rtx3090, "cuda sm_86", "NVIDIA A10G")
        True
    """
    *_, name = short_names(recorded_machine.partition(" at ")[0])
    if gpu is not None and (recorded_kind, name) == (kind, gpu.name):
        return False, 0.0
    recorded, distance = recorded_gpu(recorded_kind, recorded_machine), math.inf
    if gpu is not None and recorded is not None:
        pairs = zip(_numbers(gpu), _numbers(recorded), strict=True)
        distance = max(_OF_A_FAMILY, sum(abs(math.log(one / other)) for one, other in pairs))
    return recorded_kind != kind, distance


def _numbers(gpu: Gpu) -> tuple[float, ...]:
    clock = gpu.flops / gpu.lanes / gpu.multiprocessors
    return gpu.multiprocessors, clock, gpu.bandwidth, gpu.shared
