"""Which sizes a user's lists mean."""

from __future__ import annotations

from typing import Any

import pytest

from stormdrop.errors import ModelError
from stormdrop.model.inputs.combinations import all_shapes


def listed(given: Any, names: Any = None) -> list[Any]:
    return all_shapes(given, lambda: names or {}, "m")


def test_one_size_needs_no_names_of_dimensions() -> None:
    def unknown() -> Any:
        raise AssertionError

    assert all_shapes({"x": (1, 3)}, unknown, "m") == [{"x": (1, 3)}]
    assert all_shapes(None, unknown, "m") == [{}]


@pytest.mark.parametrize("sizes", [(1, 4, 1), [1, 4], range(1, 5, 3)], ids=["tuple", "list", "range"])
def test_several_sizes_in_the_place_of_one(sizes: Any) -> None:
    assert listed({"x": (sizes, 3)}) == [{"x": (1, 3)}, {"x": (4, 3)}]


def test_dimensions_of_one_name_move_together_and_so_do_nameless_ones_with_one_list() -> None:
    both = {"a": (1, (2, 3)), "b": ((2, 3), 5)}
    moving = [{"a": (1, 2), "b": (2, 5)}, {"a": (1, 3), "b": (3, 5)}]
    assert listed(both, {"a": [None, "n"], "b": ["n", None]}) == moving
    assert listed(both) == moving


def test_other_lists_are_combined() -> None:
    shapes = listed({"x": ((1, 2), (5, 6))})
    assert [shape["x"] for shape in shapes] == [(1, 5), (1, 6), (2, 5), (2, 6)]
    assert len(listed({"x": ((1, 2), (1, 2))}, {"x": ["n", "m"]})) == 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": ((), 3)}, "m: dimension 0 of input 'x': the list of sizes is empty"),
        ({"x": ((1, 0), 3)}, "m: dimension 0 of input 'x': 0 is no size; a size is a whole number from 1 on"),
        ({"x": (3, (1, 2.5))}, "m: dimension 1 of input 'x': 2.5 is no size; a size is a whole number from 1 on"),
        ({"x": (3, 2.5)}, "m: the shape of input 'x' has the size 2.5; a size is a whole number"),
        ({"x": "3x2"}, "m: the shape of input 'x' is '3x2'; give a tuple of sizes, as in (1, 3, 224, 224)"),
        ({"x": 3}, "m: the shape of input 'x' is 3; give a tuple of sizes, as in (1, 3, 224, 224)"),
        ({"x": (range(1, 100),)}, "m: dimension 0 of input 'x': 99 sizes are too many; 64 are possible"),
        ({"x": (range(1, 10), range(1, 11))}, "m: 90 combinations of sizes are too many; 64 are possible"),
        (
            {"a": ((1, 2),), "b": ((1, 3),)},
            "m: dimension 0 of input 'a' and dimension 0 of input 'b' are both 'n', so they must have the same sizes, "
            "not 1,2 and 1,3",
        ),
        (
            {"a": ((1, 2),), "b": (2,)},
            "m: dimension 0 of input 'a' and dimension 0 of input 'b' are both 'n', so they must have the same sizes, "
            "not 1,2 and 2",
        ),
    ],
    ids=[
        "empty",
        "zero",
        "fraction",
        "fraction alone",
        "text",
        "number",
        "long",
        "many",
        "contradiction",
        "one and two",
    ],
)
def test_bad_sizes_are_one_line(given: Any, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        listed(given, {"a": ["n"], "b": ["n"]})
    assert str(caught.value) == message
