"""Searches that propose a batch while the one before it is measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from stormdrop.errors import SearchError
from stormdrop.search import GeneratorSearch, Knowledge, Search, create, names
from stormdrop.space import Ordinal, Space
from stormdrop.testing import SearchConformance, drive, objective_of
from stormdrop.testing.searches import bowl
from stormdrop.trial import Trial

pytestmark = pytest.mark.long

AHEAD = {"random", "genetic", "evolutionary", "nose", "storm"}
SPACE = Space("bowl", [Ordinal(name, list(range(6))) for name in "abc"])


def ahead(
    name: str, spaces: Sequence[Space], seed: int = 1, knowledge: Knowledge | None = None, **options: int
) -> Search:
    search = create(name, spaces, np.random.default_rng(seed), knowledge, **options)
    assert isinstance(search, GeneratorSearch)
    search.ask_ahead()
    return search


class TestGeneticAhead(SearchConformance):
    """The whole suite for one of them; the others differ in what they do with the trials."""

    def make(self, spaces: Sequence[Space], rng: np.random.Generator, knowledge: Knowledge | None = None) -> Search:
        search = create("genetic", spaces, rng, knowledge, population=10)
        search.ask_ahead()  # type: ignore[attr-defined]
        return search


@pytest.mark.parametrize("name", sorted(AHEAD))
def test_no_worker_waits_for_the_slowest_of_a_batch(name: str) -> None:
    batch: dict[str, dict[str, Any]] = {
        "genetic": {"population": 8},
        "evolutionary": {"batch": 8},
        "nose": {"population": 8, "elite": 1},
    }
    search = ahead(name, [SPACE], **batch.get(name, {}))
    objective = objective_of(bowl)
    first = search.ask(8)
    second = search.ask(8)  # while nothing of the first batch is told
    assert first and second
    assert not {request.candidate for request in first} & {request.candidate for request in second}
    search.tell([Trial(request.candidate, objective(request, 0)) for request in [*second, *first]])
    assert search.ask(8)


@pytest.mark.parametrize("name", sorted(AHEAD))
def test_the_order_of_arrival_makes_no_difference(name: str) -> None:
    def run(late: bool) -> list[Trial]:
        search, told, trials = ahead(name, [SPACE]), 0, list[Trial]()
        objective = objective_of(bowl, within=0.01)
        while len(trials) < 60 and (requests := search.ask(8) or search.ask(8)):
            trials += [
                Trial(
                    request.candidate, objective(request, sum(trial.candidate == request.candidate for trial in trials))
                )
                for request in requests
            ]
            held = 2 if late and len(requests) > 2 else 0  # the last two of a batch are told with the next one
            new = trials[told : len(trials) - held]
            told = len(trials) - held
            search.tell(list(reversed(new)) if late else new)
            if not requests:
                break
            if late and held:
                following = search.ask(8)
                search.tell(trials[told:])
                told = len(trials)
                for request in following:
                    trials.append(
                        Trial(
                            request.candidate,
                            objective(request, sum(trial.candidate == request.candidate for trial in trials)),
                        )
                    )
                search.tell(trials[told:])
                told = len(trials)
        return trials[:60]

    assert [trial.candidate for trial in run(False)] == [trial.candidate for trial in run(True)]


@pytest.mark.parametrize("name", ["storm", "nose"])
def test_a_run_goes_on_exactly_where_it_was(name: str) -> None:
    objective = objective_of(bowl, within=0.01)
    whole = drive(ahead(name, [SPACE]), objective, 4, 60)
    for cut in (7, 30):
        assert drive(ahead(name, [SPACE]), objective, 4, 60 - cut, whole[:cut]) == whole[cut:]


def test_storm_still_finds_the_optimum() -> None:
    trials = drive(ahead("storm", [SPACE]), objective_of(bowl), 8, 100)
    assert min(trial.median for trial in trials) <= 1.05e-3


def test_others_say_that_they_cannot() -> None:
    able = {
        name for name in names() if getattr(create(name, [SPACE], np.random.default_rng(0)), "can_ask_ahead", False)
    }
    assert able == AHEAD
    with pytest.raises(SearchError, match="search 'droplet' cannot ask ahead"):
        ahead("droplet", [SPACE])
