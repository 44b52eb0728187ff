"""What the cost model needs to know of a contraction: extents, strides and sizes as plain numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....ir.contractions.contraction import Contraction
from ....ir.dtypes import BFLOAT16, is_integer
from ....ir.expressions import coefficients
from ....ir.stages import shape_of
from ....machine.cpu import Cpu
from ..nests import load_stride
from .dot_products import DotProducts

PAIR_OF_INT16 = 1.3
"""What two products and two sums of int16 by two instructions take, in multiply-adds; measured on a Zen 3."""

_WORTH_THREADS = 1 << 15
"""Multiply-adds. For fewer, one core needs a microsecond or two, which is what a parallel loop costs, and tens of them
if another process has the core of a thread that is waited for. A recurrent layer has such a product in each step."""

_WIDENED = 3.0  # of integers: two for a product of 32 bits, one for the sum
_WORD = 4  # bytes of a group of factors
_SHIFTED = 2.0  # of a vector of bfloat16: a load that widens, and a shift
_DECODING = 2.5  # of a vector of codes: a load that widens, half a shift and a mask, a subtraction, a product


@dataclass(frozen=True, eq=False)
class Dimension:
    """How a contraction indexes one dimension of the other operand.

    Args:
        extent: How many positions the reductions alone reach.
        row_steps: For each row axis that moves the index, its number and the positions per row.
        follows_columns: Whether the column axis moves the index.
        size: The number of positions that there are.
    """

    extent: int
    row_steps: tuple[tuple[int, int], ...]
    follows_columns: bool
    size: int


@dataclass(frozen=True, eq=False)
class ContractionShape:
    """The numbers of a contraction; `shape_of_contraction` reads them off.

    Args:
        rows: The extents of the row axes that are tiled.
        columns: The extent of the column axis.
        outer: The product of the extents of all other spatial axes.
        steps: The product of the extents of the reductions.
        strides: Per row axis, the bytes from one row of the other operand to the next.
        dimensions: Of the other operand.
        follows_columns: Whether the other operand depends on the column axis (depthwise convolutions).
        other_bytes: The size of the other operand.
        column_bytes: The size of the column operand.
        column_varies: Whether the column operand can be packed, but not ahead of time, because it is no constant.
        column_stride: The bytes from one step of the innermost reduction to the next in the column operand.
        padded_bytes: The size of what a prologue makes (padding), 0 if there is none.
        itemsize: The bytes of an element of the other operand.
        column_itemsize: The bytes of the column operand per step and column, as it is packed.
        multiply_add: The cycles of one step of a vector, in multiply-adds of float32. An instruction that adds
            several products to a sum starts as often as one of these.
        decoding: The cycles that decode a vector of columns in one step, in multiply-adds of float32.
        parallel: Whether several cores share the work.
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
    itemsize: int = 4
    column_itemsize: float = 4
    multiply_add: float = 1.0
    decoding: float = 0.0
    parallel: bool = True


def worth_threads(contraction: Contraction) -> bool:
    """Whether a contraction is so large that several cores may be faster with it than one."""
    return math.prod(axis.extent for axis in contraction.stage.axes) >= _WORTH_THREADS


def fits_registers(rows: Any, columns: Any, target: Cpu) -> Any:
    """Whether the accumulators of a tile, a row of columns and one more vector fit the register file.

    Args:
        rows: The rows of a tile, or those of n tiles.
        columns: Its columns, or those of n tiles.
        target: The machine.

    Returns:
        A boolean, or n of them.
    """
    return (rows + 1) * np.ceil(columns / target.lanes) < target.registers


def shape_of_contraction(contraction: Contraction, dots: DotProducts | None = None) -> ContractionShape:
    """Reads off a contraction what the cost model needs to know.

    Args:
        contraction: The contraction.
        dots: How instructions for several products at a time compute it; None if each step is one multiply-add. With
            them a step is a group.

    Returns:
        The shape.
    """
    steps = {axis.var: axis.extent for axis in contraction.stage.reductions}
    rows = [axis.var for axis in contraction.rows]
    other = contraction.other
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
    own_itemsize = np.dtype(str(contraction.operand.source.dtype)).itemsize
    widened = is_integer(str(other.source.dtype)) and dots is None
    shifted = str(contraction.operand.source.dtype) == BFLOAT16 and dots is None
    column_bytes = sum(_bytes(load) for load in (contraction.operand, *contraction.decoders))
    per_step = column_bytes / (contraction.column.extent * math.prod(steps.values()))
    prologue = contraction.prologue
    return ContractionShape(
        rows=tuple(contraction.row_extents),
        columns=contraction.column.extent,
        outer=math.prod(axis.extent for axis in contraction.outer),
        steps=math.prod(steps.values() if dots is None else dots.extents(contraction)),
        strides=tuple(strides[-1:] if contraction.flat else strides),
        dimensions=dimensions,
        follows_columns=any(dimension.follows_columns for dimension in dimensions),
        other_bytes=itemsize * math.prod(sizes),
        column_bytes=column_bytes,
        column_varies=contraction.packable is not None and contraction.constant is None,
        column_stride=abs(load_stride(contraction.operand, innermost) or 0) * own_itemsize,
        padded_bytes=0 if prologue is None else itemsize * math.prod(shape_of(prologue.buffer)),
        itemsize=itemsize,
        column_itemsize=per_step if contraction.decoders else own_itemsize if dots is None else _WORD,
        multiply_add=_WIDENED if widened else PAIR_OF_INT16 if dots is not None and dots.dtype == "int16" else 1.0,
        decoding=_DECODING if contraction.decoders else _SHIFTED if shifted else 0.0,
        parallel=worth_threads(contraction),
    )


def _bytes(load: Any) -> int:
    """The size of the tensor that is loaded from."""
    return int(np.dtype(str(load.source.dtype)).itemsize * math.prod(shape_of(load.source)))
