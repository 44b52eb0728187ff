"""What every search must hold to, checked on small analytic landscapes without a machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from ..search import Search
from ..space import Categorical, Constraint, Ordinal, Space, Tile
from ..trial import Candidate, Measurement, Request, Status, Trial

Objective = Callable[[Request, int], Measurement]
"""A request, and how often its candidate was measured before -> a measurement. A pure function."""

FAILED = Measurement(Status.RUNTIME, error="made to fail")


def objective_of(
    seconds: Callable[[Candidate], float],
    *,
    between: float = 0.0,
    within: float = 0.0,
    fails: Callable[[Candidate], bool] = lambda candidate: False,
    seed: int = 0,
) -> Objective:
    """An objective from a noise-free time in seconds, with two levels of log-normal noise around it.

    Noise depends on the seed, the candidate and how often it was measured, so interrupted runs can be resumed.
    """

    def measure(request: Request, times: int) -> Measurement:
        if fails(request.candidate):
            return FAILED
        key = [seed, times, sum(map(ord, request.candidate.sketch)), *request.candidate.point]
        rng = np.random.default_rng(key)
        group = seconds(request.candidate) * np.exp(rng.normal(0.0, between))
        samples = group * np.exp(rng.normal(0.0, within, request.repeats))
        return Measurement(Status.OK, tuple(float(sample) for sample in samples))

    return measure


def drive(
    search: Search, objective: Objective, n: int = 8, budget: int = 10_000, told: Sequence[Trial] = ()
) -> list[Trial]:
    """Run a search on an objective until it finishes or `budget` requests were answered; returns the trials.

    `told` are earlier trials, handed to the search first and counted for the objective, but not for the budget.
    """
    times = Counter(trial.candidate for trial in told)
    if told:
        search.tell(told)
    trials: list[Trial] = []
    while len(trials) < budget:
        requests = search.ask(n)
        assert len(requests) <= n, "more requests than asked for"
        if not requests:
            assert search.finished, "nothing asked with nothing outstanding, but not finished"
            break
        for request in requests[: budget - len(trials)]:
            trials.append(Trial(request.candidate, objective(request, times[request.candidate])))
            times[request.candidate] += 1
            search.tell(trials[-1:])
    return trials


def landscape(spaces: Sequence[Space]) -> Callable[[Candidate], float]:
    """Seconds that grow with the distance from a point in the middle of each space: convex along the knobs."""
    targets = {space.name: np.mean([space.encode(p) for p in space.points()], axis=0) for space in spaces}
    by_name = {space.name: space for space in spaces}
    slow = {space.name: 1.0 + 0.3 * i for i, space in enumerate(spaces)}

    def seconds(candidate: Candidate) -> float:
        off = by_name[candidate.sketch].encode(candidate.point) - targets[candidate.sketch]
        return 1e-3 * slow[candidate.sketch] * (1.0 + float(np.sum(off**2)))

    return seconds


def small_spaces() -> dict[str, list[Space]]:
    """Grounds that have tripped searches up: one point, two, categories only, constraints, several sketches."""
    plain = Space("plain", [Ordinal("a", [1, 2, 4, 8]), Ordinal("b", [0, 1, 2])])
    tiles = Space(
        "tiles",
        [Tile("t", 24, 3), Categorical("order", ["ij", "ji"])],
        [Constraint(("t",), lambda t: t[1] * t[2] <= 12, "at most 12 registers")],
    )
    return {
        "one point": [Space("one", [Ordinal("only", [7])])],
        "no knobs": [Space("none", [])],
        "two points": [Space("two", [Ordinal("a", [1, 2])])],
        "categories": [Space("cat", [Categorical("x", list("abc")), Categorical("y", list("de"))])],
        "plain": [plain],
        "constrained": [tiles],
        "several": [tiles, plain, Space("other", [Ordinal("a", [3])])],
    }


class SearchConformance(ABC):
    """Inherit, and return a fresh search from `make`. All methods are tests."""

    asks_again = False
    """Whether the search may ask for more samples of a candidate that worked."""

    @abstractmethod
    def make(self, spaces: Sequence[Space], rng: np.random.Generator) -> Search:
        """A new search; equal arguments make equal searches."""

    def run(
        self, spaces: Sequence[Space], objective: Objective, n: int = 4, budget: int = 300, told: Sequence[Trial] = ()
    ) -> tuple[Search, list[Trial]]:
        """A fresh search, driven."""
        search = self.make(spaces, np.random.default_rng(1))
        return search, drive(search, objective, n, budget, told)

    def test_candidates_are_inside_and_repeats_have_a_reason(self) -> None:
        """Every candidate is a point of its space; only known good ones come again, and only where allowed."""
        for name, spaces in small_spaces().items():
            by_name = {space.name: space for space in spaces}
            objective = objective_of(landscape(spaces), within=0.01, fails=lambda c: sum(c.point) % 4 == 3)
            _, trials = self.run(spaces, objective)
            assert trials, name
            asked = Counter(trial.candidate for trial in trials)
            for candidate, count in asked.items():
                assert by_name[candidate.sketch].contains(candidate.point), name
                failed = any(not trial.ok for trial in trials if trial.candidate == candidate)
                assert count == 1 or (self.asks_again and not failed), (name, candidate, count)

    def test_a_seed_decides_everything(self) -> None:
        """Two runs with the same seed and answers are the same."""
        for spaces in small_spaces().values():
            objective = objective_of(landscape(spaces), between=0.01, within=0.01)
            assert self.run(spaces, objective)[1] == self.run(spaces, objective)[1]

    def test_it_finishes_on_small_grounds(self) -> None:
        """With budget left over the search says that it is finished, and stays so."""
        for name, spaces in small_spaces().items():
            search, trials = self.run(spaces, objective_of(landscape(spaces)), budget=2_000)
            assert search.finished, name
            assert search.ask(4) == [], name
            assert len(trials) < 2_000, name

    def test_it_survives_when_everything_fails(self) -> None:
        """No exception, no endless loop, no second try of what failed."""
        for name, spaces in small_spaces().items():
            search, trials = self.run(spaces, objective_of(lambda c: 1.0, fails=lambda c: True), budget=2_000)
            assert search.finished, name
            assert len({trial.candidate for trial in trials}) == len(trials), name

    def test_it_survives_a_failing_origin(self) -> None:
        """Where only the origins fail, something that works is measured (if there is anything else)."""
        for name, spaces in small_spaces().items():
            origins = {Candidate(space.name, space.origin) for space in spaces}
            objective = objective_of(landscape(spaces), fails=origins.__contains__)
            _, trials = self.run(spaces, objective)
            assert any(trial.ok for trial in trials) == (sum(space.size for space in spaces) > len(origins)), name

    def test_pending_requests_are_not_handed_out_twice(self) -> None:
        """Asking on without telling gives other requests, or none; it is not finished by that."""
        spaces = small_spaces()["plain"]
        search = self.make(spaces, np.random.default_rng(1))
        objective = objective_of(landscape(spaces))
        pending: list[Request] = []
        while requests := search.ask(3):
            pending += requests
            if len(pending) > 100:
                raise AssertionError("endless requests for a space of 12 points")
        assert not search.finished
        for request in reversed(pending):  # out of order, one by one
            search.tell([Trial(request.candidate, objective(request, 0))])
        drive(search, objective, 3, 500)
        assert search.finished

    def test_resume_at_every_prefix(self) -> None:
        """A fresh search that is told a recorded prefix continues exactly as the undisturbed one did."""
        for name, spaces in small_spaces().items():
            objective = objective_of(
                landscape(spaces), between=0.02, within=0.01, fails=lambda c: sum(c.point) % 5 == 4
            )
            whole, trials = self.run(spaces, objective, budget=120)
            for cut in range(len(trials) + 1):
                search, rest = self.run(spaces, objective, budget=120 - cut, told=trials[:cut])
                assert rest == trials[cut:], (name, cut)
                assert search.finished == whole.finished, (name, cut)

    def test_ask_for_one_at_a_time(self) -> None:
        """A driver of width one works too."""
        for spaces in small_spaces().values():
            search, trials = self.run(spaces, objective_of(landscape(spaces)), n=1, budget=2_000)
            assert search.finished
            assert trials
