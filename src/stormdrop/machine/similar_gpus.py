"""How much alike two GPUs are, one of which is known from records only."""

from __future__ import annotations

import math

from .gpu import GPUS, Gpu, short_names


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
        clocks, the bandwidths and the shared memories, which is 0 for the same GPU, and infinite if one is not known.

    Example:
        >>> rtx3090 = GPUS["rtx3090"]
        >>> near = unlikeness(rtx3090.kind, rtx3090, "cuda sm_86", "NVIDIA RTX A6000")
        >>> near < unlikeness(rtx3090.kind, rtx3090, "cuda sm_86", "NVIDIA A10G")
        True
    """
    recorded, distance = recorded_gpu(recorded_kind, recorded_machine), math.inf
    if gpu is not None and recorded is not None:
        pairs = zip(_numbers(gpu), _numbers(recorded), strict=True)
        distance = sum(abs(math.log(one / other)) for one, other in pairs)
    return recorded_kind != kind, distance


def _numbers(gpu: Gpu) -> tuple[float, ...]:
    clock = gpu.flops / gpu.lanes / gpu.multiprocessors
    return gpu.multiprocessors, clock, gpu.bandwidth, gpu.shared
