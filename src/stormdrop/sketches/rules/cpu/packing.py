"""Packing: an operand of a contraction is laid out in the order in which tiles read it (Ansor's layout rewrite)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ....ir.contractions.contraction import contiguous
from .. import blocks
from ..contract import VARIES, Applies, Rule, State

PACKED = "packed"  # a note on blocks that pack


@dataclass(frozen=True)
class Pack(Rule):
    """Before: B[k, j], read with k = (k0, k1) and j = (j0, ..., j3).     After: B[j0, j1, k0, j2, k1, j3].

    A constant operand is packed ahead of time, another one by a block of its own.
    """

    name = "pack"

    def applies(self, state: State, block: str) -> Applies:
        load = _operand(state, block)
        if load is None:
            return Applies.NO
        return Applies.MAY if contiguous(load, _column(state, block)) else Applies.MUST

    def apply(self, state: State, block: str) -> None:
        load = _operand(state, block)
        assert load is not None
        factors = [state.factors[block][str(index.name)] for index in load.indices]
        reader, buffer = state.schedule.get_sblock(block), str(load.source.name)
        copy = state.knobs.layout(reader, buffer, lambda *index: _digits(index, factors))
        if copy is not None:
            for word in (PACKED, VARIES):
                state.note(str(state.schedule.get(copy).name_hint), word)


def _operand(state: State, block: str) -> Any | None:
    """The load to pack: it moves with the vectorised iterator, and its indices are iterators, some of them reduced."""
    column, sizes = _column(state, block), state.factors.get(block, {})
    for load in blocks.reads(state.schedule, block):
        plain = blocks.is_plain(load) and column in load.indices
        if plain and any(len(sizes[str(index.name)]) == 2 for index in load.indices):
            return load
    return None


def _column(state: State, block: str) -> Any | None:
    """The iterator that the innermost tile is vectorised along."""
    spatial = [name for name, sizes in state.factors.get(block, {}).items() if len(sizes) == 4]
    iterators = state.schedule.get(state.schedule.get_sblock(block)).iter_vars
    columns = [
        iterator for iterator in iterators if str(iterator.var.name) in spatial[-1:] and int(iterator.dom.extent) > 1
    ]
    return columns[0].var if columns else None


def _digits(indices: tuple[Any, ...], factors: list[tuple[int, ...]]) -> list[Any]:
    """Splits indices into digits by their tiles, in the order "SSRSRS": two for a reduction, four for another axis."""
    digits: list[list[Any]] = [[] for _ in range(6)]
    for index, sizes in zip(indices, factors, strict=True):
        levels = (2, 4) if len(sizes) == 2 else (0, 1, 3, 5)
        for position, level in enumerate(levels):
            digits[level].append(index // math.prod(sizes[position + 1 :]) % sizes[position])
    return [digit for level in digits for digit in level]
