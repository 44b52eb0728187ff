"""Contractions of bytes and of bfloat16 by instructions that add up several products at a time.

    vpdpbusd, sdot, udot, usdot    bytes       sum[j] += a[0] b[j, 0] + a[1] b[j, 1] + a[2] b[j, 2] + a[3] b[j, 3]
    vdpbf16ps, bfdot               bfloat16    sum[j] += a[0] b[j, 0] + a[1] b[j, 1]
    vpmaddwd, vpaddd               int16       sum[j] += a[0] b[j, 0] + a[1] b[j, 1]

Four or two steps of one reduction make a *group*, and their factors a *word* of 32 bits (see `packed_words`). The loops
are those of float32 with one element per word.

- Pairs of int16 are for bytes that an x86 CPU cannot multiply by vpdpbusd: `wide_bytes` makes data of int16 for them,
  and so does `winograd` for its products.
- bfloat16 is summed up in float32. CPUs that have AMX or float16, too, start vdpbf16ps at a quarter of the rate of
  float32: there it is not taken. It always takes denormals for zero: a target that keeps them has none of it.
- An infinity in bfloat16 that two groups share is multiplied by zero in one of them, and makes NaN of the sum.
- The first operand of vpdpbusd is unsigned and its second one signed. If both are signed, the data are moved by 128,
  which is one bit of each byte, and so is their zero point.
- A zero point z of the data is a correction: sum (a - z) b = sum a b - z sum b. The sums of the column operand are
  known when it is packed, and are the values from which the accumulators start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ....ir.contractions.contraction import Contraction, contiguous
from ....ir.contractions.factors import Factor
from ....ir.dtypes import BFLOAT16
from ....ir.expressions import variables
from ....ir.kept import kept
from ....machine.cpu import Cpu

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


@kept
def dot_products(contraction: Contraction, target: Cpu) -> DotProducts | None:
    """How the instructions of a machine compute a contraction.

    Args:
        contraction: The contraction.
        target: The machine; its `features` say which instructions it has.

    Returns:
        None if there is no instruction for it: the factors are no bytes, int16 or bfloat16, sums of integers are not in
        int32 or may overflow, the column operand cannot be packed or has a zero point that does not fit, or the
        machine lacks the unit.
    """
    stage = contraction.stage
    data, columns = contraction.data_factor, contraction.column_factor
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


def _column_kind(data: Factor, columns: Factor) -> str | None:
    """The kind in which the column operand less its zero point fits, beside these data; None if there is none."""
    if data.dtype == "int16":
        return "w" if columns.is_byte else None
    return _KINDS.get((columns.dtype, columns.zero_point))


def _instruction(data: str, columns: str, target: Cpu) -> tuple[str, str, bool, bool] | None:
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


def unit_for_int16(target: Cpu) -> tuple[str, str] | None:
    """What a machine has for dot products of int16.

    Returns:
        LLVM's names of the extension and of the instruction for the longest vectors; None without one.
    """
    chosen = _instruction("int16", "w", target)
    return None if chosen is None else chosen[:2]


def unit_for_bytes(target: Cpu) -> tuple[str, str] | None:
    """What a machine has for dot products of bytes without a sign and bytes with one, in this order.

    Returns:
        LLVM's names of the extension and of the instruction for the longest vectors; None without one.
    """
    chosen = _instruction("uint8", "s", target)
    if chosen is None:
        return None
    feature, instruction, unsigned_first, flipped = chosen
    return (feature, instruction) if unsigned_first and not flipped else None


def multiplies_bfloat16(target: Cpu) -> bool:
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
