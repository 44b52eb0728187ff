"""Axes cut where a choice changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm
from tvm.sym import Analyzer

from stormdrop.ir.expressions import substitute, walk
from stormdrop.ir.segments import segments_of, value_on_segment
from stormdrop.ir.stages import Axis, variable

EXTENT = 24


def integer(value: int) -> Any:
    return IntImm("int32", value)


def concatenated(i: Any) -> Any:
    return prim.Select(i < integer(17), i, i - integer(17) + integer(1000))


def padded(i: Any) -> Any:
    return tirx.if_then_else(tirx.all(integer(2) <= i, i < integer(20)), i * integer(3), integer(-1))


def single(i: Any) -> Any:
    return prim.Select(i == integer(5), integer(1), integer(0))


def mirrored(i: Any) -> Any:
    return prim.Select(integer(10) - i > integer(0), i, integer(7))


def elsewhere(i: Any) -> Any:
    return prim.Select(i < integer(100), i, integer(0))


@pytest.mark.parametrize(
    ("value", "pieces"),
    [
        (concatenated, [(0, 17), (17, 24)]),
        (padded, [(0, 2), (2, 20), (20, 24)]),
        (single, [(0, 5), (5, 6), (6, 24)]),
        (mirrored, [(0, 10), (10, 24)]),
        (elsewhere, [(0, 24)]),
    ],
)
def test_each_piece_is_decided_and_right(value: Callable[[Any], Any], pieces: list[tuple[int, int]]) -> None:
    axis = Axis(variable("i"), EXTENT)
    whole = value(axis.var)
    assert segments_of(whole, axis) == pieces
    found = []
    for first, last in pieces:
        piece = value_on_segment(whole, axis.var, first)
        assert not any(isinstance(node, prim.Select | prim.LT | prim.LE | prim.GT | prim.EQ) for node in walk(piece))
        found += [at(piece, axis, place) for place in range(first, last)]
    np.testing.assert_array_equal(found, [at(whole, axis, place) for place in range(EXTENT)])


def at(value: Any, axis: Axis, place: int) -> int:
    return int(Analyzer().simplify(substitute(value, {axis.var: integer(place)})))


def test_choices_by_other_axes_stay() -> None:
    axis, other = Axis(variable("i"), EXTENT), variable("j")
    value = prim.Select(other < integer(3), axis.var, integer(0))
    assert segments_of(value, axis) == [(0, EXTENT)]
    assert isinstance(value_on_segment(value, axis.var, 0), prim.Select)


def test_too_many_pieces_are_none() -> None:
    axis = Axis(variable("i"), EXTENT)
    value = integer(0)
    for place in range(1, 20):
        value = prim.Select(axis.var < integer(place), integer(place), value)
    assert segments_of(value, axis) == [(0, EXTENT)]
