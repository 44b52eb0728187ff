"""Finds the matmul of a function for tensor cores: factors of 16 bits, sums of float32, in whole fragments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.s_tir import Schedule

from ...errors import UnsupportedFunction
from ...ir.contractions.contraction import multiplied_loads
from ...ir.dtypes import BFLOAT16, FLOAT16
from ...ir.kept import kept
from ...ir.workload import Workload
from ...machine.gpu import WARP
from .contraction import FusedContraction, find_fused_contraction

SIDE = 16
"""Rows, columns and depth of a fragment."""
MOST_WARPS = 16
"""The most warps of a block."""
MOST_FRAGMENTS = 16
"""The most fragments that a warp accumulates, each in 8 registers of a thread."""


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
    """

    fused: FusedContraction
    rows: int
    columns: int
    depth: int
    transposed: bool
    dtype: str


@kept
def find_matmul(workload: Workload) -> HalfMatmul:
    """The matmul of a function.

    Raises:
        UnsupportedFunction: It is no matmul in half precision, in whole fragments.
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
    if any(size % SIDE for size in (rows, columns, extent)):
        raise UnsupportedFunction(f"not in whole fragments of {SIDE} x {SIDE}")
    return HalfMatmul(fused, rows, columns, extent, second[-1] == depth, types[0])


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
