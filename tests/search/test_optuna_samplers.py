"""Optuna's samplers as searches: the conformance suite, and what a sampler does on a landscape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

optuna = pytest.importorskip("optuna", reason="Optuna is not installed: pip install 'stormdrop[optuna]'")

from stormdrop.compare.search_spec import parse_searches  # noqa: E402
from stormdrop.errors import SearchError  # noqa: E402
from stormdrop.search import Knowledge, Search, create, names  # noqa: E402
from stormdrop.space import Constraint, Ordinal, Space, Tile  # noqa: E402
from stormdrop.testing import SearchConformance, drive, objective_of  # noqa: E402
from stormdrop.testing.searches import bowl  # noqa: E402

pytestmark = pytest.mark.long


class TestOptunaRandom(SearchConformance):
    """The cheapest of the samplers: what it has in common with the others is the search around it."""

    def make(self, spaces: Sequence[Space], rng: np.random.Generator, knowledge: Knowledge | None = None) -> Search:
        return create("optuna", spaces, rng, knowledge, sampler="random", repeats=1)


class TestOptunaTpe:
    """TPE: the rules at which a model could go wrong."""

    asks_again = False
    trials_to_optimum = 100
    run = SearchConformance.run
    check_candidates = SearchConformance.check_candidates
    test_optimum = SearchConformance.test_it_finds_the_optimum_of_a_convex_landscape
    test_starts = SearchConformance.test_starts_come_before_anything_else
    test_failures = SearchConformance.test_it_survives_when_everything_fails

    def make(self, spaces: Sequence[Space], rng: np.random.Generator, knowledge: Knowledge | None = None) -> Search:
        return create("optuna", spaces, rng, knowledge, sampler="tpe", repeats=1)


@pytest.mark.parametrize("sampler", ["nsgaii", "qmc"])
def test_each_sampler_stays_inside_a_constrained_space(sampler: str) -> None:
    fits = Constraint(("t", "a"), lambda t, a: t[1] * a <= 16, "fits")
    space = Space("tiles", [Tile("t", 64, 3), Ordinal("a", [1, 2, 4, 8])], [fits])
    search = create("optuna", [space], np.random.default_rng(0), sampler=sampler)
    trials = drive(search, objective_of(bowl), n=4, budget=24)
    assert len({trial.candidate for trial in trials}) == 24
    assert all(space.contains(trial.candidate.point) for trial in trials)


def test_tpe_learns_where_random_search_does_not() -> None:
    space = Space("large", [Ordinal(name, range(12)) for name in "abcd"])

    def best(sampler: str) -> float:
        runs = [create("optuna", [space], np.random.default_rng(seed), sampler=sampler) for seed in range(2)]
        return float(np.mean([min(trial.median for trial in drive(run, objective_of(bowl), 8, 60)) for run in runs]))

    assert best("tpe") < 0.95 * best("random")


def test_it_is_named_on_the_command_line_but_is_none_of_ours() -> None:
    (spec,) = parse_searches("optuna:sampler=tpe")
    assert spec.create([Space("s", [Ordinal("x", [1, 2])])], 0).name == "optuna"
    assert "optuna" not in names()
    with pytest.raises(SearchError, match="no sampler 'tpx'; did you mean 'tpe'"):
        parse_searches("optuna:sampler=tpx")


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(SearchError, match=r"needs optuna, which is not installed: pip install 'stormdrop\[optuna\]'"):
        create("optuna", [Space("s", [Ordinal("x", [1, 2])])], np.random.default_rng(0))
