"""What the kernels of an attention share: loops, what a thread brings to shared memory, and vectors of elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import Range, Var
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm, IntImm
from tvm.sym import Analyzer
from tvm.tirx import BufferStore, For, ForKind, IfThenElse, IterVar

from ....ir.expressions import coefficients, substitute, unraveled, variables
from ....ir.stages import Axis, shape_of, variable
from .parts import AttentionParts

VECTOR = 16
"""The most bytes of a vector."""


@dataclass(frozen=True, eq=False)
class Staged:
    """Rows in shared memory. The buffer has one dimension, because TVM takes away what pads the rows of several.

    Attributes:
        buffer: The buffer.
        height: How many rows there are.
        stride: The elements from a row to the next one.
        first: The position of the first element.
    """

    buffer: Any
    height: int
    stride: int
    first: Any = 0

    def load(self, row: Any, column: Any) -> Any:
        """An element."""
        return self.buffer[self.first + row * self.stride + column]

    def store(self, row: Any, column: Any, value: Any) -> Any:
        """What stores an element."""
        return BufferStore(self.buffer, value, [self.first + row * self.stride + column])


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of an input.

    Attributes:
        load: An element, of heads, a row and a position along it.
        axis: The axis of the rows.
        first: The first one.
        reached: How many rows all blocks reach. Those beyond the axis are not there.
        along: The axis along a row.
        heads: The positions of the heads, by the variables of their axes.
    """

    load: Any
    axis: Axis
    first: Any
    reached: int
    along: Axis
    heads: Mapping[Any, Any]


def fetch(rows: Rows, to: Staged, width: int, thread: Any, threads: int) -> Any:
    """What a thread does to bring rows to shared memory, in the type that they have there; what is not there is 0.

    Args:
        rows: The rows.
        to: Their place. It has as many rows as are brought.
        width: The elements of a row in shared memory.
        thread: The number of the thread.
        threads: How many threads there are.
    """
    axis, along, height, dtype = rows.axis, rows.along, to.height, str(to.buffer.dtype)
    vector = math.gcd(contiguous_elements(rows.load, along), VECTOR // np.dtype(dtype).itemsize)
    chunks = width // vector
    uneven = height * chunks % threads

    def element(row: Any, chunk: Any, lane: Any) -> Any:
        position = {axis.var: rows.first + row, along.var: chunk * vector + lane, **rows.heads}
        there = [rows.first + row < axis.extent] if axis.extent < rows.reached else []
        there += [chunk < along.extent // vector] if along.extent != width else []
        value = substitute(rows.load, position)
        value = value if str(value.ty.dtype) == dtype else prim.Cast(dtype, value)
        return tirx.if_then_else(tirx.all(*there), value, FloatImm(dtype, 0.0)) if there else value

    def step(number: Any) -> Any:
        position = number * threads + thread
        row, chunk = position // chunks, position % chunks
        stores = vectorized(vector, lambda lane: to.store(row, chunk * vector + lane, element(row, chunk, lane)))
        return IfThenElse(position < height * chunks, stores, None) if uneven else stores

    return loop(-(-height * chunks // threads), step, ForKind.SERIAL)


def contiguous_elements(load: Any, axis: Axis) -> int:
    """The elements along an axis that a load reads as one vector wherever it begins, up to 16 bytes."""
    *others, last = load.indices
    used = variables(last)
    factors = coefficients(last, used)
    if factors is None or factors.pop(axis.var, 0) != 1 or any(axis.var in variables(index) for index in others):
        return 1
    first = Analyzer().simplify(substitute(last, {each: IntImm("int32", 0) for each in used}))
    widest = VECTOR // np.dtype(str(load.source.dtype)).itemsize
    return math.gcd(axis.extent, shape_of(load.source)[-1], int(first), *factors.values(), widest)


def heads_of(parts: AttentionParts, number: Any) -> dict[Any, Any]:
    """The positions of the axes of heads, by their variables, from the number of a head among all of them."""
    extents = [axis.extent for axis in parts.heads]
    heads = unraveled(number, extents) if extents else []
    return dict(zip((axis.var for axis in parts.heads), heads, strict=True))


def bound(loop_variable: Any, extent: int, tag: str, body: Any) -> Any:
    """A loop over blocks or threads."""
    axis = IterVar(Range(0, extent), Var(tag, "int32"), IterVar.ThreadIndex, tag)
    return For(loop_variable, 0, extent, ForKind.THREAD_BINDING, body, thread_binding=axis)


def unrolled(extent: int, body: Callable[[Any], Any]) -> Any:
    """An unrolled loop over the positions of which a body is made."""
    return loop(extent, body, ForKind.UNROLLED)


def vectorized(extent: int, body: Callable[[Any], Any]) -> Any:
    """A loop over the elements of a vector, of which a body is made."""
    return loop(extent, body, ForKind.VECTORIZED)


def loop(extent: int, body: Callable[[Any], Any], kind: Any) -> Any:
    """A loop over the positions of which a body is made; the body alone if there is one position."""
    if extent == 1:
        return body(IntImm("int32", 0))
    position = variable("i")
    return For(position, 0, extent, kind, body(position))
