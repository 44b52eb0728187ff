"""The kernel of a concatenation that writes the new rows only, where the former ones lie in its output already.

    out[h, 0:64, :] = past[h, :, :]                            out[h, 64 + i, :] = new[i, h, :]
    out[h, 64 + i, :] = new[i, h, :]              ->

The whole output may be turned around by whoever reads it: then the same is done to the new rows only. Fusion puts what
makes the new rows into the same function: transposes, rotations. What is found is proven from the function's code: each
of the first rows is that of the input, and no other row reads the input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tvm.ir import Range, TensorLoad, Var
from tvm.ir.prim.expr import IntImm
from tvm.sym import Analyzer
from tvm.tirx import PrimFunc

from ...errors import UnsupportedFunction
from ...ir.expressions import children, is_selection, loads_in, rewrite_loads, simplified, transform
from ...ir.stages import Axis, Stage, StageGraph, loads_of, shape_of
from ...ir.workload import canonical


@dataclass(frozen=True)
class WrittenRows:
    """What writes the new rows.

    Attributes:
        function: The function. It leaves the first rows of its output as they are.
        order: Which axis of the former rows each axis of the output is.
    """

    function: PrimFunc
    order: tuple[int, ...]


def written_rows(function: PrimFunc, past: int, axis: int, reader: PrimFunc | None = None) -> WrittenRows | None:
    """The function that writes the rows behind those of an input.

    Args:
        function: A function with one output, its last parameter.
        past: The position of the input among its parameters.
        axis: The axis of the rows.
        reader: A function of that output alone. The rows are then those of what it makes.

    Returns:
        The function without that input; None if the first rows of the output are not those of the input, perhaps with
        axes in another order, or others depend on it.
    """
    try:
        graph = canonical(StageGraph.parse(function, gathers=True))
        return _rows_only(graph if reader is None else _read_by(graph, reader), graph.parameters[past], axis)
    except UnsupportedFunction:
        return None


def _read_by(graph: StageGraph, reader: PrimFunc) -> StageGraph:
    """The stages of a function and of what reads its output, which is no parameter any more."""
    behind = canonical(StageGraph.parse(reader, gathers=True))
    (*inputs, out), whole = graph.parameters, behind.parameters[0]
    if len(behind.parameters) != 2:
        raise UnsupportedFunction("the reader has more than one input")

    def joined(stage: Stage) -> Stage:
        value = rewrite_loads(
            stage.value, lambda load: out[tuple(load.indices)] if load.source.same_as(whole) else None
        )
        return replace(stage, value=value)

    both = StageGraph((*inputs, behind.parameters[1]), (*graph.stages, *map(joined, behind.stages)))
    return both.inlined(lambda stage: not stage.buffer.same_as(out) and any(stage is each for each in graph.stages))


def _rows_only(graph: StageGraph, source: Any, axis: int) -> WrittenRows | None:
    out = graph.parameters[-1]
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
    for along in (by_variable[index] for index in writer.indices):
        order = _order(writer, along, source, rows) if along.extent > rows else None
        if order is None or order.index(axis) != writer.indices.index(along.var):
            continue
        behind = _behind(writer, along, rows)
        if behind.reads(source):
            return None
        stages = [behind if stage is writer else stage for stage in graph.stages]
        needed = {out, *loads_of(stages)}  # what makes the first rows only is not
        parameters = tuple(each for each in graph.parameters if not each.same_as(source))
        left = StageGraph(parameters, tuple(stage for stage in stages if stage.buffer in needed))
        return WrittenRows(canonical(left).function(), order)
    return None


def _order(writer: Stage, along: Axis, source: Any, rows: int) -> tuple[int, ...] | None:
    """Which axis of an input each axis of an output is, if its first rows are those of the input; else None."""
    analyzer = _within({**_extents(writer), along.var: rows})
    value = _decided(writer.value, analyzer)
    if not isinstance(value, TensorLoad) or not value.source.same_as(source):
        return None
    read, written = list(value.indices), list(writer.indices)
    order = []
    for index, extent in zip(written, shape_of(writer.buffer), strict=True):
        alike = [at for at, each in enumerate(read) if analyzer.can_prove_equal(each, index)]
        same = [at for at in alike if shape_of(source)[at] in (extent, rows) and at not in order]
        if not same:
            return None
        order.append(same[0])
    return tuple(order) if len(order) == len(read) else None


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
