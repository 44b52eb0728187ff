"""Bytes as 16-bit integers, for machines that multiply pairs of these, but not these bytes in groups of four.

    wide[i, k] = int16(data[i, k]) - zero point                    in the stage that pads, or in one of its own
    sum[i, j] += int32(wide[i, k]) * (int32(columns[k, j]) - zero point)

`dot_products` computes such sums by vpmaddwd of AVX2 and AVX-512BW, exactly: products of bytes have 17 bits, and pairs
of them are added up in 32. (vpmaddubsw takes bytes, but adds up in 16 bits, which saturate.)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm

from ....ir.contractions.contraction import Contraction, find_contraction
from ....ir.contractions.factors import factor_of
from ....ir.expressions import Expr
from ....ir.stages import Axis, Stage, StageGraph, intermediate, shape_of, variable
from ....machine.cpu import Cpu
from .dot_products import data_and_columns, dot_products, of_bytes, unit_for_int16

_WIDE = "int16"


def with_wide_bytes(contraction: Contraction, constants: tuple[int, ...], target: Cpu) -> Contraction:
    """The contraction with data of 16 bits, if instructions for dot products can compute it in this form only.

    Args:
        contraction: Any contraction.
        constants: The positions of the constant inputs of its function.
        target: The machine.

    Returns:
        The contraction of a function that computes the same; `contraction` itself if nothing is gained.
    """
    data, columns = data_and_columns(contraction)
    exact = str(contraction.stage.buffer.dtype) == "int32" and of_bytes(data) and of_bytes(columns)
    if not exact or unit_for_int16(target) is None or dot_products(contraction, target) is not None:
        return contraction
    wide = find_contraction(_with_wide_data(contraction, data.zero_point), constants)
    return wide if dot_products(wide, target) is not None else contraction


def _with_wide_data(contraction: Contraction, zero_point: int) -> StageGraph:
    """The function with a stage that widens the data, or with padding that is as wide."""
    graph, source = contraction.graph, contraction.other.source
    wide = intermediate("wide", shape_of(source), _WIDE)

    def less_zero_point(value: Expr) -> Expr:
        value = prim.Cast(_WIDE, value)
        return value - IntImm(_WIDE, zero_point) if zero_point else value

    def reading_wide(stage: Stage) -> Stage:
        left, right = stage.value.a, stage.value.b
        return replace(stage, value=prim.Mul(_wide_factor(left, source, wide), _wide_factor(right, source, wide)))

    stages = []
    for stage in graph.stages:
        if stage is contraction.prologue:
            stage = replace(stage, buffer=wide, value=less_zero_point(stage.value))
        elif stage.buffer.same_as(contraction.stage.buffer):
            if contraction.prologue is None:
                axes = tuple(Axis(variable(f"wide{number}"), extent) for number, extent in enumerate(shape_of(source)))
                indices = tuple(axis.var for axis in axes)
                stages.append(Stage("widen", axes, wide, indices, less_zero_point(source[indices])))
            stage = reading_wide(stage)
        stages.append(stage)
    return StageGraph(graph.parameters, tuple(stages))


def _wide_factor(node: Expr, source: Any, wide: Any) -> Expr:
    """A factor of a product, which loads from `wide` if it loaded from `source`."""
    factor = factor_of(node)
    if factor is None or not factor.load.source.same_as(source):
        return node
    return prim.Cast("int32", wide[tuple(factor.load.indices)])
