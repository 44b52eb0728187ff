"""What the axes and the stages of a contraction are for.

A contraction sums `A[...] * B[...]`. One spatial axis is the *column* axis (vectorised); spatial axes that only the
other operand depends on are *rows* (tiled into the register block); the rest are *outer*.

    matmul            rows i        column j     (B is the column operand)
    conv2d NHWC       rows n, h, w  column o     (the weight)
    conv2d NCHW       rows n, h, w  column o     (stores are strided, but happen once per output)
    depthwise NHWC    rows n, h, w  column c     (the weight; the data is read in vectors too)
    batch_matmul      rows i        column j     outer b
    grouped conv2d    rows n, h, w  column o     outer g: the output's channel is g times their number, plus o

Around it stand the stages that feed it (padding), those that consume its result element by element (bias,
residual, activation: one fused epilogue), and others that merely run before or after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tvm.ir import Call, TensorLoad, Var
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm

from ..errors import UnsupportedFunction
from .expressions import Expr, coefficients, simplified, substitute, transform, variables, walk
from .stages import Axis, Stage, StageGraph, shape_of, variable

_MOST_COPIED = 64  # nodes of an expression that inlining may make of one that is read more than once


@dataclass(frozen=True, eq=False)
class Contraction:
    """A function that has exactly one contraction, taken apart.

    `epilogue` writes the result from the contraction's buffer, over axes renamed to the contraction's; where
    nothing consumes the contraction it is a plain copy. `rows` are the axes to tile: one, two (rows of an image and
    its columns), or several that `flat` says to walk as one. `operand` is the load that follows the columns. It is
    `packable` where it may be laid out anew so that columns are contiguous per reduction step (it has to be where
    `must_pack`); `constant` is the position of the input that it reads if that is a constant. `prologue` is the stage
    among those `before` that makes the other operand (padding), if nothing else reads it.
    """

    graph: StageGraph
    stage: Stage
    before: tuple[Stage, ...]
    after: tuple[Stage, ...]
    epilogue: Stage
    column: Axis
    rows: tuple[Axis, ...]
    outer: tuple[Axis, ...]
    operand: Any
    packable: Any | None
    must_pack: bool
    constant: int | None
    flat: bool
    prologue: Stage | None


def take_apart(graph: StageGraph, constants: tuple[int, ...]) -> Contraction:
    """Finds the contraction of a function and what stands around it. Raises `UnsupportedFunction` if there is none."""
    found = [stage for stage in graph.stages if is_contraction(stage)]
    if len(found) != 1:
        raise UnsupportedFunction(f"{len(found)} contractions in the function, not one")
    graph = graph.inlined(lambda stage: not inlines_well(graph, stage, found[0]))
    graph = graph.mapped(lambda item: _without_unit_reductions(item) if item.combine is not None else item)
    stage = next(item for item in graph.stages if item.buffer.same_as(found[0].buffer))
    epilogue, fused = fused_epilogue(graph, stage)
    position = graph.stages.index(stage)
    before = tuple(item for item in graph.stages[:position] if item not in fused)
    after = tuple(item for item in graph.stages[position + 1 :] if item not in fused)
    late = _needed(epilogue, after)
    before, after = (*before, *late), tuple(item for item in after if item not in late)

    left, right = stage.value.a, stage.value.b
    constant_buffers = {graph.inputs[index]: index for index in constants}
    column, operand, other = _column(stage, left, right, constant_buffers)
    columns = _group(other, column)
    if columns is not None:
        first = operand.same_as(left)
        stage, epilogue, column = _by_groups(stage, epilogue, column, columns)
        left, right = stage.value.a, stage.value.b
        operand, other = (left, right) if first else (right, left)
    rest = [axis for axis in stage.spatial if axis is not column]
    rows = [axis for axis in rest if axis.var not in _variables(operand)]
    packable = operand if rows and column.var in _variables(operand) else None
    # Where every axis moves the column operand (depthwise in NCHW), nothing is reused by rows: tile the last axis.
    rows = rows or rest[-1:]
    moving = [axis for axis in rows if axis.extent > 1]
    flat = len(moving) > 1 and _flattens(moving, [other, *epilogue.loads()], epilogue)
    tiled = tuple(moving if flat else moving[-2:]) or tuple(rows[-1:])
    if not tiled:
        raise UnsupportedFunction("a contraction with one spatial axis has no rows to tile")
    constant = None
    if packable is not None and packable.source in constant_buffers and len(graph.readers(packable.source)) == 1:
        constant = constant_buffers[packable.source]
    return Contraction(
        graph,
        stage,
        before,
        after,
        epilogue,
        column,
        tiled,
        tuple(axis for axis in rest if axis not in tiled),
        operand,
        packable,
        packable is not None and not contiguous(packable, column.var),
        constant,
        flat,
        _prologue(graph, before, other),
    )


def multiplied(stage: Stage) -> tuple[Any, Any] | None:
    """The loads of different buffers whose product a stage sums, converted to another type or not; else None."""
    if stage.combine != "sum" or not isinstance(stage.value, prim.Mul) or not stage.spatial:
        return None
    given = (stage.value.a, stage.value.b)
    left, right = (each.value if isinstance(each, prim.Cast) else each for each in given)
    if not (isinstance(left, TensorLoad) and isinstance(right, TensorLoad)):
        return None
    return None if left.source.same_as(right.source) else (left, right)


def is_contraction(stage: Stage) -> bool:
    """Whether a stage sums the product of two loads of different buffers, in their own type."""
    return multiplied(stage) is not None and not any(
        isinstance(each, prim.Cast) for each in (stage.value.a, stage.value.b)
    )


def contiguous(load: Any, variable: Any) -> bool:
    """Whether a load moves by one element when the variable does."""
    *leading, last = load.indices
    if any(variable in variables(index) for index in leading):
        return False
    factors = coefficients(last, {variable})
    return factors is not None and factors.get(variable) == 1


def _without_unit_reductions(stage: Stage) -> Stage:
    """The same stage without reductions over one element (the window of a 1x1 convolution); one reduction stays."""
    unit = [axis for axis in stage.reductions if axis.extent == 1][: len(stage.reductions) - 1]
    if not unit:
        return stage
    value = simplified(substitute(stage.value, {axis.var: IntImm("int32", 0) for axis in unit}))
    return replace(stage, axes=tuple(axis for axis in stage.axes if axis not in unit), value=value)


def inlines_well(graph: StageGraph, stage: Stage, contraction: Stage | None = None) -> bool:
    """Whether to inline an elementwise stage: not into the contraction, and not into several readers if expensive.

    Padding is inlined into no reduction either: a conditional in the innermost loop costs more than a copy.
    """
    readers = graph.readers(stage.buffer)
    if contraction is not None and any(reader.buffer.same_as(contraction.buffer) for reader in readers):
        return False
    loads = sum(load.source.same_as(stage.buffer) for reader in readers for load in reader.loads())
    return worth_copying(stage.value, loads, any(reader.combine is not None for reader in readers))


def worth_copying(value: Expr, loads: int, reduced: bool) -> bool:
    """Whether a value may stand in place of its loads, so many of them; `reduced` where a reduction reads it."""
    calls = [node.op.name for node in walk(value) if isinstance(node, Call)]
    if reduced and any("if_then_else" in name for name in calls):
        return False
    costly = any("if_then_else" not in name for name in calls)
    # Each load becomes a copy of the value: a chain of squares would double with every link.
    return loads <= 1 or (not costly and loads * sum(1 for _ in walk(value)) <= _MOST_COPIED)


def fused_epilogue(graph: StageGraph, stage: Stage, alone: bool = False) -> tuple[Stage, list[Stage]]:
    """The store that follows a reduction, over its spatial axes, and the stages that it stands for.

    It is the one stage that consumes each result exactly once, if there is one and `alone` is false; else a copy.
    """
    readers = graph.readers(stage.buffer)
    identity = {axis.var: axis.var for axis in stage.spatial}
    if not alone and len(readers) == 1 and stage.buffer not in graph.parameters:
        reader = readers[0]
        renamed = _aligned(stage, reader)
        if renamed is not None:
            moved = Stage(
                "epilogue",
                stage.spatial,
                reader.buffer,
                tuple(substitute(index, renamed) for index in reader.indices),
                substitute(reader.value, renamed),
            )
            return moved, [stage, reader]
    own = tuple(substitute(index, identity) for index in stage.indices)
    return Stage("epilogue", stage.spatial, stage.buffer, own, stage.buffer[own]), [stage]


def _aligned(stage: Stage, reader: Stage) -> Mapping[Any, Any] | None:
    """How a reader's axes are called in the contraction, if it takes each element exactly once; else None."""
    if reader.combine is not None:
        return None
    spatial = {axis.var: axis.extent for axis in stage.spatial}
    renamed: dict[Any, Any] | None = None
    for load in reader.loads():
        if not load.source.same_as(stage.buffer):
            continue
        current: dict[Any, Any] = {}
        for own, index in zip(stage.indices, load.indices, strict=True):
            if isinstance(own, Var) and isinstance(index, Var) and index not in current:
                current[index] = own
            elif not (isinstance(own, Var) and spatial[own] == 1) and isinstance(own, Var):
                return None
        if renamed is not None and current != renamed:
            return None
        renamed = current
    if renamed is None:
        return None
    for axis in reader.axes:
        if axis.var in renamed:
            if spatial[renamed[axis.var]] != axis.extent:
                return None
        elif axis.extent != 1:
            return None
        else:
            renamed[axis.var] = IntImm("int32", 0)
    return renamed


def _needed(epilogue: Stage, after: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The stages after the contraction that its epilogue reads (directly or not)."""
    wanted = {load.source for load in epilogue.loads()}
    needed: list[Stage] = []
    for item in reversed(after):
        if item.buffer in wanted:
            needed.insert(0, item)
            wanted |= {load.source for load in item.loads()}
    return tuple(needed)


def _variables(load: Any) -> set[Any]:
    return {variable for index in load.indices for variable in variables(index)}


def _column(stage: Stage, left: Any, right: Any, constants: Mapping[Any, int]) -> tuple[Axis, Any, Any]:
    """The column axis, the operand that varies along it (the one to pack), and the other operand."""
    for weight, data in ((right, left), (left, right)):
        if weight.source in constants:
            own = [axis for axis in stage.spatial if axis.var in _variables(weight) - _variables(data)]
            if own:
                return max(own, key=lambda axis: axis.extent), weight, data
    last = stage.spatial[-1]
    for operand, other in ((right, left), (left, right)):
        if last.var in _variables(operand) and last.var not in _variables(other):
            return last, operand, other
    # Both vary along it (depthwise): pack the one that depends on fewer of the other axes.
    spatial = {axis.var for axis in stage.spatial}
    operand, other = sorted((right, left), key=lambda load: len(_variables(load) & spatial))
    return last, operand, other


def _prologue(graph: StageGraph, before: tuple[Stage, ...], load: Any) -> Stage | None:
    for stage in before:
        alone = len(graph.readers(stage.buffer)) == 1 and stage.buffer not in graph.parameters
        if stage.buffer.same_as(load.source) and stage.combine is None and alone:
            return stage
    return None


def _group(load: Any, column: Axis) -> int | None:
    """`g` where the column axis appears in a load only as `column // g`."""
    divisors = {
        int(node.b)
        for index in load.indices
        for node in walk(index)
        if isinstance(node, prim.FloorDiv) and column.var.same_as(node.a) and isinstance(node.b, IntImm)
    }
    return divisors.pop() if len(divisors) == 1 else None


def _by_groups(stage: Stage, epilogue: Stage, column: Axis, columns: int) -> tuple[Stage, Stage, Axis]:
    """The same over two axes in place of the column axis, groups and the columns of one; with the latter."""
    group, within = Axis(variable("group"), column.extent // columns), Axis(variable("column"), columns)

    def split(node: Expr) -> Expr | None:
        if isinstance(node, prim.FloorDiv) and column.var.same_as(node.a) and _is(node.b, columns):
            return group.var
        return group.var * columns + within.var if column.var.same_as(node) else None

    def both(each: Stage) -> Stage:
        axes = [new for axis in each.axes for new in ((group, within) if axis.var.same_as(column.var) else (axis,))]
        indices = tuple(transform(index, split) for index in each.indices)
        return replace(each, axes=tuple(axes), indices=indices, value=transform(each.value, split))

    return both(stage), both(epilogue), within


def _is(node: Expr, number: int) -> bool:
    return isinstance(node, IntImm) and int(node) == number


def _flattens(rows: list[Axis], loads: list[Any], epilogue: Stage) -> bool:
    """Whether the row axes can be walked as one: every access takes them as whole consecutive dimensions, or not."""
    names = {axis.var for axis in rows}
    accesses = [(load.source, list(load.indices)) for load in loads]
    for buffer, indices in [*accesses, (epilogue.buffer, list(epilogue.indices))]:
        at = [dimension for dimension, index in enumerate(indices) if variables(index) & names]
        if not at:
            continue
        if at != list(range(at[0], at[0] + len(rows))):
            return False
        shape = shape_of(buffer)
        for dimension, axis in zip(at, rows, strict=True):
            index = indices[dimension]
            if not (isinstance(index, Var) and index.same_as(axis.var)):
                return False
            if dimension != at[0] and shape[dimension] != axis.extent:
                return False
    return True
