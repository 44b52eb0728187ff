"""Packing: the operand of a contraction in the order in which its tiles read it (Ansor's layout rewrite)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm.ir import Var

from ...ir.roles import contiguous
from . import blocks
from .contract import VARIES, Applies, Rule, State

PACKED = "packed"  # a note on the blocks that pack


@dataclass(frozen=True)
class Pack(Rule):
    """Before: B[k, j], read with k = (k0, k1) and j = (j0, ..., j3).     After: B[j0, j1, k0, j2, k1, j3]

    Ahead of time where the operand is constant, else by a block of its own.
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
        copy = state.knobs.layout(reader, buffer, lambda *at: _digits(at, factors))
        if copy is not None:
            for what in (PACKED, VARIES):
                state.note(str(state.schedule.get(copy).name_hint), what)


def _operand(state: State, block: str) -> Any | None:
    """The load that moves with the vectorised iterator, if its indices are plain iterators, some of the reduction."""
    column, sizes = _column(state, block), state.factors.get(block, {})
    for load in blocks.reads(state.schedule, block):
        plain = all(isinstance(index, Var) for index in load.indices) and len(set(load.indices)) == len(load.indices)
        if plain and column in load.indices and any(len(sizes[str(index.name)]) == 2 for index in load.indices):
            return load
    return None


def _column(state: State, block: str) -> Any | None:
    """The iterator that the innermost tile is vectorised along."""
    spatial = [name for name, sizes in state.factors.get(block, {}).items() if len(sizes) == 4]
    iterators = state.schedule.get(state.schedule.get_sblock(block)).iter_vars
    found = [each for each in iterators if str(each.var.name) in spatial[-1:] and int(each.dom.extent) > 1]
    return found[0].var if found else None


def _digits(at: tuple[Any, ...], factors: list[tuple[int, ...]]) -> list[Any]:
    """Indices cut into the digits of their tiles, in the order "SSRSRS"; a reduction has two, another axis four."""
    digits: list[list[Any]] = [[] for _ in range(6)]
    for index, sizes in zip(at, factors, strict=True):
        levels = (2, 4) if len(sizes) == 2 else (0, 1, 3, 5)
        for position, level in enumerate(levels):
            digits[level].append(index // math.prod(sizes[position + 1 :]) % sizes[position])
    return [digit for level in digits for digit in level]
