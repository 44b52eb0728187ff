"""Which nests run together: those that hand each other whole rows (softmax, layer norm) share one loop over the rows.

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
from .nests import Nest, offset


@dataclass(frozen=True, eq=False)
class Group:
    """Nests that run one after the other inside a loop over their first `shared` axes; alone where that is 0."""

    nests: tuple[Nest, ...]
    shared: int


def groups_of(nests: Sequence[Nest], kept: Collection[Any], least: int | None) -> list[Group]:
    """Neighbouring nests in groups that share axes with at least `least` elements; each alone where that is None.

    Buffers between nests become one-dimensional, and those that only one group reads hold one row there. Parameters
    and what else is read from outside is in `kept`, and stays.
    """
    groups: list[list[Nest]] = []
    for nest in nests:
        if groups and least is not None and shared_axes([*groups[-1], nest], least):
            groups[-1].append(nest)
        else:
            groups.append([nest])
    found = []
    rows: dict[Any, tuple[Any, int]] = {}
    for group in groups:
        shared = shared_axes(group, least or 1) if len(group) > 1 else 0
        found.append((group, shared))
        for nest in group:
            buffer = nest.store.buffer
            readers = [other for other in nests if any(load.source.same_as(buffer) for load in other.reads())]
            if readers and buffer not in kept:
                dropped = shared if all(reader in group for reader in readers) else 0
                size = math.prod(shape_of(buffer)[dropped:])
                rows[buffer] = intermediate(str(buffer.name), [size], str(buffer.dtype)), dropped
    return [Group(tuple(_in_rows(nest, rows) for nest in group), shared) for group, shared in found]


def shared_axes(nests: Sequence[Nest], least: int) -> int:
    """How many leading axes all nests have in common, each element depending on its own row only.

    At least one axis stays with the nest that has the most; 0 where the axes have fewer than `least` elements.
    """
    stores = [nest.store for nest in nests]
    written = {store.buffer for store in stores}
    longest = max(len(nest.store.axes) + max((len(term.axes) for term in nest.terms), default=0) for nest in nests)
    most = min(*(len(store.axes) for store in stores), longest - 1)
    count, size = 0, 1
    for at in range(most):
        axes = [store.axes[at] for store in stores]
        if len({axis.extent for axis in axes}) != 1:
            break
        aligned = True
        for nest, axis in zip(nests, axes, strict=True):
            accesses = [load.indices for load in nest.reads() if load.source in written] + [nest.store.indices]
            aligned &= all(
                len(index) > at and isinstance(index[at], Var) and index[at].same_as(axis.var) for index in accesses
            )
        if not aligned:
            break
        count, size = at + 1, size * axes[0].extent
    return count if size >= least else 0


def _in_rows(nest: Nest, rows: Mapping[Any, tuple[Any, int]]) -> Nest:
    """The nest with buffers replaced by rows of them: one dimension, without the leading ones that are dropped."""

    def place(buffer: Any, indices: Sequence[Expr]) -> tuple[Any, Expr]:
        row, dropped = rows[buffer]
        return row, offset(shape_of(buffer)[dropped:], indices[dropped:])

    def moved(load: Any) -> Expr | None:
        # The result of the nest's own reduction is no load: it may have the very buffer that is replaced.
        if load.source not in rows or nest.is_result(load):
            return None
        row, at = place(load.source, load.indices)
        return row[at]

    store = replace(nest.store, value=rewrite_loads(nest.store.value, moved))
    if store.buffer in rows:
        row, at = place(store.buffer, store.indices)
        store = replace(store, buffer=row, indices=(at,))
    terms = tuple(replace(term, value=rewrite_loads(term.value, moved)) for term in nest.terms)
    return replace(nest, store=store, terms=terms)
