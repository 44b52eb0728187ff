"""Knobs are rebuilt from their descriptions, and bad descriptions are refused."""

import json
from typing import Any

import pytest

from stormdrop.errors import SpaceError
from stormdrop.space import Categorical, Knob, Ordinal, Split, Tile, knob_from


@pytest.mark.parametrize(
    "knob",
    [
        Ordinal("a", [4, 1, 2.5]),
        Categorical("c", ["x", "y"]),
        Tile("t", 24, 3),
        Tile("t", 24, 3, max_inner=4, exchange=False),
        Split("s", 17, [[1, 2], [4, 8]]),
    ],
)
def test_a_knob_comes_back_from_its_description(knob: Knob) -> None:
    again = knob_from(json.loads(json.dumps(knob.describe())))
    assert type(again) is type(knob)
    assert again == knob
    assert list(again) == list(knob)


@pytest.mark.parametrize(
    ("description", "line"),
    [
        ({}, "no kind of knob None; choose from ordinal, categorical, tile, split"),
        ({"kind": "odd", "name": "a"}, "no kind of knob 'odd'"),
        ({"kind": "ordinal", "name": "a"}, "no ordinal knob is described by .*values"),
        ({"kind": "ordinal", "name": "a", "values": [1], "more": 1}, "no ordinal knob is described by .*more"),
        ({"kind": "ordinal", "name": "a", "values": []}, "has no values"),
    ],
)
def test_what_describes_no_knob(description: dict[str, Any], line: str) -> None:
    with pytest.raises(SpaceError, match=line):
        knob_from(description)
