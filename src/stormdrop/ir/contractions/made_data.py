"""A contraction of data that a stage makes: in another type, or with more elements.

    Before:     sum[i, j] += factor(data[i, k]) * columns[k, j]
    After:      made[i, k] = ... data[i, k] ...                     in the stage that pads, or in one of its own
                sum[i, j] += made[i, k] * columns[k, j]

Machines ask for it whose instructions multiply such data only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm.ir.prim import expr as prim

from ..expressions import Expr, rewrite_loads
from ..stages import Axis, Stage, StageGraph, shape_of, variable
from .contraction import Contraction, find_contraction
from .factors import factor_of


def with_made_data(
    contraction: Contraction,
    made: Any,
    make: Callable[[Stage], Stage],
    *,
    name: str,
    takes: Callable[[Stage], bool] = lambda prologue: True,
    sums: str | None = None,
) -> Contraction:
    """The contraction whose data a stage makes.

    Args:
        contraction: The contraction.
        made: The buffer of these data.
        make: The stage that writes `made`, for one that writes the data as they are.
        name: The name of that stage, if it is not the prologue of the contraction.
        takes: Whether `make` takes the prologue; else there is a stage of its own beside it.
        sums: The type to which an element of `made` is converted to be the factor. By default the factor stays as it
            is, with another load in it.

    Returns:
        The contraction of a function that computes the same.
    """
    graph, source = contraction.graph, contraction.other.source
    prologue = contraction.prologue if contraction.prologue is not None and takes(contraction.prologue) else None

    def element(load: Any) -> Any:
        return made[tuple(load.indices)] if load.source.same_as(source) else None

    def factor(node: Expr) -> Expr:
        found = factor_of(node)
        if found is None or not found.load.source.same_as(source):
            return node
        return rewrite_loads(node, element) if sums is None else prim.Cast(sums, element(found.load))

    stages: list[Stage] = []
    for stage in graph.stages:
        if stage is prologue:
            stage = make(stage)
        elif stage.buffer.same_as(contraction.stage.buffer):
            if prologue is None:
                axes = tuple(
                    Axis(variable(f"{made.name}{number}"), extent) for number, extent in enumerate(shape_of(source))
                )
                indices = tuple(axis.var for axis in axes)
                stages.append(make(Stage(name, axes, source, indices, source[indices])))
            stage = replace(stage, value=prim.Mul(factor(stage.value.a), factor(stage.value.b)))
        stages.append(stage)
    return find_contraction(StageGraph(graph.parameters, tuple(stages)), contraction.constants)
