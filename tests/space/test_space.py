"""Spaces under constraints: points, neighbourhoods, samples, lists of combinations and fingerprints."""

import sys
from itertools import product
from types import FrameType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormdrop.errors import SpaceError
from stormdrop.space import Categorical, Constraint, Ordinal, Space, Split, Tile
from stormdrop.testing import SpaceConformance, check_space
from stormdrop.testing.searches import small_spaces

BLUEPRINTS = [
    lambda name: Ordinal(name, [0, 1, 4, 16]),
    lambda name: Categorical(name, ["x", "y", "z"]),
    lambda name: Tile(name, 12, 3),
    lambda name: Tile(name, 12, 1),
    lambda name: Tile(name, 8, 2, max_inner=4, exchange=False),
    lambda name: Split(name, 17, [[1, 2], [4, 8]]),
]


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    """Spaces of up to four knobs and three constraints, each of which holds for a fixed share of the values."""
    knobs = [draw(st.sampled_from(BLUEPRINTS))(f"k{i}") for i in range(draw(st.integers(1, 4)))]
    constraints = []
    for i in range(draw(st.integers(0, 3))):
        used = tuple(draw(st.permutations([k.name for k in knobs]))[: draw(st.integers(1, 2))])
        salt, share = draw(st.integers(0, 1000)), draw(st.integers(3, 9))

        def holds(*values: object, salt: int = salt, share: int = share) -> bool:
            return sum(map(ord, repr((salt, values)))) * 7919 % 10 < share

        constraints.append(Constraint(used, holds, f"constraint {i}"))
    try:
        return Space("s", knobs, constraints)
    except SpaceError:
        return Space("s", knobs, constraints[:0])  # the constraints left nothing


@settings(max_examples=60, deadline=None)
@given(spaces(), st.integers(0, 2**32))
def test_any_space_conforms(space: Space, seed: int) -> None:
    check_space(space, np.random.default_rng(seed), checked=40)


@settings(max_examples=40, deadline=None)
@given(spaces(), st.integers(1, 9))
def test_points_are_encoded_together_as_they_are_alone(space: Space, count: int) -> None:
    rng = np.random.default_rng(0)
    points = [space.sample(rng) for _ in range(count)]
    assert space.encodings(points).tolist() == [space.encode(point).tolist() for point in points]


@settings(max_examples=40, deadline=None)
@given(spaces())
def test_points_are_what_brute_force_finds(space: Space) -> None:
    grids = [range(size) for knob in space.knobs for size in knob.sizes]
    assert list(space.points()) == [point for point in product(*grids) if space.contains(point)]


@settings(max_examples=40, deadline=None)
@given(spaces(), st.integers(0, 3), st.randoms(use_true_random=False))
def test_hops_are_a_breadth_first_search(space: Space, n: int, random: object) -> None:
    start = space.sample(np.random.default_rng(0))
    distance = {start: 0}
    queue = [start]
    for point in queue:
        if distance[point] == n:
            break  # all that follow are as far away
        for neighbour in space.neighbours(point):
            if neighbour not in distance:
                distance[neighbour] = distance[point] + 1
                queue.append(neighbour)
    hops = space.hops(start, n)
    assert set(hops) == distance.keys() - {start}
    assert [distance[point] for point in hops] == sorted(distance[point] for point in hops)


class TestSmallSpaces(SpaceConformance):
    def make_spaces(self) -> list[Space]:
        return [space for ground in small_spaces().values() for space in ground if space.name != "none"][:5]


def test_a_constraint_leaves_no_gap() -> None:
    space = Space(
        "s", [Ordinal("a", list(range(10))), Ordinal("b", [0, 1])], [Constraint(("a",), lambda a: a % 4 == 0, "")]
    )
    assert space.neighbours((4, 0)) == [(8, 0), (0, 0), (4, 1)]
    assert space.neighbours((0, 1)) == [(4, 1), (0, 0)]


def test_beyond_continues_a_move() -> None:
    space = Space(
        "s",
        [Ordinal("a", list(range(6))), Categorical("c", "xyz"), Tile("t", 16, 2)],
        [Constraint(("a",), lambda a: a != 3, "no 3")],
    )
    assert space.beyond((1, 0, 0), (2, 0, 0)) == (4, 0, 0)
    assert space.beyond((2, 0, 0), (1, 0, 0)) == (0, 0, 0)
    assert space.beyond((1, 0, 0), (0, 0, 0)) is None  # the end of the list
    assert space.beyond((1, 0, 0), (1, 1, 0)) is None  # categories have no direction
    assert space.beyond((0, 0, 1), (0, 0, 2)) == (0, 0, 3)
    assert space.beyond((0, 0, 0), (2, 0, 0)) == (4, 0, 0)  # two steps at once
    assert space.beyond((1, 1, 0), (2, 2, 0)) == (4, 2, 0)  # two knobs at once: the first that can


class Large:
    """Two tiles of 6 whose innermost factors multiply to 12 or more; counts the calls of `columns`."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, a: tuple[int, int], b: tuple[int, int]) -> bool:
        return a[1] * b[1] >= 12

    def columns(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        assert a.shape == b.shape == (len(a), 2)
        self.calls += 1
        return a[:, 1] * b[:, 1] >= 12


@pytest.mark.parametrize("columnwise", [False, True])
def test_sampling_is_uniform_with_and_without_enumeration(monkeypatch: pytest.MonkeyPatch, columnwise: bool) -> None:
    def draw(tries: int) -> np.ndarray:
        large = Large()
        space = Space(
            "s",
            [Tile("a", 6, 2), Tile("b", 6, 2), Categorical("c", "xy")],
            [Constraint(("a", "b"), large if columnwise else large.__call__, "large")],
        )
        assert space.size == 2 * 5
        rng = np.random.default_rng(0)
        counts = dict.fromkeys(space.points(), 0)
        for _ in range(200 * space.size):
            counts[space.sample(rng)] += 1
        assert (large.calls > 0) == (columnwise and tries > 0)
        return np.array(list(counts.values()))

    for tries in (0, 32):
        monkeypatch.setattr("stormdrop.space.component._TRIES_SMALL", tries)
        assert abs(draw(tries) - 200).max() < 71, tries  # five standard deviations


def test_a_sample_does_not_depend_on_what_was_done_with_the_space_before() -> None:
    def make() -> Space:
        knobs = [Ordinal("a", list(range(40))), Ordinal("b", list(range(40)))]
        return Space("s", knobs, [Constraint(("a", "b"), lambda a, b: a * 40 + b in (3, 700, 1400), "three")])

    used = make()
    for _ in range(5):
        used.sample(np.random.default_rng(1))
    a, b = np.random.default_rng(7), np.random.default_rng(7)
    assert [used.sample(a) for _ in range(5)] == [make().sample(b) for _ in range(5)]


def test_counting_does_not_enumerate_what_is_free() -> None:
    knobs = [Ordinal(f"k{i}", list(range(50))) for i in range(12)]
    space = Space("s", knobs, [Constraint(("k0", "k7"), lambda a, b: a < b, "ordered")])
    assert space.size == 50**10 * (50 * 49 // 2)
    assert space.contains(space.sample(np.random.default_rng(0)))


@settings(max_examples=40, deadline=None)
@given(spaces(), st.sets(st.integers(0, 10**6), min_size=1, max_size=40), st.booleans(), st.integers(0, 2**32))
@pytest.mark.long
def test_a_listed_space_holds_what_is_listed(space: Space, picks: set[int], reverse: bool, seed: int) -> None:
    points = list(space.points())
    listed = sorted({points[pick % len(points)] for pick in picks})
    names = [knob.name for knob in space.knobs]
    members = [tuple(space.config(point).values()) for point in listed]
    if reverse:  # the knobs of a constraint come in any order
        names, members = names[::-1], [member[::-1] for member in members]
    listed_space = Space("s", space.knobs, [*space.constraints, Constraint.one_of(names, members)])
    assert list(listed_space.points()) == listed
    check_space(listed_space, np.random.default_rng(seed), checked=20)


def test_listed_members_are_not_looked_for_among_all_combinations() -> None:
    """Some hundreds of 10^40 combinations are listed, so to enumerate or to draw all of them would not end."""
    rng = np.random.default_rng(0)
    members = [tuple(int(x) for x in row) for row in rng.integers(0, 10, (300, 40))]
    knobs = [Ordinal(f"k{i}", list(range(10))) for i in range(40)]
    space = Space("s", knobs, [Constraint.one_of([knob.name for knob in knobs], members)])
    assert space.bound == 10**40
    assert list(space.points()) == sorted(members)
    assert space.size == len(members)
    drawn = [space.sample(rng) for _ in range(100 * space.size)]
    counts = np.array([drawn.count(point) for point in members[:50]])
    assert abs(counts - 100).max() < 50  # five standard deviations


def test_listed_members_of_some_knobs_beside_others() -> None:
    knobs = [Ordinal("a", [1, 2, 3]), Ordinal("b", [1, 2, 3]), Ordinal("c", [1, 2, 3])]
    pairs = Constraint.one_of(("c", "a"), [(1, 3), (2, 1), (3, 3)])
    free = Space("s", knobs, [pairs])
    assert free.size == 9
    check_space(free, np.random.default_rng(0))
    tied = Space("s", knobs, [pairs, Constraint(("a", "b"), lambda a, b: a <= b, "")])
    assert list(tied.points()) == [(0, 0, 1), (0, 1, 1), (0, 2, 1), (2, 2, 0), (2, 2, 2)]
    check_space(tied, np.random.default_rng(0))


def test_a_list_is_part_of_the_fingerprint_and_its_order_is_not() -> None:
    def make(*members: tuple[int, str]) -> str:
        constraint = Constraint.one_of(("a", "b"), members)
        return Space("s", [Ordinal("a", [1, 2, 3]), Categorical("b", "xy")], [constraint]).fingerprint

    first, second, third = (1, "x"), (2, "y"), (3, "x")
    assert make(first, second) == make(second, first, first)
    assert make(first, second) != make(first, third) != make(first, second, third)
    assert make(first, second) == "00e080fb619e0443"  # stable across processes and versions


def test_fingerprint_tells_apart_what_matters() -> None:
    def make(**changes: object) -> str:
        args: dict[str, object] = {
            "name": "s",
            "knobs": [Ordinal("a", [1, 2])],
            "constraints": [Constraint(("a",), lambda a: True, "any")],
            "origin": {"a": 1},
            "revision": "",
        } | changes
        return Space(**args).fingerprint  # type: ignore[arg-type]

    prints = [
        make(),
        make(name="t"),
        make(knobs=[Ordinal("a", [1, 4])]),
        make(knobs=[Categorical("a", [1, 2])]),
        make(constraints=[Constraint(("a",), lambda a: True, "other")]),
        make(origin={"a": 2}),
        make(revision="2"),
    ]
    assert len(set(prints)) == len(prints)
    assert make() == make() == "5b0d6e34a7dc9431"  # stable across processes and versions: records depend on it


@settings(max_examples=40, deadline=None)
@given(spaces(), st.integers(0, 2**32))
def test_columns_are_the_configurations_knob_by_knob(space: Space, seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = [space.sample(rng) for _ in range(12)]  # some of them twice
    columns = space.columns(points)
    assert list(columns) == [knob.name for knob in space.knobs]
    assert all(len(column) == len(points) for column in columns.values())
    for row, point in enumerate(points):
        values = {name: column[row].tolist() for name, column in columns.items()}
        config = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        assert space.config(point) == config


def test_columns_can_be_computed_with() -> None:
    space = Space("s", [Ordinal("a", [1, 2, 4]), Categorical("c", ["x", "y"]), Tile("t", 8, 2), Ordinal("f", [0.5, 1])])
    columns = space.columns([(2, 1, 3, 0), (0, 0, 0, 1), (2, 0, 1, 0)])
    assert (2 * columns["a"]).tolist() == [8, 2, 8]
    assert (columns["c"] == "y").tolist() == [True, False, False]
    assert columns["t"].shape == (3, 2)
    assert columns["t"].prod(axis=1).tolist() == [8, 8, 8]
    assert columns["f"].tolist() == [0.5, 1.0, 0.5]
    assert {name: len(column) for name, column in space.columns([]).items()} == {"a": 0, "c": 0, "t": 0, "f": 0}


def test_the_origin_is_declared_or_the_first_point() -> None:
    knobs = [Ordinal("a", [1, 2, 4])]
    assert Space("s", knobs, origin={"a": 4}).origin == (2,)
    assert Space("s", knobs, [Constraint(("a",), lambda a: a > 1, "")]).origin == (1,)


A = Ordinal("a", [1, 2])


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Space("s", [A, Ordinal("a", [3])]), "same name"),
        (lambda: Space("s", [A], [Constraint(("b",), bool, "c")]), "unknown knob 'b'"),
        (lambda: Space("s", [A], [Constraint((), bool, "c")]), "on no knob"),
        (lambda: Space("s", [A], [Constraint(("a",), lambda a: a > 2, "c")]), "'s' is empty"),
        (lambda: Space("s", [A], [Constraint(("a",), lambda a: a > 1, "big")], {"a": 1}), "violates 'big'"),
        (lambda: Space("s", [A], origin={"a": 3}), "no value 3"),
        (lambda: Space("s", [A], [Constraint.one_of(("a",), [])]), "'s' is empty"),
        (lambda: Space("s", [A], [Constraint.one_of(("a",), [(3,)])]), "no value 3"),
        (lambda: Space("s", [A]).point({}), "lacks knob 'a'"),
        (lambda: Space("s", [A]).point({"a": 1, "z": 1}), "no knob 'z'"),
        (lambda: Space("s", [A]).config((5,)), "outside space 's'"),
        (lambda: Space("s", [A]).neighbours((0, 0)), "2 coordinates, not 1"),
    ],
)
def test_errors_are_one_clear_line(make: object, line: str) -> None:
    with pytest.raises(SpaceError, match=line) as caught:
        make()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_an_interrupt_inside_of_encodings_stays_one() -> None:
    """Ctrl-C is raised at each call that `encodings` makes, one after the other, and must come out as it is."""
    space = Space("s", [Tile("t", 12, 3), Ordinal("o", [1, 2])])
    points = list(space.points())[:5]
    calls_until_interrupt = calls_left = 0

    def interrupt(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls_left
        if event in ("call", "c_call"):
            calls_left -= 1
            if calls_left == -1:
                raise KeyboardInterrupt

    complete, before = False, sys.getprofile()
    while not complete:
        calls_left = calls_until_interrupt
        sys.setprofile(interrupt)
        try:
            space.encodings(points)
            complete = True
        except KeyboardInterrupt:
            calls_until_interrupt += 1
        finally:
            calls_left = 10  # for the call below
            sys.setprofile(before)
    assert calls_until_interrupt > 20
