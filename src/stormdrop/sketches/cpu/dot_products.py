"""Contractions of bytes and of bfloat16 by instructions that add up several products at a time.

    vpdpbusd, sdot, udot, usdot    bytes       sum[j] += a[0] b[j, 0] + a[1] b[j, 1] + a[2] b[j, 2] + a[3] b[j, 3]
    vdpbf16ps, bfdot               bfloat16    sum[j] += a[0] b[j, 0] + a[1] b[j, 1]
    vpmaddwd, vpaddd               int16       sum[j] += a[0] b[j, 0] + a[1] b[j, 1]

Four or two steps of one reduction make a *group*, and their factors a *word* of 32 bits. The data's word is loaded as
it lies in memory and broadcast. The column operand is packed into words, with the columns of a group contiguous, so
that the loops are those of float32 with one element per word. For bytes:

    packed[tile, 1 + group, column] = bytes 4 group ... 4 group + 3 of the column operand
    accumulators[row, column] = packed[tile, 0, column]                          if there is a correction, else 0
    accumulators[row, column] += dot(word of data[row, 4 group ...], packed[tile, 1 + group, column])

- If the group does not divide the reduction, the last one begins earlier, so that no load reaches beyond the data. The
  factors that it shares with the group before it are zero in the packed operand. A reduction of fewer steps has one
  group, whose word is made of the factors that there are.
- Pairs of int16 are for bytes that an x86 CPU cannot multiply by vpdpbusd: `wide_bytes` makes data of int16 for them,
  and so does `winograd` for its products.
- bfloat16 is summed up in float32. CPUs that have AMX or float16, too, start vdpbf16ps at a quarter of the rate of
  float32: there it is not taken. It always takes denormals for zero: a target that keeps them has none of it.
- An infinity in bfloat16 that two groups share is multiplied by zero in one of them, and makes NaN of the sum.
- The first operand of vpdpbusd is unsigned and its second one signed. If both are signed, the data are moved by 128,
  which is one bit of each byte, and so is their zero point.
- A zero point z of the data is a correction: sum (a - z) b = sum a b - z sum b. The sums of the column operand are
  known when it is packed, and stand in front of its words as the values from which the accumulators start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm, IntImm

from ...ir.attributes import WORD
from ...ir.dtypes import BFLOAT16
from ...ir.expressions import Expr, raveled, substitute, unraveled, variables
from ...ir.factors import Factor, factors_of
from ...ir.roles import Contraction, contiguous
from ...ir.stages import Axis, Stage, intermediate, variable
from ...machine.cpu import Target

_SIGN_BITS = -0x7F7F7F80  # 0x80808080: the highest bit of each byte of a word
LARGEST_PRODUCT = 255 * 255
NARROWEST = 4
"""Lanes of the shortest vector that such an instruction takes."""


_X86 = {("u", "s"): "llvm.x86.avx512.vpdpbusd.512"}
_INSTRUCTIONS: tuple[tuple[str, int, Mapping[tuple[str, str], str]], ...] = (
    ("avx512vnni", 16, _X86),
    ("avxvnni", 8, _X86),
    ("avx512bw", 16, {("w", "w"): "llvm.x86.avx512.pmaddw.d.512"}),
    ("avx2", 8, {("w", "w"): "llvm.x86.avx512.pmaddw.d.512"}),
    ("dotprod", 4, {("s", "s"): "llvm.aarch64.neon.sdot", ("u", "u"): "llvm.aarch64.neon.udot"}),
    ("i8mm", 4, {("u", "s"): "llvm.aarch64.neon.usdot"}),
    ("avx512bf16", 16, {("b", "b"): "llvm.x86.avx512bf16.dpbf16ps.512"}),
    ("bf16", 4, {("b", "b"): "llvm.aarch64.neon.bfdot"}),
)
"""An extension by LLVM's name, the float32 lanes of targets that use it, and its instructions by kinds of operands.

The kinds are bytes with a sign (s) and without one (u), 16-bit integers (w), and bfloat16 (b).
"""

_SLOW_WITH = {"avx512bf16": {"amx-bf16", "avx512fp16"}}  # an extension, and those beside which it is slow

# The kind of data, and the kind in which a column operand less its zero point fits.
_OWN_KINDS = {"int8": "s", "uint8": "u", "int16": "w", BFLOAT16: "b"}
_KINDS = {("int8", 0): "s", ("uint8", 0): "u", ("uint8", 128): "s", ("int8", -128): "u", (BFLOAT16, 0): "b"}


@dataclass(frozen=True)
class DotProducts:
    """How the instructions of a machine compute a contraction.

    Attributes:
        feature: LLVM's name of the instruction set extension that is needed.
        instruction: LLVM's name of the instruction; for x86 that of the longest vectors.
        data_first: Whether the data are the first operand of the instruction.
        flipped: Whether the highest bit of each byte of the data is flipped, which moves it by 128.
        zero_point: What is subtracted from the data as the instruction sees them.
        axis: The position of the reduction whose steps are grouped.
        dtype: The type of the data.
        groups: How many groups the data hold, with zeros behind the last step of the reduction; None if they hold the
            steps of the reduction only.
        parts: The parts of each element of the column operand: 1, or 2 of numbers of float32, see `tiles.parts`.
    """

    feature: str
    instruction: str
    data_first: bool
    flipped: bool
    zero_point: int
    axis: int
    dtype: str
    groups: int | None = None
    parts: int = 1

    @property
    def group(self) -> int:
        """The products that one instruction adds to each sum."""
        return 4 // np.dtype(self.dtype).itemsize

    @property
    def sums(self) -> str:
        """The type of the sums."""
        return "float32" if self.dtype == BFLOAT16 else "int32"

    @property
    def corrected(self) -> bool:
        """Whether the accumulators start from a correction."""
        return self.zero_point != 0

    def extents(self, contraction: Contraction) -> list[int]:
        """The extents of the reductions, that of the grouped one in groups."""
        extents = [axis.extent for axis in contraction.stage.reductions]
        extents[self.axis] = -(-extents[self.axis] // self.group) if self.groups is None else self.groups
        return extents


def dot_products(contraction: Contraction, target: Target) -> DotProducts | None:
    """How the instructions of a machine compute a contraction.

    Args:
        contraction: the contraction.
        target: the machine; its `features` say which instructions it has.

    Returns:
        None if there is no instruction for it: the factors are no bytes, int16 or bfloat16, sums of integers are not in
        int32 or may overflow, the column operand cannot be packed or has a zero point that does not fit, or the
        machine lacks the unit.
    """
    stage = contraction.stage
    data, columns = data_and_columns(contraction)
    steps = math.prod(axis.extent for axis in stage.reductions)
    if contraction.packable is None or contraction.column.extent < NARROWEST:
        return None
    if any(contraction.column.var in variables(index) for index in contraction.other.indices):
        return None
    kind = _column_kind(data, columns)
    chosen = None if kind is None else _instruction(data.dtype, kind, target)
    if chosen is None:
        return None
    feature, instruction, data_first, flipped = chosen
    moved = (128 if data.dtype == "int8" else -128) if flipped else 0
    axis = _grouped_axis(contraction, 4 // np.dtype(data.dtype).itemsize)
    dots = DotProducts(feature, instruction, data_first, flipped, data.zero_point + moved, axis, data.dtype)
    overflows = dots.sums == "int32" and steps * LARGEST_PRODUCT >= 2**31
    return None if overflows or str(stage.buffer.dtype) != dots.sums else dots


def data_and_columns(contraction: Contraction) -> tuple[Factor, Factor]:
    """The factors of a contraction: the data, and the operand that varies along the columns."""
    factors = factors_of(contraction.stage)
    assert factors is not None
    left, right = factors
    return (left, right) if right.load.source.same_as(contraction.operand.source) else (right, left)


def of_bytes(factor: Factor) -> bool:
    """Whether a factor is a byte less a zero point that is a byte of its type: 9 bits with a sign."""
    if factor.dtype not in ("int8", "uint8") or factor.beside:
        return False
    limits = np.iinfo(factor.dtype)
    return bool(limits.min <= factor.zero_point <= limits.max)


def _column_kind(data: Factor, columns: Factor) -> str | None:
    """The kind in which the column operand less its zero point fits, beside these data; None if there is none."""
    if data.dtype == "int16":
        return "w" if of_bytes(columns) else None
    return _KINDS.get((columns.dtype, columns.zero_point))


def _instruction(data: str, columns: str, target: Target) -> tuple[str, str, bool, bool] | None:
    """The extension and the instruction for data of a type and columns of a kind.

    The other two values say whether the data come first, and whether they are flipped.
    """
    own = _OWN_KINDS.get(data)
    if own is None:
        return None
    flipped = {"s": "u", "u": "s"}.get(own, own)
    for kind in dict.fromkeys((own, flipped)):  # as they are if possible
        for feature, lanes, instructions in _INSTRUCTIONS:
            slow = not _SLOW_WITH.get(feature, set()).isdisjoint(target.features)
            flushes = own == _OWN_KINDS[BFLOAT16] and target.keep_denormals
            if feature not in target.features or lanes != target.lanes or slow or flushes:
                continue
            for pair, data_first in (((kind, columns), True), ((columns, kind), False)):
                if pair in instructions:
                    return feature, instructions[pair], data_first, kind != own
    return None


def unit_for_int16(target: Target) -> tuple[str, str] | None:
    """What a machine has for dot products of int16.

    Returns:
        LLVM's names of the extension and of the instruction for the longest vectors; None without one.
    """
    chosen = _instruction("int16", "w", target)
    return None if chosen is None else chosen[:2]


def multiplies_bfloat16(target: Target) -> bool:
    """Whether a machine has instructions for dot products of bfloat16 that are faster than those of float32."""
    return _instruction(BFLOAT16, _OWN_KINDS[BFLOAT16], target) is not None


def _grouped_axis(contraction: Contraction, group: int) -> int:
    """The reduction along which the data are contiguous, if it fills a group; else the one that wastes least."""
    reductions = contraction.stage.reductions

    def preference(position: int) -> tuple[bool, float, int]:
        axis = reductions[position]
        whole = contiguous(contraction.other, axis.var) and axis.extent >= group
        return whole, axis.extent / (-(-axis.extent // group) * group), position

    return max(range(len(reductions)), key=preference)


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
        contraction: the contraction, whose column operand is packable.
        dots: how it is computed.
        column: the tiled column axis of the packing: its axes over tiles and inside of one, and the position.
        tile: the same of the contraction.
        reductions: the reductions of the tiled contraction; the extents are those of `dots.extents`.
        positions: the position on each axis of the contraction, by variable, without the reductions.

    Returns:
        The stages of the packing, and the term and the start of the contraction in terms of its tiled axes.
    """
    data, _ = data_and_columns(contraction)
    extents = dots.extents(contraction)
    columns = packed_columns(contraction, dots, column)
    first = columns.first

    def packed(at: Expr) -> Expr:
        indices = (*(positions[axis.var] for axis in columns.leading), tile.tiles[0].var, at, tile.inner.var)
        return columns.buffer[indices]

    step: Expr = IntImm("int32", 0)
    for axis, extent in zip(reductions, extents, strict=True):
        step = step * extent + axis.var
    words = (_data_word(contraction, dots, data, reductions, positions), packed(step + first if first else step))
    operands = words if dots.data_first else words[::-1]
    zero = FloatImm("float32", 0.0) if dots.sums == "float32" else IntImm("int32", 0)
    term = tirx.call_llvm_pure_intrin(dots.sums, dots.instruction, zero, *operands)
    return PackedWords(columns.stages, term, packed(IntImm("int32", 0)) if first else zero)


def packed_columns(contraction: Contraction, dots: DotProducts, column: Any) -> PackedColumns:
    """Packs the column operand of a contraction into words.

    Args:
        contraction: the contraction, whose column operand is packable.
        dots: how it is computed.
        column: its tiled column axis: the axes over tiles and inside of one, and the position.
    """
    _, columns = data_and_columns(contraction)
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
    data: Factor,
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
        loads.append(substitute(data.load, {**positions, **where}))
    word = tirx.call_pure_extern("int32", WORD, *loads)
    return tirx.bitwise_xor(word, IntImm("int32", _SIGN_BITS)) if dots.flipped else word
