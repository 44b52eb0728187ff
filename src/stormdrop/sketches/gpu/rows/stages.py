"""A function as stages over rows and the terms of a row: the form of which `kernel` makes loops.

A stage is one of these:

    total[row] = sum of f(x[row, term])                                  a sum
    y[row, term] = g(x[row, term], total[row], scale[term])              an element of each term
    y[row] = h(total[row])                                               an element of each row

If there are no sums, the terms are the innermost axes along which all accesses are contiguous, or stay where they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir.prim.expr import IntImm
from tvm.sym import Analyzer
from tvm_ffi import structural_equal

from ....errors import UnsupportedFunction
from ....ir.expressions import Expr, raveled, rewrite_loads, simplified, substitute, unraveled
from ....ir.kept import kept
from ....ir.stages import Axis, Buffer, Stage, StageGraph, intermediate, shape_of, variable
from ....ir.strides import strides_of
from ....ir.workload import Workload

_VECTOR = 16  # bytes


@dataclass(frozen=True, eq=False)
class Fetched:
    """A load whose neighbouring terms are neighbours in memory.

    Attributes:
        load: The load, over the row and the term.
        vector: The elements that are aligned in each row, up to 16 bytes.
        stages: The names of the stages that read it.
    """

    load: Any
    vector: int
    stages: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class RowStages:
    """A function as stages over rows and terms.

    Attributes:
        parameters: The buffers that are its parameters, inputs first.
        stages: The stages. Their axes are the row, and the term unless they have one element of each row. A sum writes
            a buffer over the rows.
        row: The axis of the rows.
        term: The axis of the terms.
        fetched: What is read along the terms.
        written: The elements of an output that are aligned in each row, up to 16 bytes; 1 if it has one of each row.
        columns: 0 if vectors go along the terms. Else they go along this number of neighbouring rows, and `fetched`
            and `written` say what is contiguous along those.
    """

    parameters: tuple[Buffer, ...]
    stages: tuple[Stage, ...]
    row: Axis
    term: Axis
    fetched: tuple[Fetched, ...]
    written: int
    columns: int = 0

    @property
    def vector(self) -> int:
        """The elements of the widest vector."""
        return max([self.written, *(each.vector for each in self.fetched)])

    @property
    def sums(self) -> bool:
        """Whether there are sums, for which a row is read as a whole."""
        return any(stage.reductions for stage in self.stages)

    @property
    def repeated(self) -> tuple[Fetched, ...]:
        """What several stages read."""
        return tuple(each for each in self.fetched if len(each.stages) > 1)


@kept
def find_rows(workload: Workload) -> RowStages:
    """The function as stages over rows and terms.

    Args:
        workload: The function.

    Raises:
        UnsupportedFunction: It is something else, or what it reads most is not contiguous along the terms.

    Example:
        >>> from stormdrop import operators
        >>> found = find_rows(operators.softmax(8, 50))
        >>> found.row.extent, found.term.extent, found.vector
        (8, 50, 2)
    """
    graph = workload.graph.inlined(lambda stage: False)
    if not all(map(shares_terms, graph.stages)):
        raise UnsupportedFunction("threads cannot share the sums")
    first = next((stage for stage in graph.stages if stage.reductions), None)
    rows = _extents(graph.stages[-1].spatial if first is None else first.spatial)
    inner = _contiguous_axes(graph.stages[-1]) if first is None else 0
    rows, terms = (rows, _extents(first.reductions)) if first else (rows[:-inner], rows[-inner:])
    form = _Form(graph, rows, terms)
    stages = tuple(new for stage in graph.stages for new in form.of(stage))
    fetched = tuple(form.fetched)
    most = max((math.prod(shape_of(load.source)) for stage in graph.stages for load in stage.loads()), default=0)
    if not any(math.prod(shape_of(each.load.source)) == most for each in fetched):
        raise UnsupportedFunction("what is read most is not contiguous along the terms")
    found = RowStages(graph.parameters, stages, form.row, form.term, fetched, form.written)
    if first is None and found.vector == 1:
        raise UnsupportedFunction("no vectors are aligned")
    return found


@kept
def find_columns(workload: Workload) -> RowStages:
    """The function as a sum and its results, whose neighbouring sums read neighbours in memory.

    Such are sums over the rows of a matrix, and a vector times a matrix.

    Args:
        workload: The function.

    Raises:
        UnsupportedFunction: It is something else.

    Example:
        >>> from stormdrop import operators
        >>> found = find_columns(operators.matmul(1, 40, 9))
        >>> found.columns, found.term.extent, found.vector
        (40, 9, 4)
    """
    graph = workload.graph.inlined(lambda stage: False)
    first, *others = graph.stages
    if not first.reductions or any(stage.reductions for stage in others) or not shares_terms(first):
        raise UnsupportedFunction("not one sum that threads can share")
    axes = [axis for axis in first.spatial if axis.extent > 1]
    rows, terms = _extents(first.spatial), _extents(first.reductions)
    if not terms or not first.loads():
        raise UnsupportedFunction("the sum reads nothing, or has one term")
    largest = max(first.loads(), key=lambda load: math.prod(shape_of(load.source)))
    for count in range(len(axes), 0, -1):
        if not _aligned(first, largest.source, largest.indices, [], axes[-count:]):
            continue
        form = _Form(graph, rows, terms, count)
        stages = tuple(new for stage in graph.stages for new in form.of(stage))
        columns = math.prod(rows[-count:])
        if any(form.term in stage.axes for stage in stages[1:]):
            break
        return RowStages(graph.parameters, stages, form.row, form.term, tuple(form.fetched), form.written, columns)
    raise UnsupportedFunction("neighbouring sums do not read neighbours")


def shares_terms(stage: Stage) -> bool:
    """Whether threads can share the reduction of a stage: TVM wants to know the value that it starts from.

    It knows the least number of a type for a maximum, not -infinity, which a maximum of a model may start from.
    """
    if stage.combine is None:
        return True
    dtype = str(stage.buffer.dtype)
    known: Callable[[], Any] = {
        "sum": lambda: tirx.const(0, dtype),
        "product": lambda: tirx.const(1, dtype),
        "max": lambda: tirx.min_value(dtype),
        "min": lambda: tirx.max_value(dtype),
    }[stage.combine]
    return bool(structural_equal(stage.identity, known()))


class _Form:
    """Brings stages into the form of rows and terms."""

    def __init__(self, graph: StageGraph, rows: Sequence[int], terms: Sequence[int], columns: int = 0) -> None:
        self.row, self.term = Axis(variable("row"), math.prod(rows)), Axis(variable("term"), math.prod(terms))
        self.fetched: list[Fetched] = []
        self.written = 1
        self._rows, self._terms, self._columns = rows, terms, columns
        self._outputs = graph.outputs
        self._totals: dict[Buffer, Buffer] = {}

    def of(self, stage: Stage) -> list[Stage]:
        """The stage over the row and the term, and its store if it is a sum that is an output.

        Raises `UnsupportedFunction` if it has other axes.
        """
        spatial, reduced = _extents(stage.spatial), _extents(stage.reductions)
        every = [axis for axis in (*stage.spatial, *stage.reductions) if axis.extent > 1]
        by_term = [*spatial, *reduced] == [*self._rows, *self._terms]
        if not (by_term and reduced in ([], self._terms)) and not (spatial == self._rows and not stage.reductions):
            raise UnsupportedFunction(f"{stage.name} has other rows or terms")
        rows, terms = every[: len(self._rows)], every[len(self._rows) :]
        apart, along = (rows, terms)
        if self._columns:
            apart, along = [*rows[: -self._columns], *terms], rows[-self._columns :]
        positions: dict[Any, Expr] = {axis.var: IntImm("int32", 0) for axis in stage.axes}
        for parts, whole in ((rows, self.row), (terms, self.term)):
            unfolded = unraveled(whole.var, [axis.extent for axis in parts]) if parts else []
            positions |= {axis.var: index for axis, index in zip(parts, unfolded, strict=True)}
        extents = {axis.var: axis.extent for axis in (self.row, self.term)}

        def formed(load: Any) -> Any:
            if load.source in self._totals:
                own = [index for index, extent in zip(load.indices, shape_of(load.source), strict=True) if extent > 1]
                if own != [axis.var for axis in rows]:
                    raise UnsupportedFunction(f"{stage.name} reads the sums of other rows")
                return self._totals[load.source][(self.row.var,)]
            if load.source in self._outputs:
                raise UnsupportedFunction(f"{stage.name} reads an output")
            new = simplified(substitute(load, positions), extents)
            if terms and (vector := _aligned(stage, load.source, load.indices, apart, along)):
                self._note(new, vector, stage)
            return new

        value = substitute(rewrite_loads(stage.value, formed), positions)
        indices = tuple(substitute(index, positions) for index in stage.indices)
        if not stage.reductions:
            if along:
                self.written = max(self.written, _aligned(stage, stage.buffer, stage.indices, apart, along))
            own = (self.row, self.term) if terms else (self.row,)
            return [Stage(stage.name, own, stage.buffer, indices, value)]
        total = intermediate(f"{stage.name}_total", [self.row.extent], str(stage.buffer.dtype), "local")
        self._totals[stage.buffer] = total
        summed = (self.row, replace(self.term, reduce=True))
        new = Stage(stage.name, summed, total, (self.row.var,), value, stage.combine, stage.identity)
        if stage.buffer not in self._outputs:
            return [new]
        if self._columns:
            self.written = max(
                self.written, _aligned(stage, stage.buffer, stage.indices, rows[: -self._columns], along)
            )
        return [new, Stage(f"{stage.name}_store", (self.row,), stage.buffer, indices, total[(self.row.var,)])]

    def _note(self, load: Any, vector: int, stage: Stage) -> None:
        known = next((each for each in self.fetched if structural_equal(each.load, load)), None)
        if known is None:
            self.fetched.append(Fetched(load, vector, (stage.name,)))
        elif stage.name not in known.stages:
            self.fetched[self.fetched.index(known)] = replace(known, stages=(*known.stages, stage.name))


def _extents(axes: Sequence[Axis]) -> list[int]:
    if any(axis.extent == 0 for axis in axes):
        raise UnsupportedFunction("an axis is empty")
    return [axis.extent for axis in axes if axis.extent > 1]


def _contiguous_axes(stage: Stage) -> int:
    """How many of the innermost axes are the terms of a stage without sums."""
    axes = [axis for axis in stage.spatial if axis.extent > 1]
    accesses = [strides_of(load.source, load.indices, stage.axes) for load in stage.loads()]
    for first in range(len(axes)):
        terms = axes[first:]
        whole = [math.prod(axis.extent for axis in terms[at + 1 :]) for at in range(len(terms))]
        along = [[strides[axis] for axis in terms] for strides in accesses if strides]
        if _aligned(stage, stage.buffer, stage.indices, [], terms) and all(
            steps == whole or not any(steps) for steps in along
        ):
            return len(terms)
    raise UnsupportedFunction("the innermost axes of the output are not contiguous")


def _aligned(stage: Stage, buffer: Buffer, indices: Sequence[Expr], rows: Sequence[Axis], terms: Sequence[Axis]) -> int:
    """How many elements of an access along `terms` are contiguous and aligned at all `rows`, up to 16 bytes, or 0."""
    strides = strides_of(buffer, indices, stage.axes)
    if strides is None:
        return 0
    if any(strides[axis] != math.prod(inner.extent for inner in terms[at + 1 :]) for at, axis in enumerate(terms)):
        return 0
    origin = {axis.var: IntImm("int32", 0) for axis in stage.axes}
    first = Analyzer().simplify(substitute(raveled(indices, shape_of(buffer)), origin))
    widest = _VECTOR // np.dtype(str(buffer.dtype)).itemsize
    extent = math.prod(axis.extent for axis in terms)
    return math.gcd(widest, extent, int(first), *(strides[axis] for axis in rows))
