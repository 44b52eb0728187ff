"""Planes of two knobs through recorded spaces, and the paths of searches on them."""

from __future__ import annotations

import pytest

from stormdrop.compare.landscape import Landscape, landscape
from stormdrop.compare.search_spec import parse_searches
from stormdrop.errors import InputError
from stormdrop.measure.replay import Recorded, Recording
from stormdrop.space import Categorical, Constraint, Ordinal, Space, Tile
from stormdrop.trial import Candidate, Status

BEST = {"tile": (3, 2, 4), "order": "ji", "unroll": 16}


def ground() -> Recording:
    """Two sketches. In the one with tiles `BEST` is the best, tiles of 8 rows fail, and 12 columns are excluded."""
    tiles = Space(
        "tiles",
        [Tile("tile", 24, 3), Categorical("order", ["ij", "ji"]), Ordinal("unroll", [0, 4, 16, 64])],
        [Constraint(("tile",), lambda tile: tile[2] != 12, "not 12 columns")],
    )
    plain = Space("plain", [Ordinal("unroll", [0, 4]), Ordinal("vector", [1, 8])])
    recorded = {Candidate("plain", point): Recorded((5.0,)) for point in plain.points()}
    best = tiles.point(BEST)
    for point in tiles.points():
        if tiles.config(point)["tile"][1] == 8:  # type: ignore[index]
            recorded[Candidate("tiles", point)] = Recorded((), Status.RUNTIME, "died")
        else:
            distance = sum(abs(a - b) for a, b in zip(point, best, strict=True))
            recorded[Candidate("tiles", point)] = Recorded((1.0 + 0.1 * distance,))
    return Recording("two sketches", (plain, tiles), recorded)


def draw(*knobs: str, search: str = "droplet:test=none", **settings: object) -> Landscape:
    return landscape(ground(), knobs, parse_searches(search)[0], **settings)  # type: ignore[arg-type]


def test_the_plane_goes_through_the_optimum() -> None:
    document = draw("tile", "unroll").to_json()
    assert (document["ground"], document["sketch"], document["fixed"]) == ("two sketches", "tiles", {"order": "ji"})
    x, y = document["optimum_at"]
    assert (document["values"][0][x], document["values"][1][y]) == (BEST["tile"], BEST["unroll"])
    assert document["optimum"] == document["seconds"][y][x] == 1.0
    assert len(document["seconds"]) == 4
    assert {len(row) for row in document["seconds"]} == {len(document["values"][0])}


def test_failures_and_points_outside_are_told_apart() -> None:
    document = draw("unroll", "tile").to_json()
    for y, tile in enumerate(document["values"][1]):
        status = None if tile[2] == 12 else "runtime" if tile[1] == 8 else "ok"
        assert set(document["statuses"][y]) == {status}
        assert all((seconds is None) == (status != "ok") for seconds in document["seconds"][y])


def test_the_path_goes_from_the_origin_through_ever_faster_candidates() -> None:
    document = draw("tile", "unroll").to_json()
    times = [document["seconds"][y][x] for x, y in document["path"]]
    assert document["path"][0] == document["evaluated"][0]
    assert times == sorted(times, reverse=True)
    assert document["path"][-1] == document["optimum_at"]
    assert document["best_over_optimum"] == 1.0
    assert document["converged"]
    assert document["evaluations"] == len(document["evaluated"])


def test_knobs_can_be_fixed_elsewhere() -> None:
    document = draw("unroll", "order", fixed={"tile": "24x1x1"}).to_json()
    assert document["fixed"] == {"tile": (24, 1, 1)}
    assert document["optimum"] > 1.0
    assert document["values"] == [[0, 4, 16, 64], ["ij", "ji"]]


def test_a_plane_of_another_sketch_goes_through_its_origin() -> None:
    assert draw("unroll", "vector").to_json()["sketch"] == "plain"


def test_trials_and_seeds() -> None:
    first, second = (draw("tile", "unroll", search="random", trials=6, seed=seed).to_json() for seed in (1, 2))
    assert first["evaluations"] == second["evaluations"] == 6
    assert first["evaluated"] != second["evaluated"]
    assert first["seconds"] == second["seconds"]


@pytest.mark.parametrize(
    ("knobs", "fixed", "message"),
    [
        (("tile",), {}, "knobs tile: a landscape has two different knobs"),
        (("tile", "tile"), {}, "knobs tile,tile: a landscape has two different knobs"),
        (("tile", "unrol"), {}, "no knob is called unrol; did you mean 'unroll'?"),
        (("tile", "q"), {}, "no knob is called q; choose from tile, order, unroll, vector"),
        (("tile", "vector"), {}, "no sketch has all of the knobs tile, vector"),
        (("tile", "unroll"), {"ordr": "ij"}, "no knob is called ordr; did you mean 'order'?"),
        (("tile", "unroll"), {"tile": "24x1x1"}, "knob tile is one of the two that vary"),
        (("tile", "unroll"), {"order": "iij"}, "knob order has no value iij; did you mean 'ij'?"),
        (("order", "unroll"), {"tile": "wide"}, "knob tile has no value wide; choose from 24x1x1,"),
        (("order", "unroll"), {"tile": "2x1x12"}, "no point of the space has tile=2x1x12"),
        (("order", "unroll"), {"tile": "3x8x1"}, "nothing works with tile=3x8x1, whatever order and unroll are"),
    ],
)
def test_bad_planes(knobs: tuple[str, ...], fixed: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as raised:
        draw(*knobs, fixed=fixed)
    assert message in str(raised.value)


def test_no_trials() -> None:
    with pytest.raises(InputError, match="trials=0 must be 1 or more"):
        draw("tile", "unroll", trials=0)
