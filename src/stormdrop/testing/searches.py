"""What every search must hold to, checked on small analytic landscapes without a machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import SearchError
from ..search import Knowledge, Search
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


def bowl(candidate: Candidate) -> float:
    """Seconds: 1 ms where every coordinate is 4, and 4% more one step away; they grow with the squared distance."""
    return 1e-3 * (1.0 + 0.04 * sum((x - 4) ** 2 for x in candidate.point))


def large_space() -> Space:
    """5,376 points: tiles, ordered knobs and a category."""
    knobs = [
        Tile("t", 64, 3),
        Ordinal("a", list(range(12))),
        Ordinal("b", list(range(8))),
        Categorical("c", list("xy")),
    ]
    return Space("large", knobs)


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
    enough = 216
    """Trials in which it finds the optimum of a convex landscape of 216 points: fewer is a promise of its own."""

    @abstractmethod
    def make(self, spaces: Sequence[Space], rng: np.random.Generator, knowledge: Knowledge | None = None) -> Search:
        """A new search; equal arguments make equal searches."""

    def run(
        self,
        spaces: Sequence[Space],
        objective: Objective,
        n: int = 4,
        budget: int = 300,
        told: Sequence[Trial] = (),
        knowledge: Knowledge | None = None,
    ) -> tuple[Search, list[Trial]]:
        """A fresh search, driven."""
        search = self.make(spaces, np.random.default_rng(1), knowledge)
        return search, drive(search, objective, n, budget, told)

    def check_candidates(self, spaces: Sequence[Space], trials: Sequence[Trial]) -> None:
        """All are points of their spaces; only known good ones come again, and only where allowed."""
        by_name = {space.name: space for space in spaces}
        failed = {trial.candidate for trial in trials if not trial.ok}
        for candidate, count in Counter(trial.candidate for trial in trials).items():
            assert by_name[candidate.sketch].contains(candidate.point), candidate
            assert count == 1 or (self.asks_again and candidate not in failed), (candidate, count)

    def test_candidates_are_inside_and_repeats_have_a_reason(self) -> None:
        """On all small grounds, with failures."""
        for name, spaces in small_spaces().items():
            objective = objective_of(landscape(spaces), within=0.01, fails=lambda c: sum(c.point) % 4 == 3)
            _, trials = self.run(spaces, objective)
            assert trials, name
            self.check_candidates(spaces, trials)

    def test_three_hundred_trials_of_a_large_space(self) -> None:
        """A fifth of 5,376 points fails, without a pattern: nothing is wasted, something works."""
        space = large_space()
        objective = objective_of(bowl, fails=lambda c: np.random.default_rng(c.point).random() < 0.2)
        search, trials = self.run([space], objective, n=16)
        self.check_candidates([space], trials)
        assert len(trials) == 300 or search.finished
        assert any(trial.ok for trial in trials)

    def test_it_finds_the_optimum_of_a_convex_landscape(self) -> None:
        """No noise: within `enough` trials it is 5% off at most, that is, one step away from the optimum."""
        space = Space("bowl", [Ordinal(name, list(range(6))) for name in "abc"])
        search, trials = self.run([space], objective_of(bowl), n=8, budget=self.enough)
        assert min(trial.median for trial in trials) <= 1.05e-3
        assert search.best is None or bowl(search.best) <= 1.05e-3

    def test_starts_come_before_anything_else(self) -> None:
        """The first requests are for them: one on each ground, one in each space, two in each space."""
        for name, spaces in small_spaces().items():
            for starts in (_ends(spaces[:1]), _ends(spaces), _ends(spaces, 2)):
                _, trials = self.run(spaces, objective_of(landscape(spaces)), knowledge=Knowledge(starts=starts))
                assert sorted(trial.candidate for trial in trials[: len(starts)]) == sorted(starts), (name, starts)
                self.check_candidates(spaces, trials)

    def test_it_survives_failing_starts(self) -> None:
        """Where only the starts fail, something that works is measured (if there is anything else)."""
        for name, spaces in small_spaces().items():
            starts = _ends(spaces)
            objective = objective_of(landscape(spaces), fails=starts.__contains__)
            _, trials = self.run(spaces, objective, knowledge=Knowledge(starts=starts))
            assert any(trial.ok for trial in trials) == (sum(space.size for space in spaces) > len(starts)), name

    def test_a_start_outside_is_refused(self) -> None:
        """With `SearchError`: a sketch that there is not, a point that its space does not contain."""
        spaces = small_spaces()["plain"]
        for start in [Candidate("nowhere", spaces[0].origin), Candidate("plain", (0, 99))]:
            try:
                self.make(spaces, np.random.default_rng(1), Knowledge(starts=(start,)))
            except SearchError:
                continue
            raise AssertionError(f"{start} was accepted")

    def test_what_is_known_beforehand_is_taken(self) -> None:
        """Features of two to five rows for a candidate, and a prior. Used or not, the run can be resumed exactly.

        There are trials enough for models to be trained, and the interruption comes in the middle of a batch.
        """

        def features(candidates: Sequence[Candidate]) -> list[NDArray[np.float64]]:
            return [np.outer(np.arange(2.0, 4 + sum(c.point) % 4), (1, len(c.point), sum(c.point))) for c in candidates]

        def prior(candidates: Sequence[Candidate]) -> NDArray[np.float64]:
            return np.array([1.0 + sum(candidate.point) for candidate in candidates])

        spaces, knowledge = [large_space(), *small_spaces()["plain"]], Knowledge(features, prior)
        objective = objective_of(bowl, between=0.01, within=0.01)
        _, trials = self.run(spaces, objective, n=16, budget=130, knowledge=knowledge)
        self.check_candidates(spaces, trials)
        _, rest = self.run(spaces, objective, n=16, budget=60, told=trials[:70], knowledge=knowledge)
        assert rest == trials[70:]

    def test_never_more_than_asked_for(self) -> None:
        """A driver may be narrow or wide: `drive` checks each answer."""
        space = large_space()
        for n in (1, 3, 64):
            assert self.run([space], objective_of(bowl), n=n, budget=48)[1]

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
        """A fresh search that is told a recorded prefix continues exactly as the undisturbed one did.

        In a longer run every fifth prefix: with batches of four that meets every place in a batch.
        """
        for name, spaces in small_spaces().items():
            objective = objective_of(
                landscape(spaces), between=0.02, within=0.01, fails=lambda c: sum(c.point) % 5 == 4
            )
            whole, trials = self.run(spaces, objective, budget=120)
            for cut in range(0, len(trials) + 1, 1 if len(trials) <= 12 else 5):
                search, rest = self.run(spaces, objective, budget=120 - cut, told=trials[:cut])
                assert rest == trials[cut:], (name, cut)
                assert search.finished == whole.finished, (name, cut)

    def test_ask_for_one_at_a_time(self) -> None:
        """A driver of width one works too."""
        for spaces in small_spaces().values():
            search, trials = self.run(spaces, objective_of(landscape(spaces)), n=1, budget=2_000)
            assert search.finished
            assert trials


def _ends(spaces: Sequence[Space], each: int = 1) -> tuple[Candidate, ...]:
    """The last points of every space in lexicographic order: starts as far from the origins as can be."""
    return tuple(Candidate(space.name, point) for space in spaces for point in list(space.points())[-each:])
