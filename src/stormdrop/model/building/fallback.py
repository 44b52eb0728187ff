"""A plain schedule for the tasks that no sketch schedules: inlined, parallel, vectorised as far as possible.

for i, j, k:  C[i, j] += ...      ->      parallel i:  for j0:  for k:  vectorised j1:  C[i, j0 * 16 + j1] += ...
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm
from tvm.s_tir import Schedule, ScheduleError
from tvm_ffi import structural_map, structural_walk

from ...ir.expressions import simplified
from ..graph.tasks import has_nests

_T = TypeVar("_T")

_SMALL = 4096
"""A loop nest of fewer iterations stays plain: waking the other cores takes longer than it saves."""


@dataclass(frozen=True)
class Fallback:
    """A function that was scheduled without a sketch.

    Attributes:
        function: The scheduled function.
        reached: "parallel, vectorised", "parallel", "vectorised" or "plain": what every block of the function has,
            except for blocks that are too small to matter.
    """

    function: tirx.PrimFunc
    reached: str


def schedule_fallback(function: tirx.PrimFunc, lanes: int = 16) -> Fallback:
    """Schedules any function for a CPU. Blocks that cannot be scheduled stay plain.

    Args:
        function: The function; it is not changed.
        lanes: How many values a vector of the CPU holds.
    """
    if not has_nests(function):
        return Fallback(_without_scopes(function), "plain")
    schedule = Schedule(tvm.IRModule({"main": function}))
    # Blocks are found by name, because references to them become invalid if `attempt` replaces the schedule.
    for name in block_names(schedule):
        schedule, _ = attempt(schedule, partial(inline, name=name), None)
    parallel = vectorised = True
    for name in block_names(schedule):
        if _iterations(schedule, name) < _SMALL:
            schedule, _ = attempt(schedule, partial(_split_at_moduli, name=name), None)
            continue
        schedule, reached = attempt(schedule, partial(_tile, name=name, lanes=lanes), (False, False))
        parallel &= reached[0]
        vectorised &= reached[1]
    words = [word for word, reached in (("parallel", parallel), ("vectorised", vectorised)) if reached]
    return Fallback(schedule.mod["main"], ", ".join(words) or "plain")


def _without_scopes(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function without the marks of its scopes, which TVM's scripts leave and of which its code generator warns."""

    def unmarked(node: tirx.AttrStmt) -> Any:
        return node.body if node.attr_key == "pragma_scope" else node

    return function.with_body(structural_map(function.body, ((tirx.AttrStmt, unmarked),)))


def attempt(schedule: Schedule, step: Callable[[Schedule], _T], otherwise: _T) -> tuple[Schedule, _T]:
    """The schedule after a step, and the step's result; if the step is not valid, the old schedule and `otherwise`."""
    trial = schedule.copy()
    try:
        return trial, step(trial)
    except ScheduleError:
        return schedule, otherwise


def block_names(schedule: Schedule) -> list[str]:
    """The names of the blocks of a schedule, in their order."""
    return [schedule.get(block).name_hint for block in schedule.get_child_blocks(schedule.get_sblock("root"))]


def _kinds(schedule: Schedule, block: Any) -> list[int]:
    return [int(axis.iter_type) for axis in schedule.get(block).iter_vars]


def _iterations(schedule: Schedule, name: str) -> int:
    return math.prod(_extent(schedule, loop) or 1 for loop in schedule.get_loops(schedule.get_sblock(name)))


def _extent(schedule: Schedule, loop: Any) -> int | None:
    extent = schedule.get(loop).extent
    return int(extent) if isinstance(extent, IntImm | int) else None


def inline(schedule: Schedule, name: str) -> None:
    """Inlines a block if neither it nor a consumer has a reduction, in which its work would be repeated."""
    block = schedule.get_sblock(name)
    consumers = schedule.get_consumers(block)
    spatial = all(set(_kinds(schedule, member)) <= {tirx.IterVar.DataPar} for member in (block, *consumers))
    if consumers and spatial:
        schedule.compute_inline(block)


def _split_at_moduli(schedule: Schedule, name: str) -> None:
    """Makes several loops of one over i of which a block reads i % n, so that nothing is divided.

    LLVM 22 makes vectors of plain loops for Zen 4 and 5, and reads `x[i % 8]` as if the modulo were not there.
    """
    block = schedule.get_sblock(name)
    loops, axes = schedule.get_loops(block), schedule.get(block).iter_vars
    if len(loops) != len(axes):
        return
    extents = {axis.var: _extent(schedule, loop) or 1 for loop, axis in zip(loops, axes, strict=True)}
    moduli: dict[Any, set[int]] = {variable: set() for variable in extents}

    def note(node: Any) -> None:
        if node.a in moduli and isinstance(node.b, IntImm):
            moduli[node.a].add(int(node.b))

    def visit(load: Any) -> None:
        structural_walk(simplified(load, extents), (prim.FloorMod, note))

    structural_walk(schedule.get(block).body, (TensorLoad, visit))
    for loop, axis in zip(loops, axes, strict=True):
        extent, steps = extents[axis.var], [1]
        for modulus in sorted(moduli[axis.var]):
            if modulus % steps[-1] == 0 and extent % modulus == 0 and steps[-1] < modulus < extent:
                steps.append(modulus)
        if len(steps) > 1:
            schedule.split(loop, [None, *(large // small for small, large in reversed(list(pairwise(steps))))])


def _tile(schedule: Schedule, name: str, lanes: int) -> tuple[bool, bool]:
    """Makes the outer spatial loops parallel and vectorises the last one; says whether each of the two was possible."""
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
        # This has to come last: without its initial value the block is no reduction, and TVM does not vectorise it.
        schedule.decompose_reduction(block, reduction[0])
    return parallel, bool(inner)


def _width(extent: int | None, lanes: int) -> int:
    """The widest vector that divides an extent, so that the body needs no predicates."""
    return max((width for width in range(1, lanes + 1) if extent is not None and extent % width == 0), default=1)
