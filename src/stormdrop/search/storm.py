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
- *Noise.* Each batch begins with a reference, by which estimates of different batches are compared. What seems to
  be the best is measured again before anything is built on it, so that it cannot live on one lucky measurement.
- *The end.* Converged when for some time nothing has promised a gain that is worth a trial.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from ..errors import SearchError
from ..space import Space
from ..surrogate.gaussian import GaussianProcess
from ..surrogate.levels import Levels
from ..trial import Candidate, Point, Request, Trial
from .contract import GeneratorSearch, Options, Steps
from .judge import SharedBatches

_LISTED = 100_000  # a space of so many combinations at most is listed as a whole
_DRAWN, _MORE, _MOST = 1_000, 20, 20_000  # points drawn of larger ones: at first, per batch, in all
_BEST = 5  # points whose neighbours are looked at
_GROUPS = 3  # measurements of a candidate before it is taken for the best


@dataclass(frozen=True)
class StormOptions(Options):
    """Raises `SearchError` for a value that makes no sense.

    repeats    samples per request
    opening    points that are measured before anything is believed, over all sketches
    look       random points whose expected improvement is looked at for one proposal
    soft       log ratio to the best from which on the slow end is compressed
    memory     measured points that the belief is made of at most: the best half, and the latest of the others
    refit      growth of the known points after which the belief's parameters are learned again
    worth      expected gain (share of the best time) below which a proposal is not worth its trial
    patience   proposals in a row that were not worth their trials, after which it has converged
    """

    repeats: int = 3
    opening: int = 10
    look: int = 500
    soft: float = 0.5
    memory: int = 300
    refit: float = 0.05
    worth: float = 0.0005
    patience: int = 24

    def __post_init__(self) -> None:
        if min(self.repeats, self.opening, self.look, self.patience) < 1:
            raise SearchError("storm needs repeats, opening, look and patience of at least 1")
        if self.soft <= 0 or self.refit < 0 or not 0 <= self.worth < 1:
            raise SearchError("storm needs soft > 0, refit >= 0 and worth from 0 to 1")
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
        self._judge = SharedBatches(0.05, self.options.repeats, 0)
        self._groups: dict[Candidate, int] = {}
        self._reference: Candidate | None = None
        beliefs = [_Belief(space, self.rng, self.options) for space in self.spaces]
        yield from self._measure(self._opening(beliefs))
        fitted = idle = 0
        while True:
            known = len(self._groups)
            learn = known >= max(fitted + 5, fitted * (1 + self.options.refit))
            fitted = known if learn else fitted
            for belief in beliefs:
                belief.update(self._times(belief.space), learn)
            proposals = self._propose(beliefs)
            if not proposals:
                return
            idle = 0 if any(self._worthwhile(gain) for _, gain in proposals) else idle + len(proposals)
            if idle >= self.options.patience:
                self.converged = True
                return
            yield from self._measure([candidate for candidate, _ in proposals])

    def _opening(self, beliefs: Sequence[_Belief]) -> list[Candidate]:
        first = [*self.knowledge.starts, *(Candidate(space.name, space.origin) for space in self.spaces)]
        share = max(1, self.options.opening // len(beliefs))
        for belief in beliefs:
            belief.mark(candidate.point for candidate in first if candidate.sketch == belief.space.name)
            first += belief.spread(share)
        return list(dict.fromkeys(first))

    def _propose(self, beliefs: Sequence[_Belief]) -> list[tuple[Candidate, float]]:
        """At most a batch of new candidates, each with the logarithm of what it is expected to gain."""
        proposals: list[tuple[Candidate, float]] = []
        while len(proposals) < self.width:
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
        """The batch beside the reference; then what seems to be the best again, until that was seen often enough."""
        while batch:
            again = [] if self._reference is None else [self._reference]
            trials = yield [Request(candidate, self.options.repeats) for candidate in [*again, *batch]]
            self._judge.record(trials, self._reference)
            for trial in trials:
                self._groups[trial.candidate] = self._groups.get(trial.candidate, 0) + 1
            working = [candidate for candidate in self._groups if self._judge.ok(candidate)]
            best = min(working, key=self._judge.estimate, default=None)
            if self._reference is None or not self._judge.ok(self._reference):
                self._reference = best
            if best is None or best == self._reference or self._groups[best] >= _GROUPS:
                self.best = best
                return
            batch = [best]

    def _times(self, space: Space) -> dict[Point, float]:
        """Log ratio to the best, compressed, of all known points of a space; infinite for those that failed."""
        if self.best is None:
            return {}
        best, soft = self._judge.estimate(self.best), self.options.soft
        return {
            candidate.point: soft * math.log1p(max(math.log(self._judge.estimate(candidate) / best), 0.0) / soft)
            if self._judge.ok(candidate)
            else math.inf
            for candidate in self._groups
            if candidate.sketch == space.name
        }


class _Belief:
    """What is believed about one sketch: every point that was looked at has a row of levels and a number."""

    def __init__(self, space: Space, rng: np.random.Generator, options: StormOptions) -> None:
        self.space = space
        self._rng, self._options = rng, options
        self._levels = Levels(space)
        self._scale = np.maximum(np.array(self._levels.sizes) - 1, 1)
        self._model = GaussianProcess(self._levels.sizes)
        self._points: list[Point] = []
        self._number: dict[Point, int] = {}
        self._rows = np.empty((0, len(self._levels.sizes)), dtype=np.intp)
        self._asked = np.empty(0, dtype=bool)
        self._around: dict[int, list[int]] = {}
        self._known: list[int] = []
        self._values = np.empty(0)
        self._all = space.bound <= _LISTED
        points = list(space.points()) if self._all else [space.sample(rng) for _ in range(_DRAWN)]
        # In no order: where points are equally far, the first is taken, and it should not always be the same.
        self._look_up(points[i] for i in rng.permutation(len(points)).tolist())

    def mark(self, points: Iterable[Point]) -> None:
        """Points that are asked for."""
        self._asked[self._look_up(points)] = True

    def spread(self, count: int) -> list[Candidate]:
        """Unasked points far from one another and from all that were asked, now marked as asked."""
        free = np.flatnonzero(~self._asked)
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

    def update(self, values: dict[Point, float], learn: bool) -> None:
        """Take in what is known: a value per point, infinite for failures."""
        if not self._all and len(self._points) < _MOST:
            self._look_up(self.space.sample(self._rng) for _ in range(_MORE))
        self._known = self._look_up(values)
        found = np.array(list(values.values()))
        finite = found[np.isfinite(found)]
        found[~np.isfinite(found)] = finite.max(initial=0.0)
        self._values = found
        if len(found) > self._options.memory:
            half = self._options.memory // 2
            order = np.argsort(found, kind="stable")
            kept = np.sort(np.concatenate([order[:half], np.sort(order[half:])[-half:]]))
            self._known, self._values = [self._known[i] for i in kept], found[kept]
        if len(found):
            self._model.fit(self._rows[self._known], self._values, learn)

    def believe(self, point: Point) -> None:
        """Take a proposal as asked, and as if it had come out as expected."""
        self.mark([point])
        if self._known:
            number = self._number[point]
            mean, _ = self._model.predict(self._rows[[number]])
            self._known = [*self._known, number]
            self._values = np.append(self._values, mean)
            self._model.fit(self._rows[self._known], self._values, learn=False)

    def propose(self) -> tuple[Point, float] | None:
        """The unasked point of the greatest expected improvement, with its logarithm; None where none is left."""
        free = np.flatnonzero(~self._asked)
        if len(free) > self._options.look:
            free = self._rng.choice(free, self._options.look, replace=False)
        best = np.argsort(self._values, kind="stable")[:_BEST]
        near = [number for at in best for number in self._neighbours(self._known[at])]
        looked_at = np.unique(np.concatenate([free, np.array(near, dtype=np.intp)]))
        if not len(looked_at):
            return None
        number, gain = self._most(looked_at)
        while near := self._neighbours(number):
            further, more = self._most(np.array(near))
            if more <= gain:
                break
            number, gain = further, more
        return self._points[number], gain

    def _most(self, numbers: NDArray[np.intp]) -> tuple[int, float]:
        mean, deviation = self._model.predict(self._rows[numbers])
        # the best of all sketches has the value 0
        gains = log_expected_improvement(mean, deviation, 0.0)
        at = int(np.argmax(gains))
        return int(numbers[at]), float(gains[at])

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
