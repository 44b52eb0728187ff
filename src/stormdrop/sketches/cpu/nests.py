"""What each loop nest of a function computes.

A nest stores one value per element. The value may read the result of a reduction over a few more axes. `nests_of` reads
the nests off the stages of a function; `nest_rewrites` changes them so that they become fast.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm.ir.prim.expr import IntImm
from tvm.sym import Analyzer

from ...ir.contractions.contraction import fused_epilogue
from ...ir.expressions import Expr, coefficients, loads_in, rewrite_loads, substitute
from ...ir.stages import Axis, Stage, StageGraph, shape_of


@dataclass(frozen=True, eq=False)
class Term:
    """Something that a reduction combines: a value over the axes of the nest, and over axes of its own.

    Args:
        axes: The axes of the term alone, over which it is combined.
        value: The value at one position of all axes.
    """

    axes: tuple[Axis, ...]
    value: Expr


@dataclass(frozen=True, eq=False)
class Nest:
    """A store over spatial axes, with the reduction whose result it reads.

    Args:
        store: The stage that writes the elements; it never reduces.
        reduction: The stage whose buffer stands for the combination of all terms wherever the store loads from it;
            None if the nest reduces nothing.
        terms: What the reduction combines; empty if the nest reduces nothing.
        lane: One more spatial axis of the terms, over which their partial results are combined last; None if each
            element of the store has one result (see `nest_rewrites.vectorize_reduction`).
    """

    store: Stage
    reduction: Stage | None = None
    terms: tuple[Term, ...] = ()
    lane: Axis | None = None

    def reads(self) -> list[Any]:
        """All loads except those of the reduction's result."""
        loads = [load for load in self.store.loads() if not self.is_result(load)]
        for term in self.terms:
            loads += loads_in(term.value)
        return loads

    def is_result(self, load: Any) -> bool:
        """Whether a load in the store's value stands for the combination of the terms."""
        return self.reduction is not None and bool(load.source.same_as(self.reduction.buffer))

    def with_result(self, element: Expr) -> Expr:
        """The value to store, with an element in place of the reduction's result."""
        return rewrite_loads(self.store.value, lambda load: element if self.is_result(load) else None)

    def substituted(self, mapping: Mapping[Any, Expr]) -> Nest:
        """The nest with variables replaced in all that it reads and stores; its axes stay as they are."""
        store = replace(
            self.store,
            indices=tuple(substitute(index, mapping) for index in self.store.indices),
            value=substitute(self.store.value, mapping),
        )
        terms = tuple(replace(term, value=substitute(term.value, mapping)) for term in self.terms)
        return replace(self, store=store, terms=terms)


def nests_of(graph: StageGraph, kept: Collection[Any] = ()) -> list[Nest]:
    """Reads the loop nests off the stages of a function, with epilogues fused into reductions.

    Args:
        graph: The stages, in the order in which they run.
        kept: Buffers that are read from outside of these stages: a nest writes each of them as it is.

    Returns:
        The nests, in the order in which they run.
    """
    nests: list[Nest] = []
    fused_buffers: set[Any] = set()
    written_later = {stage.buffer for stage in graph.stages}
    for stage in graph.stages:
        written_later.discard(stage.buffer)
        if stage.buffer in fused_buffers:
            continue
        if stage.combine is None:
            nests.append(Nest(stage))
            continue
        store, fused = fused_epilogue(graph, stage, alone=stage.buffer in kept)
        if len(fused) > 1 and any(load.source in written_later - fused_buffers for load in store.loads()):
            # The epilogue reads what a later stage writes: it cannot run here.
            store, fused = fused_epilogue(graph, stage, alone=True)
        fused_buffers |= {fused_stage.buffer for fused_stage in fused}
        nests.append(Nest(replace(store, name=f"{stage.name}_store"), stage, (Term(stage.reductions, stage.value),)))
    return nests


def element_offset(shape: Sequence[int], indices: Sequence[Expr]) -> Expr:
    """The position in memory, counted in elements, of one element of a buffer of this shape."""
    terms = (index * math.prod(shape[dimension + 1 :]) for dimension, index in enumerate(indices))
    return Analyzer().simplify(sum(terms, IntImm("int32", 0)))


def load_stride(load: Any, variable: Any) -> int | None:
    """How many elements a load moves by if a variable grows by one; None if that is not a constant."""
    factors = coefficients(element_offset(shape_of(load.source), load.indices), {variable})
    return None if factors is None else factors.get(variable, 0)
