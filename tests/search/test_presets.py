"""Presets: each search as its paper prints it, its place in records, and what the papers' values change."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from stormdrop.errors import SearchError
from stormdrop.search import Knowledge, Network, Search, create, names, options_of, options_with, parse_search, presets
from stormdrop.search.parts.droplet_options import DropletOptions
from stormdrop.search.presets import PRESETS
from stormdrop.space import Categorical, Ordinal, Space, Tile, coordinate_neighbours, lowest
from stormdrop.testing import SearchConformance, drive, objective_of
from stormdrop.trial import Candidate, Trial

SPACE = Space(
    "s",
    [Tile("t", 64, 3), Ordinal("a", list(range(8))), Categorical("order", list("xyz"))],
    origin={"t": (4, 4, 4), "a": 4, "order": "y"},
)
PAPERS = [name for name in names() if "paper" in presets(name)]


def bowl(candidate: Candidate) -> float:
    return 1e-3 * (1 + 0.04 * sum((x - 2) ** 2 for x in candidate.point))


def run(name: str, budget: int = 200, starts: tuple[Candidate, ...] = (), n: int = 4, **options: object) -> list[Trial]:
    search = create(name, [SPACE], np.random.default_rng(0), Knowledge(starts=starts), **options)
    return drive(search, objective_of(bowl, within=1e-4), n, budget)


class TestDropletAsPrinted(SearchConformance):
    asks_again = True

    def make(self, spaces: Sequence[Space], rng: np.random.Generator, knowledge: Knowledge | None = None) -> Search:
        return create("droplet", spaces, rng, knowledge, preset="paper")


class TestDropletWithSeveralCandidates(SearchConformance):
    asks_again = True

    def make(self, spaces: Sequence[Space], rng: np.random.Generator, knowledge: Knowledge | None = None) -> Search:
        return create("droplet", spaces, rng, knowledge, candidates=3, prune=0.3)


class TestGradientAsPrinted(SearchConformance):
    def make(self, spaces: Sequence[Space], rng: np.random.Generator, knowledge: Knowledge | None = None) -> Search:
        return create("gradient", spaces, rng, knowledge, preset="paper")


class TestGeneticAsPrinted(SearchConformance):
    def make(self, spaces: Sequence[Space], rng: np.random.Generator, knowledge: Knowledge | None = None) -> Search:
        return create("genetic", spaces, rng, knowledge, preset="paper")


class TestGridAsPrinted(SearchConformance):
    def make(self, spaces: Sequence[Space], rng: np.random.Generator, knowledge: Knowledge | None = None) -> Search:
        return create("grid", spaces, rng, knowledge, preset="paper")


def test_every_search_of_the_papers_has_its_preset() -> None:
    assert set(PAPERS) == set(names()) - {"storm", "roller"}
    assert set(PRESETS) <= set(names())
    for name in PAPERS:
        assert options_with(name, {"preset": "paper"}).preset == "paper"


@pytest.mark.parametrize("name", [name for name in PAPERS if name not in ("evolutionary", "annealing")])
def test_each_preset_finds_something_good(name: str) -> None:
    """With the paper's three samples. dpansor runs evolutionary, whose model is trained after 64 trials."""
    trials = run(name, budget=80, preset="paper")
    assert {len(trial.measurement.seconds) for trial in trials} == {3}
    assert min(trial.median for trial in trials) < 2e-3


def test_an_unknown_preset_is_one_line_with_the_known_ones() -> None:
    for name, line in [
        ("droplet", "'printed'; its presets are default, paper$"),
        ("storm", "its presets are default$"),
    ]:
        with pytest.raises(SearchError, match=f"search '{name}' has no preset 'printed'; |{line}") as caught:
            create(name, [SPACE], np.random.default_rng(0), preset="printed")
        assert "\n" not in str(caught.value)
    with pytest.raises(SearchError, match="'storm' has no preset 'paper'"):
        create("dpansor", [SPACE], np.random.default_rng(0), preset="paper", explorer="storm")


def test_a_given_option_counts_before_the_preset() -> None:
    name, options = parse_search("droplet:preset=paper:confidence=0.99:neighbourhood=all")
    chosen = options_with(name, options)
    assert (chosen.preset, chosen.confidence, chosen.neighbourhood) == ("paper", 0.99, "all")  # type: ignore[attr-defined]
    assert chosen.whole_set  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", names())
def test_records_say_which_preset_was_used(name: str) -> None:
    """What is recorded makes the same options again, as JSON too. Without a preset, records look as they did before."""
    for preset in presets(name):
        options = options_with(name, {"preset": preset})
        recorded = json.loads(json.dumps(options.recorded()))
        assert recorded.get("preset", "default") == preset
        assert options_with(name, recorded) == options
    assert "preset" not in options_of(name)().recorded()


def test_an_old_record_of_droplet_is_still_its_default() -> None:
    assert options_of("droplet")().recorded() == {
        "test": "ours",
        "confidence": 0.95,
        "repeats": 3,
        "speculation": True,
        "max_iterations": None,
        "contests": 8,
        "restarts": 64,
        "drop": 2.0,
    }


def test_a_value_that_differs_from_its_preset_is_recorded() -> None:
    options = options_with("droplet", {"preset": "paper", "whole_set": False})
    assert options_with("droplet", options.recorded()) == options
    assert options_with("droplet", {"sides": 2}).recorded()["sides"] == 2


# Droplet as printed


def test_droplet_begins_at_the_unoptimised_kernel_with_its_neighbours() -> None:
    trials = run("droplet", preset="paper", n=1)
    origin = lowest(SPACE)
    assert origin != SPACE.origin
    around = [origin, *coordinate_neighbours(SPACE, origin)]
    assert [trial.candidate.point for trial in trials[: len(around)]] == around


def test_droplet_measures_the_whole_speculative_set() -> None:
    """With a width of 6 a batch has little room left, but the set is added as a whole."""
    whole, filled = (create("droplet", [SPACE], np.random.default_rng(0), preset="paper", whole_set=w) for w in (1, 0))
    for search in (whole, filled):
        drive(search, objective_of(bowl, within=1e-4), 6)
    counts = [len(run("droplet", n=6, preset="paper", whole_set=w)) for w in (True, False)]
    assert counts[0] > counts[1]


def test_with_stored_samples_line_11_of_figure_4_changes_nothing() -> None:
    """Points of earlier batches are slower than the incumbent, so they may compete or not."""
    for seed in range(5):
        noisy = objective_of(bowl, within=0.02, seed=seed)
        once, again = (
            drive(create("droplet", [SPACE], np.random.default_rng(0), preset="paper", revisit=revisit), noisy, 8)
            for revisit in (False, True)
        )
        assert once == again


def test_two_sides_need_a_greater_difference() -> None:
    """Student's t of these groups is 2.4 with 4 degrees of freedom: p is 0.037 on one side and 0.074 on two."""
    from stormdrop.search.parts.judge import StoredSamples, judge
    from stormdrop.trial import Measurement, Status

    faster, slower = Candidate("s", (0,)), Candidate("s", (1,))
    samples = {faster: (1.00, 1.01, 1.02), slower: (1.02, 1.03, 1.04)}
    found = []
    for sides in (1, 2):
        chosen = judge("student", 0.95, 3, 0, sides)
        assert isinstance(chosen, StoredSamples)
        chosen.record([Trial(c, Measurement(Status.OK, s)) for c, s in samples.items()], None)
        with pytest.raises(StopIteration) as decided:
            next(chosen.decide([faster], slower))
        found.append(decided.value.value)
    assert found == [faster, None]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"sides": 3}, "droplet has no sides 3; choose from 1, 2"),
        ({"neighbourhood": "coordinate"}, "did you mean 'coordinates'"),
        ({"origin": "prior"}, "no origin 'prior'"),
        ({"candidates": 0}, "candidates must be at least 1, not 0"),
        ({"prune": 1.0}, "prune must be at least 0 and below 1, not 1.0"),
    ],
)
def test_bad_values_are_one_line(options: dict[str, Any], line: str) -> None:
    with pytest.raises(SearchError, match=line):
        create("droplet", [SPACE], np.random.default_rng(0), **options)


def test_several_candidates_see_more_of_the_space() -> None:
    """With steps that mislead the best point, the second best leads on."""
    space = Space("plane", [Ordinal("a", list(range(8))), Ordinal("b", list(range(8)))])

    def trap(candidate: Candidate) -> float:
        a, b = candidate.point
        if b == 0 and a > 0:
            return 1e-3 * (6.0 - (a == 1))  # the best first step, which leads nowhere
        return 1e-3 * (7.0 - 1.2 * b + 3.0 * a + (b == 0))

    ends = []
    for candidates in (1, 2):
        search = create("droplet", [space], np.random.default_rng(0), preset="paper", candidates=candidates)
        drive(search, objective_of(trap, within=1e-5), 1)
        assert search.best is not None
        ends.append(trap(search.best))
    assert ends[1] < ends[0]


def test_pruning_leaves_out_what_the_prior_expects_to_be_slow() -> None:
    """With a prior that is right, half of the new points suffice for the same end."""
    measured = []
    for prune in (0.0, 0.5):
        knowledge = Knowledge(prior=lambda candidates: np.array([bowl(c) for c in candidates]))
        search = create("droplet", [SPACE], np.random.default_rng(0), knowledge, preset="paper", prune=prune)
        trials = drive(search, objective_of(bowl, within=1e-5), 8)
        assert search.best is not None
        assert bowl(search.best) <= 1.05e-3
        measured.append(len(trials))
    assert measured[1] < 0.8 * measured[0]


# The others as printed


def test_rounds_of_ansor_share_the_trials_of_a_model() -> None:
    """min(64, K / L) (DPAnsor paper, section 3)."""
    for K, L, expected in [(1000, 20, 50), (10_000, 20, 64), (10, 20, 1), (None, 1, 64)]:
        given = create("evolutionary", [SPACE], np.random.default_rng(0), preset="paper", K=K, L=L)
        known = Knowledge(network=Network(L, K))
        told = create("evolutionary", [SPACE], np.random.default_rng(0), known, preset="paper")
        assert given.round == told.round == told.turn == expected  # type: ignore[attr-defined]
        assert create("evolutionary", [SPACE], np.random.default_rng(0), known).round == 64  # type: ignore[attr-defined]
    shared = create("dpansor", [SPACE], np.random.default_rng(0), Knowledge(network=Network(30)), preset="paper")
    assert shared.turn == 10  # type: ignore[attr-defined]
    explorer = dict(options_with("dpansor", {"preset": "paper", "N": 25}).explorer_options)  # type: ignore[attr-defined]
    assert explorer == {"preset": "paper", "K": 25}


def test_gradient_begins_at_random_points_and_grid_counts_as_autotvm() -> None:
    assert options_with("gradient", {"preset": "paper"}).origins == 0  # type: ignore[attr-defined]
    first = [trial.candidate.point for trial in run("grid", budget=3, preset="paper")]
    assert first == [(0, 0, 0, 0), (1, 0, 0, 0), (2, 0, 0, 0)]


def test_a_redrawn_gene_may_stay_as_it_is() -> None:
    """AutoTVM draws among all values; with two values and p = 1, half of the genes stay."""
    from stormdrop.search.genetic import Breeder

    space = Space("bits", [Ordinal(f"b{i}", [0, 1]) for i in range(40)])
    parent = Candidate("bits", (0,) * 40)
    for redraw, low, high in [(False, 40, 40), (True, 10, 30)]:
        breeder = Breeder([space], np.random.default_rng(0), 1.0, redraw)
        (child,) = breeder.breed({parent: 1.0}, 1)
        assert low <= sum(child.point) <= high


def test_none_is_a_value_only_where_the_type_says_so() -> None:
    for name in ("test", "origin", "sides"):
        wrong: dict[str, Any] = {name: None}
        with pytest.raises(SearchError, match=f"droplet has no {name} None"):
            DropletOptions(**wrong)
