"""Ranges of sizes as a user gives them."""

from __future__ import annotations

from typing import Any

import pytest

import stormdrop as sd
from stormdrop.cli.options import shapes
from stormdrop.errors import InputError
from stormdrop.machine.cpu import parse_machine
from stormdrop.model.inputs.open_range import check_range, has_range
from stormdrop.model.inputs.size_range import Range


@pytest.mark.parametrize(
    ("first", "last", "compiled"),
    [
        (1, 512, [512, 1, 2, 3, 4, 5, 18, 70, 278]),
        (1, 2, [2, 1]),
        (16, 64, [64, 16, 18]),
        (7, 100, [100, 7, 18, 70]),
        (20, 30, [30, 20, 21]),
    ],
)
def test_what_is_compiled(first: int, last: int, compiled: list[int]) -> None:
    assert list(Range(first, last)) == compiled
    assert len(Range(first, last)) == len(compiled)
    assert first in Range(first, last) and last in Range(first, last) and last + 1 not in Range(first, last)


@pytest.mark.parametrize(
    ("first", "last", "compiled"),
    [
        (1, 512, (512, 1, 2, 15, 119)),
        (1, 32, (32, 1, 2, 9)),
        (224, 640, (640, 224, 379)),
        (1, 2, (2, 1)),
        (1, 3, (3, 1, 2)),
    ],
)
def test_what_is_compiled_of_several_ranges(first: int, last: int, compiled: tuple[int, ...]) -> None:
    assert Range(first, last).few == compiled


def test_a_range_in_steps() -> None:
    sizes = Range(64, 640, 32)
    assert list(sizes) == [640, 64, 96, 160, 352] and sizes.few == (640, 64, 160)
    assert 128 in sizes and 100 not in sizes and repr(sizes) == "Range(64, 640, 32)"
    assert sizes == Range(64, 640, 32) != Range(64, 640)
    with pytest.raises(InputError, match="has no step of 30"):
        Range(64, 640, 30)
    (size,) = shapes(["x=64:640:32"])["x"]
    assert size == sizes


@pytest.mark.parametrize(("first", "last"), [(0, 5), (5, 5), (6, 5), (1.5, 4)])
def test_no_range(first: Any, last: int) -> None:
    with pytest.raises(InputError, match="a range of sizes goes from"):
        Range(first, last)


def test_of_the_command_line() -> None:
    given = shapes(["ids=1x1:512,mask=1x1:512"])
    for name in ("ids", "mask"):
        size = given[name][1]
        assert isinstance(size, Range) and (size.first, size.last) == (1, 512)
    assert has_range(given) and not has_range(shapes(["ids=1x1-512:8"])) and not has_range(None)
    with pytest.raises(InputError, match="to a larger one, not from 8 to 2"):
        shapes(["ids=1x8:2"])


def test_where_none_is_possible() -> None:
    given = {"x": (1, sd.Range(1, 8))}
    check_range(given, parse_machine("native"), native=False)
    with pytest.raises(InputError, match="list sizes, or leave native out"):
        check_range(given, parse_machine("native"), native=True)
    with pytest.raises(InputError, match="not possible beside a list of sizes"):
        check_range({"x": ((1, 4), sd.Range(1, 8))}, parse_machine("native"), native=False)
    with pytest.raises(InputError, match="not on cuda/a100: list sizes"):
        check_range(given, parse_machine("cuda/a100"), native=False)
    check_range({"x": (1, 8)}, parse_machine("cuda/a100"), native=False)
