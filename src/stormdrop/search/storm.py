"""storm: a Gaussian process says where to look, from the default schedule and where similar kernels have ended.

Ours, the default; what it is made of was found on recorded spaces (docs/results.md has the figures).

- *Opening.* The starts and the origins, and points that are far from one another and from them, so that each knob
  is seen at both its ends; where the caller has a prior, only from the better half by it.
- *Belief.* Per sketch (`belief.py`) a Gaussian process (`surrogate/gaussian.py`) on the logarithm of the times relative
  to the best, the slow end compressed: what is three times too slow need not be told from what is ten times too slow.
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
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from ..errors import SearchError
from ..trial import Candidate, Request, Trial
from .belief import BEST, Belief
from .contract import GeneratorSearch, Options, Steps

_GROUPS = 5  # measurements of a candidate after which its time is taken for known


@dataclass(frozen=True)
class StormOptions(Options):
    """Raises `SearchError` for a value that makes no sense.

    repeats    samples per request
    opening    points far apart, over all sketches, that are measured first, beside starts and origins
    look       random points whose expected improvement is looked at for one proposal
    soft       log ratio to the best from which on the slow end is compressed
    floor      of the belief's covariance, and
    length     the median of its prior over lengths: see `surrogate/gaussian.py`
    alignments whether the belief sees how often two divides a number: see `surrogate/levels.py`
    memory     measured points that are remembered at most; beyond, the best half and the latest quarter are kept
    refit      growth of the known points after which the belief's parameters are learned again
    worth      expected gain (share of the best time) below which a proposal is not worth its trial
    patience   proposals in a row that worked and were not worth their trials, after which it has converged
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
        if not (0 < self.soft < math.inf and 0 <= self.refit < math.inf and 0 <= self.worth < 1):
            raise SearchError("storm needs soft > 0, refit >= 0 and worth from 0 to 1")
        if not (0 <= self.floor < 1 and 0 < self.length < math.inf):
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
        o = self.options
        beliefs = [Belief(space, self.rng, o.look, o.floor, o.length, o.alignments) for space in self.spaces]
        yield from self._measure(self._opening(beliefs))
        fitted = idle = 0  # known points when last learned; proposals since the last that was worthwhile
        while True:
            known = len(self._groups)
            learn = known >= max(fitted + 5, fitted * (1 + o.refit))
            fitted = known if learn else fitted
            values = self._values()
            for belief in beliefs:
                here = [candidate for candidate in values if candidate.sketch == belief.space.name]
                belief.update({each.point: (values[each], self._groups[each]) for each in here}, learn)
            again = self._doubtful(beliefs)
            proposals = self._propose(beliefs, max(1, self.width - len(again)))
            if not proposals:
                return
            if any(self.best is None or math.exp(gain) > o.worth for _, gain in proposals):
                idle = 0
            elif idle >= o.patience:
                self.converged = True
                return
            asked = [candidate for candidate, _ in proposals]
            yield from self._measure([*again, *asked])
            idle += sum(map(self._works, asked))  # what failed says nothing about what can be gained

    def _opening(self, beliefs: Sequence[Belief]) -> list[Candidate]:
        first = [*self.knowledge.starts, *(Candidate(space.name, space.origin) for space in self.spaces)]
        share = max(1, self.options.opening // len(beliefs))
        for belief in beliefs:
            belief.mark(candidate.point for candidate in first if candidate.sketch == belief.space.name)
            points = belief.farthest(share, self.knowledge.prior)
            belief.mark(points)
            first += [Candidate(belief.space.name, point) for point in points]
        return list(dict.fromkeys(first))

    def _doubtful(self, beliefs: Sequence[Belief]) -> list[Candidate]:
        """Those believed to be the best that were not measured often: one bad measurement must not hide them."""
        ranked = sorted(offer for belief in beliefs for offer in belief.best())[:BEST]
        doubtful = [each for _, each in ranked if self._works(each) and self._groups[each] < _GROUPS]
        return doubtful[: max(1, self.width // 2)]

    def _propose(self, beliefs: Sequence[Belief], count: int) -> list[tuple[Candidate, float]]:
        """At most so many new candidates, each with the logarithm of what it is expected to gain."""
        proposals: list[tuple[Candidate, float]] = []
        while len(proposals) < count:
            if self.best is None:  # nothing works so far: from all sketches alike
                offers = [(belief, point, -float(belief.asked)) for belief in beliefs for point in belief.farthest(1)]
            else:
                offers = [(belief, *offer) for belief in beliefs if (offer := belief.propose()) is not None]
            if not offers:
                break
            belief, point, gain = max(offers, key=lambda offer: offer[2])
            belief.believe(point)
            proposals.append((Candidate(belief.space.name, point), gain))
        return proposals

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

    def _values(self) -> dict[Candidate, float]:
        """Of what is remembered: the logarithm of the time relative to the best, compressed where that is large.

        What failed is as slow as the slowest, and not less than twice as slow as the best.
        """
        if self.best is None:
            return dict.fromkeys(self._times, 1.0)
        soft, best = self.options.soft, self._times[self.best]
        slowest = max([2 * best, *(time for time in self._times.values() if time < math.inf)])
        return {
            candidate: soft * math.log1p(math.log(min(time, slowest) / best) / soft)
            for candidate, time in self._times.items()
        }
