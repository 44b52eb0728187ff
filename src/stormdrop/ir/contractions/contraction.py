"""Finds the contraction of a function, and says what its axes and the stages around it are for.

A contraction sums `A[...] * B[...]`, where integers may be widened (see `factors`). One spatial axis is the *column*
axis, which is vectorised. The operand that depends on it is the column operand. Spatial axes that the column operand
does not depend on are *rows*: up to two of them are tiled into the register block, or all if one loop can replace them.
The other spatial axes are *outer*.

    matmul            rows i        column j              (B is the column operand)
    conv2d NHWC       rows h, w     column o  outer n     (the weight)
    conv2d NCHW       rows h, w     column o  outer n     (stores are strided, but happen once per output)
    conv2d 1x1        rows n, h, w  column o              (one loop over all pixels)
    depthwise NHWC    rows h, w     column c  outer n     (the weight; the data is also read in vectors)
    batch_matmul      rows i        column j  outer b
    grouped conv2d    rows h, w     column o  outer n, g  (the output's channel is g times their number, plus o)
    upsampling        rows h, w     column o  outer n, i, j  (the output's row is h times the step, plus i)

Stages before the contraction feed it (padding). One stage that consumes its result element by element (bias, residual
and activation) becomes its epilogue. Any other stage runs before or after it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm.ir import Var
from tvm.ir.prim.expr import IntImm

from ...errors import UnsupportedFunction
from ..dtypes import BFLOAT16, is_integer
from ..expressions import coefficients, simplified, substitute, variables, variables_outside_loads
from ..inlining import inline_well, inlines_well
from ..stages import Axis, Stage, StageGraph, shape_of
from .factors import Factor, factors_of
from .split_axes import columns_of_group, split_axis, step_of
from .tables import with_tables


@dataclass(frozen=True, eq=False)
class Contraction:
    """A function that has exactly one contraction, with the roles of its stages and axes.

    Attributes:
        graph: The function after inlining.
        stage: The contraction.
        before: The stages that run before it.
        after: The stages that run after it, without the epilogue.
        epilogue: The store of the result, over the spatial axes of the contraction. It is a plain copy if no stage
            consumes each result exactly once.
        column: The vectorised axis.
        rows: The axes to tile: one, two (the rows and the columns of an image), or several if `flat`.
        outer: The other spatial axes.
        column_factor: The factor that is the column operand.
        data_factor: The other factor.
        packable: The column operand if it may be laid out anew, with the columns of a reduction step contiguous;
            else None.
        must_pack: Whether it has to be laid out anew, because the columns are not contiguous.
        constant: The position of the constant input that the column operand reads, if no other stage reads it.
        flat: Whether the rows can be one loop.
        prologue: The stage of `before` that makes the other operand (padding), if no other stage reads its result.
        constants: The positions of all constant inputs of the function.
    """

    graph: StageGraph
    stage: Stage
    before: tuple[Stage, ...]
    after: tuple[Stage, ...]
    epilogue: Stage
    column: Axis
    rows: tuple[Axis, ...]
    outer: tuple[Axis, ...]
    column_factor: Factor
    data_factor: Factor
    packable: Any | None
    must_pack: bool
    constant: int | None
    flat: bool
    prologue: Stage | None
    constants: tuple[int, ...]

    @property
    def operand(self) -> Any:
        """The column operand, a load."""
        return self.column_factor.load

    @property
    def other(self) -> Any:
        """The other operand, a load."""
        return self.data_factor.load

    @property
    def decoders(self) -> tuple[Any, ...]:
        """The loads that decode a packable column operand (see `factors`), which are laid out as it is."""
        return () if self.packable is None else self.column_factor.decoders

    @property
    def row_extents(self) -> list[int]:
        """The extents of the row axes as they are tiled: one extent if they are tiled as one axis."""
        extents = [axis.extent for axis in self.rows]
        return [math.prod(extents)] if self.flat else extents


def find_contraction(graph: StageGraph, constants: tuple[int, ...]) -> Contraction:
    """Finds the contraction of a function and the roles of all that stands around it.

    Args:
        graph: The function.
        constants: The positions of its constant inputs.

    Raises:
        UnsupportedFunction: The function does not have exactly one contraction, or the contraction has one spatial
            axis only.
    """
    contractions = [stage for stage in graph.stages if is_contraction(stage)]
    if len(contractions) != 1:
        raise UnsupportedFunction(f"the function has {len(contractions)} contractions, not one")
    graph = inline_well(graph, lambda current, stage: inlines_well(current, stage, contractions[0]))
    graph = graph.mapped(lambda item: _without_unit_reductions(item) if item.combine is not None else item)
    graph = with_tables(graph)
    stage = next(item for item in graph.stages if item.buffer.same_as(contractions[0].buffer))
    before, epilogue, after = _surroundings(graph, stage)

    for axis in stage.spatial:
        step = step_of([factor.load for factor in _factors(stage)], axis)
        if step is not None:
            stage, epilogue, _ = split_axis(stage, epilogue, axis, step)
    constant_buffers = {graph.inputs[index]: index for index in constants}
    column, position = _column(stage, [factor.load for factor in _factors(stage)], constant_buffers)
    columns = columns_of_group(_factors(stage)[1 - position].load, column)
    if columns is not None:
        stage, epilogue, column = split_axis(stage, epilogue, column, columns)
    column_factor, data_factor = _factors(stage)[position], _factors(stage)[1 - position]
    operand, other = column_factor.load, data_factor.load
    rest = [axis for axis in stage.spatial if axis is not column]
    rows = [axis for axis in rest if axis.var not in variables(operand)]
    packable = operand if rows and column.var in variables(operand) else None
    # If the column operand depends on every axis (depthwise in NCHW), no axis reuses it, and the last one is tiled.
    rows = rows or rest[-1:]
    longer = [axis for axis in rows if axis.extent > 1]
    flat = len(longer) > 1 and _flattens(longer, [other, *epilogue.loads()], epilogue)
    tiled = tuple(longer if flat else longer[-2:]) or tuple(rows[-1:])
    if not tiled:
        raise UnsupportedFunction("the contraction has one spatial axis only: it has no rows to tile")
    constant = None
    if packable is not None and all(
        load.source in constant_buffers and len(graph.readers(load.source)) == 1
        for load in (packable, *column_factor.decoders)
    ):
        constant = constant_buffers[packable.source]
    return Contraction(
        graph=graph,
        stage=stage,
        before=before,
        after=after,
        epilogue=epilogue,
        column=column,
        rows=tiled,
        outer=tuple(axis for axis in rest if axis not in tiled),
        column_factor=column_factor,
        data_factor=data_factor,
        packable=packable,
        must_pack=packable is not None and not contiguous(packable, column.var),
        constant=constant,
        flat=flat,
        prologue=_prologue(graph, before, other),
        constants=tuple(constants),
    )


def multiplied_loads(stage: Stage) -> tuple[Any, Any] | None:
    """The two loads of different buffers whose product a stage sums.

    The factors may be conversions of the loads to another type.

    Returns:
        The loads, left and right; None if the stage computes anything else or has no spatial axis.
    """
    factors = factors_of(stage)
    if factors is None or not stage.spatial or any(factor.zero_point or factor.decoders for factor in factors):
        return None
    left, right = factors
    return left.load, right.load


def is_contraction(stage: Stage) -> bool:
    """Whether a stage sums the product of two loads of different buffers, over at least one spatial axis.

    Both are in the type of the sums, or they are integers or bfloat16 that are widened to it (see `factors`).
    """
    factors = factors_of(stage)
    if factors is None or not stage.spatial:
        return False
    return all(not factor.widened or is_integer(factor.dtype) or factor.dtype == BFLOAT16 for factor in factors)


def _factors(stage: Stage) -> tuple[Factor, Factor]:
    """The two factors of a contraction, left and right."""
    factors = factors_of(stage)
    assert factors is not None
    return factors


def contiguous(load: Any, variable: Any) -> bool:
    """Whether a load moves by one element in memory if the variable grows by one."""
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


def fused_epilogue(graph: StageGraph, stage: Stage, alone: bool = False) -> tuple[Stage, list[Stage]]:
    """The store that follows a reduction, over its spatial axes.

    Args:
        graph: The function that holds the reduction.
        stage: The reduction.
        alone: Fuse nothing.

    Returns:
        The store, and the stages that it and the reduction replace. The store is the only reader of the reduction, if
        that takes each result exactly once and the result is not a parameter; else it is a copy of the result.
    """
    readers = graph.readers(stage.buffer)
    if not alone and len(readers) == 1 and stage.buffer not in graph.parameters:
        reader = readers[0]
        renamed = _aligned(stage, reader)
        if renamed is not None:
            epilogue = Stage(
                "epilogue",
                stage.spatial,
                reader.buffer,
                tuple(substitute(index, renamed) for index in reader.indices),
                substitute(reader.value, renamed),
            )
            return epilogue, [stage, reader]
    return Stage("epilogue", stage.spatial, stage.buffer, stage.indices, stage.buffer[stage.indices]), [stage]


def _aligned(stage: Stage, reader: Stage) -> Mapping[Any, Any] | None:
    """The axis of the contraction for each axis of a reader that takes each element exactly once; else None."""
    if reader.combine is not None:
        return None
    spatial = {axis.var: axis.extent for axis in stage.spatial}
    renamed: dict[Any, Any] | None = None
    for load in reader.loads():
        if not load.source.same_as(stage.buffer):
            continue
        current: dict[Any, Any] = {}
        for written, index in zip(stage.indices, load.indices, strict=True):
            if isinstance(written, Var) and isinstance(index, Var) and index not in current:
                current[index] = written
            elif isinstance(written, Var) and spatial[written] != 1:
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


def _surroundings(graph: StageGraph, stage: Stage) -> tuple[tuple[Stage, ...], Stage, tuple[Stage, ...]]:
    """The stages before a contraction, its epilogue, and the stages after it."""
    epilogue, fused = fused_epilogue(graph, stage)
    position = graph.stages.index(stage)
    before = tuple(item for item in graph.stages[:position] if item not in fused)
    after = tuple(item for item in graph.stages[position + 1 :] if item not in fused)
    read_by_epilogue = _needed(epilogue, after)
    return (*before, *read_by_epilogue), epilogue, tuple(item for item in after if item not in read_by_epilogue)


def _needed(epilogue: Stage, after: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The stages after the contraction that its epilogue reads, directly or through other stages."""
    wanted = {load.source for load in epilogue.loads()}
    needed: list[Stage] = []
    for item in reversed(after):
        if item.buffer in wanted:
            needed.insert(0, item)
            wanted |= {load.source for load in item.loads()}
    return tuple(needed)


def _column(stage: Stage, loads: Sequence[Any], constants: Mapping[Any, int]) -> tuple[Axis, int]:
    """The column axis, and the position of the operand that varies along it: the one to pack."""
    left, right = loads
    for position, weight, data in ((1, right, left), (0, left, right)):
        if weight.source in constants:
            columns = [axis for axis in stage.spatial if axis.var in variables(weight) - variables(data)]
            if columns:
                return max(columns, key=lambda axis: axis.extent), position
    last = stage.spatial[-1]
    for position, operand, other in ((1, right, left), (0, left, right)):
        if last.var in variables(operand) and last.var not in variables(other):
            return last, position
    # Both vary along the last axis (depthwise): the one to pack depends on fewer of the other axes.
    spatial = {axis.var for axis in stage.spatial}
    return last, min((1, 0), key=lambda position: len(variables(loads[position]) & spatial))


def _prologue(graph: StageGraph, before: tuple[Stage, ...], load: Any) -> Stage | None:
    """The elementwise stage that writes what is loaded, if nothing else reads it."""
    for stage in before:
        read_once = len(graph.readers(stage.buffer)) == 1 and stage.buffer not in graph.parameters
        if stage.buffer.same_as(load.source) and stage.combine is None and read_once:
            return stage
    return None


def _flattens(rows: list[Axis], loads: list[Any], epilogue: Stage) -> bool:
    """Whether one loop can replace those over the rows.

    Every access must use all rows as consecutive dimensions, which are whole but for the first, or none of them.
    """
    row_variables = {axis.var for axis in rows}
    accesses = [(load.source, list(load.indices)) for load in loads]
    for buffer, indices in [*accesses, (epilogue.buffer, list(epilogue.indices))]:
        dimensions = [
            dimension for dimension, index in enumerate(indices) if variables_outside_loads(index) & row_variables
        ]
        if not dimensions:
            continue
        first = dimensions[0]
        if dimensions != list(range(first, first + len(rows))):
            return False
        shape = shape_of(buffer)
        for dimension, axis in zip(dimensions, rows, strict=True):
            index = indices[dimension]
            if not (isinstance(index, Var) and index.same_as(axis.var)):
                return False
            if dimension != first and shape[dimension] != axis.extent:
                return False
    return True
