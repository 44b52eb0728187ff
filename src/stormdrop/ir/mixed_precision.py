"""A function whose parameters are stored in bfloat16 or float16, or which multiplies TF32, and computes as before.

    y[i, j] = max(sum_k x[i, k] * w[j, k] + b[j], 0)

    x, w and y in bfloat16:
    y[i, j] = bfloat16(max(sum_k float32(x[i, k]) * float32(w[j, k]) + b[j], 0))

What a stage only moves, as a padding does, stays in that type. In TF32 all is stored in float32, and factors are
rounded when they are multiplied.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
from tvm.ir import Call, TensorLoad
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm

from .contractions.contraction import is_contraction
from .contractions.factors import factors_of
from .dtypes import BFLOAT16, INFINITE
from .expressions import Expr, children, is_selection, rewrite_loads, substitute, tf32
from .stages import Axis, Stage, StageGraph, intermediate, shape_of, variable


def in_low_precision(graph: StageGraph, positions: Collection[int], dtype: str = BFLOAT16) -> StageGraph:
    """The same function with some of its parameters in a type of 16 bits.

    Args:
        graph: The function.
        positions: The positions of the parameters, inputs and outputs, which are in float32.
        dtype: The type, "bfloat16" or "float16".
    """
    stored = {graph.parameters[position]: _narrow(graph.parameters[position], dtype) for position in positions}
    stages: list[Stage] = []
    for stage in graph.stages:
        moves = all(load.source in stored for load in stage.loads()) and _only_moves(stage)
        if moves and stage.buffer not in graph.outputs:
            stored[stage.buffer] = _narrow(stage.buffer, dtype)
        if moves and stage.buffer in stored:
            stages.append(replace(stage, buffer=stored[stage.buffer], value=_moved(stage.value, stored, dtype)))
            continue
        stage = replace(stage, value=rewrite_loads(stage.value, lambda load: _widened(load, stored)))
        if stage.buffer not in stored:
            stages.append(stage)
        elif stage.combine is None:
            stages.append(replace(stage, buffer=stored[stage.buffer], value=prim.Cast(dtype, stage.value)))
        else:
            stages += _rounded_at_end(stage, stored[stage.buffer])
    return StageGraph(tuple(stored.get(buffer, buffer) for buffer in graph.parameters), tuple(stages))


def in_tf32(graph: StageGraph) -> StageGraph:
    """The same function with the factors of its contractions of float32 rounded to TF32.

    Args:
        graph: The function.
    """

    def rounded(stage: Stage) -> Stage:
        factors = factors_of(stage) if is_contraction(stage) else None
        if factors is None or any(factor.dtype != "float32" or factor.decoders for factor in factors):
            return stage
        return replace(stage, value=prim.Mul(*(tf32(factor.load) for factor in factors)))

    return graph.mapped(rounded)


def factor_positions(graph: StageGraph) -> list[tuple[int, int]]:
    """The positions of the two parameters that each contraction of a function multiplies, in float32.

    A parameter may be moved before it is multiplied. Contractions of anything else are left out.
    """
    found = []
    for stage in graph.stages:
        if not is_contraction(stage):
            continue
        pair = [_origin(graph, factor.load.source) for factor in factors_of(stage) or () if factor.dtype == "float32"]
        if len(pair) == 2 and None not in pair:
            found.append((graph.parameters.index(pair[0]), graph.parameters.index(pair[1])))
    return found


def copied_positions(graph: StageGraph) -> set[int]:
    """The positions of the inputs that a function only reads to move their elements, as a padding does."""
    return {
        graph.parameters.index(buffer)
        for buffer in graph.inputs
        if (readers := graph.readers(buffer))
        and all(_only_copies(stage, buffer) and stage.buffer not in graph.outputs for stage in readers)
    }


def keeps_elements(graph: StageGraph, dtype: str = BFLOAT16) -> bool:
    """Whether each element of the outputs is an element of an input, a number that a type holds, or infinite.

    Args:
        graph: The function.
        dtype: The type.
    """
    return all(stage.combine in (None, "max", "min") and _chooses(stage.value, dtype) for stage in graph.stages)


def _chooses(node: Expr, dtype: str) -> bool:
    """Whether a value is that of a load, a number that a type holds, as the bounds 0 and 6 are, or infinite."""
    if isinstance(node, prim.Max | prim.Min):
        return _chooses(node.a, dtype) and _chooses(node.b, dtype)
    if is_selection(node):
        return all(_chooses(each, dtype) for each in children(node)[1:])
    if isinstance(node, FloatImm):
        number = float(node.value)
        return abs(number) > INFINITE or float(np.float32(number).astype(dtype)) == number
    return isinstance(node, TensorLoad)


def _origin(graph: StageGraph, buffer: Any) -> Any | None:
    """The input whose elements a buffer holds; None if something computes them."""
    while buffer not in graph.inputs:
        stage = graph.writer(buffer)
        sources = [] if stage is None or not _only_moves(stage) else stage.loads()
        if len(sources) != 1:
            return None
        buffer = sources[0].source
    return buffer


def _only_moves(stage: Stage) -> bool:
    """Whether a stage stores elements as they were loaded, or zeros."""
    return stage.combine is None and bool(stage.loads()) and _is_moved(stage.value)


def _only_copies(stage: Stage, buffer: Any) -> bool:
    """Whether a stage stores elements of one buffer as they were loaded, or zeros."""
    return _only_moves(stage) and {load.source for load in stage.loads()} == {buffer}


def _is_moved(node: Expr) -> bool:
    if isinstance(node, FloatImm):
        return float(node.value) == 0.0
    return isinstance(node, TensorLoad) or (is_selection(node) and all(map(_is_moved, children(node)[1:])))


def _moved(node: Expr, stored: dict[Any, Any], dtype: str) -> Expr:
    """A value that is only moved, in the type that it is stored in."""
    if isinstance(node, FloatImm):
        return FloatImm(dtype, 0.0)
    if isinstance(node, TensorLoad):
        return stored[node.source][tuple(node.indices)]
    condition, *values = children(node)
    values = [_moved(value, stored, dtype) for value in values]
    if isinstance(node, prim.Select):
        return prim.Select(condition, *values)
    return Call(node.op, [condition, *values], attrs=node.attrs, ret_ty=values[0].ty)


def _widened(load: Any, stored: dict[Any, Any]) -> Expr | None:
    return prim.Cast("float32", stored[load.source][tuple(load.indices)]) if load.source in stored else None


def _rounded_at_end(stage: Stage, stored: Any) -> list[Stage]:
    """A reduction in float32, and a stage that rounds its results."""
    sums = intermediate(f"{stage.buffer.name}_sums", shape_of(stage.buffer), "float32")
    renamed = {axis.var: Axis(variable(f"{axis.name}_out"), axis.extent) for axis in stage.spatial}
    places = {var: axis.var for var, axis in renamed.items()}
    indices = tuple(substitute(index, places) for index in stage.indices)
    value = prim.Cast(str(stored.dtype), sums[indices])
    return [replace(stage, buffer=sums), Stage("rounded", tuple(renamed.values()), stored, indices, value)]


def _narrow(buffer: Any, dtype: str) -> Any:
    return intermediate(str(buffer.name), shape_of(buffer), dtype)
