"""Which nests share a loop: if one nest writes a row and the next reads it, as in a softmax, one loop runs both.

for rows, in parallel:
    top = max over the row                          one element
    exp[...] = exp(x[row, ...] - top)               one row: it stays in the first cache
    total = sum of exp
    y[row, ...] = exp[...] / total
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm.ir import Var

from ...ir.expressions import Expr, rewrite_loads
from ...ir.stages import intermediate, shape_of
from .nests import Nest, element_offset


@dataclass(frozen=True, eq=False)
class Group:
    """Nests that run one after the other inside one loop.

    Args:
        nests: The nests, in the order in which they run.
        shared: The number of leading axes of each nest over which the loop runs; 0 if the group is one nest alone.
    """

    nests: tuple[Nest, ...]
    shared: int


def groups_of(nests: Sequence[Nest], kept: Collection[Any], min_rows: int | None) -> list[Group]:
    """Puts neighbouring nests into groups that share leading axes.

    Buffers between nests become one-dimensional. If only the nests of one group read a buffer, it holds one row.

    Args:
        nests: The nests of a function, in the order in which they run.
        kept: The buffers that are parameters or are read from outside; they stay as they are.
        min_rows: The least number of rows of a group, where its rows are the product of the extents of its shared
            axes. None to leave each nest alone.

    Returns:
        The groups, in the order in which they run.
    """
    grouped: list[list[Nest]] = []
    for nest in nests:
        if grouped and min_rows is not None and shared_axes([*grouped[-1], nest], min_rows):
            grouped[-1].append(nest)
        else:
            grouped.append([nest])
    shared_counts = [shared_axes(group, min_rows or 1) if len(group) > 1 else 0 for group in grouped]
    rows: dict[Any, Row] = {}
    for group, shared in zip(grouped, shared_counts, strict=True):
        for nest in group:
            buffer = nest.store.buffer
            readers = [reader for reader in nests if any(load.source.same_as(buffer) for load in reader.reads())]
            if readers and buffer not in kept:
                dropped = shared if all(reader in group for reader in readers) else 0
                size = math.prod(shape_of(buffer)[dropped:])
                rows[buffer] = Row(intermediate(str(buffer.name), [size], str(buffer.dtype)), dropped)
    return [
        Group(tuple(with_rows(nest, rows) for nest in group), shared)
        for group, shared in zip(grouped, shared_counts, strict=True)
    ]


def shared_axes(nests: Sequence[Nest], min_rows: int) -> int:
    """Counts the leading axes that all nests share, and along which each nest reads only the row that it writes.

    Args:
        nests: Neighbouring nests.
        min_rows: The number of elements that these axes must have together.

    Returns:
        The number of axes. At least one axis stays with the nest that has the most; 0 if the axes have fewer than
        `min_rows` elements.
    """
    stores = [nest.store for nest in nests]
    written = {store.buffer for store in stores}
    longest = max(len(nest.store.axes) + max((len(term.axes) for term in nest.terms), default=0) for nest in nests)
    most = min(*(len(store.axes) for store in stores), longest - 1)
    count, size = 0, 1
    for dimension in range(most):
        axes = [store.axes[dimension] for store in stores]
        if len({axis.extent for axis in axes}) != 1:
            break
        aligned = True
        for nest, axis in zip(nests, axes, strict=True):
            accesses = [load.indices for load in nest.reads() if load.source in written] + [nest.store.indices]
            aligned &= all(_is_index(indices, dimension, axis.var) for indices in accesses)
        if not aligned:
            break
        count, size = dimension + 1, size * axes[0].extent
    return count if size >= min_rows else 0


def _is_index(indices: Sequence[Expr], dimension: int, variable: Any) -> bool:
    """Whether the index along a dimension is just this variable."""
    if len(indices) <= dimension:
        return False
    index = indices[dimension]
    return isinstance(index, Var) and bool(index.same_as(variable))


@dataclass(frozen=True)
class Row:
    """A buffer of one dimension that replaces another one, whose first `dropped` dimensions it does not have.

    Args:
        buffer: The buffer: one row, or several one after the other.
        dropped: The number of dimensions.
        size: The elements of a row, if there are several.
        position: Which row it is, if there are several; see `at`.
    """

    buffer: Any
    dropped: int
    size: int = 0
    position: Any = 0

    def at(self, position: Any) -> Row:
        """The row at a position among several; the only row if there is one."""
        return replace(self, position=position) if self.size else self

    def index(self, replaced: Any, indices: Sequence[Expr]) -> Expr:
        """The position of an element of the replaced buffer."""
        offset = element_offset(shape_of(replaced)[self.dropped :], indices[self.dropped :])
        return self.position * self.size + offset if self.size else offset


def with_rows(nest: Nest, rows: Mapping[Any, Row]) -> Nest:
    """The nest with the buffers that are keys of `rows` replaced by these rows."""

    def replaced(load: Any) -> Expr | None:
        # The result of the nest's own reduction is no load: it may have the very buffer that is replaced.
        if load.source not in rows or nest.is_result(load):
            return None
        row = rows[load.source]
        return row.buffer[row.index(load.source, load.indices)]

    store = replace(nest.store, value=rewrite_loads(nest.store.value, replaced))
    if store.buffer in rows:
        row = rows[store.buffer]
        store = replace(store, buffer=row.buffer, indices=(row.index(store.buffer, store.indices),))
    terms = tuple(replace(term, value=rewrite_loads(term.value, replaced)) for term in nest.terms)
    return replace(nest, store=store, terms=terms)
