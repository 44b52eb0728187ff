"""Parallel, vectorised loops for a stage that stands alone: padding, packing, transposing."""

from __future__ import annotations

import math
from typing import Any

from tvm.s_tir import Schedule

from .stages import Stage
from .target import Target

_TASKS_PER_CORE = 4


def schedule_streaming(schedule: Schedule, stage: Stage, target: Target) -> None:
    """Schedules the block of this stage: outer loops parallel, the last spatial loop vectorised where it divides.

    Before:     for i, j, k: B[i, j, k] = ...
    After:      for i_j in parallel: for k0: for k1 in vectorized: ...
    """
    block = schedule.get_sblock(stage.name)
    loops = schedule.get_loops(block)
    spatial = [loop for loop, axis in zip(loops, stage.axes, strict=True) if not axis.reduce]
    reduced = [loop for loop, axis in zip(loops, stage.axes, strict=True) if axis.reduce]
    if not spatial:
        return
    extents = [int(schedule.get(loop).extent) for loop in spatial]
    leading, serial = spatial[:-1], [spatial[-1]]
    width = math.gcd(extents[-1], target.lanes)
    vector: Any = None
    if width > 1:
        outer, vector = schedule.split(spatial[-1], [extents[-1] // width, width])
        serial = [outer]
    # Only as many loops are fused as it takes to keep the cores busy: index arithmetic stays cheap.
    wanted = _TASKS_PER_CORE * target.cores
    fused, count = 0, 1
    while fused < len(leading) and count < wanted:
        count *= extents[fused]
        fused += 1
    parallel, serial = leading[:fused], [*leading[fused:], *serial]
    if count < wanted:
        parallel, serial = [*parallel, *serial], []
    if reduced:
        schedule.reorder(*parallel, *serial, *reduced, *([] if vector is None else [vector]))
    if vector is not None:
        schedule.vectorize(vector)
    schedule.parallel(schedule.fuse(*parallel))
