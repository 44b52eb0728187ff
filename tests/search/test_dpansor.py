"""DPAnsor: one search explores, and another exploits the best candidate found."""

import dataclasses
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

from stormdrop.errors import SearchError
from stormdrop.search import TwoPhase, create, names
from stormdrop.search.dpansor import DPAnsor, DPAnsorOptions, _fastest
from stormdrop.space import Ordinal, Space
from stormdrop.testing import drive, objective_of
from stormdrop.trial import Candidate, Measurement, Request, Status, Trial

KNOBS = [Ordinal(name, list(range(8))) for name in "abc"]
SPACE, OTHER = Space("s", KNOBS), Space("other", KNOBS)
BOTTOM = Candidate("s", (5, 2, 6))
OTHERS = [name for name in names() if name != "dpansor"]


def bowl(candidate: Candidate) -> float:
    """Convex, with 1 ms at the bottom, and 1% slower everywhere in the other sketch."""
    steps = sum((x - b) ** 2 for x, b in zip(candidate.point, BOTTOM.point, strict=True))
    return 1e-3 * (1 + 0.08 * steps) * (1.01 if candidate.sketch == "other" else 1.0)


def dpansor(*spaces: Space, seed: int = 0, explorer: str = "random", **options: Any) -> DPAnsor:
    search = create("dpansor", spaces or [SPACE], np.random.default_rng(seed), explorer=explorer, **options)
    assert isinstance(search, DPAnsor)
    return search


def fastest(trials: list[Trial]) -> Candidate:
    return min((trial for trial in trials if trial.ok), key=lambda trial: trial.median).candidate


@pytest.mark.parametrize("N", [1, 10, 50])
def test_n_trials_of_the_explorer_then_a_descent_from_the_best_of_them(N: int) -> None:
    search = dpansor(N=N)
    trials = drive(search, objective_of(bowl, within=1e-4), 8)
    alone = create("random", [SPACE], np.random.default_rng(0).spawn(2)[0])
    assert trials[:N] == drive(alone, objective_of(bowl, within=1e-4), 8, budget=N)
    assert trials[N].candidate == fastest(trials[:N])
    assert search.best == BOTTOM
    assert search.converged
    assert len(trials) < N + 100


@pytest.mark.parametrize("exploiter", OTHERS)
def test_every_exploiter_starts_from_the_same_seed_and_stays_in_its_sketch(exploiter: str) -> None:
    """Figures 14 and 15, with the same start for every exploiter."""
    objective = objective_of(bowl, within=1e-4, fails=lambda c: sum(c.point) % 5 == 0)
    explored = drive(dpansor(SPACE, OTHER, N=30), objective, 8, budget=30)
    seed = fastest(explored)
    trials = drive(dpansor(SPACE, OTHER, N=30, exploiter=exploiter, exploitation=40), objective, 8)
    assert trials[:30] == explored
    assert trials[30].candidate == seed
    assert {trial.candidate.sketch for trial in trials[30:]} == {seed.sketch}
    assert len({trial.candidate for trial in trials[30:]}) <= 40
    assert Counter(trial.candidate for trial in trials if not trial.ok).most_common(1)[0][1] == 1


@pytest.mark.parametrize("explorer", OTHERS)
def test_every_other_search_can_explore(explorer: str) -> None:
    search = dpansor(SPACE, OTHER, explorer=explorer, N=40)
    drive(search, objective_of(bowl, within=1e-4), 8)
    assert search.converged
    assert search.best is not None
    assert search.best.point == BOTTOM.point


def test_the_exploitation_is_limited() -> None:
    objective = objective_of(bowl)
    for limit, expected in [(25, 45), (None, 20 + SPACE.size)]:
        search = dpansor(N=20, exploiter="random", exploitation=limit)
        assert len(drive(search, objective, 8)) == expected
        assert search.finished
        assert not search.converged
        assert search.best is None


@pytest.mark.parametrize("test", ["ours", "student"])
def test_samples_of_the_exploration_are_not_compared_with_later_ones(test: str) -> None:
    """All points are explored, and then the machine becomes slower. The seed is measured again and stays the best."""
    noisy = objective_of(bowl, within=1e-3)
    measured = 0

    def objective(request: Request, times: int) -> Measurement:
        nonlocal measured
        measured += 1
        measurement = noisy(request, times)
        slower = 1.0 if measured <= SPACE.size else 1.5
        return dataclasses.replace(measurement, seconds=tuple(slower * second for second in measurement.seconds))

    search = dpansor(N=1000, exploiter_options={"test": test})
    trials = drive(search, objective, 8)
    assert len({trial.candidate for trial in trials}) == SPACE.size
    assert search.best == BOTTOM


def trial(a: int, *seconds: float) -> Trial:
    status = Status.OK if seconds else Status.RUNTIME
    return Trial(Candidate("s", (a,)), Measurement(status, seconds, error="" if seconds else "no"))


def test_the_seed_never_failed_and_has_the_least_median_of_all_its_samples() -> None:
    """An explorer may measure again: a candidate that was fast only once, or failed later, is no seed."""
    explored = [trial(0, 3.0), trial(1, 2.0), trial(2, 1.0), trial(1, 5.0), trial(2), trial(1, 5.0), trial(3, 4.0)]
    assert _fastest(explored) == Candidate("s", (0,))
    assert _fastest(explored[:3]) == Candidate("s", (2,))
    assert _fastest([trial(0)]) is None


def test_without_a_candidate_that_works_there_is_nothing_to_exploit() -> None:
    search = dpansor(N=30)
    trials = drive(search, objective_of(bowl, fails=lambda c: True), 8)
    assert len(trials) == 30
    assert search.finished
    assert not search.converged
    assert search.best is None


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"N": 0}, "N must be at least 1, not 0"),
        ({"exploitation": 0}, "exploitation must be at least 1, not 0"),
        ({"explorer": "dpansor"}, "dpansor cannot be its own explorer"),
        ({"exploiter": "dpansor"}, "dpansor cannot be its own explorer or exploiter"),
        ({"explorer": "randm"}, "unknown search 'randm'; did you mean 'random'"),
        ({"exploiter": "dropplet"}, "unknown search 'dropplet'; did you mean 'droplet'"),
        ({"explorer_options": {"repeat": 3}}, "search 'random' has no option 'repeat'; did you mean 'repeats'"),
        ({"exploiter_options": {"test": "students"}}, "no test 'students'"),
        ({"exploiter": "grid", "exploiter_options": {"repeats": 0}}, "at least 1"),
    ],
)
def test_errors_come_at_once_in_one_line(options: dict[str, Any], line: str) -> None:
    with pytest.raises(SearchError, match=line) as caught:
        dpansor(**options)
    assert "\n" not in str(caught.value)


def test_options_are_plain_hashable_and_survive_json() -> None:
    given: dict[str, Any] = {"explorer_options": {"repeats": 2}, "exploiter_options": {"repeats": 5}}
    options = DPAnsorOptions(explorer="random", **given)
    again = DPAnsorOptions(**json.loads(json.dumps(dataclasses.asdict(options))))
    assert again == options
    assert hash(again) == hash(options)
    assert dict(options.exploiter_options) == {"test": "student", "confidence": 0.95, "repeats": 5}
    assert DPAnsorOptions(exploiter="grid").exploiter_options == ()
    search = dpansor(N=5, explorer_options={"repeats": 2}, exploiter_options={"repeats": 5})
    trials = drive(search, objective_of(bowl), 8)
    assert [len(trial.measurement.seconds) for trial in trials[:6]] == [2] * 5 + [5]


def test_the_caller_decides_how_much_it_explores_and_when_it_exploits() -> None:
    objective = objective_of(bowl, within=1e-4)
    search, alone = dpansor(N=50), create("random", [SPACE], np.random.default_rng(0).spawn(2)[0])
    assert isinstance(search, TwoPhase) and search.exploration == 50
    explored: list[Trial] = []
    for allowed in (3, 0, 9, 2):
        search.allow(allowed)
        while requests := search.ask(8):
            trials = [Trial(request.candidate, objective(request, 0)) for request in requests]
            search.tell(trials)
            explored += trials
        assert not search.finished
    assert explored == drive(alone, objective, 8, budget=14)
    search.exploit()
    trials = drive(search, objective, 8)
    assert trials[0].candidate == fastest(explored)
    assert search.converged and search.best == BOTTOM


def test_exploitation_goes_on_from_what_an_earlier_run_has_measured() -> None:
    objective = objective_of(bowl, within=1e-4)
    first = dpansor(N=50)
    first.allow(10)
    known = [Trial(request.candidate, objective(request, 0)) for request in [*first.ask(8), *first.ask(8)]]
    second = dpansor(N=50)
    second.tell(known)
    second.allow(0)
    assert second.ask(8) == [] and not second.finished
    second.exploit()
    trials = drive(second, objective, 8)
    assert trials[0].candidate.point in set(SPACE.neighbours(fastest(known).point))  # the seed itself is known
    assert not {trial.candidate for trial in trials[:1]} & {trial.candidate for trial in known}
    assert second.converged and second.best == BOTTOM
