"""Words of the factors that one instruction multiplies, see `dot_products`.

The data's word is loaded as it lies in memory and broadcast. The column operand is packed into words, with the columns
of a group contiguous. For bytes:

    packed[tile, 1 + group, column] = bytes 4 group ... 4 group + 3 of the column operand
    accumulators[row, column] = packed[tile, 0, column]                          if there is a correction, else 0
    accumulators[row, column] += dot(word of data[row, 4 group ...], packed[tile, 1 + group, column])

If the group does not divide the reduction, the last one begins earlier, so that no load reaches beyond the data. The
factors that it shares with the group before it are zero in the packed operand. A reduction of fewer steps has one
group, whose word is made of the factors that there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm, IntImm

from ....ir.attributes import WORD
from ....ir.contractions.contraction import Contraction
from ....ir.contractions.factors import Factor
from ....ir.dtypes import BFLOAT16
from ....ir.expressions import Expr, raveled, substitute, unraveled, variables
from ....ir.stages import Axis, Stage, intermediate, variable
from .dot_products import DotProducts

_SIGN_BITS = -0x7F7F7F80  # 0x80808080: the highest bit of each byte of a word


@dataclass(frozen=True)
class PackedColumns:
    """The column operand in words: [outer..., tile, group, column]. All groups of one part come before the next part's.

    Attributes:
        stages: What makes it: the sums of the columns if there is a correction, and the packing.
        buffer: What holds it.
        leading: The axes of the contraction that come first in it.
        first: The number of its first group: 1 if the correction comes before it.
    """

    stages: tuple[Stage, ...]
    buffer: Any
    leading: tuple[Axis, ...]
    first: int


@dataclass(frozen=True)
class PackedWords:
    """The column operand in words, and what a contraction does with it.

    Attributes:
        stages: What makes it.
        term: What the accumulators sum: the dot product of a group.
        start: What they start from.
    """

    stages: tuple[Stage, ...]
    term: Expr
    start: Expr


def packed_words(
    contraction: Contraction,
    dots: DotProducts,
    column: Any,
    tile: Any,
    reductions: Sequence[Axis],
    positions: Mapping[Any, Expr],
) -> PackedWords:
    """Packs the column operand of a contraction into words.

    Args:
        contraction: The contraction, whose column operand is packable.
        dots: How it is computed.
        column: The tiled column axis of the packing: its axes over tiles and inside of one, and the position.
        tile: The same of the contraction.
        reductions: The reductions of the tiled contraction; the extents are those of `dots.extents`.
        positions: The position on each axis of the contraction, by variable, without the reductions.

    Returns:
        The stages of the packing, and the term and the start of the contraction in terms of its tiled axes.
    """
    extents = dots.extents(contraction)
    columns = packed_columns(contraction, dots, column)
    first = columns.first

    def packed(at: Expr) -> Expr:
        indices = (*(positions[axis.var] for axis in columns.leading), tile.tiles[0].var, at, tile.inner.var)
        return columns.buffer[indices]

    step = raveled([axis.var for axis in reductions], extents)
    words = (_data_word(contraction, dots, reductions, positions), packed(step + first if first else step))
    operands = words if dots.data_first else words[::-1]
    zero = FloatImm("float32", 0.0) if dots.sums == "float32" else IntImm("int32", 0)
    term = tirx.call_llvm_pure_intrin(dots.sums, dots.instruction, zero, *operands)
    return PackedWords(columns.stages, term, packed(IntImm("int32", 0)) if first else zero)


def packed_columns(contraction: Contraction, dots: DotProducts, column: Any) -> PackedColumns:
    """Packs the column operand of a contraction into words.

    Args:
        contraction: The contraction, whose column operand is packable.
        dots: How it is computed.
        column: Its tiled column axis: the axes over tiles and inside of one, and the position.
    """
    columns = contraction.column_factor
    used = {name for index in columns.load.indices for name in variables(index)}
    leading = [axis for axis in contraction.outer if axis.var in used]
    renamed = {axis.var: Axis(variable(f"pack{number}"), axis.extent) for number, axis in enumerate(leading)}
    places: dict[Any, Expr] = {var: axis.var for var, axis in renamed.items()}
    before: tuple[Stage, ...] = ()
    sums = None
    if dots.corrected:
        stage = _column_sums(contraction, columns, leading)
        before = (stage,)
        of_column = (*(axis.var for axis in renamed.values()), column.position)
        sums = stage.buffer[of_column]
    first = len(before)
    extents = dots.extents(contraction)
    if dots.parts > 1:
        extents.insert(0, dots.parts)
    places[contraction.column.var] = column.position
    outside, inner = (*renamed.values(), *column.tiles), column.inner
    size = first + math.prod(extents)
    buffer = intermediate("packed", [*(axis.extent for axis in outside), size, inner.extent], "int32")
    if dots.groups is not None and contraction.constant is not None and not first:
        # NumPy packs a constant twice as fast if no index depends on several axes.
        rows = [Axis(variable(f"pack_row{number}"), extent) for number, extent in enumerate(extents)]
        at = [axis.var for axis in rows]
        row, value = raveled(at, extents), _word(contraction, dots, columns, places, at)
    else:
        rows = [Axis(variable("pack_row"), size)]
        row = rows[0].var
        value = _word(contraction, dots, columns, places, unraveled(row - first if first else row, extents))
        if sums is not None:
            value = tirx.if_then_else(row < 1, sums * -dots.zero_point, value)
    indices = (*(axis.var for axis in outside), row, inner.var)
    pack = Stage("pack", (*outside, *rows, inner), buffer, indices, value)
    return PackedColumns((*before, pack), buffer, tuple(leading), first)


def _column_sums(contraction: Contraction, columns: Factor, leading: Sequence[Axis]) -> Stage:
    """The sum of each column of the column operand, less its zero point."""
    old = (*leading, contraction.column, *contraction.stage.reductions)
    new = [Axis(variable(f"sum{number}"), axis.extent, axis.reduce) for number, axis in enumerate(old)]
    places = {axis.var: renamed.var for axis, renamed in zip(old, new, strict=True)}
    kept = [axis for axis in new if not axis.reduce]
    buffer = intermediate("column_sums", [axis.extent for axis in kept], "int32")
    value = substitute(_wide(columns), places)
    return Stage("column_sums", tuple(new), buffer, tuple(axis.var for axis in kept), value, "sum", IntImm("int32", 0))


def _wide(factor: Factor) -> Expr:
    """A factor in 32 bits."""
    value = prim.Cast("int32", factor.load)
    return value - factor.zero_point if factor.zero_point else value


def _starts(dots: DotProducts, contraction: Contraction, group: Expr) -> tuple[Expr, int]:
    """Where the factors of a group begin on the grouped axis, and how many there are."""
    extent = contraction.stage.reductions[dots.axis].extent
    if extent < dots.group and dots.groups is None:
        return IntImm("int32", 0), extent
    start = group * dots.group
    if dots.groups is None and extent % dots.group:
        start = prim.Min(start, IntImm("int32", extent - dots.group))
    return start, dots.group


def _word(
    contraction: Contraction, dots: DotProducts, columns: Factor, places: Mapping[Any, Expr], at: Sequence[Expr]
) -> Expr:
    """The word of the column operand for the groups at some positions: on the parts, if any, and on each reduction."""
    reductions = contraction.stage.reductions
    part, *at = at if dots.parts > 1 else (IntImm("int32", 0), *at)
    group = at[dots.axis]
    start, count = _starts(dots, contraction, group)
    word: Expr = IntImm("int32", 0)
    for number in range(count):
        where = {axis.var: position for axis, position in zip(reductions, at, strict=True)}
        where[reductions[dots.axis].var] = start + number
        # The highest digit has the sign of the word.
        digit = substitute(_digit(dots, columns, number == dots.group - 1, part), {**places, **where})
        extent = reductions[dots.axis].extent
        if dots.groups is not None and dots.groups * dots.group > extent:
            digit = tirx.if_then_else(start + number < extent, digit, IntImm("int32", 0))
        elif extent % dots.group and count == dots.group:
            own = start + number >= group * dots.group
            digit = tirx.if_then_else(own, digit, IntImm("int32", 0))
        # No product: TVM multiplies out the sum with a zero point, and its parts do not fit 32 bits.
        word = word + (digit << IntImm("int32", 32 // dots.group * number) if number else digit)
    return word


def _nearest_bfloat16(value: Expr) -> Expr:
    """The number of bfloat16 that is nearest to one of float32, in float32.

    It is made of its bits, because NumPy packs constants, and rounds where bits are taken only (see `ir.grid`).
    """
    bits = prim.Cast("uint32", tirx.reinterpret("uint16", prim.Cast(BFLOAT16, value)))
    return tirx.reinterpret("float32", bits * IntImm("uint32", 1 << 16))


def _digit(dots: DotProducts, columns: Factor, signed: bool, part: Expr) -> Expr:
    """The bits of an element of the column operand as a number, from 0 on or with a sign."""
    if dots.dtype == BFLOAT16:
        value = columns.load
        if dots.parts > 1:
            high = _nearest_bfloat16(value)
            value = prim.Cast(BFLOAT16, tirx.if_then_else(part < 1, high, value - high))
        return prim.Cast("int32", tirx.reinterpret("int16" if signed else "uint16", value))
    base = 1 << 32 // dots.group
    low = base // 2 if signed else 0
    digit = prim.FloorMod(_wide(columns) + low if low else _wide(columns), IntImm("int32", base))
    return digit - low if low else digit


def _data_word(
    contraction: Contraction,
    dots: DotProducts,
    reductions: Sequence[Axis],
    positions: Mapping[Any, Expr],
) -> Expr:
    """The word of the data for the groups that the reductions are at."""
    old = contraction.stage.reductions
    start, count = _starts(dots, contraction, reductions[dots.axis].var)
    loads = []
    for number in range(count):
        where = {axis.var: new.var for axis, new in zip(old, reductions, strict=True)}
        where[old[dots.axis].var] = start + number
        loads.append(substitute(contraction.other, {**positions, **where}))
    word = tirx.call_pure_extern("int32", WORD, *loads)
    return tirx.bitwise_xor(word, IntImm("int32", _SIGN_BITS)) if dots.flipped else word
