"""Multi-level tiling of contractions for GPUs, with what a block stages in shared memory and what a thread accumulates.

Each spatial loop (S) is split into five, each reduction loop (R) into three, in the order "SSSRRSRS" of Ansor:

    for i0, j0:                                 blockIdx.x
        for i1, j1:                             vthread.x
            for i2, j2:                         threadIdx.x
                for k0:
                    shared memory = the parts of the operands that the block needs, fetched by all its threads
                    for k1, i3, j3, k2, i4, j4: sums in registers
                output = the sums, through the block that consumes them or a copy

The limits of the hardware are constraints of the space, and the default tiles are those of the written sketch
(`sketches/gpu/limits.py`). The tiles are bound when they are made, and not in the second pass as in Ansor, because TVM
tells from the bindings which part of an operand a block needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....ir.expressions import coefficients
from ....ir.stages import shape_of
from ...gpu.limits import MOST_INNERMOST, VECTORS, default_tiling, tiling_constraints
from ...gpu.tiled_loops import fetch_together, tile_and_bind
from ...gpu.tiling import THREAD, ContractionAxes, Operand
from .. import blocks
from ..cache_write import COPY
from ..contract import VARIES, Applies, Nest, Place, Rule, State
from ..registers import cache_in_registers, cacheable, fused_consumer
from ..simplify import constant_loops

_REDUCTION_LEVELS = 3


@dataclass(frozen=True)
class CacheRegisters(Rule):
    """Before: C[i, j] = sum ...     After: local[i, j] = sum ...; C[i, j] = local[i, j].

    It applies to contractions without an elementwise consumer that could be computed in their place, and to what the
    rule "simplify tensor" takes. Unlike on a CPU there is no sketch without it: sums in global memory are never fast.
    """

    name = "cache_write"

    def applies(self, state: State, block: str) -> Applies:
        if not (tileable(state, block) or constant_loops(state, block)) or fused_consumer(state, block) is not None:
            return Applies.NO
        return Applies.MUST if cacheable(state, block) else Applies.NO

    def apply(self, state: State, block: str) -> None:
        cache_in_registers(state, block)


@dataclass(frozen=True)
class TileOnGpu(Rule):
    """Tiles a contraction for blocks, threads and registers, together with the block that consumes its sums."""

    name = "tile"

    def applies(self, state: State, block: str) -> Applies:
        return Applies.MUST if tileable(state, block) else Applies.NO

    def apply(self, state: State, block: str) -> None:
        schedule, knobs = state.schedule, state.knobs
        axes = contraction_axes(state, block)
        assert axes is not None
        default = default_tiling(axes, state.gpu)
        assert default is not None
        extents = (*axes.spatial, *axes.reductions)
        sizes = {
            name: knobs.tile(name, extent, len(default[name]), default[name], MOST_INNERMOST)
            for name, extent in extents
        }
        for constraint in tiling_constraints(axes, state.gpu):
            knobs.require(constraint.knobs, constraint.predicate, constraint.description)
        consumer = fused_consumer(state, block)
        loops = {f"{block}_{loop.name}": loop.loop for loop in blocks.own_loops(schedule, block)}
        if consumer is not None:
            schedule.set_scope(schedule.get_sblock(block), 0, "local")
        tiled = tile_and_bind(schedule, loops, axes, sizes)
        if consumer is not None:
            schedule.reverse_compute_at(schedule.get_sblock(consumer), tiled.threads, preserve_unit_loops=True)
            state.places[consumer] = Place(block)
        state.factors[block] = sizes
        state.nests[block] = Nest([tiled.blocks], [tiled.threads, *tiled.steps])


@dataclass(frozen=True)
class CacheRead(Rule):
    """Before: C[i, j] += A[i, k] * B[k, j]     After: A1 = A, B1 = B (shared); C[i, j] += A1[i, k] * B1[k, j].

    It stages every operand whose indices are affine. All threads of a block fetch together. The elements that a thread
    fetches at a time are a knob.
    """

    name = "cache_read"

    def applies(self, state: State, block: str) -> Applies:
        return Applies.MUST if block in state.factors else Applies.NO

    def apply(self, state: State, block: str) -> None:
        schedule, sizes = state.schedule, state.factors[block]
        threads = math.prod(factors[THREAD] for factors in sizes.values() if len(factors) != _REDUCTION_LEVELS)
        _, *steps = state.nests[block].levels
        for position, load in enumerate(_staged_loads(state, block)):
            width = state.knobs.ordinal(f"{block}_fetch{position}", VECTORS)
            copy = _stage(state, block, str(load.source.name))
            fetch_together(schedule, copy, steps, threads, width)
            name = str(schedule.get(copy).name_hint)
            state.note(name, COPY)
            state.places[name] = Place(block)


def _stage(state: State, block: str, buffer: str) -> Any:
    """Has a block read a buffer through a copy in shared memory. Returns the copy.

    TVM names a copy after its buffer. If another contraction has such a copy, this one is made of a copy in global
    memory, which has another name and is then inlined.
    """
    schedule, reader = state.schedule, state.schedule.get_sblock(block)
    taken, named = set(blocks.names(schedule)), []

    def copied(scope: str) -> Any:
        regions = [str(region.source.name) for region in schedule.get(reader).reads]
        return schedule.cache_read(reader, regions.index(buffer), scope, [reader])

    while f"{buffer}_shared" in taken:
        named.append(copied("global"))
        buffer = str(schedule.get(named[-1]).body.buffer.name)
    copy = copied("shared")
    for link in named:
        schedule.compute_inline(link)
    return copy


def tileable(state: State, block: str) -> bool:
    """Whether a block is a contraction that has a loop nest of its own and tiles within the limits of the GPU."""
    placed = block in state.places or block in state.nests or state.noted(block, VARIES)
    if placed or not blocks.reuses(state.schedule, block):
        return False
    axes = contraction_axes(state, block)
    return axes is not None and default_tiling(axes, state.gpu) is not None


def contraction_axes(state: State, block: str) -> ContractionAxes | None:
    """The axes of a contraction that is not tiled yet, under their knobs' names; None if nothing can be staged."""
    loops = blocks.own_loops(state.schedule, block)
    names = {loop.var: f"{block}_{loop.name}" for loop in loops}
    loads = _staged_loads(state, block)
    if not loads:
        return None
    operands = []
    for load in loads:
        indices = [coefficients(index, set(names)) or {} for index in load.indices]
        dimensions = [tuple((names[var], int(factor)) for var, factor in index.items()) for index in indices]
        operands.append(Operand(tuple(dimensions), shape_of(load.source)))
    spatial = tuple((names[loop.var], loop.extent) for loop in loops if not loop.reduce)
    reductions = tuple((names[loop.var], loop.extent) for loop in loops if loop.reduce)
    widest = max(np.dtype(str(load.source.dtype)).itemsize for load in loads)
    return ContractionAxes(spatial, reductions, tuple(operands), widest)


def _staged_loads(state: State, block: str) -> list[Any]:
    """The loads to stage: one for each buffer that a block reads at one place only, affine in its iterators."""
    schedule = state.schedule
    iterators = {iterator.var for iterator in schedule.get(schedule.get_sblock(block)).iter_vars}
    by_buffer: dict[Any, list[Any]] = {}
    for load in blocks.reads(schedule, block):
        by_buffer.setdefault(load.source, []).append(load)

    def affine(index: Any) -> bool:
        factors = coefficients(index, iterators)
        return factors is not None and all(int(factor) >= 0 for factor in factors.values())

    alike = [loads[0] for loads in by_buffer.values() if all(blocks.same(loads[0].indices, at.indices) for at in loads)]
    return [load for load in alike if load.indices and all(affine(index) for index in load.indices)]
