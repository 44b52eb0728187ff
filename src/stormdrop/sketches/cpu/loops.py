"""Loops for a nest: parallel outer axes, vectors along the contiguous axis, reductions in registers.

    for outer axes, the first ones in parallel:
        for steps of some vectors along the last axis:
            registers[vectors] = identity                         if the nest reduces
            for reduction: registers[vectors] += ...              unrolled if it is short
            output[vectors] = epilogue(registers)

- If a step does not divide an axis, the last step overlaps the one before it.
- A nest that reduces along memory (`vectorize_reduction`) has its vectors along that axis. At the end one half of them
  is added to the other half until one value is left.
- A nest that transposes also takes some positions along the axis in which its input is contiguous, unrolled: LLVM
  makes vector loads and shuffles of the strided loads of such a tile.
- If the value depends on a comparison of the vectorised axis with constants (concatenation, padding), each segment of
  the axis between them has a loop of its own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tvm.ir.prim.expr import IntImm
from tvm.tirx import AttrStmt, For, ForKind

from ...ir.expressions import Expr, substitute, tile_start
from ...ir.segments import segments_of
from ...ir.stages import Axis, Stage, StageGraph, intermediate, sequence, variable
from ...machine.cpu import Cpu
from .groups import Group, groups_of
from .nest_rewrites import (
    at_vector,
    fuse_contiguous_axes,
    parallelize_reduction,
    split_into_segments,
    unravel_axes,
    vectorize_reduction,
)
from .nests import Nest, load_stride, nests_of

_TASKS_PER_CORE = 4
_WORTH_A_THREAD = 1 << 14  # elements computed; below, waking threads costs more than they save
_MOST_STRIDED = 16  # unrolled steps of a reduction with strided loads
# Names of axes that say how their loops run.
CHUNK, ROW, LANE = "chunk", "row", "lane"
_UNROLLED = {CHUNK, ROW}


@dataclass(frozen=True)
class LoopSizes:
    """How many elements a nest computes at a time, and in how many parts.

    Args:
        lanes: The elements of a vector.
        vectors: The vectors of one step, at most.
        unroll: The iterations of a reduction that are unrolled, at most.
        across: If the nest transposes, the positions of a step along the axis in which its input is contiguous.
        columns: If the nest transposes, the elements of a step along its last axis: one vector.
        parts: The parts into which a reduction of few results is split.
    """

    lanes: int
    vectors: int = 4
    unroll: int = 16
    across: int = 16
    columns: int = 8
    parts: int = 1


def default_loops(stages: Sequence[Stage], kept: Collection[Any], target: Cpu) -> tuple[list[Any], list[Stage]]:
    """Loops for stages that stand beside a scheduled kernel, with sizes that no knob changes.

    Args:
        stages: The stages, in the order in which they run.
        kept: The buffers that are parameters or are read from outside of these stages.
        target: The machine to schedule for.

    Returns:
        The statements, and the stages that they hold, whose buffers have to be allocated.
    """
    statements, written = [], []
    for group in groups_of(nests_of(StageGraph((), tuple(stages)), kept), kept, target.cores):
        for loops in loops_of(group, LoopSizes(target.lanes), target.cores, keep_store_axes=True):
            statements.append(parallel_loop(loops, group.shared, parallel_axis_count(loops, target.cores)))
            written += [stage for nest_loops in loops for stage in nest_loops.stages]
    return statements, written


def loops_of(group: Group, sizes: LoopSizes, cores: int, keep_store_axes: bool = False) -> list[list[NestLoops]]:
    """The loops of a group.

    Args:
        group: Nests that run together.
        sizes: What a nest computes at a time.
        cores: The cores of the machine.
        keep_store_axes: Whether the nests may store to intermediate buffers of several dimensions, see
            `fuse_contiguous_axes`.

    Returns:
        One list for each parallel loop: the loops of the nests that it runs. A nest that runs alone has several if it
        reduces to few results in parts, or if it has nothing to run in parallel but an axis in segments.
    """
    shared = group.shared
    fused = [fuse_contiguous_axes(nest, shared, keep_store_axes) for nest in group.nests]
    nests = [vectorize_reduction(nest, shared, sizes.lanes, sizes.vectors) for nest in fused]
    loops = [NestLoops(nest, sizes, shared) for nest in nests]
    if shared:
        return [loops]
    (nest,) = nests
    if sizes.parts > 1 and leaves_cores_idle(loops[0], cores):
        separate = parallelize_reduction(nest, sizes.parts)
    else:
        separate = split_into_segments(nest)
    return [loops if part is nest else [NestLoops(part, sizes)] for part in separate]


def leaves_cores_idle(loops: NestLoops, cores: int) -> bool:
    """Whether a nest reduces to so few results that there is not work for all cores."""
    return loops.reduces and math.prod(axis.extent for axis in loops.outer) < _TASKS_PER_CORE * cores


def parallel_axis_count(loops: Sequence[NestLoops], cores: int) -> int:
    """How many leading axes to run in parallel: as few as keep the cores busy, because index arithmetic costs time.

    0 if the work is so little that waking threads takes longer.
    """
    if sum(nest_loops.size for nest_loops in loops) < _WORTH_A_THREAD:
        return 0
    axes = loops[0].outer
    for count in range(1, len(axes)):
        if math.prod(axis.extent for axis in axes[:count]) >= _TASKS_PER_CORE * cores:
            return count
    return len(axes)


def parallel_loop(loops: Sequence[NestLoops], shared: int, leading: int) -> Any:
    """One loop that runs nests one after the other at each position.

    Args:
        loops: The loops of the nests; only one if they share no axes.
        shared: The number of leading axes that the nests share. The loop runs over these.
        leading: If `shared` is 0, the number of leading axes of the only nest that the loop runs over. The loop is
            parallel unless `leading` is 0, in either case.

    Returns:
        The statement.
    """
    kind = ForKind.PARALLEL if leading else ForKind.SERIAL
    axes = loops[0].outer[: shared or leading]
    count = math.prod(axis.extent for axis in axes)
    if count == 1:
        position: list[Any] = [IntImm("int32", 0) for _ in axes]
        return sequence([_never_in_place(nest_loops.body(position)) for nest_loops in loops])
    task = variable("task")
    position = list(unravel_axes(axes, task).values())
    return For(task, 0, count, kind, sequence([_never_in_place(nest_loops.body(position)) for nest_loops in loops]))


class Loops:
    """Loops around some stages.

    Args:
        outer: The axes that have loops around all stages, the shared ones first.
        stages: What runs inside of these loops, in order. Each stage has these axes first.
        unroll: The iterations of a reduction that are unrolled, at most.
    """

    def __init__(self, outer: tuple[Axis, ...], stages: Sequence[Stage], unroll: int) -> None:
        self.outer, self._given, self._unroll = outer, stages, unroll

    @cached_property
    def stages(self) -> list[Stage]:
        """What runs inside of these loops. Whoever asks for sizes alone does not pay for it."""
        return [_over_new_variables(stage) for stage in self._given]

    def body(self, position: Sequence[Any]) -> Any:
        """The loops inside of those that give the first outer axes their positions."""
        inside = self.outer[len(position) :]
        loops = [variable(axis.name) for axis in inside]
        body: Any = sequence([stage.statement([*position, *loops], self._kinds(stage)) for stage in self.stages])
        for loop, axis in zip(reversed(loops), reversed(inside), strict=True):
            body = For(loop, 0, axis.extent, ForKind.SERIAL, body)
        return body

    def _kinds(self, stage: Stage) -> dict[Any, Any]:
        """The kinds of the loops that are not serial: by the axes' names, and reductions unrolled from the inside."""
        kinds = {axis.var: ForKind.UNROLLED for axis in stage.axes if axis.name in _UNROLLED}
        kinds.update({axis.var: ForKind.VECTORIZED for axis in stage.axes if axis.name == LANE})
        size = 1
        for axis in reversed(stage.reductions):
            size *= axis.extent
            if size > self._unroll:
                break
            kinds[axis.var] = ForKind.UNROLLED
        return kinds


class NestLoops(Loops):
    """The loops of one nest.

    Args:
        nest: The nest.
        sizes: What it computes at a time.
        shared: The number of leading axes that get their values from loops outside.

    Attributes:
        outer: The axes that have loops around all stages, the shared ones first.
        stages: What runs inside of these loops, in order.
        size: The elements that the nest computes; each step of a reduction counts.
        reduces: Whether the nest has a reduction.
        transposes: Whether a step is a tile of two axes, because the input is contiguous along another axis.
    """

    def __init__(self, nest: Nest, sizes: LoopSizes, shared: int = 0) -> None:
        self.reduces = nest.reduction is not None
        self.transposes = False
        steps = sum(math.prod(axis.extent for axis in term.axes) for term in nest.terms) if nest.terms else 1
        results = nest.store.axes if nest.lane is None else (*nest.store.axes, nest.lane)
        self.size = math.prod(axis.extent for axis in results) * steps
        free = nest.store.axes[shared:]
        if nest.lane is None and free and any(load_stride(load, free[-1].var) not in (0, 1) for load in nest.reads()):
            # Each lane is a load of its own: keep the code short.
            sizes = replace(sizes, vectors=min(sizes.vectors, 2), unroll=min(sizes.unroll, _MOST_STRIDED))
        outer: tuple[Axis, ...]
        if nest.lane is not None:
            outer, stages = nest.store.axes, _reduction_stages(nest, nest.store.axes, nest.lane, sizes.lanes)
        elif nest.reduction is not None:
            outer, stages = _reduce_to_vectors(nest, free, sizes)
        else:
            across = _contiguous_input_axis(nest, free[-1], free[:-1]) if free else None
            self.transposes = across is not None
            outer, stages = _store_vectors(nest, free, across, sizes)
        super().__init__(outer, stages, sizes.unroll)


def _store_vectors(
    nest: Nest, free: Sequence[Axis], across: Axis | None, sizes: LoopSizes
) -> tuple[tuple[Axis, ...], list[Stage]]:
    """A nest without a reduction: the outer axes, and one stage for each segment of the last axis."""
    store = nest.store
    if not free:
        return store.axes, [store]
    last = free[-1]
    outer = [axis for axis in store.axes if axis is not last and axis is not across]
    mapping: dict[Any, Expr] = {}
    rows: list[Axis] = []
    lanes, vectors = sizes.lanes, sizes.vectors
    if across is not None:
        lanes, vectors = sizes.columns, 1
        rows = [Axis(variable(ROW), _step_size(across.extent, sizes.across, 1))]
        tile, start = _tile_axis(across, rows[0].extent)
        outer.append(tile)
        mapping[across.var] = start + rows[0].var
    segments = segments_of(store.value, last)
    stages = []
    for segment in segments:
        axis = Axis(last.var, segment.end - segment.start)
        size = _step_size(axis.extent, lanes, vectors)
        tile, start = _tile_axis(axis, size)
        inner, element = vector_axes(size, lanes)
        position = (last.var, start + segment.start if segment.start else start, element)
        part = replace(store, value=segment.value)
        stages.append(_store_over(part, (*outer, tile, *rows, *inner), position, mapping))
    if len(segments) == 1:
        outer.append(tile)
    return tuple(outer), stages


def _reduce_to_vectors(nest: Nest, free: Sequence[Axis], sizes: LoopSizes) -> tuple[tuple[Axis, ...], list[Stage]]:
    """A reduction with vectors along its last spatial axis (single values if there is none)."""
    last = free[-1] if free else Axis(variable("one"), 1)
    size = _step_size(last.extent, sizes.lanes, sizes.vectors)
    tile, start = _tile_axis(last, size)
    outer = (*(axis for axis in nest.store.axes if axis is not last), tile)
    column = Axis(variable("column"), size)
    terms = tuple(replace(term, value=at_vector(term.value, last.var, start, column.var)) for term in nest.terms)
    store = _store_over(nest.store, nest.store.axes, (last.var, start, column.var), {})
    return outer, _reduction_stages(replace(nest, store=store, terms=terms), outer, column, sizes.lanes)


def _reduction_stages(nest: Nest, outer: Sequence[Axis], along: Axis, lanes: int) -> list[Stage]:
    """The stages of a reduction over outer axes, in registers along one axis.

    If the nest has a lane, its registers are combined to one value at the end; else each is stored.
    """
    reduction = nest.reduction
    assert reduction is not None
    name = reduction.name
    # TVM puts a buffer of less than 1 KiB on the stack. From there LLVM takes it into registers.
    registers = intermediate(f"{name}_registers", [along.extent], str(reduction.buffer.dtype))
    inner, element = vector_axes(along.extent, lanes)
    mapping = {along.var: element}
    stages = [Stage(f"{name}_init", (*outer, *inner), registers, (element,), reduction.identity)]
    for term in nest.terms:
        axes, value = (*outer, *term.axes, *inner), substitute(term.value, mapping)
        stages.append(Stage(f"{name}_update", axes, registers, (element,), value, reduction.combine))
    store = nest.store
    if nest.lane is None:
        indices = tuple(substitute(index, mapping) for index in store.indices)
        value = substitute(nest.with_result(registers[along.var]), mapping)
        return [*stages, replace(store, axes=(*outer, *inner), indices=indices, value=value)]
    width = along.extent
    while width > 1:
        width //= 2
        inner, element = vector_axes(width, lanes)
        halves = Stage(f"{name}_halves", (*outer, *inner), registers, (element,), registers[element + width])
        stages.append(replace(halves, combine=reduction.combine))
    return [*stages, replace(store, axes=tuple(outer), value=nest.with_result(registers[0]))]


def _tile_axis(axis: Axis, size: int) -> tuple[Axis, Expr]:
    """The axis of tiles of a size, and the position at which a tile starts."""
    tile = Axis(variable(f"{axis.name}_tile"), -(-axis.extent // size))
    return tile, tile_start(tile.var, size, axis.extent, tile.extent)


def vector_axes(size: int, lanes: int) -> tuple[tuple[Axis, Axis], Expr]:
    """The two axes of some vectors, and the position of an element in them."""
    width = math.gcd(size, lanes)
    chunk, lane = Axis(variable(CHUNK), size // width), Axis(variable(LANE), width)
    return (chunk, lane), chunk.var * width + lane.var


def _step_size(extent: int, lanes: int, vectors: int) -> int:
    """Elements of one step along an axis: some vectors, or a shorter power of two if the axis is short."""
    if extent < 4:
        return 1
    if extent < lanes:
        return 1 << (extent.bit_length() - 1)
    return max(lanes * count for count in range(1, vectors + 1) if lanes * count <= extent)


def _store_over(
    stage: Stage, axes: Sequence[Axis], position: tuple[Any, Expr, Expr], mapping: dict[Any, Expr]
) -> Stage:
    """A store over other axes: the position of a vector on one of the old axes (see `at_vector`), and of the others."""

    def moved(node: Expr) -> Expr:
        return substitute(at_vector(node, *position), mapping)

    return replace(stage, axes=tuple(axes), indices=tuple(map(moved, stage.indices)), value=moved(stage.value))


def _over_new_variables(stage: Stage) -> Stage:
    """The same stage over new variables, because blocks may not share theirs."""
    renamed = {axis.var: variable(axis.name) for axis in stage.axes}
    axes = tuple(replace(axis, var=renamed[axis.var]) for axis in stage.axes)
    indices = tuple(substitute(index, renamed) for index in stage.indices)
    return replace(stage, axes=axes, indices=indices, value=substitute(stage.value, renamed))


def _contiguous_input_axis(nest: Nest, axis: Axis, others: Sequence[Axis]) -> Axis | None:
    """The other axis along which an input is contiguous; None if no input is strided along `axis`."""
    for load in nest.reads():
        if load_stride(load, axis.var) not in (0, 1):
            for other in others:
                if load_stride(load, other.var) == 1:
                    return other
    return None


def _never_in_place(statement: Any) -> Any:
    """A statement whose result TVM does not write over its inputs, because steps that overlap read these again."""
    return AttrStmt(IntImm("int32", 0), "extern_scope", IntImm("int32", 1), statement)
