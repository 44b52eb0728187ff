"""Finds the matmul of a function for tensor cores: factors of 16 bits, sums of float32."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx
from tvm.ir.prim.expr import FloatImm
from tvm.s_tir import Schedule

from ...errors import UnsupportedFunction
from ...ir.contractions.contraction import multiplied_loads
from ...ir.dtypes import BFLOAT16, FLOAT16
from ...ir.expressions import rewrite_loads, variables
from ...ir.kept import kept
from ...ir.stages import Axis, Stage, StageGraph, intermediate, variable
from ...ir.workload import Workload
from ...machine.gpu import WARP
from .contraction import FusedContraction, find_fused_contraction

SIDE = 16
"""Rows, columns and depth of a fragment."""
MOST_WARPS = 16
"""The most warps of a block."""
MOST_FRAGMENTS = 16
"""The most fragments that a warp accumulates, each in 8 registers of a thread."""

_VECTOR = 8  # elements of 16 bytes
_TILE = 8  # fragments of a block along an axis, which are enough


@dataclass(frozen=True, eq=False)
class HalfMatmul:
    """A product of matrices of float16 or bfloat16, summed up in float32.

    Attributes:
        fused: The function. The axes before the last two of the output are those of batches.
        rows: The extent of the last axis but one of the output.
        columns: That of the last one.
        depth: That of the sum.
        transposed: Whether the second operand is read as [column, depth].
        dtype: The type of both operands.
        vectors: The elements of each operand that are contiguous and aligned in every row, up to 16 bytes.
        written: The elements of the output that are so, up to two.
    """

    fused: FusedContraction
    rows: int
    columns: int
    depth: int
    transposed: bool
    dtype: str
    vectors: tuple[int, int]
    written: int

    @property
    def whole(self) -> bool:
        """Whether it is in whole fragments."""
        return not any(size % SIDE for size in (self.rows, self.columns, self.depth))


@kept
def find_matmul(workload: Workload) -> HalfMatmul:
    """The matmul of a function.

    Raises:
        UnsupportedFunction: It is no matmul in half precision.
    """
    fused = find_fused_contraction(workload)
    loads = multiplied_loads(fused.stage)
    assert loads is not None
    types = [str(load.source.dtype) for load in loads]
    if types not in ([FLOAT16] * 2, [BFLOAT16] * 2) or str(fused.stage.buffer.dtype) != "float32" or fused.producers:
        raise UnsupportedFunction("no product of float16 or bfloat16 with float32 sums")
    spatial, reductions, operands = fused.axes.spatial, fused.axes.reductions, fused.axes.operands
    one_axis_each = all(len(dimension) == 1 for operand in operands for dimension in operand.dimensions)
    if not one_axis_each or len(reductions) != 1 or len(spatial) < 2:
        raise UnsupportedFunction("no product of matrices")
    *batch, (row, rows), (column, columns) = spatial
    outer, (depth, extent) = [name for name, _ in batch], reductions[0]
    read = [[dimension[0] for dimension in operand.dimensions] for operand in operands]
    first, second = [[name for name, factor in dimensions if factor == 1] for dimensions in read]
    allowed = [[*leading, *matrix] for leading in (outer, []) for matrix in ([depth, column], [column, depth])]
    if first != [*outer, row, depth] or second not in allowed:
        raise UnsupportedFunction("the operands are laid out otherwise")
    transposed = second[-1] == depth
    vectors = math.gcd(extent, _VECTOR), math.gcd(extent if transposed else columns, _VECTOR)
    return HalfMatmul(fused, rows, columns, extent, transposed, types[0], vectors, math.gcd(columns, 2))


def in_whole_fragments(matmul: HalfMatmul) -> HalfMatmul:
    """The same matmul with rows, columns and depth in whole fragments: beyond what is there, operands are 0.

    Before:     t[i, j] += x[i, k] * w[j, k];  y[i, j] = f(t[i, j])
    After:      a[i, k] = x[i, k] if it is there else 0;  b[j, k] = ...;  t[i, j] += a[i, k] * b[j, k], for more i, j, k

    What follows stays over the axes that are there.

    Args:
        matmul: The matmul.
    """
    fused = matmul.fused
    more = [SIDE * _fragments(extent) for extent in (matmul.rows, matmul.columns, matmul.depth)]
    if more == [matmul.rows, matmul.columns, matmul.depth]:
        return matmul
    stage, graph = fused.stage, fused.graph
    *batch, row, column = stage.spatial
    (depth,) = stage.reductions
    extents = dict(zip((row, column, depth), more, strict=True))
    loads = multiplied_loads(stage)
    assert loads is not None
    producers, elements = [], {}
    for load in loads:
        axes = [next(axis for axis in stage.axes if axis.var in variables(index)) for index in load.indices]
        own = {axis.var: variable(axis.name) for axis in axes}
        shape = [extents.get(axis, axis.extent) for axis in axes]
        padded = intermediate(f"padded{len(producers)}", shape, matmul.dtype)
        indices = tuple(own.values())
        there = [_within(own[axis.var], axis.extent) for axis in axes if extents.get(axis, axis.extent) != axis.extent]
        value = load.source[indices]
        if there:
            value = tirx.if_then_else(tirx.all(*there), value, FloatImm(matmul.dtype, 0.0))
        stages = tuple(Axis(own[axis.var], extent) for axis, extent in zip(axes, shape, strict=True))
        producers.append(Stage(padded.name, stages, padded, indices, value))
        elements[load.source] = padded[tuple(load.indices)]
    sums = intermediate("sums", [*(axis.extent for axis in batch), *more[:2]], str(stage.buffer.dtype))
    axes = tuple(replace(axis, extent=extents.get(axis, axis.extent)) for axis in stage.axes)
    value = rewrite_loads(stage.value, lambda load: elements.get(load.source))
    product = replace(stage, axes=axes, buffer=sums, value=value)
    epilogue = fused.epilogue or _copied(stage)
    read = {stage.buffer: sums}
    epilogue = replace(epilogue, value=rewrite_loads(epilogue.value, lambda load: _moved(load, read)))
    graph = StageGraph(graph.parameters, (*producers, product, epilogue))
    return replace(
        matmul,
        fused=replace(fused, graph=graph, stage=product, producers=tuple(producers), epilogue=epilogue),
        rows=more[0],
        columns=more[1],
        depth=more[2],
    )


def _fragments(extent: int) -> int:
    """The fragments along an axis: as many as it needs, or up to an eighth more if these divide into better tiles."""
    needed = -(-extent // SIDE)
    return max(range(needed, needed * 9 // 8 + 1), key=lambda count: (math.gcd(count, _TILE), -count))


def _within(index: Any, extent: int) -> Any:
    """Whether an index is below an extent, in a form that is the same for all elements of a vector if it can be."""
    return index // _VECTOR < extent // _VECTOR if extent % _VECTOR == 0 else index < extent


def _copied(stage: Stage) -> Stage:
    """A stage that writes what another one computes, element by element, to where that one writes."""
    axes = tuple(Axis(variable(axis.name), axis.extent) for axis in stage.spatial)
    indices = tuple(axis.var for axis in axes)
    return Stage("copied", axes, stage.buffer, indices, stage.buffer[indices])


def _moved(load: Any, buffers: Mapping[Any, Any]) -> Any | None:
    """A load from another buffer, where one stands in its place."""
    return buffers[load.source][tuple(load.indices)] if load.source in buffers else None


def share_among_threads(schedule: Schedule, nest: Any, outside: int, warps: int, vector: int) -> None:
    """Divides the loops of a nest, after the `outside` outermost, among all threads of a block, vector by vector.

    Args:
        schedule: The schedule.
        nest: The block whose loops are divided.
        outside: How many of its loops stay as they are.
        warps: The warps of a block, along threadIdx.y.
        vector: The elements that a thread moves at a time.
    """
    fused = schedule.fuse(*schedule.get_loops(nest)[outside:])
    _, warp, lane, elements = schedule.split(fused, [None, warps, WARP, vector])
    schedule.bind(warp, "threadIdx.y")
    schedule.bind(lane, "threadIdx.x")
    schedule.vectorize(elements)


def split_into_fragments(schedule: Schedule, nest: Any) -> Any:
    """Tiles the last two loops of a nest in fragments; returns the outer loop inside of a fragment.

    Args:
        schedule: The schedule.
        nest: The block.
    """
    rows, columns = schedule.get_loops(nest)[-2:]
    (i0, i1), (j0, j1) = schedule.split(rows, [None, SIDE]), schedule.split(columns, [None, SIDE])
    schedule.reorder(i0, j0, i1, j1)
    return i1
