"""The kernel of a concatenation that writes the new rows only, where the former ones lie in its output already.

    out[h, 0:64, :] = past[h, :, :]                            out[h, 64 + i, :] = new[i, h, :]
    out[h, 64 + i, :] = new[i, h, :]              ->

Fusion puts what makes the new rows into the same function: transposes, rotations. What is found is proven from the
function's code: each of the first rows is that of the input, and no other row reads the input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tvm.ir import Range, TensorLoad, Var
from tvm.ir.prim.expr import IntImm
from tvm.sym import Analyzer
from tvm.tirx import PrimFunc

from ...errors import UnsupportedFunction
from ...ir.expressions import children, is_selection, loads_in, simplified, transform
from ...ir.stages import Axis, Stage, StageGraph, loads_of, shape_of
from ...ir.workload import canonical


def written_rows(function: PrimFunc, past: int, axis: int) -> PrimFunc | None:
    """The function that writes the rows behind those of an input.

    Args:
        function: A function with one output, its last parameter.
        past: The position of the input among its parameters.
        axis: The axis of the rows.

    Returns:
        The function without that input, which leaves the first rows of its output as they are; None if the first rows
        of the output are not those of the input, or others depend on it.
    """
    try:
        graph = canonical(StageGraph.parse(function, gathers=True))
        return _rows_only(graph, past, axis)
    except UnsupportedFunction:
        return None


def _rows_only(graph: StageGraph, past: int, axis: int) -> PrimFunc | None:
    source, out = graph.parameters[past], graph.parameters[-1]
    writer = graph.writer(out)
    if (
        writer is None
        or writer.combine is not None
        or any(stage.reads(source) for stage in graph.stages if stage is not writer)
    ):
        return None
    rows, whole = shape_of(source)[axis], shape_of(out)
    by_variable = {each.var: each for each in writer.axes}
    if len(writer.axes) != len(whole) or any(index not in by_variable for index in writer.indices):
        return None
    if not _copies(writer, by_variable[writer.indices[axis]], source, rows):
        return None
    behind = _behind(writer, by_variable[writer.indices[axis]], rows)
    if behind.reads(source):
        return None
    stages = [behind if stage is writer else stage for stage in graph.stages]
    needed = {out, *loads_of(stages)}  # what makes the first rows only is not
    parameters = tuple(each for each in graph.parameters if not each.same_as(source))
    return StageGraph(parameters, tuple(stage for stage in stages if stage.buffer in needed)).function()


def _copies(writer: Stage, along: Axis, source: Any, rows: int) -> bool:
    """Whether the first rows of an output are those of an input."""
    analyzer = _within({**_extents(writer), along.var: rows})
    value = _decided(writer.value, analyzer)
    if not isinstance(value, TensorLoad) or not value.source.same_as(source):
        return False
    return all(
        analyzer.can_prove_equal(read, written) for read, written in zip(value.indices, writer.indices, strict=True)
    )


def _behind(writer: Stage, along: Axis, rows: int) -> Stage:
    """The stage that writes the rows behind the first ones."""
    index = Var(along.name, along.var.ty)
    axes = [Axis(index, along.extent - rows) if axis is along else axis for axis in writer.axes]
    places: dict[Any, Any] = {axis.var: axis.var for axis in writer.axes}
    moved = writer.over(axes, {**places, along.var: index + rows})
    return replace(moved, value=simplified(_decided(moved.value, _within(_extents(moved))), _extents(moved)))


def _extents(stage: Stage) -> dict[Any, int]:
    return {axis.var: axis.extent for axis in stage.axes}


def _within(extents: Mapping[Any, int]) -> Analyzer:
    """Knows that each variable is at least 0 and less than its extent."""
    analyzer = Analyzer()
    for var, extent in extents.items():
        analyzer.bind(var, Range(0, extent))
    return analyzer


def _decided(value: Any, analyzer: Analyzer) -> Any:
    """A value in which each choice is made that is the same for all elements."""

    def decide(node: Any) -> Any:
        if not is_selection(node):
            return None
        condition, first, second = children(node)
        if loads_in(condition):
            return None
        found = analyzer.simplify(condition)
        return transform(first if int(found) else second, decide) if isinstance(found, IntImm) else None

    return transform(value, decide)
