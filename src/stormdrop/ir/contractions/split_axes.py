"""Axes of a contraction that its loads divide: the channels of groups, and the pixels of an upsampled image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm

from ..expressions import Expr, transform, walk
from ..stages import Axis, Stage, variable


def divisors_of(loads: Sequence[Any], axis: Axis) -> set[int]:
    """The numbers by which loads divide an axis, or take remainders of it."""
    return {int(node.b) for node in _divided(loads, axis)}


def columns_of_group(load: Any, column: Axis) -> int | None:
    """The columns of one group: `n` if a load divides the column axis by `n` and by no other number, else None."""
    divisors = {int(node.b) for node in _divided([load], column) if isinstance(node, prim.FloorDiv)}
    columns = divisors.pop() if len(divisors) == 1 else None
    return columns if columns is not None and column.extent % columns == 0 else None


def step_of(loads: Sequence[Any], axis: Axis) -> int | None:
    """The step `n` of an axis if loads take remainders by `n` of it, and divide it by no other number; else None."""
    steps = divisors_of(loads, axis)
    if len(steps) != 1 or not any(isinstance(node, prim.FloorMod) for node in _divided(loads, axis)):
        return None
    step = steps.pop()
    return step if axis.extent % step == 0 else None


def split_axis(stage: Stage, epilogue: Stage, whole: Axis, size: int) -> tuple[Stage, Stage, Axis]:
    """The contraction and the epilogue over two axes in place of a spatial axis, and the second of them.

    Before:     for column in 32:                          data[column // 8], data[column % 8]
    After:      for group in 4: for column in 8:           data[group], data[column]

    Args:
        stage: The contraction.
        epilogue: The store of its results.
        whole: The axis.
        size: The extent of the second axis, which divides that of the whole one.
    """
    group, within = Axis(variable("group"), whole.extent // size), Axis(variable("column"), size)

    def split(node: Expr) -> Expr | None:
        if isinstance(node, prim.FloorDiv | prim.FloorMod) and whole.var.same_as(node.a) and _is(node.b, size):
            return group.var if isinstance(node, prim.FloorDiv) else within.var
        return group.var * size + within.var if whole.var.same_as(node) else None

    def over_both(item: Stage) -> Stage:
        axes = [new for axis in item.axes for new in ((group, within) if axis.var.same_as(whole.var) else (axis,))]
        indices = tuple(transform(index, split) for index in item.indices)
        return replace(item, axes=tuple(axes), indices=indices, value=transform(item.value, split))

    return over_both(stage), over_both(epilogue), within


def _divided(loads: Sequence[Any], axis: Axis) -> list[Any]:
    """The quotients and remainders of an axis by numbers, in the indices of loads."""
    nodes = [node for load in loads for index in load.indices for node in walk(index)]
    kinds = prim.FloorDiv | prim.FloorMod
    return [
        node for node in nodes if isinstance(node, kinds) and axis.var.same_as(node.a) and isinstance(node.b, IntImm)
    ]


def _is(node: Expr, number: int) -> bool:
    return isinstance(node, IntImm) and int(node) == number
