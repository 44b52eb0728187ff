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

import tvm_ffi
from tvm.ir import Call, TensorLoad
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm

from .expressions import Expr, children, substitute, transform
from .stages import Axis, Stage, StageGraph, intermediate, variable

_FIRST = {"uint8": 0, "int8": -128}  # the least byte of each type
_BYTES = 256
_LEAST = 16 * _BYTES  # elements for which a table is worth being computed
_WORTH = 24  # cycles of a vector that looking up its elements takes, about
_DIVISION, _CALL, _OTHER = 6, 12, 1  # cycles of a vector


def with_tables(graph: StageGraph) -> StageGraph:
    """The function with tables for what its elementwise stages compute of single bytes, where that is worth it.

    Args:
        graph: a function in which everything is inlined that should be: what a stage looks up has to be inside of it.
    """
    stages: list[Stage] = []
    for stage in graph.stages:
        tables = _Tables(stage)
        value = stage.value if stage.combine is not None or tables.elements < _LEAST else tables.replaced(stage.value)
        stages += [*tables.stages, replace(stage, value=value)]
    return graph if len(stages) == len(graph.stages) else StageGraph(graph.parameters, tuple(stages))


class _Tables:
    """The tables of one stage.

    Attributes:
        elements: how many elements the stage computes.
        stages: what computes the tables.
    """

    def __init__(self, stage: Stage) -> None:
        self.elements = math.prod(axis.extent for axis in stage.axes)
        self.stages: list[Stage] = []
        self._name = stage.name
        self._moving = {axis.var for axis in stage.axes if axis.extent > 1}
        self._still = {axis.var: IntImm("int32", 0) for axis in stage.axes if axis.extent == 1}

    def replaced(self, value: Expr) -> Expr:
        """The value with each costly function of a byte looked up."""
        return transform(value, self._looked_up)

    def _looked_up(self, node: Expr) -> Expr | None:
        byte = self._only_byte(node)
        if byte is None or byte.same_as(node) or _cost(node, byte) <= _WORTH:
            return None
        dtype = str(byte.ty.dtype)
        entry = Axis(variable("byte"), _BYTES)
        first = IntImm("int32", _FIRST[dtype])
        same = prim.Cast(dtype, entry.var + first if _FIRST[dtype] else entry.var)
        entries = transform(node, lambda item: same if _equal(item, byte) else None)
        table = intermediate(f"{self._name}_table{len(self.stages)}", [_BYTES], str(node.ty.dtype))
        value = substitute(entries, self._still)
        self.stages.append(Stage(f"{self._name}_table{len(self.stages)}", (entry,), table, (entry.var,), value))
        index = prim.Cast("int32", byte)
        return table[index - first if _FIRST[dtype] else index]

    def _only_byte(self, node: Expr) -> Expr | None:
        """The byte on which alone a value depends from element to element; None if there is no such byte."""
        moves = self._moves(node)
        return moves[0] if moves is not None and len(moves) == 1 else None

    def _moves(self, node: Expr) -> list[Expr] | None:
        """The bytes on which alone a value depends from element to element, each once; None if there is more to it."""
        if node in self._moving:
            return None
        found: list[Expr] = []
        for child in children(node):
            inside = self._moves(child)
            if inside is None:
                return [node] if _is_byte(node) else None
            found += [byte for byte in inside if not any(_equal(byte, other) for other in found)]
        return [node] if len(found) > 1 and _is_byte(node) else found


def _is_byte(node: Expr) -> bool:
    return str(node.ty.dtype) in _FIRST and isinstance(node, prim.Cast | TensorLoad)


def _equal(left: Expr, right: Expr) -> bool:
    return bool(left.same_as(right) or tvm_ffi.structural_equal(left, right))


def _cost(node: Expr, byte: Expr) -> int:
    """Cycles that a vector of a value takes, about, apart from the byte that it is of."""
    if isinstance(node, TensorLoad) or not children(node) or _equal(node, byte):
        return 0  # other loads are the same for all elements
    rounds = isinstance(node, Call) and node.op.name.endswith("nearbyint")
    costly = isinstance(node, Call) and not rounds
    own = _DIVISION if isinstance(node, prim.Div) else _CALL if costly else _OTHER
    return own + sum(_cost(child, byte) for child in children(node))
