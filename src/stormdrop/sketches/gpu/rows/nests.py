"""Stages in loops over blocks, threads and what a thread has in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from tvm import tirx
from tvm.ir import Range
from tvm.tirx import For, ForKind, IterVar

from ....ir.expressions import Expr
from ....ir.stages import Axis, Stage, sequence, variable

Place = tuple[Any, ...]
"""The position of an element in registers, or the first indices of it."""


class Nests:
    """Writes stages at places.

    Args:
        extents: Those of the indices of a place. The last one is that of a vector.

    Attributes:
        extents: Those of the indices of a place.
        stages: What was written.
    """

    def __init__(self, extents: Sequence[int]) -> None:
        self.extents = extents
        self.stages: list[Stage] = []

    def at(
        self, make: Callable[..., Stage], at: Place, sums: Sequence[int] = (), width: int = 0, when: Any = True
    ) -> Any:
        """The statement of a stage at a place, or at all elements of a vector if only these are left out of it.

        Args:
            make: The stage at the variables of its axes.
            at: The place.
            sums: The axes that it sums over.
            width: The elements that it reads or writes at a time; 0 for one by one.
            when: Whether it stores what it computes.
        """
        part, element, loops = variable("part"), variable("element"), []
        if len(at) == len(self.extents) - 1:
            width = min(width or 1, self.extents[-1])
            loops = [(element, width, ForKind.VECTORIZED), (part, self.extents[-1] // width, ForKind.UNROLLED)]
            at = (*at, part * width + element)
        axes = [Axis(variable(f"i{axis}"), self.extents[axis], axis in sums) for axis in range(len(at))]
        stage = replace(make(*(axis.var for axis in axes)), axes=tuple(axes))
        self.stages.append(stage)
        nest = stage.statement(at, predicate=when)
        for name, extent, kind in loops:
            nest = For(name, 0, extent, kind if extent > 1 else ForKind.SERIAL, nest)
        return nest


def all_of(conditions: Sequence[Expr]) -> Any:
    """The conjunction of conditions; True of none."""
    return reduce(tirx.And, conditions) if conditions else True


def bound(name: Any, extent: int, tag: str, body: Sequence[Any]) -> Any:
    """A loop over blocks or threads.

    Args:
        name: The variable.
        extent: How many there are.
        tag: Such as "threadIdx.x".
        body: The statements.
    """
    axis = IterVar(Range(0, extent), tirx.Var(tag, "int32"), IterVar.ThreadIndex, tag)
    return For(name, 0, extent, ForKind.THREAD_BINDING, sequence(body), axis)
