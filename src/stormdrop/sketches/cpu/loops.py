"""Loops for a nest: parallel outer axes, vectors along the contiguous axis, reductions in registers.

    for outer axes, the first ones in parallel:
        for steps of some vectors along the last axis:
            registers[vectors] = identity                         where the nest reduces
            for reduction: registers[vectors] += ...              unrolled where it is short
            output[vectors] = epilogue(registers)

- An axis that a step does not divide is covered by letting the last step overlap the one before it.
- A nest that reduces along memory (`by_lanes`) has its vectors along that axis; half of them is added to the other
  half until one value is left.
- A nest that transposes also takes some positions along the axis in which its input is contiguous, unrolled: LLVM
  makes vector loads and shuffles of the strided loads of such a tile.
- Where the value depends on a comparison of the vectorised axis with constants (concatenation, padding) each piece of
  the axis between them has a loop of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm.ir.prim.expr import IntImm
from tvm.tirx import AttrStmt, For, ForKind, SeqStmt

from ...ir.expressions import Expr, substitute, tile_start
from ...ir.segments import decided, pieces_of
from ...ir.stages import Axis, Stage, StageGraph, intermediate, variable
from ...machine.cpu import Target
from .groups import Group, groups_of
from .nests import Nest, by_lanes, flattened, in_parts, in_pieces, nests_of, stride, unflattened, walked

_TASKS_PER_CORE = 4
_WORTH_A_THREAD = 1 << 14  # elements computed; below, waking threads costs more than they save
_MOST_STRIDED = 16  # unrolled steps of a reduction with strided loads
# Names of axes that say how their loops run.
_CHUNK, _ROW, _LANE = "chunk", "row", "lane"
_UNROLLED = {_CHUNK, _ROW}


@dataclass(frozen=True)
class Steps:
    """How far a nest goes at a time.

    `vectors` of `lanes` elements per step; reductions of at most `unroll` steps are unrolled. Where a nest transposes,
    a step is `across` positions along one axis and one vector of `columns` elements along the other. A reduction of few
    results runs in `parts`.
    """

    lanes: int
    vectors: int = 4
    unroll: int = 16
    across: int = 16
    columns: int = 8
    parts: int = 1


def stream(stages: Sequence[Stage], kept: Collection[Any], target: Target) -> tuple[list[Any], list[Stage]]:
    """Loops for stages that stand beside a scheduled kernel, by fixed choices.

    Buffers in `kept` are read from outside, or are parameters. Returns the statements and the stages that they hold
    (whose buffers have to be allocated).
    """
    statements, written = [], []
    for group in groups_of(nests_of(StageGraph((), tuple(stages)), kept), kept, target.cores):
        for loops in laid_out(group, Steps(target.lanes), target.cores, exact=True):
            statements.append(in_parallel(loops, group.shared, tasks(loops, target.cores)))
            written += [stage for each in loops for stage in each.stages]
    return statements, written


def laid_out(group: Group, steps: Steps, cores: int, exact: bool = False) -> list[list[Loops]]:
    """The loops of a group: one list for each parallel loop. Reductions of few results run in parts, and what has
    nothing to run in parallel but an axis in pieces runs piece by piece.

    `exact` where what the nests store may be an intermediate buffer of several dimensions (see `flattened`).
    """
    shared = group.shared
    nests = [by_lanes(flattened(nest, shared, exact), shared, steps.lanes, steps.vectors) for nest in group.nests]
    loops = [Loops(nest, steps, group.shared) for nest in nests]
    if group.shared:
        return [loops]
    if steps.parts > 1 and idle(loops[0], cores):
        return [[Loops(nest, steps)] for nest in in_parts(nests[0], steps.parts)]
    return [[Loops(nest, steps)] for nest in in_pieces(nests[0])]


def idle(loops: Loops, cores: int) -> bool:
    """Whether a nest reduces to so few results that cores wait."""
    return loops.reduces and math.prod(axis.extent for axis in loops.outer) < _TASKS_PER_CORE * cores


def in_parallel(loops: Sequence[Loops], shared: int, leading: int) -> Any:
    """One loop over what nests share, else over `leading` outer axes of the only nest; parallel unless that is 0."""
    kind = ForKind.PARALLEL if leading else ForKind.SERIAL
    return _one_loop(loops[0].outer[: shared or leading], kind, lambda at: [_apart(each.body(at)) for each in loops])


def tasks(loops: Sequence[Loops], cores: int) -> int:
    """How many leading axes to run in parallel: as few as keep the cores busy, for index arithmetic costs.

    0 where the work is so little that waking threads takes longer.
    """
    if sum(each.size for each in loops) < _WORTH_A_THREAD:
        return 0
    axes = loops[0].outer
    for count in range(1, len(axes)):
        if math.prod(axis.extent for axis in axes[:count]) >= _TASKS_PER_CORE * cores:
            return count
    return len(axes)


class Loops:
    """The loops of one nest, of which the first `shared` axes are given from outside."""

    def __init__(self, nest: Nest, steps: Steps, shared: int = 0) -> None:
        self.reduces = nest.reduction is not None
        self.transposes = False
        work = [math.prod(axis.extent for axis in term.axes) for term in nest.terms]
        own = nest.store.axes if nest.lane is None else (*nest.store.axes, nest.lane)
        self.size = math.prod(axis.extent for axis in own) * sum(work or [1])
        free = nest.store.axes[shared:]
        if nest.lane is None and free and any(stride(load, free[-1].var) not in (0, 1) for load in nest.reads()):
            # Each lane is a load of its own: keep the code short.
            steps = replace(steps, vectors=min(steps.vectors, 2), unroll=min(steps.unroll, _MOST_STRIDED))
        self._unroll = steps.unroll
        if nest.lane is not None:
            self.outer, stages = nest.store.axes, _reduction(nest, nest.store.axes, nest.lane, steps.lanes)
        elif nest.reduction is not None:
            self.outer, stages = _columns(nest, free, steps)
        else:
            across = _transposed(nest, free[-1], free[:-1]) if free else None
            self.transposes = across is not None
            self.outer, stages = _map(nest, free, across, steps)
        self.stages = [_renamed(stage) for stage in stages]

    def body(self, around: list[Any]) -> Any:
        """The loops inside of those that give the first outer axes their values."""
        rest = self.outer[len(around) :]
        loops = [variable(axis.name) for axis in rest]
        at = [*around, *loops]
        body: Any = _sequence([stage.statement(at, self._kinds(stage)) for stage in self.stages])
        for loop, axis in zip(reversed(loops), reversed(rest), strict=True):
            body = For(loop, 0, axis.extent, ForKind.SERIAL, body)
        return body

    def _kinds(self, stage: Stage) -> dict[Any, Any]:
        """The last axis is a vector; what is named so is unrolled, and reductions from the inside as far as asked."""
        kinds = {axis.var: ForKind.UNROLLED for axis in stage.axes if axis.name in _UNROLLED}
        kinds.update({axis.var: ForKind.VECTORIZED for axis in stage.axes if axis.name == _LANE})
        size = 1
        for axis in reversed(stage.reductions):
            size *= axis.extent
            if size > self._unroll:
                break
            kinds[axis.var] = ForKind.UNROLLED
        return kinds


def _map(nest: Nest, free: Sequence[Axis], across: Axis | None, steps: Steps) -> tuple[tuple[Axis, ...], list[Stage]]:
    """Stores without a reduction: the outer axes and one stage for each piece of the last axis."""
    store = nest.store
    if not free:
        return store.axes, [store]
    axis = free[-1]
    outer = [item for item in store.axes if item is not axis and item is not across]
    mapping: dict[Any, Expr] = {}
    rows: list[Axis] = []
    lanes, vectors = steps.lanes, steps.vectors
    if across is not None:
        lanes, vectors = steps.columns, 1
        rows = [Axis(variable(_ROW), _step(across.extent, steps.across, 1))]
        tile, start = _tile(across, rows[0].extent)
        outer.append(tile)
        mapping[across.var] = start + rows[0].var
    pieces = pieces_of(store.value, axis)
    stages = []
    for first, last in pieces:
        piece = Axis(axis.var, last - first)
        size = _step(piece.extent, lanes, vectors)
        tile, start = _tile(piece, size)
        inner, position = _vector(size, lanes)
        value = store.value if len(pieces) == 1 else decided(store.value, axis.var, first)
        place = (axis.var, start + first if first else start, position)
        stages.append(_over(replace(store, value=value), (*outer, tile, *rows, *inner), place, mapping))
    if len(pieces) == 1:
        outer.append(tile)
    return tuple(outer), stages


def _columns(nest: Nest, free: Sequence[Axis], steps: Steps) -> tuple[tuple[Axis, ...], list[Stage]]:
    """A reduction with vectors along its last spatial axis (single values where there is none)."""
    axis = free[-1] if free else Axis(variable("one"), 1)
    size = _step(axis.extent, steps.lanes, steps.vectors)
    tile, start = _tile(axis, size)
    outer = (*(item for item in nest.store.axes if item is not axis), tile)
    lane = Axis(variable("column"), size)
    terms = tuple(replace(term, value=walked(term.value, axis.var, start, lane.var)) for term in nest.terms)
    store = _over(nest.store, nest.store.axes, (axis.var, start, lane.var), {})
    return outer, _reduction(replace(nest, store=store, terms=terms), outer, lane, steps.lanes)


def _reduction(nest: Nest, outer: Sequence[Axis], lane: Axis, lanes: int) -> list[Stage]:
    """The stages of a reduction over outer axes, in registers along `lane`.

    With a lane of the nest's own the registers are combined to one value, else each is stored.
    """
    reduction = nest.reduction
    assert reduction is not None
    # TVM puts a buffer of less than 1 KiB on the stack, whence LLVM takes it into registers.
    registers = intermediate(f"{reduction.name}_registers", [lane.extent], str(reduction.buffer.dtype))
    name = reduction.name

    def vectors(count: int) -> tuple[tuple[Axis, Axis], Expr]:
        return _vector(count, lanes)

    inner, element = vectors(lane.extent)
    at = {lane.var: element}
    stages = [Stage(f"{name}_init", (*outer, *inner), registers, (element,), reduction.identity)]
    for term in nest.terms:
        axes, value = (*outer, *term.axes, *inner), substitute(term.value, at)
        stages.append(Stage(f"{name}_update", axes, registers, (element,), value, reduction.combine))
    store = nest.store
    if nest.lane is None:
        indices = tuple(substitute(index, at) for index in store.indices)
        value = substitute(nest.with_result(registers[lane.var]), at)
        return [*stages, replace(store, axes=(*outer, *inner), indices=indices, value=value)]
    width = lane.extent
    while width > 1:
        width //= 2
        inner, element = vectors(width)
        halves = Stage(f"{name}_halves", (*outer, *inner), registers, (element,), registers[element + width])
        stages.append(replace(halves, combine=reduction.combine))
    return [*stages, replace(store, axes=tuple(outer), value=nest.with_result(registers[0]))]


def _tile(axis: Axis, size: int) -> tuple[Axis, Expr]:
    """The axis of tiles of a size, and where one starts: the last may overlap its predecessor."""
    tile = Axis(variable(f"{axis.name}_tile"), -(-axis.extent // size))
    return tile, tile_start(tile.var, size, axis.extent, tile.extent)


def _vector(size: int, lanes: int) -> tuple[tuple[Axis, Axis], Expr]:
    """The two axes of some vectors, and the position in them."""
    width = math.gcd(size, lanes)
    chunk, lane = Axis(variable(_CHUNK), size // width), Axis(variable(_LANE), width)
    return (chunk, lane), chunk.var * width + lane.var


def _step(extent: int, lanes: int, vectors: int) -> int:
    """Elements of one step along an axis: some vectors, or a shorter power of two where the axis is short."""
    if extent < 4:
        return 1
    if extent < lanes:
        return 1 << (extent.bit_length() - 1)
    return max(lanes * count for count in range(1, vectors + 1) if lanes * count <= extent)


def _over(stage: Stage, axes: Sequence[Axis], place: tuple[Any, Expr, Expr], mapping: dict[Any, Expr]) -> Stage:
    """A store over other axes: where one of the old axes is (see `walked`), and others."""

    def moved(node: Expr) -> Expr:
        return substitute(walked(node, *place), mapping)

    return replace(stage, axes=tuple(axes), indices=tuple(map(moved, stage.indices)), value=moved(stage.value))


def _renamed(stage: Stage) -> Stage:
    """The same stage over new variables: blocks do not share theirs."""
    fresh = {axis.var: variable(axis.name) for axis in stage.axes}
    axes = tuple(replace(axis, var=fresh[axis.var]) for axis in stage.axes)
    indices = tuple(substitute(index, fresh) for index in stage.indices)
    return replace(stage, axes=axes, indices=indices, value=substitute(stage.value, fresh))


def _transposed(nest: Nest, axis: Axis, others: Sequence[Axis]) -> Axis | None:
    """The axis along which an input is contiguous, if that is not the one along which the output is."""
    for load in nest.reads():
        if stride(load, axis.var) not in (0, 1):
            for other in others:
                if stride(load, other.var) == 1:
                    return other
    return None


def _one_loop(axes: Sequence[Axis], kind: Any, body: Callable[[list[Any]], list[Any]]) -> Any:
    """One loop over several axes; the body is told where on each axis it is. No loop over one iteration."""
    count = math.prod(axis.extent for axis in axes)
    if count == 1:
        return _sequence(body([IntImm("int32", 0) for _ in axes]))
    task = variable("task")
    at = unflattened(axes, task)
    return For(task, 0, count, kind, _sequence(body([at[axis.var] for axis in axes])))


def _apart(statement: Any) -> Any:
    """A statement whose result TVM does not write over what it reads: steps that overlap read that again."""
    return AttrStmt(IntImm("int32", 0), "extern_scope", IntImm("int32", 1), statement)


def _sequence(statements: list[Any]) -> Any:
    return statements[0] if len(statements) == 1 else SeqStmt(statements)
