"""Every search passes the conformance suite with its defaults, and droplet also with its other tests.

The suite can fail, too: each of a few broken searches fails the rule that it breaks.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import pytest

from stormdrop.search import GeneratorSearch, Knowledge, Search, Steps, create, names
from stormdrop.space import Ordinal, Space
from stormdrop.testing import SearchConformance
from stormdrop.trial import Candidate, Request

OPTIONS = {"roller": {"measured": 10_000}}
"""roller ends after ten candidates on purpose. With more, it has to keep all rules."""


def suite(name: str) -> type[SearchConformance]:
    """The suite for the search of this name."""

    def make(
        self: SearchConformance, spaces: Sequence[Space], rng: np.random.Generator, knowledge: Knowledge | None = None
    ) -> Search:
        return create(name, spaces, rng, knowledge, **OPTIONS.get(name, {}))

    search = create(name, [Space("any", [Ordinal("knob", (1, 2))])], np.random.default_rng(0))
    asks_again = bool(getattr(search, "asks_again", False))
    return type(f"Test{name.capitalize()}", (SearchConformance,), {"make": make, "asks_again": asks_again})


for _name in names():
    globals()[f"Test{_name.capitalize()}"] = suite(_name)


class TestDropletStudent(SearchConformance):
    def make(self, spaces: Sequence[Space], rng: np.random.Generator, knowledge: Knowledge | None = None) -> Search:
        return create("droplet", spaces, rng, knowledge, test="student")


class TestDropletRank(SearchConformance):
    def make(self, spaces: Sequence[Space], rng: np.random.Generator, knowledge: Knowledge | None = None) -> Search:
        return create("droplet", spaces, rng, knowledge, test="rank", repeats=5)


class TestDropletMeans(SearchConformance):
    def make(self, spaces: Sequence[Space], rng: np.random.Generator, knowledge: Knowledge | None = None) -> Search:
        return create("droplet", spaces, rng, knowledge, test="none", speculation=False)


class Sound(GeneratorSearch):
    """A sound search: the starts, then all points in order. The broken searches are variants of it."""

    name = "sound"

    def steps(self) -> Steps:
        yield from self.in_batches(dict.fromkeys([*self.knowledge.starts, *self.points()]), 1)

    def points(self) -> Iterator[Candidate]:
        return (Candidate(space.name, point) for space in self.spaces for point in space.points())


class StopsAtTheFirstImprovement(Sound):
    """The mistake of the hill climber of Kernel Tuner 1.4.0."""

    def steps(self) -> Steps:
        order = dict.fromkeys([*self.knowledge.starts, *self.points()])
        begin = max(1, len(self.knowledge.starts))
        trials = yield [Request(candidate, 1) for candidate in islice(order, begin)]
        first = min((trial.median for trial in trials if trial.ok), default=math.inf)
        for candidate in islice(order, begin, None):
            (trial,) = yield [Request(candidate, 1)]
            if trial.ok and trial.median < first < math.inf:
                return
            if trial.ok:
                first = min(first, trial.median)


class ForgetsItsStarts(Sound):
    def steps(self) -> Steps:
        yield from self.in_batches(self.points(), 1)


class TakesStartsInTurn(Sound):
    """Requests the neighbours of the first start before the second start."""

    def steps(self) -> Steps:
        begun = [c for start in self.knowledge.starts for c in (start, *self.around(start))]
        yield from self.in_batches(dict.fromkeys([*begun, *self.points()]), 1)

    def around(self, start: Candidate) -> list[Candidate]:
        return [Candidate(start.sketch, point) for point in self.by_name[start.sketch].neighbours(start.point)]


class GivesUpOnAFailingStart(Sound):
    def steps(self) -> Steps:
        for candidate in dict.fromkeys([*self.knowledge.starts, *self.points()]):
            (trial,) = yield [Request(candidate, 1)]
            if self.knowledge.starts and not trial.ok:
                return


class DrawsWithReplacement(Sound):
    def steps(self) -> Steps:
        everything = list(self.points())
        drawn = (everything[i] for i in self.rng.integers(len(everything), size=300).tolist())
        yield from self.in_batches(drawn, 1)


class ExpectsOneRowOfFeatures(Sound):
    def steps(self) -> Steps:
        everything = list(islice(self.points(), 50))
        table = np.array(self.features(everything))
        yield from self.in_batches([everything[i] for i in np.argsort(table[:, 0, 0]).tolist()], 1)


class AsksForMore(Sound):
    def ask(self, n: int) -> list[Request]:
        return super().ask(n + 1)


def conformance(cls: type[GeneratorSearch]) -> SearchConformance:
    class Conformance(SearchConformance):
        def make(self, spaces: Sequence[Space], rng: np.random.Generator, knowledge: Knowledge | None = None) -> Search:
            return cls(spaces, rng, None, knowledge)

    return Conformance()


RULES = [rule for rule in vars(SearchConformance) if rule.startswith("test_")]


@pytest.mark.parametrize("rule", RULES)
def test_a_sound_search_passes(rule: str) -> None:
    getattr(conformance(Sound), rule)()


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (StopsAtTheFirstImprovement, "test_it_finds_the_optimum_of_a_convex_landscape"),
        (ForgetsItsStarts, "test_starts_come_before_anything_else"),
        (TakesStartsInTurn, "test_starts_come_before_anything_else"),
        (GivesUpOnAFailingStart, "test_it_survives_failing_starts"),
        (DrawsWithReplacement, "test_three_hundred_trials_of_a_large_space"),
        (ExpectsOneRowOfFeatures, "test_what_is_known_beforehand_is_taken"),
        (AsksForMore, "test_never_more_than_asked_for"),
    ],
)
def test_a_broken_search_fails(broken: type[GeneratorSearch], rule: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        getattr(conformance(broken), rule)()


def test_smoke_alone_would_not_see_the_climber_that_stops_too_early() -> None:
    """It keeps all other rules."""
    for rule in RULES:
        if rule != "test_it_finds_the_optimum_of_a_convex_landscape":
            getattr(conformance(StopsAtTheFirstImprovement), rule)()
