"""Functions of one byte as tables: 256 values that are computed once, and looked up for each element.

    Before:     y[i] = round(sigmoid(float32(uint8(x[i] / s)) * t) / u)
    After:      table[q] = round(sigmoid(float32(q) * t) / u)                   256 of them
                y[i] = table[uint8(x[i] / s)]

A quantised network rounds to a byte after each operator. What follows on it, up to the next tensor, is a function of
that byte: an activation in five operators takes twenty cycles an element, and a look-up one or two. The values are
computed by the very expressions that they replace, so that the results are the same.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import tvm_ffi
from tvm.ir import Call, TensorLoad
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm

from ..expressions import Expr, children, intrinsic, substitute, transform
from ..stages import Axis, Stage, StageGraph, intermediate, variable

ENTRIES = 256
"""The entries of a table."""

_LEAST_BYTE = {"uint8": 0, "int8": -128}
_LEAST_ELEMENTS = 16 * ENTRIES  # of a stage for which a table is worth being computed
_WORTH = 24  # cycles of a vector that looking up its elements takes, about
_DIVISION, _CALL, _OTHER = 6, 12, 1  # cycles of a vector


def with_tables(graph: StageGraph) -> StageGraph:
    """The function with tables for what its elementwise stages compute of single bytes, where that is worth it.

    Args:
        graph: A function in which everything is inlined that should be: what a stage looks up has to be inside of it.
    """
    stages: list[Stage] = []
    for stage in graph.stages:
        tables = _Tables(stage)
        if stage.combine is None and tables.elements >= _LEAST_ELEMENTS:
            stage = replace(stage, value=tables.replaced(stage.value))
        stages += [*tables.stages, stage]
    return graph if len(stages) == len(graph.stages) else StageGraph(graph.parameters, tuple(stages))


class _Tables:
    """The tables of one stage.

    Attributes:
        elements: How many elements the stage computes.
        stages: What computes the tables.
    """

    def __init__(self, stage: Stage) -> None:
        self.elements = math.prod(axis.extent for axis in stage.axes)
        self.stages: list[Stage] = []
        self._name = stage.name
        self._varying = {axis.var for axis in stage.axes if axis.extent > 1}
        self._unit_axes = {axis.var: IntImm("int32", 0) for axis in stage.axes if axis.extent == 1}
        self._known: dict[Expr, list[Expr] | None] = {}

    def replaced(self, value: Expr) -> Expr:
        """The value with each costly function of a byte looked up."""
        return transform(value, self._looked_up)

    def _looked_up(self, node: Expr) -> Expr | None:
        bytes_of = self._varying_bytes(node)
        if bytes_of is None or len(bytes_of) != 1:
            return None
        (byte,) = bytes_of
        if byte.same_as(node) or _cost(node, byte) <= _WORTH:
            return None
        least = _LEAST_BYTE[str(byte.ty.dtype)]
        entry = Axis(variable("byte"), ENTRIES)
        value_of_entry = prim.Cast(str(byte.ty.dtype), entry.var + least if least else entry.var)
        entries = transform(node, lambda item: value_of_entry if _equal(item, byte) else None)
        name = f"{self._name}_table{len(self.stages)}"
        table = intermediate(name, [ENTRIES], str(node.ty.dtype))
        self.stages.append(Stage(name, (entry,), table, (entry.var,), substitute(entries, self._unit_axes)))
        index = prim.Cast("int32", byte)
        return table[index - least if least else index]

    def _varying_bytes(self, node: Expr) -> list[Expr] | None:
        """The bytes in a value that differ between elements, each once; None if something else does, too."""
        if node not in self._known:
            self._known[node] = self._found_bytes(node)
        return self._known[node]

    def _found_bytes(self, node: Expr) -> list[Expr] | None:
        if node in self._varying:
            return None
        found: list[Expr] = []
        for child in children(node):
            inside = self._varying_bytes(child)
            if inside is None:
                return [node] if _is_byte(node) else None
            found += [byte for byte in inside if not any(_equal(byte, other) for other in found)]
        return [node] if len(found) > 1 and _is_byte(node) else found


def _is_byte(node: Expr) -> bool:
    return str(node.ty.dtype) in _LEAST_BYTE and isinstance(node, prim.Cast | TensorLoad)


def _equal(left: Expr, right: Expr) -> bool:
    return bool(left.same_as(right) or tvm_ffi.structural_equal(left, right))


def _cost(node: Expr, byte: Expr) -> int:
    """Cycles that a vector of a value takes, about, apart from the byte that it is of. Equal parts count once."""
    parts: set[Any] = set()

    def count(item: Expr) -> int:
        # Loads are the same for all elements, but for the byte.
        if isinstance(item, TensorLoad) or not children(item) or _equal(item, byte):
            return 0
        key = tvm_ffi.StructuralKey(item)
        if key in parts:
            return 0
        parts.add(key)
        costly = isinstance(item, Call) and intrinsic(item) != "nearbyint"
        own = _DIVISION if isinstance(item, prim.Div) else _CALL if costly else _OTHER
        return own + sum(map(count, children(item)))

    return count(node)
