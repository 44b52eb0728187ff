"""Which elementwise stages are computed again by each stage that reads them, in place of being stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm.ir import Call

from .expressions import Expr, intrinsic, variables, walk
from .stages import Stage, StageGraph

_MOST_NODES = 64  # of the copies that inlining makes of a value with several loads
_MOST_MERGED = 256  # of equal copies
_CHEAP_CALLS = ("if_then_else", "nearbyint")  # one instruction of a vector; LLVM computes equal ones once


def inline_well(graph: StageGraph, wants: Callable[[StageGraph, Stage], bool] | None = None) -> StageGraph:
    """Inlines elementwise stages into their readers, until no more of them are worth it.

    A stage with two readers may have one after these have become one.

    Args:
        graph: The function.
        wants: Says of a function and a stage of it whether to inline the stage; by default `inlines_well`.
    """
    wanted = wants or inlines_well
    inlined = graph.inlined(lambda stage: not wanted(graph, stage))
    return inlined if len(inlined.stages) == len(graph.stages) else inline_well(inlined, wants)


def inlines_well(graph: StageGraph, stage: Stage, contraction: Stage | None = None) -> bool:
    """Whether it is worthwhile to inline an elementwise stage into its readers.

    Args:
        graph: The function that holds the stage.
        stage: The elementwise stage.
        contraction: The contraction of the function, if it has one. Nothing is inlined into it.
    """
    readers = graph.readers(stage.buffer)
    if contraction is not None and any(reader.buffer.same_as(contraction.buffer) for reader in readers):
        return False
    loads = [(reader, load) for reader in readers for load in reader.loads() if load.source.same_as(stage.buffer)]
    count = sum(1 + _repeats(reader, load) for reader, load in loads)
    # A reader that loads one element several times, and does not come back to it, has equal copies.
    several = len(readers) == 1 and len(loads) > 1 and count == len(loads)
    merged = several and all(tvm_ffi.structural_equal(load, loads[0][1]) for _, load in loads)
    return worth_copying(stage.value, count, any(reader.combine is not None for reader in readers), merged)


def _repeats(reader: Stage, load: Any) -> bool:
    """Whether a stage comes back to each element that it loads, after others.

    The pixels of an image do that to the gate of a channel. A value that all steps of the innermost loop load does not
    count, because it is computed once before that loop.
    """
    used = variables(load)
    axes = [axis.var for axis in reader.axes if axis.extent > 1]
    return bool(axes) and axes[-1] in used and not used.issuperset(axes)


def worth_copying(value: Expr, loads: int, reduced: bool, merged: bool = False) -> bool:
    """Whether it pays to compute a value again in place of each load of its result.

    Args:
        value: The value.
        loads: How many loads there are. One that comes back to each element counts as two. If there are several, a
            value with a costly call (exp, sqrt ...) is not copied.
        reduced: Whether a reduction loads it. Padding is not copied then, because a conditional in the innermost
            loop costs more than a copy.
        merged: Whether all loads are of one element. LLVM then computes its copies once.
    """
    calls = [intrinsic(node) for node in walk(value) if isinstance(node, Call)]
    if reduced and "if_then_else" in calls:
        return False
    costly = any(name not in _CHEAP_CALLS for name in calls)
    # Without this limit a chain of squares would double with every link.
    most = _MOST_MERGED if merged else _MOST_NODES
    return loads <= 1 or (not costly and loads * sum(1 for _ in walk(value)) <= most)
