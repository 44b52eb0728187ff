"""Ansor's 164 features of the statements of n loop nests at once.

They are those of TVM's `PerStoreFeature` (`src/s_tir/meta_schedule/feature_extractor/per_store_feature.cc`) for a GPU,
to the last bit, with its quirks: 57 of computation (operations, annotated loops, sizes of the launch), 18 for each of
up to five buffers (bytes, cache lines, reuse, stride), ten of the curve of arithmetic intensity, four of the allocation
and three of the loops outside. Ansor, OSDI 2020, section 5.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .indices import Ints
from .nests import BLOCKS, THREADS, VECTOR, VTHREAD, Access, Buffer, Loop, Nest, Statement

OPERATIONS = (
    "float_mad", "float_add_sub", "float_mul", "float_div_mod", "float_cmp", "float_math_func", "float_other_func",
    "int_mad", "int_add_sub", "int_mul", "int_div_mod", "int_cmp", "int_math_func", "int_other_func",
    "bool_op", "select_op",
)  # fmt: skip
"""The operations that are counted, in the order of their features."""

WIDTH = 164
"""The number of features of a statement."""

_FLOAT = OPERATIONS[:7]
_BUFFERS, _OF_BUFFER, _SAMPLES = 5, 18, 10
_LINE = 64  # bytes of a cache line
_MULTIPLE, _SERIAL, _NONE = range(3)  # the kinds of reuse

_FLAGS = {
    *(16 + 11 * loops + position for loops in range(3) for position in range(3, 11)),
    49,
    *(57 + _OF_BUFFER * buffer + position for buffer in range(_BUFFERS) for position in (0, 1, 2, 7, 8, 9)),
}
"""The features that are truth values: positions of annotated loops, "on a GPU", kinds of accesses and of reuse."""

_IN_LOGARITHMS = [column for column in range(WIDTH) if column not in _FLAGS]

Floats = NDArray[np.float64]

Touched = dict[str, dict[Buffer, list[Any]]]
"""By loop and buffer the elements that each statement so far accesses in the loop."""


def rows_of(nest: Nest) -> Floats:
    """The features of n nests, shape (n, statements, 164)."""
    touched: Touched = {}
    rows = np.stack([_row(nest, statement, touched) for statement in nest.statements], axis=1)
    rows[..., _IN_LOGARITHMS] = _log(rows[..., _IN_LOGARITHMS])
    return rows


def _row(nest: Nest, statement: Statement, touched: Touched) -> Floats:
    loops = _Around(nest, statement)
    found = [loops.accessed(access) for access in statement.accesses]
    elements, spans = [each[0] for each in found], [each[1] for each in found]
    for access, numbers in zip(statement.accesses, elements, strict=True):
        for name, number in zip(statement.loops, numbers, strict=True):
            touched.setdefault(name, {}).setdefault(access.buffer, []).append(number)
    operations = {name: np.broadcast_to(statement.operations.get(name, 0), loops.shape) for name in OPERATIONS}
    columns: list[Any] = [operations[name] * loops.iterations for name in OPERATIONS]
    columns += [*_annotated(loops, VECTOR), *_annotated(loops, None), *_annotated(loops, None)]
    launch = [BLOCKS, None, None, THREADS, None, None, VTHREAD]
    columns += [loops.constant(1.0), *(loops.length(kind) for kind in launch)]
    columns += _of_buffers(loops, statement, elements, spans, touched)
    columns += _intensity(loops, statement, elements, sum(operations[name] for name in _FLOAT))
    columns += _allocation(nest, statement.accesses[0].buffer, loops)
    count = sum(loop.present.astype(np.int64) for loop in loops.loops)
    columns += [loops.iterations, count, nest.unroll]
    return np.stack(columns, axis=1).astype(np.float64)


class _Around:
    """The loops around a statement."""

    def __init__(self, nest: Nest, statement: Statement) -> None:
        self.names = statement.loops
        self.loops: list[Loop] = [nest.loops[name] for name in self.names]
        self.shape = nest.unroll.shape
        self.iterations: Ints = math.prod((loop.extent for loop in self.loops), start=np.ones(self.shape, np.int64))

    def constant(self, value: float) -> Floats:
        """The same number for every schedule."""
        return np.full(self.shape, value)

    def length(self, kind: str | None) -> Any:
        """The extent of the loop of a kind; 1 if there is none."""
        return next((loop.extent for loop in self.loops if kind and loop.kind == kind), np.ones(self.shape, np.int64))

    def accessed(self, access: Access) -> tuple[list[Ints], list[Any]]:
        """For each loop the elements of a buffer that are accessed in it, and the extents of what all loops access."""
        zeros = np.zeros(self.shape, np.int64)
        ends = {name: loop.extent - 1 for name, loop in zip(self.names, self.loops, strict=True)}
        last = dict.fromkeys(self.names, zeros)
        values = [[dict.fromkeys(index.terms, zeros) for index in element] for element in access.elements]
        spans: list[Any] = [np.ones(self.shape, np.int64)] * len(access.buffer.shape)
        numbers: list[Ints] = []
        for name in reversed(self.names):
            last[name], changed = ends[name], not numbers
            for element in values:
                for terms in element:
                    for term in terms:
                        if name in term.variables:
                            terms[term], changed = term.largest(last, seen=True), True
            if changed:
                spans = [_span(access, values, position) for position in range(len(spans))]
            numbers.append(math.prod(spans, start=np.ones(self.shape, np.int64)) if changed else numbers[-1])
        return numbers[::-1], spans


def _span(access: Access, values: Sequence[Sequence[Mapping[Any, Ints]]], position: int) -> Any:
    """The extent along a dimension of the elements that are accessed, given the largest value of each term."""
    constants = [element[position].constant for element in access.elements]
    pairs = zip(values, constants, strict=True)
    highest: list[Any] = [sum(element[position].values()) + constant for element, constant in pairs]
    return np.maximum.reduce(highest) - min(constants) + 1


def _annotated(loops: _Around, kind: str | None) -> list[Floats]:
    """The features of the loops of an annotation: their number, iterations, the last one's extent, and "mixed"."""
    there = any(loop.kind == kind for loop in loops.loops) if kind else False
    length = loops.length(kind) if there else loops.constant(0)
    position = [loops.constant(0.0) for _ in range(8)]
    position[7 if there else 0] += 1.0
    return [loops.constant(float(there)), length, length, *position]


def _of_buffers(
    loops: _Around,
    statement: Statement,
    elements: Sequence[Sequence[Ints]],
    spans: Sequence[Sequence[Any]],
    touched: Touched,
) -> list[Floats]:
    """The features of the buffers, those with the most cache lines first."""
    found = [
        _of_buffer(loops, statement, access, numbers[0], extents, touched)
        for access, numbers, extents in zip(statement.accesses, elements, spans, strict=True)
    ]
    lines, used = np.stack([each[0] for each in found]), np.stack([each[1] for each in found])
    names = np.argsort(np.argsort([access.buffer.name for access in statement.accesses]))
    order = np.lexsort((np.broadcast_to(names[:, None], lines.shape), -used, -lines), axis=0)
    table = np.stack([np.stack(each[2]) for each in found])  # (buffers, features, n)
    table = np.take_along_axis(table, order[:, None, :], axis=0)[:_BUFFERS]
    columns = [column for features in table for column in features]
    return columns + [loops.constant(0.0)] * (_BUFFERS * _OF_BUFFER - len(columns))


def _of_buffer(
    loops: _Around, statement: Statement, access: Access, elements: Ints, spans: Sequence[Any], touched: Touched
) -> tuple[Floats, Floats, list[Floats]]:
    """The cache lines that a buffer's accesses touch, their bytes, and all features of it."""
    item = access.buffer.item_bytes
    stride, innermost, inside = _strides(loops, access)
    kind, count, iterations, distance = _reuse(loops, statement, access, touched)
    used = (item * loops.iterations).astype(np.float64)
    unique = elements.astype(np.float64) * item
    lines = loops.iterations.astype(np.float64) / inside * np.minimum(1.0, 1.0 * stride * item / _LINE)
    lines = np.maximum(1.0, lines)
    unique_lines = np.maximum(1.0, unique / np.minimum(_LINE, _contiguous(loops, access, spans)))
    reused = np.where(count > 0, count, 0.5)
    columns = [loops.constant(float(access.kind == each)) for each in range(3)]
    columns += [used, unique, lines, unique_lines]
    columns += [(kind == each).astype(np.float64) for each in (_MULTIPLE, _SERIAL, _NONE)]
    columns += [iterations, distance, count.astype(np.float64)]
    columns += [used / reused, unique / reused, lines / reused, unique_lines / reused]
    return lines, used, [*columns, innermost.astype(np.float64)]


def _contiguous(loops: _Around, access: Access, spans: Sequence[Any]) -> Any:
    """The bytes of the last dimension that is accessed as a whole; 1 if none is."""
    number: Any = np.ones(loops.shape, np.int64)
    for span, extent in zip(spans, access.buffer.shape, strict=True):  # the last one stays
        number = np.where(span == extent, extent * access.buffer.item_bytes, number)
    return number


def _strides(loops: _Around, access: Access) -> tuple[Ints, Ints, Ints]:
    """The stride of the innermost loop that has one, the innermost loop's, and the iterations of loops inside of it."""
    steps: list[Any] = [np.ones(loops.shape, np.int64)]
    for extent in reversed(access.buffer.shape[1:]):
        steps.insert(0, steps[0] * extent)
    found, outermost = np.zeros(loops.shape, np.int64), np.ones(loops.shape, bool)
    innermost, inside = np.zeros(loops.shape, np.int64), np.ones(loops.shape, np.int64)
    for name, loop in zip(reversed(loops.names), reversed(loops.loops), strict=True):
        stride = _stride(access, name, steps)
        new = loop.present & (found == 0)
        found = np.where(new, stride, found)
        innermost = np.where(new & outermost, stride, innermost)
        inside = np.where(new & (stride == 0), inside * loop.extent, inside)
        outermost &= ~loop.present
    return found, innermost, inside


def _stride(access: Access, name: str, steps: Sequence[Any]) -> Any:
    """The smallest stride of a loop in the elements that are accessed; 0 if none depends on it."""
    none = np.iinfo(np.int64).max
    smallest: Any = none
    for element in access.elements:
        last: Any = np.int64(0)
        for index, step in zip(element, steps, strict=True):  # the last dimension that depends on it counts
            factor = index.coefficient(name)
            last = np.where(factor != 0, factor * step, last)
        smallest = np.minimum(smallest, np.where(last != 0, last, none))
    return np.where(smallest == none, 0, smallest)


def _reuse(loops: _Around, statement: Statement, access: Access, touched: Touched) -> tuple[Ints, Ints, Floats, Floats]:
    """The kind of reuse, how often, and the iterations and bytes until then."""
    kind, count = np.full(loops.shape, _NONE), np.zeros(loops.shape, np.int64)
    iterations, distance = np.zeros(loops.shape), np.zeros(loops.shape)
    inside, done = np.ones(loops.shape), np.zeros(loops.shape, bool)
    # An invariant innermost loop brings back one element of each buffer.
    below: Any = loops.constant(float(sum(each.buffer.item_bytes for each in statement.accesses)))
    for name, loop in zip(reversed(loops.names), reversed(loops.loops), strict=True):
        depends = np.zeros(loops.shape, bool)
        for element in access.elements:
            for index in element:
                depends = depends | index.has(name)
        new = loop.present & ~done & ~depends
        kind, count = np.where(new, _MULTIPLE, kind), np.where(new, loop.extent, count)
        iterations, distance = np.where(new, inside, iterations), np.where(new, below, distance)
        done = done | new
        below = np.where(loop.present, _bytes(touched[name]), below)
        mine = touched[name][access.buffer]
        if len(mine) >= 2:
            new = loop.present & ~done
            kind, count = np.where(new, _SERIAL, kind), np.where(new, len(mine) - 1, count)
            iterations = np.where(new, np.minimum.reduce(mine) / loop.extent, iterations)
            distance = np.where(new, below / loop.extent, distance)
            done = done | new
        inside = np.where(loop.present, inside * loop.extent, inside)
    return kind, count, iterations, distance


def _bytes(touched: Mapping[Buffer, Sequence[Ints]]) -> Floats:
    """The bytes that all statements so far access."""
    total = sum(sum(numbers) * buffer.item_bytes for buffer, numbers in touched.items())
    return np.asarray(total, np.float64)


def _intensity(
    loops: _Around, statement: Statement, elements: Sequence[Sequence[Ints]], operations: Any
) -> list[Floats]:
    """The curve of operations per byte, at tenths of all operations, from the innermost loop outwards."""
    computed = np.broadcast_to(operations, loops.shape).astype(np.float64)
    if not computed.any():
        return [loops.constant(0.0)] * _SAMPLES
    total = computed * loops.iterations
    found = [loops.constant(0.0) for _ in range(_SAMPLES)]
    done = np.zeros((_SAMPLES, *loops.shape), bool)
    former, density = np.zeros(loops.shape), np.zeros(loops.shape)
    begun = np.zeros(loops.shape, bool)
    for position in reversed(range(len(loops.loops))):
        loop = loops.loops[position]
        moved = sum(
            numbers[position] * access.buffer.item_bytes
            for access, numbers in zip(statement.accesses, elements, strict=True)
        )
        computed = computed * np.where(loop.present, loop.extent, 1)
        here = computed / moved
        with np.errstate(divide="ignore", invalid="ignore"):  # a loop of one iteration is never where a sample lies
            slope = (here - density) / (computed - former)
        for sample in range(_SAMPLES):
            wanted = (sample + 1) / _SAMPLES * total
            new = loop.present & ~done[sample] & (computed >= wanted - 1e-4)
            value = np.where(begun, density + slope * (wanted - former), here)
            found[sample] = np.where(new, value, found[sample])
            done[sample] |= new
        former, density = np.where(loop.present, computed, former), np.where(loop.present, here, density)
        begun = begun | loop.present
    return [np.where(total > 0, value, 0.0) for value in found]


def _allocation(nest: Nest, buffer: Buffer, loops: _Around) -> list[Any]:
    """The size of what is allocated for the stored buffer, and how often."""
    number = math.prod(buffer.shape, start=np.ones(loops.shape, np.int64))
    outside = math.prod((nest.loops[name].extent for name in buffer.around), start=np.ones(loops.shape, np.int64))
    size, often = number * buffer.item_bytes, number * outside
    return [size, often, outside, loops.iterations / outside]


def _log(values: Floats) -> Floats:
    """log2(|x| + 1) as the C library computes it: NumPy's own may differ in the last bit."""
    numbers = (np.abs(values) + 1).ravel().tolist()
    return np.fromiter(map(math.log2, numbers), np.float64, len(numbers)).reshape(values.shape)
