"""Bytes as 16-bit integers, for machines that multiply pairs of these, but not these bytes in groups of four.

    wide[i, k] = int16(data[i, k]) - zero point                    in the stage that pads, or in one of its own
    sum[i, j] += int32(wide[i, k]) * (int32(columns[k, j]) - zero point)

`dot_products` computes such sums by vpmaddwd of AVX2 and AVX-512BW, exactly: products of bytes have 17 bits, and pairs
of them are added up in 32. (vpmaddubsw takes bytes, but adds up in 16 bits, which saturate.)
"""

from __future__ import annotations

from dataclasses import replace

from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm

from ....ir.contractions.contraction import Contraction
from ....ir.contractions.made_data import with_made_data
from ....ir.stages import Stage, intermediate, shape_of
from ....machine.cpu import Cpu
from .dot_products import DotProducts, dot_products, unit_for_int16

_WIDE = "int16"


def multiplied(contraction: Contraction, target: Cpu) -> tuple[Contraction, DotProducts | None]:
    """A contraction as a machine multiplies it: with data of 16 bits if its dot products compute this form only.

    Args:
        contraction: Any contraction.
        target: The machine.

    Returns:
        The contraction of a function that computes the same, `contraction` itself if nothing is gained by 16 bits;
        and how dot products compute it, None if they do not.
    """
    data, columns = contraction.data_factor, contraction.column_factor
    exact = str(contraction.stage.buffer.dtype) == "int32" and data.is_byte and columns.is_byte
    dots = dot_products(contraction, target)
    if dots is not None or not exact or unit_for_int16(target) is None:
        return contraction, dots
    wide = _with_wide_data(contraction)
    wide_dots = dot_products(wide, target)
    return (contraction, None) if wide_dots is None else (wide, wide_dots)


def _with_wide_data(contraction: Contraction) -> Contraction:
    """The contraction with a stage that widens the data, or with padding that is as wide."""
    wide = intermediate("wide", shape_of(contraction.other.source), _WIDE)
    zero_point = contraction.data_factor.zero_point

    def widened(stage: Stage) -> Stage:
        value = prim.Cast(_WIDE, stage.value)
        return replace(stage, buffer=wide, value=value - IntImm(_WIDE, zero_point) if zero_point else value)

    return with_made_data(contraction, wide, widened, name="widen", sums="int32")
