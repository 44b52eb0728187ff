"""Every search on spaces that are large in each way: its requests come within bounds, or it is refused in one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stormdrop.errors import SearchError
from stormdrop.search import create, names
from stormdrop.space import Categorical, Constraint, NoneFound, Ordinal, Space, Tile
from stormdrop.space import component as component_module
from stormdrop.surrogate.gaussian import GaussianProcess
from stormdrop.surrogate.levels import Levels
from stormdrop.trial import Candidate, Measurement, Request, Status, Trial

EIGHT = tuple(f"k{i}" for i in range(8))
SMALL = Ordinal("u", [1, 2, 3])


def of_one_point() -> Space:
    only = Constraint(EIGHT, lambda *values: values == (9,) * 8, "one of 16^8")
    return Space("s", [Ordinal(name, range(16)) for name in EIGHT], [only], dict.fromkeys(EIGHT, 9))


SPACES = {
    "a huge tile": lambda: Space("s", [Tile("t", 2**60, 8), SMALL]),
    "a long list": lambda: Space("s", [Ordinal("x", range(100_000)), SMALL]),
    "longer lists": lambda: Space("s", [Ordinal("x", range(150_000)), Ordinal("y", range(150_000))]),
    "many categories": lambda: Space("s", [Categorical("x", range(3_000)), SMALL]),
    "many knobs": lambda: Space("s", [Ordinal(f"k{i}", range(4)) for i in range(80)]),
    "one point": of_one_point,
}


OPTIONS: dict[str, dict[str, Any]] = {
    "annealing": {"iterations": 8},
    "evolutionary": {"population": 24},
    "dpansor": {"explorer_options": {"population": 24}},
}
"""So that a round takes no seconds."""


def trials(requests: list[Request]) -> list[Trial]:
    def seconds(request: Request) -> tuple[float, ...]:
        return (1e-3 + 1e-6 * (sum(request.candidate.point) % 997),) * request.repeats

    return [Trial(request.candidate, Measurement(Status.OK, seconds(request))) for request in requests]


@pytest.mark.parametrize("name", [name for name in names() if name != "optuna"])
@pytest.mark.parametrize("kind", SPACES)
def test_a_search_of_a_large_space(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(component_module, "FRUITLESS", 20_000)
    monkeypatch.setattr(component_module, "_TESTED", 20_000)
    space = SPACES[kind]()
    search = create(name, [space], np.random.default_rng(0), **OPTIONS.get(name, {}))
    asked: list[Request] = []
    if kind == "one point" and name in ("grid", "roller"):  # they begin at the first point, which is not the origin
        with pytest.raises(NoneFound, match="in a row"):
            search.ask(8)
        return
    while len(asked) < 48 and (requests := search.ask(8)):
        asked += requests
        search.tell(trials(requests))
    assert all(space.contains(request.candidate.point) for request in asked)
    if kind == "one point":
        assert {request.candidate for request in asked} == {Candidate("s", space.origin)}
    elif name != "droplet":  # its default lies at an end of each knob here, and may be the best nearby
        assert len({request.candidate for request in asked}) >= 10


def test_too_many_columns_are_refused() -> None:
    space = Space("s", [Categorical(f"k{i}", range(200)) for i in range(50)])
    with pytest.raises(SearchError, match="would see more than 8,192 columns; choose a search without one"):
        create("storm", [space], np.random.default_rng(0)).ask(1)
    assert create("random", [space], np.random.default_rng(0)).ask(1)


def test_merged_levels_keep_their_order() -> None:
    space = Space("s", [Ordinal("x", range(100_000)), SMALL])
    levels = Levels(space, alignments=False)
    assert levels.merged
    assert levels.sizes == (1_000, 3)
    assert levels([(0, 0), (99, 0), (100, 0), (99_999, 2)]).tolist() == [[0, 0], [0, 0], [1, 0], [999, 2]]
    assert not Levels(Space("s", [SMALL])).merged


def test_covariances_by_difference_are_those_of_each_two_levels() -> None:
    rng = np.random.default_rng(0)
    rows, values = rng.integers(7, size=(30, 2)), rng.normal(size=30)
    predictions = []
    for large in False, True:
        process = GaussianProcess([7, 7], large=large)
        process.fit(rows, values, np.ones(30))
        predictions.append(process.predict(rng.integers(7, size=(1, 2)) * 0 + 3))
    assert predictions[0].mean == pytest.approx(predictions[1].mean)
    assert predictions[0].deviation == pytest.approx(predictions[1].deviation)
