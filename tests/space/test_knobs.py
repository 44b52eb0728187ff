"""Each kind of knob: the contract of `Knob`, its steps, samples, encodings and errors."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormdrop.errors import SpaceError
from stormdrop.space import Categorical, Knob, Ordinal, Space, Split, Tile
from stormdrop.space.description import knob_from
from stormdrop.space.knob import Value
from stormdrop.testing import check_knob

ordinals = st.lists(st.integers(-5, 600), min_size=1, max_size=6, unique=True).map(lambda v: Ordinal("o", v))
categoricals = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=5, unique=True).map(
    lambda v: Categorical("c", v)
)
tiles = st.builds(
    lambda extent, levels, max_inner, exchange: Tile("t", extent, levels, max_inner, exchange=exchange),
    st.sampled_from([1, 2, 7, 12, 17, 24, 36, 56]),
    st.integers(2, 4),
    st.none() | st.integers(1, 30),
    st.booleans(),
)
splits = st.builds(
    lambda extent, choices: Split("s", extent, choices),
    st.sampled_from([1, 7, 17, 149]),
    st.lists(st.lists(st.integers(2, 16), max_size=3, unique=True).map(lambda v: [1, *v]), min_size=1, max_size=3),
)
knobs = st.one_of(ordinals, categoricals, tiles, splits)


@settings(max_examples=120, deadline=None)
@given(knobs, st.integers(0, 2**32))
def test_any_knob_conforms(knob: Knob, seed: int) -> None:
    check_knob(knob, np.random.default_rng(seed))


def steps(knob: Knob, value: Value) -> set[Any]:
    """The values that are one step away."""
    return {knob.value(path[0]) for path in map(list, knob.directions(knob.coordinates(value))) if path}


def test_the_steps_of_a_tile_are_those_of_its_docstring() -> None:
    around = {(1, 8, 3), (1, 4, 6), (4, 2, 3), (3, 4, 2)}
    assert steps(Tile("t", 24, 3, exchange=False), (2, 4, 3)) == around
    assert steps(Tile("t", 24, 3), (2, 4, 3)) == around | {(2, 2, 6), (2, 12, 1)}


def test_exchange_keeps_the_inner_product() -> None:
    knob, plain = Tile("t", 360, 4), Tile("t", 360, 4, exchange=False)
    for coords in list(knob)[::17]:
        value: Any = knob.value(coords)
        for other in steps(knob, value) - steps(plain, value):
            assert np.prod(other[1:]) == np.prod(value[1:])
            assert sum(a != b for a, b in zip(other, value, strict=True)) == 2


def test_max_inner_bounds_the_innermost_factor_only() -> None:
    values = [knob.value(c) for knob in [Tile("t", 64, 3, max_inner=8)] for c in knob]
    assert max(v[2] for v in values) == 8
    assert max(v[1] for v in values) == 64


def test_tile_samples_are_uniform() -> None:
    knob = Tile("t", 12, 3)
    rng = np.random.default_rng(0)
    counts = dict.fromkeys(knob, 0)
    for _ in range(200 * knob.count):
        counts[knob.sample(rng)] += 1
    # 200 are expected of each value; five standard deviations are 71.
    assert min(counts.values()) > 129
    assert max(counts.values()) < 271


def test_a_large_tile_is_sampled_without_enumeration() -> None:
    knob = Tile("t", 720720 * 64, 6)
    assert knob.count > 10**7
    assert knob.contains(knob.sample(np.random.default_rng(0)))


def test_split_rounds_up_and_refuses_groups_wider_than_what_they_group() -> None:
    knob = Split("s", 17, [[1, 2, 8], [4, 8]])
    values = {knob.value(c) for c in knob}
    assert values == {(5, 1, 4), (3, 2, 4), (3, 1, 8), (2, 2, 8)}  # a group of 8 needs 8 tiles
    assert knob.coordinates([3, 2, 4]) == (1, 0)
    with pytest.raises(SpaceError, match="no value"):
        knob.coordinates((1, 8, 4))
    with pytest.raises(SpaceError, match="no value"):
        knob.coordinates((4, 2, 4))  # the outermost factor is not what is left


def test_split_may_have_an_innermost_factor_beyond_the_extent() -> None:
    assert [k.value(c) for k in [Split("s", 7, [[16]])] for c in k] == [(1, 16)]


def test_encodings() -> None:
    assert Ordinal("o", [1, 2, 8]).encode((2,)) == (3.0,)
    assert Ordinal("o", [0, 16, 512]).encode((2,)) == (2.0,)
    assert Ordinal("o", ["x", "y"]).encode((1,)) == (1.0,)
    assert Categorical("c", ["x", "y", "z"]).encode((1,)) == (0.0, 1.0, 0.0)
    assert Tile("t", 8, 2).encode(Tile("t", 8, 2).coordinates((2, 4))) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Ordinal("o", []), "no values"),
        (lambda: Ordinal("o", [1, 1]), "twice"),
        (lambda: Categorical("c", ["a", "a"]), "twice"),
        (lambda: Tile("t", 0, 2), "positive extent"),
        (lambda: Tile("t", 8, 0), "positive extent"),
        (lambda: Tile("t", 8, 2, max_inner=0), "max_inner"),
        (lambda: Tile("t", 8, 1, max_inner=4), "no values"),
        (lambda: Split("s", 4, [[]]), "distinct positive"),
        (lambda: Split("s", 4, [[0, 1]]), "distinct positive"),
        (lambda: Split("s", 4, [[8], [2]]), "no choice fits"),
        (lambda: Ordinal("o", [1, 2]).coordinates(3), "no value 3"),
        (lambda: Ordinal("o", [1, 2]).coordinates([1]), "no value"),
        (lambda: Ordinal("o", [1, 2]).value((2,)), "no value"),
        (lambda: Tile("t", 8, 2).coordinates((8, 8)), "no value"),
        (lambda: Tile("t", 8, 2).value((-1,)), "no value"),
    ],
)
def test_errors_are_one_clear_line(make: object, line: str) -> None:
    with pytest.raises(SpaceError, match=line) as caught:
        make()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_numpy_scalars_become_plain_values() -> None:
    knob = Ordinal("o", list(np.array([1, 2, 4])))
    assert json.dumps(knob.describe()) == '{"kind": "ordinal", "name": "o", "values": [1, 2, 4]}'
    assert knob == Ordinal("o", [1, 2, 4])
    assert knob != Categorical("o", [1, 2, 4])


def test_a_configuration_may_lack_a_knob_that_came_later() -> None:
    space = Space("s", [Ordinal("a", [1, 2]), Ordinal("later", [1, 2, 4], absent=1)])
    assert space.config(space.point({"a": 2})) == {"a": 2, "later": 1}
    assert knob_from(space.knobs[1].describe()) == space.knobs[1] != Ordinal("later", [1, 2, 4])
    with pytest.raises(SpaceError, match="no value 3"):
        Ordinal("later", [1, 2], absent=3)
