"""The conformance suite of searches. It runs on small analytic landscapes, without a machine."""

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
"""A pure function of a request, and of how often its candidate was measured before, that returns a measurement."""

FAILED = Measurement(Status.RUNTIME, error="made to fail")
"""The measurement of a candidate that an objective makes fail."""


def objective_of(
    seconds: Callable[[Candidate], float],
    *,
    between: float = 0.0,
    within: float = 0.0,
    fails: Callable[[Candidate], bool] = lambda candidate: False,
    seed: int = 0,
) -> Objective:
    """Makes an objective from a formula, with two levels of log-normal noise.

    The noise depends on the seed, the candidate and how often it was measured before, so that interrupted runs can be
    resumed exactly.

    Args:
        seconds: The time of a candidate without noise, in seconds.
        between: The standard deviation of the logarithm of the noise that all samples of a measurement share.
        within: The standard deviation of the logarithm of the noise of a single sample.
        fails: Whether a candidate fails.
        seed: The seed of the noise.

    Returns:
        The objective.
    """

    def measure(request: Request, times_measured: int) -> Measurement:
        if fails(request.candidate):
            return FAILED
        key = [seed, times_measured, sum(map(ord, request.candidate.sketch)), *request.candidate.point]
        rng = np.random.default_rng(key)
        centre = seconds(request.candidate) * np.exp(rng.normal(0.0, between))
        samples = centre * np.exp(rng.normal(0.0, within, request.repeats))
        return Measurement(Status.OK, tuple(float(sample) for sample in samples))

    return measure


def drive(
    search: Search, objective: Objective, n: int = 8, budget: int = 10_000, earlier: Sequence[Trial] = ()
) -> list[Trial]:
    """Runs a search on an objective until the search finishes or the budget is spent.

    Args:
        search: The search, which has not been asked yet.
        objective: What measures a candidate.
        n: How many requests the search is asked for at a time.
        budget: How many requests are measured.
        earlier: Trials of an interrupted run. The search is told them first. They count for the noise of the objective,
            but not for the budget.

    Returns:
        The new trials, in order.

    Raises:
        AssertionError: If the search returns more than `n` requests, or none although it is not finished.

    Example:
        >>> from stormdrop.search import create
        >>> space = Space("bowl", [Ordinal("x", range(9)), Ordinal("y", range(9))])
        >>> trials = drive(create("droplet", [space], np.random.default_rng(0)), objective_of(bowl))
        >>> min(trials, key=lambda trial: trial.median).candidate.point
        (4, 4)
    """
    times_measured = Counter(trial.candidate for trial in earlier)
    if earlier:
        search.tell(earlier)
    trials: list[Trial] = []
    while len(trials) < budget:
        requests = search.ask(n)
        assert len(requests) <= n, "the search returned more requests than it was asked for"
        if not requests:
            assert search.finished, "the search asks for nothing and waits for nothing, but is not finished"
            break
        for request in requests[: budget - len(trials)]:
            trials.append(Trial(request.candidate, objective(request, times_measured[request.candidate])))
            times_measured[request.candidate] += 1
            search.tell(trials[-1:])
    return trials


def landscape(spaces: Sequence[Space]) -> Callable[[Candidate], float]:
    """A formula for the time in seconds that is convex along the knobs of each space.

    The time grows with the squared distance from the middle of the space. Each space is slower than the one before.
    """
    seconds: dict[Candidate, float] = {}
    for index, space in enumerate(spaces):
        points = list(space.points())
        codes = space.encodings(points)
        times = 1e-3 * (1.0 + 0.3 * index) * (1.0 + np.sum((codes - codes.mean(axis=0)) ** 2, axis=1))
        seconds.update(zip((Candidate(space.name, point) for point in points), times.tolist(), strict=True))
    return seconds.__getitem__


def bowl(candidate: Candidate) -> float:
    """A time in seconds: 1 ms if every coordinate is 4, 4% more one step away; it grows with the squared distance."""
    return 1e-3 * (1.0 + 0.04 * sum((x - 4) ** 2 for x in candidate.point))


def large_space() -> Space:
    """A space of 5,376 points with a tile, two ordered knobs and a category."""
    knobs = [
        Tile("t", 64, 3),
        Ordinal("a", list(range(12))),
        Ordinal("b", list(range(8))),
        Categorical("c", list("xy")),
    ]
    return Space("large", knobs)


def small_spaces() -> dict[str, list[Space]]:
    """Spaces on which searches have failed before, by name: single points, categories only, constraints, and others."""
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
    """The rules of `Search`, each in one test. Inherit, and return a new search from `make`.

    The package docstring of `stormdrop.testing` has an example.
    """

    asks_again = False
    """Whether the search may ask for more samples of a candidate that worked."""
    trials_to_optimum = 216
    """Trials within which the search finds the optimum of a convex landscape of 216 points. A subclass may set less."""

    @abstractmethod
    def make(self, spaces: Sequence[Space], rng: np.random.Generator, knowledge: Knowledge | None = None) -> Search:
        """A new search. Equal arguments must make equal searches.

        Args:
            spaces: What the search may ask for.
            rng: The source of all randomness.
            knowledge: Starts, features and a prior, if there are any.

        Returns:
            The search, which has not been asked yet.
        """

    def run(
        self,
        spaces: Sequence[Space],
        objective: Objective,
        n: int = 4,
        budget: int = 300,
        earlier: Sequence[Trial] = (),
        knowledge: Knowledge | None = None,
    ) -> tuple[Search, list[Trial]]:
        """A new search, and the trials of driving it; see `drive`."""
        search = self.make(spaces, np.random.default_rng(1), knowledge)
        return search, drive(search, objective, n, budget, earlier)

    def check_candidates(self, spaces: Sequence[Space], trials: Sequence[Trial]) -> None:
        """Asserts that all candidates are points of their spaces, and that none is repeated without a reason.

        Only a candidate that worked may be repeated, and only if `asks_again` is set.
        """
        by_name = {space.name: space for space in spaces}
        failed = {trial.candidate for trial in trials if not trial.ok}
        for candidate, count in Counter(trial.candidate for trial in trials).items():
            assert by_name[candidate.sketch].contains(candidate.point), candidate
            assert count == 1 or (self.asks_again and candidate not in failed), (candidate, count)

    def test_candidates_are_inside_and_repeats_have_a_reason(self) -> None:
        """This holds on all small spaces, also if candidates fail."""
        for name, spaces in small_spaces().items():
            objective = objective_of(landscape(spaces), within=0.01, fails=lambda c: sum(c.point) % 4 == 3)
            _, trials = self.run(spaces, objective)
            assert trials, name
            self.check_candidates(spaces, trials)

    def test_three_hundred_trials_of_a_large_space(self) -> None:
        """A fifth of 5,376 points fails without a pattern. The search spends its budget and finds points that work."""
        space = large_space()
        objective = objective_of(bowl, fails=lambda c: np.random.default_rng(c.point).random() < 0.2)
        search, trials = self.run([space], objective, n=16)
        self.check_candidates([space], trials)
        assert len(trials) == 300 or search.finished
        assert any(trial.ok for trial in trials)

    def test_it_finds_the_optimum_of_a_convex_landscape(self) -> None:
        """Without noise, the best of `trials_to_optimum` trials is at most 5% (one step) away from the optimum."""
        space = Space("bowl", [Ordinal(name, list(range(6))) for name in "abc"])
        search, trials = self.run([space], objective_of(bowl), n=8, budget=self.trials_to_optimum)
        assert min(trial.median for trial in trials) <= 1.05e-3
        assert search.best is None or bowl(search.best) <= 1.05e-3

    def test_starts_come_before_anything_else(self) -> None:
        """The first requests are for the starts: for one start, for one in each space, and for two in each space."""
        for name, spaces in small_spaces().items():
            for starts in (_last_points(spaces[:1]), _last_points(spaces), _last_points(spaces, 2)):
                _, trials = self.run(spaces, objective_of(landscape(spaces)), knowledge=Knowledge(starts=starts))
                assert sorted(trial.candidate for trial in trials[: len(starts)]) == sorted(starts), (name, starts)
                self.check_candidates(spaces, trials)

    def test_it_survives_failing_starts(self) -> None:
        """If only the starts fail and there are other points, a point that works is measured."""
        for name, spaces in small_spaces().items():
            starts = _last_points(spaces)
            objective = objective_of(landscape(spaces), fails=starts.__contains__)
            _, trials = self.run(spaces, objective, knowledge=Knowledge(starts=starts))
            assert any(trial.ok for trial in trials) == (sum(space.size for space in spaces) > len(starts)), name

    def test_a_start_outside_is_refused(self) -> None:
        """A start of an unknown sketch, or outside of its space, raises `SearchError`."""
        spaces = small_spaces()["plain"]
        for start in [Candidate("nowhere", spaces[0].origin), Candidate("plain", (0, 99))]:
            try:
                self.make(spaces, np.random.default_rng(1), Knowledge(starts=(start,)))
            except SearchError:
                continue
            raise AssertionError(f"{start} was accepted")

    def test_what_is_known_beforehand_is_taken(self) -> None:
        """The search accepts features (two to five rows for a candidate) and a prior, and can be resumed exactly.

        There are enough trials for a model to be trained, and the interruption comes in the middle of a batch.
        """

        def features(candidates: Sequence[Candidate]) -> list[NDArray[np.float64]]:
            return [np.outer(np.arange(2.0, 4 + sum(c.point) % 4), (1, len(c.point), sum(c.point))) for c in candidates]

        def prior(candidates: Sequence[Candidate]) -> NDArray[np.float64]:
            return np.array([1.0 + sum(candidate.point) for candidate in candidates])

        spaces, knowledge = [large_space(), *small_spaces()["plain"]], Knowledge(features, prior)
        objective = objective_of(bowl, between=0.01, within=0.01)
        _, trials = self.run(spaces, objective, n=16, budget=130, knowledge=knowledge)
        self.check_candidates(spaces, trials)
        _, rest = self.run(spaces, objective, n=16, budget=60, earlier=trials[:70], knowledge=knowledge)
        assert rest == trials[70:]

    def test_never_more_than_asked_for(self) -> None:
        """The caller may ask for few requests or many. `drive` checks their number."""
        space = large_space()
        for n in (1, 3, 64):
            assert self.run([space], objective_of(bowl), n=n, budget=48)[1]

    def test_a_seed_decides_everything(self) -> None:
        """Two runs with the same seed and the same measurements are the same."""
        for spaces in small_spaces().values():
            objective = objective_of(landscape(spaces), between=0.01, within=0.01)
            assert self.run(spaces, objective)[1] == self.run(spaces, objective)[1]

    def test_it_finishes_on_small_grounds(self) -> None:
        """The search says that it is finished before the budget is spent, and stays finished."""
        for name, spaces in small_spaces().items():
            search, trials = self.run(spaces, objective_of(landscape(spaces)), budget=2_000)
            assert search.finished, name
            assert search.ask(4) == [], name
            assert len(trials) < 2_000, name

    def test_it_survives_when_everything_fails(self) -> None:
        """The search raises nothing, finishes, and asks for no candidate twice."""
        for name, spaces in small_spaces().items():
            search, trials = self.run(spaces, objective_of(lambda c: 1.0, fails=lambda c: True), budget=2_000)
            assert search.finished, name
            assert len({trial.candidate for trial in trials}) == len(trials), name

    def test_it_survives_a_failing_origin(self) -> None:
        """If only the origins fail and there are other points, a point that works is measured."""
        for name, spaces in small_spaces().items():
            origins = {Candidate(space.name, space.origin) for space in spaces}
            objective = objective_of(landscape(spaces), fails=origins.__contains__)
            _, trials = self.run(spaces, objective)
            assert any(trial.ok for trial in trials) == (sum(space.size for space in spaces) > len(origins)), name

    def test_pending_requests_are_not_handed_out_twice(self) -> None:
        """A second `ask` before a `tell` returns other requests, or none; it does not finish the search."""
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
        """A new search that is told the beginning of a run continues exactly as the undisturbed run did.

        A longer run is cut at every fifth trial, which is every place in a batch because batches have four trials.
        """
        for name, spaces in small_spaces().items():
            objective = objective_of(
                landscape(spaces), between=0.02, within=0.01, fails=lambda c: sum(c.point) % 5 == 4
            )
            whole, trials = self.run(spaces, objective, budget=120)
            for cut in range(0, len(trials) + 1, 1 if len(trials) <= 12 else 5):
                search, rest = self.run(spaces, objective, budget=120 - cut, earlier=trials[:cut])
                assert rest == trials[cut:], (name, cut)
                assert search.finished == whole.finished, (name, cut)

    def test_ask_for_one_at_a_time(self) -> None:
        """The search also works if it is asked for one request at a time."""
        for spaces in small_spaces().values():
            search, trials = self.run(spaces, objective_of(landscape(spaces)), n=1, budget=2_000)
            assert search.finished
            assert trials


def _last_points(spaces: Sequence[Space], count: int = 1) -> tuple[Candidate, ...]:
    """The last points of every space in lexicographic order, which are far from the origins."""
    return tuple(Candidate(space.name, point) for space in spaces for point in list(space.points())[-count:])
