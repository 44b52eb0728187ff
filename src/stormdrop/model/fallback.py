"""A plain schedule for any function: inlined, parallel, vectorised. For tasks that no sketch has tuned.

for i, j, k:  C[i, j] += ...      ->      parallel i:  for j0:  for k:  vectorised j1:  C[i, j0 * 16 + j1] += ...
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import tvm
from tvm import tirx
from tvm.ir.prim.expr import IntImm
from tvm.s_tir import Schedule, ScheduleError

_T = TypeVar("_T")

_SMALL = 4096
"""Iterations below which a loop nest is not worth waking the other cores for."""


@dataclass(frozen=True)
class Fallback:
    """A function scheduled without a sketch, and what was reached: "parallel, vectorised" at best, "plain" at worst.

    It is the worst of the function's blocks; blocks that are too small to matter do not count.
    """

    function: tirx.PrimFunc
    reached: str


def schedule_fallback(function: tirx.PrimFunc, lanes: int = 16) -> Fallback:
    """Schedule any function for a CPU whose vectors hold `lanes` values. Blocks that cannot be scheduled stay plain."""
    schedule = Schedule(tvm.IRModule({"main": function}))
    # By name: a rollback replaces the schedule, and block references die with it.
    for name in _block_names(schedule):
        schedule, _ = _attempt(schedule, partial(_inline, name=name), None)
    parallel = vectorised = True
    for name in _block_names(schedule):
        if _iterations(schedule, name) < _SMALL:
            continue
        schedule, reached = _attempt(schedule, partial(_tile, name=name, lanes=lanes), (False, False))
        parallel &= reached[0]
        vectorised &= reached[1]
    words = [word for word, reached in (("parallel", parallel), ("vectorised", vectorised)) if reached]
    return Fallback(schedule.mod["main"], ", ".join(words) or "plain")


def _attempt(schedule: Schedule, step: Callable[[Schedule], _T], otherwise: _T) -> tuple[Schedule, _T]:
    """The schedule after a step and its result, or both as before where TVM says that the step is not valid."""
    trial = schedule.copy()
    try:
        return trial, step(trial)
    except ScheduleError:
        return schedule, otherwise


def _block_names(schedule: Schedule) -> list[str]:
    return [schedule.get(b).name_hint for b in schedule.get_child_blocks(schedule.get_sblock("root"))]


def _kinds(schedule: Schedule, block: Any) -> list[int]:
    return [int(axis.iter_type) for axis in schedule.get(block).iter_vars]


def _iterations(schedule: Schedule, name: str) -> int:
    return math.prod(_extent(schedule, loop) or 1 for loop in schedule.get_loops(schedule.get_sblock(name)))


def _extent(schedule: Schedule, loop: Any) -> int | None:
    extent = schedule.get(loop).extent
    return int(extent) if isinstance(extent, IntImm | int) else None


def _inline(schedule: Schedule, name: str) -> None:
    """Inline a block without reduction into readers without one: elsewhere its work would be repeated."""
    block = schedule.get_sblock(name)
    consumers = schedule.get_consumers(block)
    spatial = all(set(_kinds(schedule, b)) <= {tirx.IterVar.DataPar} for b in (block, *consumers))
    if consumers and spatial:
        schedule.compute_inline(block)


def _tile(schedule: Schedule, name: str, lanes: int) -> tuple[bool, bool]:
    """Parallel outer spatial loops, the last spatial loop vectorised; whether each was possible."""
    block = schedule.get_sblock(name)
    loops = schedule.get_loops(block)
    kinds = _kinds(schedule, block)
    if len(loops) != len(kinds):
        return False, False
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.DataPar]
    reduction = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.CommReduce]
    if not spatial or len(spatial) + len(reduction) != len(loops):
        return False, False
    width = _width(_extent(schedule, spatial[-1]), lanes)
    inner = []
    if width > 1:
        outer, vector = schedule.split(spatial.pop(), [None, width])
        spatial.append(outer)
        inner = [vector]
    schedule.reorder(*spatial, *reduction, *inner)
    fused = schedule.fuse(*spatial) if len(spatial) > 1 else spatial[0]
    if inner:
        schedule.vectorize(inner[0])
    parallel = (_extent(schedule, fused) or 1) > 1
    if parallel:
        schedule.parallel(fused)
    if reduction:
        # Last: without its initial value a block is no reduction any more, and TVM refuses to vectorise it.
        schedule.decompose_reduction(block, reduction[0])
    return parallel, bool(inner)


def _width(extent: int | None, lanes: int) -> int:
    """The widest vector that divides an extent: no predicates in the body."""
    return max((w for w in range(1, lanes + 1) if extent is not None and extent % w == 0), default=1)
