"""Segments of an axis: where they begin and end, and the value on each."""

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
from stormdrop.ir.segments import MOST_SEGMENTS, segments_of
from stormdrop.ir.stages import Axis, variable

EXTENT = 24
CHOICES = (prim.Select, prim.LT, prim.LE, prim.GT, prim.EQ)


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
    ("value", "segments"),
    [
        (concatenated, [(0, 17), (17, 24)]),
        (padded, [(0, 2), (2, 20), (20, 24)]),
        (single, [(0, 5), (5, 6), (6, 24)]),
        (mirrored, [(0, 10), (10, 24)]),
        (elsewhere, [(0, 24)]),
    ],
)
def test_the_value_on_a_segment_makes_no_choice_and_is_right(
    value: Callable[[Any], Any], segments: list[tuple[int, int]]
) -> None:
    axis = Axis(variable("i"), EXTENT)
    whole = value(axis.var)
    assert bounds(whole, axis) == segments
    computed = []
    for part in segments_of(whole, axis):
        assert not any(isinstance(node, CHOICES) for node in walk(part.value))
        computed += [evaluated(part.value, axis, position) for position in range(part.start, part.end)]
    np.testing.assert_array_equal(computed, [evaluated(whole, axis, position) for position in range(EXTENT)])


def bounds(value: Any, axis: Axis) -> list[tuple[int, int]]:
    return [(segment.start, segment.end) for segment in segments_of(value, axis)]


def evaluated(value: Any, axis: Axis, position: int) -> int:
    return int(Analyzer().simplify(substitute(value, {axis.var: integer(position)})))


def test_choices_by_other_axes_stay() -> None:
    axis, other = Axis(variable("i"), EXTENT), variable("j")
    value = prim.Select(other < integer(3), axis.var, integer(0))
    (segment,) = segments_of(value, axis)
    assert segment.value.same_as(value)


def test_of_a_condition_on_two_axes_the_other_part_stays() -> None:
    axis, other = Axis(variable("i"), EXTENT), variable("j")
    value = prim.Select(prim.And(axis.var < integer(17), other < integer(3)), axis.var, integer(0))
    first, second = segments_of(value, axis)
    assert (first.end, second.start) == (17, 17)
    assert str(first.value.condition) == "j < 3"
    assert str(second.value) == "0"


def test_choices_inside_of_other_expressions_divide_the_whole() -> None:
    axis = Axis(variable("i"), EXTENT)
    value = concatenated(axis.var) * integer(2) + padded(axis.var)
    parts = segments_of(value, axis)
    assert [part.start for part in parts] == [0, 2, 17, 20]
    computed = [evaluated(part.value, axis, position) for part in parts for position in range(part.start, part.end)]
    assert computed == [evaluated(value, axis, position) for position in range(EXTENT)]


def test_a_comparison_that_moves_by_more_than_one_divides_nothing() -> None:
    axis = Axis(variable("i"), EXTENT)
    assert bounds(prim.Select(axis.var * integer(2) < integer(17), integer(1), integer(0)), axis) == [(0, EXTENT)]


def test_an_axis_of_too_many_segments_stays_whole() -> None:
    axis = Axis(variable("i"), 200)
    assert len(segments_of(concatenation(axis, MOST_SEGMENTS), axis)) == MOST_SEGMENTS
    assert bounds(concatenation(axis, MOST_SEGMENTS + 1), axis) == [(0, 200)]


def concatenation(axis: Axis, count: int) -> Any:
    """One that takes each position but the last from an input of its own."""
    value = integer(0)
    for position in reversed(range(1, count)):
        value = prim.Select(axis.var < integer(position), integer(position), value)
    return value
