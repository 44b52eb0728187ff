"""storm: a Gaussian process says where to look, from the schedules that a prior or earlier records suggest.

Ours, the default; what it is made of was found on recorded spaces (docs/claims.md has the figures).

- *Opening.* The starts and the origins, and points that are far from one another and from them, so that each knob
  is seen at both its ends; with a prior, only from the better half by it.
- *Belief.* Per sketch a Gaussian process (`surrogate/gaussian.py`) on the logarithm of the times relative to the
  best, the slow end compressed: what is three times too slow need not be told from what is ten times too slow.
  A failure counts as the slowest that was seen.
- *Proposals.* The point of the greatest expected improvement over the best of all sketches, among some random ones
  and the neighbours of the best few, then uphill from neighbour to neighbour. So a descent is what happens where the
  landscape is smooth, and where it is not, the search is not bound to neighbours. Looking at a random part only is
  deliberate: it keeps a wrong belief from repeating itself. Within a batch each proposal is believed to come true.
- *Noise.* What seems to be the best is measured again before anything is built on it, so that it cannot live on one
  lucky measurement; those that the belief holds for the best few are, too, so that one bad measurement cannot hide
  them. That costs time, but no new kernel. The more often a point was measured, the more the belief trusts it.
- *The end.* Converged when for some time nothing has promised a gain that is worth a trial.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from ..errors import SearchError
from ..space import Space
from ..surrogate.gaussian import GaussianProcess, Prediction
from ..surrogate.levels import Levels
from ..trial import Candidate, Point, Request, Trial
from .contract import GeneratorSearch, Options, Prior, Steps

_LISTED = 100_000  # a space of so many combinations at most is listed as a whole
_DRAWN, _MORE, _MOST = 1_000, 20, 20_000  # points drawn of larger ones: at first, per batch, in all
_BEST = 5  # points whose neighbours are looked at, and that are measured again
_GROUPS = 5  # measurements of a candidate after which its time is taken for known


@dataclass(frozen=True)
class StormOptions(Options):
    """Raises `SearchError` for a value that makes no sense.

    repeats    samples per request
    opening    points that are measured before anything is believed, over all sketches
    look       random points whose expected improvement is looked at for one proposal
    soft       log ratio to the best from which on the slow end is compressed
    floor      of the belief's covariance, and
    length     the median of its prior over lengths: see `surrogate/gaussian.py`
    alignments whether the belief sees how often two divides a number: see `surrogate/levels.py`
    memory     measured points that are remembered at most; beyond, the best half and the latest quarter are kept
    refit      growth of the known points after which the belief's parameters are learned again
    worth      expected gain (share of the best time) below which a proposal is not worth its trial
    patience   proposals in a row that were not worth their trials, after which it has converged
    """

    repeats: int = 3
    opening: int = 10
    look: int = 500
    soft: float = 1.0
    floor: float = 0.6
    length: float = 0.5
    alignments: bool = True
    memory: int = 300
    refit: float = 0.1
    worth: float = 0.001
    patience: int = 24

    def __post_init__(self) -> None:
        if min(self.repeats, self.opening, self.look, self.patience) < 1:
            raise SearchError("storm needs repeats, opening, look and patience of at least 1")
        if self.soft <= 0 or self.refit < 0 or not 0 <= self.worth < 1:
            raise SearchError("storm needs soft > 0, refit >= 0 and worth from 0 to 1")
        if not (0 <= self.floor < 1 and self.length > 0):
            raise SearchError("storm needs a floor from 0 to 1 and length > 0")
        if self.memory < 20:
            raise SearchError(f"storm needs a memory of at least 20 points, not {self.memory}")


class Storm(GeneratorSearch):
    """See the module. `best` is the candidate with the least estimate."""

    name = "storm"
    Options = StormOptions
    asks_again = True
    options: StormOptions

    def steps(self) -> Steps:
        """Opening, then batches of proposals until none is worth its trial or no point is left."""
        self._times: dict[Candidate, float] = {}  # medians of what is remembered, infinite where it failed
        self._samples: defaultdict[Candidate, tuple[float, ...]] = defaultdict(tuple)
        self._groups: Counter[Candidate] = Counter()  # how often each was measured
        beliefs = [_Belief(space, self.rng, self.options) for space in self.spaces]
        yield from self._measure(self._opening(beliefs))
        fitted = idle = 0
        while True:
            known = len(self._groups)
            learn = known >= max(fitted + 5, fitted * (1 + self.options.refit))
            fitted = known if learn else fitted
            for belief in beliefs:
                belief.update(self._observed(belief.space), learn)
            again = self._doubtful(beliefs)
            proposals = self._propose(beliefs, max(1, self.width - len(again)))
            if not proposals:
                return
            idle = 0 if any(self._worthwhile(gain) for _, gain in proposals) else idle + len(proposals)
            if idle >= self.options.patience:
                self.converged = True
                return
            yield from self._measure([*again, *(candidate for candidate, _ in proposals)])

    def _opening(self, beliefs: Sequence[_Belief]) -> list[Candidate]:
        first = [*self.knowledge.starts, *(Candidate(space.name, space.origin) for space in self.spaces)]
        share = max(1, self.options.opening // len(beliefs))
        for belief in beliefs:
            belief.mark(candidate.point for candidate in first if candidate.sketch == belief.space.name)
            first += belief.spread(share, self.knowledge.prior)
        return list(dict.fromkeys(first))

    def _doubtful(self, beliefs: Sequence[_Belief]) -> list[Candidate]:
        """Those believed to be the best that were not measured often: one bad measurement must not hide them."""
        ranked = sorted(offer for belief in beliefs for offer in belief.best())[:_BEST]
        doubtful = [each for _, each in ranked if self._works(each) and self._groups[each] < _GROUPS]
        return doubtful[: max(1, self.width // 2)]

    def _propose(self, beliefs: Sequence[_Belief], count: int) -> list[tuple[Candidate, float]]:
        """At most so many new candidates, each with the logarithm of what it is expected to gain."""
        proposals: list[tuple[Candidate, float]] = []
        while len(proposals) < count:
            if self.best is None:  # nothing works so far
                offers = [(belief, c.point, 0.0) for belief in beliefs for c in belief.spread(1)]
            else:
                offers = [(belief, *offer) for belief in beliefs if (offer := belief.propose()) is not None]
            if not offers:
                break
            belief, point, gain = max(offers, key=lambda offer: offer[2])
            belief.believe(point)
            proposals.append((Candidate(belief.space.name, point), gain))
        return proposals

    def _worthwhile(self, log_gain: float) -> bool:
        return self.best is None or math.exp(log_gain) > self.options.worth

    def _measure(self, batch: Sequence[Candidate]) -> Generator[list[Request], list[Trial], None]:
        """The batch; then what seems to be the best again, until it was seen often enough to be taken for it."""
        while batch:
            trials = yield [Request(candidate, self.options.repeats) for candidate in batch]
            for trial in trials:
                self._learn(trial)
            working = filter(self._works, self._times)
            self.best = min(working, key=self._times.__getitem__, default=None)
            batch = [self.best] if self.best is not None and self._groups[self.best] < _GROUPS else []
        if len(self._times) > self.options.memory:
            by_time = sorted(self._times, key=self._times.__getitem__)
            kept = set(by_time[: self.options.memory // 2])
            kept.update([each for each in self._times if each not in kept][-self.options.memory // 4 :])
            self._times = {candidate: time for candidate, time in self._times.items() if candidate in kept}

    def _learn(self, trial: Trial) -> None:
        candidate = trial.candidate
        self._groups[candidate] += 1
        self._samples[candidate] += trial.measurement.seconds
        failed = not trial.ok or self._times.get(candidate) == math.inf
        self._times[candidate] = math.inf if failed else statistics.median(self._samples[candidate])

    def _works(self, candidate: Candidate) -> bool:
        return self._times.get(candidate, math.inf) < math.inf

    def _observed(self, space: Space) -> dict[Point, tuple[float, int]]:
        """Per remembered point of a space its value (infinite where it failed) and how often it was measured."""
        known = [candidate for candidate in self._times if candidate.sketch == space.name]
        return {candidate.point: (self._value(candidate), self._groups[candidate]) for candidate in known}

    def _value(self, candidate: Candidate) -> float:
        """The logarithm of its time relative to the best, compressed where that is large."""
        if self.best is None or not self._works(candidate):
            return math.inf
        ratio = math.log(self._times[candidate] / self._times[self.best])
        return self.options.soft * math.log1p(ratio / self.options.soft)


class _Belief:
    """What is believed about one sketch: every point that was looked at has a row of levels and a number."""

    def __init__(self, space: Space, rng: np.random.Generator, options: StormOptions) -> None:
        self.space = space
        self._rng, self._options = rng, options
        self._levels = Levels(space, options.alignments)
        self._scale = np.maximum(np.array(self._levels.sizes) - 1, 1)
        self._model = GaussianProcess(self._levels.sizes, options.floor, options.length)
        self._points: list[Point] = []
        self._number: dict[Point, int] = {}
        self._rows = np.empty((0, len(self._levels.sizes)), dtype=np.intp)
        self._asked = np.empty(0, dtype=bool)
        self._around: dict[int, list[int]] = {}
        self._known = np.empty(0, dtype=np.intp)  # numbers of what the model is fitted to, their values and groups
        self._values = self._groups = np.empty(0)
        self._looked_at = np.empty(0, dtype=np.intp)  # what proposals of this batch are chosen from
        self._seen: Prediction | None = None
        self._all = space.bound <= _LISTED
        points = list(space.points()) if self._all else [space.sample(rng) for _ in range(_DRAWN)]
        # In no order: where points are equally far, the first is taken, and it should not always be the same.
        self._look_up(points[i] for i in rng.permutation(len(points)).tolist())

    def mark(self, points: Iterable[Point]) -> None:
        """Points that are asked for."""
        numbers = self._look_up(points)  # may lengthen what is indexed
        self._asked[numbers] = True

    def spread(self, count: int, prior: Prior | None = None) -> list[Candidate]:
        """Unasked points far from one another and from all that were asked, now marked as asked.

        With a prior, of the better half by it.
        """
        free = np.flatnonzero(~self._asked)
        if prior is not None and len(free) > 2 * count:
            expected = prior([Candidate(self.space.name, self._points[number]) for number in free])
            free = np.sort(free[np.argsort(expected, kind="stable")[: len(free) // 2]])
        places = self._rows[free] / self._scale
        distance = np.full(len(free), np.inf)
        for row in self._rows[self._asked] / self._scale:
            distance = np.minimum(distance, np.abs(places - row).sum(axis=1))
        chosen: list[Point] = []
        for _ in range(min(count, len(free))):
            farthest = int(np.argmax(distance))
            chosen.append(self._points[free[farthest]])
            distance = np.minimum(distance, np.abs(places - places[farthest]).sum(axis=1))
        self.mark(chosen)
        return [Candidate(self.space.name, point) for point in chosen]

    def update(self, observed: dict[Point, tuple[float, int]], learn: bool) -> None:
        """Take in what is known: per point a value, infinite for failures, and how often it was observed."""
        if not self._all and len(self._points) < _MOST:
            self._look_up(self.space.sample(self._rng) for _ in range(_MORE))
        known = np.array(self._look_up(observed), dtype=np.intp)
        values, groups = np.array(list(observed.values())).reshape(-1, 2).T
        working = np.isfinite(values)
        values[~working] = values[working].max(initial=0.0)
        self._known, self._values, self._groups, self._seen = known, values, groups, None
        if len(known):
            self._model.fit(self._rows[self._known], self._values, self._groups, learn)

    def believe(self, point: Point) -> None:
        """Take a proposal as asked, and as if it had come out as expected."""
        self.mark([point])
        if len(self._known):
            self._model.believe(self._rows[[self._number[point]]], [self._seen] if self._seen else [])

    def best(self) -> list[tuple[float, Candidate]]:
        """The few that are believed to be the best of the known ones, with their expected values."""
        if not len(self._known):
            return []
        mean = self._model.predict(self._rows[self._known]).mean
        order = np.argsort(mean, kind="stable")[:_BEST]
        return [(float(mean[at]), Candidate(self.space.name, self._points[self._known[at]])) for at in order]

    def propose(self) -> tuple[Point, float] | None:
        """The unasked point of the greatest expected improvement, with its logarithm; None where none is left."""
        if self._seen is None:
            self._looked_at = self._look()
            self._seen = self._model.predict(self._rows[self._looked_at])
        free = np.flatnonzero(~self._asked[self._looked_at])
        if not len(free):
            return None
        gains = _gains(self._seen)[free]
        number, gain = int(self._looked_at[free[np.argmax(gains)]]), float(gains.max())
        while near := self._neighbours(number):
            gains = _gains(self._model.predict(self._rows[near]))
            if gains.max() <= gain:
                break
            number, gain = near[int(np.argmax(gains))], float(gains.max())
        return self._points[number], gain

    def _look(self) -> NDArray[np.intp]:
        """Numbers of some unasked points, and of the neighbours of the best few."""
        free = np.flatnonzero(~self._asked)
        if len(free) > self._options.look:
            free = self._rng.choice(free, self._options.look, replace=False)
        best = np.argsort(self._values, kind="stable")[:_BEST]
        near = [number for at in best for number in self._neighbours(int(self._known[at]))]
        return np.unique(np.concatenate([free, np.array(near, dtype=np.intp)]))

    def _neighbours(self, number: int) -> list[int]:
        if number not in self._around:
            self._around[number] = self._look_up(self.space.neighbours(self._points[number]))
        return [each for each in self._around[number] if not self._asked[each]]

    def _look_up(self, points: Iterable[Point]) -> list[int]:
        """The numbers of points; those that are new get one."""
        points = list(points)
        new = [point for point in dict.fromkeys(points) if point not in self._number]
        if new:
            self._number.update(zip(new, range(len(self._points), len(self._points) + len(new)), strict=True))
            self._points += new
            self._rows = np.concatenate([self._rows, self._levels(new)])
            self._asked = np.concatenate([self._asked, np.zeros(len(new), dtype=bool)])
        return [self._number[point] for point in points]


def _gains(prediction: Prediction) -> NDArray[np.float64]:
    # the best of all sketches has the value 0
    return log_expected_improvement(prediction.mean, prediction.deviation, 0.0)


def log_expected_improvement(
    mean: NDArray[np.float64], deviation: NDArray[np.float64], goal: float
) -> NDArray[np.float64]:
    """The logarithm of E[max(goal - value, 0)] for normal values; by its asymptote where that underflows."""
    z = (goal - mean) / deviation
    near = np.maximum(z, -5.0)
    exact = np.log(np.exp(-0.5 * near**2) / math.sqrt(2 * math.pi) + near * ndtr(near))
    tail = -0.5 * z**2 - 0.5 * math.log(2 * math.pi) - 2 * np.log(np.maximum(-z, 1.0))
    improvement: NDArray[np.float64] = np.where(z < -5.0, tail, exact) + np.log(deviation)
    return improvement
