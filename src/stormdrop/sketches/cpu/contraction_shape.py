"""What the cost model needs to know of a contraction: extents, strides and sizes as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...ir.expressions import coefficients
from ...ir.roles import Contraction
from ...ir.stages import shape_of
from .nests import load_stride


@dataclass(frozen=True, eq=False)
class Dimension:
    """How a contraction indexes one dimension of the other operand.

    Args:
        extent: how many positions the reductions alone reach.
        row_steps: for each row axis that moves the index, its number and the positions per row.
        follows_columns: whether the column axis moves the index.
        size: the number of positions that there are.
    """

    extent: int
    row_steps: tuple[tuple[int, int], ...]
    follows_columns: bool
    size: int


@dataclass(frozen=True, eq=False)
class ContractionShape:
    """The numbers of a contraction; `shape_of_contraction` reads them off.

    Args:
        rows: the extents of the row axes that are tiled.
        columns: the extent of the column axis.
        outer: the product of the extents of all other spatial axes.
        steps: the product of the extents of the reductions.
        strides: per row axis, the bytes from one row of the other operand to the next.
        dimensions: of the other operand.
        follows_columns: whether the other operand depends on the column axis (depthwise convolutions).
        other_bytes: the size of the other operand.
        column_bytes: the size of the column operand.
        column_varies: whether the column operand may be packed by each call, because it is no constant.
        column_stride: the bytes from one step of the innermost reduction to the next in the column operand.
        padded_bytes: the size of what a prologue makes (padding), 0 if there is none.
    """

    rows: tuple[int, ...]
    columns: int
    outer: int
    steps: int
    strides: tuple[int, ...]
    dimensions: tuple[Dimension, ...]
    follows_columns: bool
    other_bytes: int
    column_bytes: int
    column_varies: bool
    column_stride: int
    padded_bytes: int


def shape_of_contraction(contraction: Contraction, extents: Sequence[int]) -> ContractionShape:
    """Read off a contraction what the cost model needs to know.

    Args:
        contraction: the contraction.
        extents: the extents of its row axes as they are tiled.

    Returns:
        The shape.
    """
    steps = {axis.var: axis.extent for axis in contraction.stage.reductions}
    rows = [axis.var for axis in contraction.rows]
    left, right = contraction.stage.value.a, contraction.stage.value.b
    other = right if contraction.operand.source.same_as(left.source) else left
    sizes = shape_of(other.source)
    all_axes = {*steps, *rows, contraction.column.var, *(axis.var for axis in contraction.outer)}
    factors = [coefficients(index, all_axes) or {} for index in other.indices]
    itemsize = np.dtype(str(other.source.dtype)).itemsize
    strides = [
        sum(int(moves.get(row, 0)) * math.prod(sizes[number + 1 :]) for number, moves in enumerate(factors)) * itemsize
        for row in rows
    ]
    dimensions = tuple(
        Dimension(
            1 + sum(abs(int(factor)) * (steps[name] - 1) for name, factor in moves.items() if name in steps),
            tuple((rows.index(name), abs(int(factor))) for name, factor in moves.items() if name in rows),
            contraction.column.var in moves,
            size,
        )
        for moves, size in zip(factors, sizes, strict=True)
    )
    innermost = contraction.stage.reductions[-1].var
    prologue = contraction.prologue
    return ContractionShape(
        rows=tuple(extents),
        columns=contraction.column.extent,
        outer=math.prod(axis.extent for axis in contraction.outer),
        steps=math.prod(steps.values()),
        strides=tuple(strides[-1:] if contraction.flat else strides),
        dimensions=dimensions,
        follows_columns=any(dimension.follows_columns for dimension in dimensions),
        other_bytes=itemsize * math.prod(sizes),
        column_bytes=itemsize * math.prod(shape_of(contraction.operand.source)),
        column_varies=contraction.packable is not None and contraction.constant is None,
        column_stride=abs(load_stride(contraction.operand, innermost) or 0) * itemsize,
        padded_bytes=0 if prologue is None else itemsize * math.prod(shape_of(prologue.buffer)),
    )
