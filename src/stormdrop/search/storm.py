"""storm: Bayesian optimisation with a Gaussian process, from the default schedule and the ends of similar kernels.

Source: ours, and the default search. Its parts were chosen on recorded spaces; docs/explanation/results.md has the
figures.

- *Opening.* The starts, the origins, and points that are far from one another and from these, so that each knob is
  measured at both of its ends. If the caller has a prior, only the points that it favours are considered.
- *Surrogate.* Each sketch has a Gaussian process (`proposer.py`, `surrogate/gaussian.py`) on the logarithm of the time
  relative to the best. The slow end is compressed: it does not matter whether a point is three or ten times too slow.
  A failure counts as the slowest time that was seen.
- *Proposals.* The search takes the point with the greatest expected improvement over the best of all sketches, among
  random points and the neighbours of the best few, and then climbs in expected improvement from neighbour to
  neighbour. So it descends like a local search if the landscape is smooth, but is not bound to neighbours if it is not.
  Only a random part of the points is considered on purpose: it keeps a wrong prediction from repeating itself. Within a
  batch, each proposal is assumed to turn out as expected.
- *Noise.* The candidate that seems best is measured again before anything is built on it, so that one lucky
  measurement cannot decide. The few that the surrogate expects to be the best are measured again, too, so that one bad
  measurement cannot hide them. This costs time but no compilation. The more often a point was measured, the more the
  surrogate trusts its time.
- *The end.* The search has converged if for some time no proposal promised a gain that is worth a trial.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from ..trial import Candidate, Request, Trial
from .contract import GeneratorSearch, Options, Steps, limited
from .parts.proposer import BEST, Proposer

_GROUPS = 5  # measurements of a candidate after which its time counts as known
# With more columns than the first number, so many points are remembered, counted per column, and at least the last.
_WIDE, _REMEMBERED, _FEWEST = 100, 16_000, 20


@dataclass(frozen=True)
class StormOptions(Options):
    """The options of `Storm`.

    Args:
        repeats: Samples per request.
        opening: Points far apart that are measured first beside the starts and origins, over all sketches.
        look: Random points whose expected improvement is computed for one batch.
        soft: The logarithm of the ratio to the best time from which on the slow end is compressed.
        floor: The floor of the surrogate's covariance; see `surrogate/gaussian.py`.
        length: The median of the surrogate's prior over lengths; see `surrogate/gaussian.py`.
        alignments: Whether the surrogate sees how often two divides a number; see `surrogate/levels.py`.
        memory: The largest number of measured points that are remembered. Beyond it, the best memory / 2 and the latest
            memory / 4 of the others are kept. If the surrogate has more than 100 columns, fewer are remembered.
        refit: The growth of the known points, as a share, after which the surrogate's parameters are learned again.
        worth: The expected gain, as a share of the best time, below which a proposal is not worth its trial.
        patience: The number of proposals in a row that worked but were not worth their trials, after which the
            search has converged.

    Raises:
        SearchError: A value is out of its range.
    """

    repeats: int = limited(3, ge=1)
    opening: int = limited(10, ge=1)
    look: int = limited(500, ge=1)
    soft: float = limited(1.0, gt=0, lt=math.inf)
    floor: float = limited(0.6, ge=0, lt=1)
    length: float = limited(0.5, gt=0, lt=math.inf)
    alignments: bool = True
    memory: int = limited(300, ge=20)
    refit: float = limited(0.1, ge=0, lt=math.inf)
    worth: float = limited(0.001, ge=0, lt=1)
    patience: int = limited(24, ge=1)


class Storm(GeneratorSearch):
    """Bayesian optimisation over all sketches, the default search; see the module.

    `best` is the candidate with the least median time. The constructor takes the arguments of `GeneratorSearch`.
    """

    name = "storm"
    Options = StormOptions
    can_ask_ahead = True
    asks_again = True
    options: StormOptions

    def steps(self) -> Steps:
        """The opening, then batches of proposals until none is worth its trial or no point is left."""
        self._times: dict[Candidate, float] = {}  # medians of the remembered candidates, infinite for failures
        self._samples: defaultdict[Candidate, tuple[float, ...]] = defaultdict(tuple)
        self._groups: Counter[Candidate] = Counter()  # how often each candidate was measured
        o = self.options
        proposers = [Proposer(space, self.rng, o.look, o.floor, o.length, o.alignments) for space in self.spaces]
        columns = max(proposer.columns for proposer in proposers)
        self._memory = o.memory if columns <= _WIDE else min(o.memory, max(_FEWEST, _REMEMBERED // columns))
        yield from self._measure(self._opening(proposers))
        learned = 0  # the number of known points when the parameters were last learned
        idle = 0  # the number of proposals since the last one that was worth its trial
        while True:
            known = len(self._groups)
            learn = known >= max(learned + 5, learned * (1 + o.refit))
            learned = known if learn else learned
            self._update(proposers, learn)
            doubtful = self._doubtful(proposers)
            proposals = self._propose(proposers, max(1, self.width - len(doubtful)))
            if not proposals:
                return
            if any(self.best is None or math.exp(gain) > o.worth for _, gain in proposals):
                idle = 0
            elif idle >= o.patience:
                self.converged = True
                return
            proposed = [candidate for candidate, _ in proposals]
            yield from self._measure([*doubtful, *proposed])
            idle += sum(map(self._works, proposed))  # a failure says nothing about what can be gained

    def _opening(self, proposers: Sequence[Proposer]) -> list[Candidate]:
        first = [*self.knowledge.starts, *(Candidate(space.name, space.origin) for space in self.spaces)]
        share = max(1, self.options.opening // len(proposers))
        for proposer in proposers:
            proposer.mark(candidate.point for candidate in first if candidate.sketch == proposer.space.name)
            points = proposer.farthest(share, self.knowledge.prior, self.knowledge.favoured)
            proposer.mark(points)
            first += [Candidate(proposer.space.name, point) for point in points]
        return list(dict.fromkeys(first))

    def _update(self, proposers: Sequence[Proposer], learn: bool) -> None:
        """Fits the surrogates to what is remembered."""
        values = self._values()
        for proposer in proposers:
            observed = {
                candidate.point: (value, self._groups[candidate])
                for candidate, value in values.items()
                if candidate.sketch == proposer.space.name
            }
            proposer.update(observed, learn)

    def _doubtful(self, proposers: Sequence[Proposer]) -> list[Candidate]:
        """Candidates that are expected to be among the best but were not measured often."""
        expected = sorted(entry for proposer in proposers for entry in proposer.best())[:BEST]
        doubtful = [
            candidate for _, candidate in expected if self._works(candidate) and self._groups[candidate] < _GROUPS
        ]
        return doubtful[: max(1, self.width // 2)]

    def _propose(self, proposers: Sequence[Proposer], count: int) -> list[tuple[Candidate, float]]:
        """At most `count` new candidates, each with the logarithm of its expected gain."""
        proposals: list[tuple[Candidate, float]] = []
        while len(proposals) < count:
            if self.best is None:  # nothing works so far, so the sketches share the proposals evenly
                offers = [
                    (proposer, point, -float(proposer.requested))
                    for proposer in proposers
                    for point in proposer.farthest(1)
                ]
            else:
                offers = [(proposer, *offer) for proposer in proposers if (offer := proposer.propose()) is not None]
            if not offers:
                break
            proposer, point, gain = max(offers, key=lambda offer: offer[2])
            proposer.believe(point)
            proposals.append((Candidate(proposer.space.name, point), gain))
        return proposals

    def _measure(self, batch: Sequence[Candidate]) -> Generator[list[Request], list[Trial], None]:
        """Measures the batch, then the candidate that seems best, until that was measured `_GROUPS` times."""
        while batch:
            trials = yield [Request(candidate, self.options.repeats) for candidate in batch]
            for trial in trials:
                self._learn(trial)
            working = filter(self._works, self._times)
            self.best = min(working, key=self._times.__getitem__, default=None)
            batch = [self.best] if self.best is not None and self._groups[self.best] < _GROUPS else []
        if len(self._times) > self._memory:
            self._forget()

    def _forget(self) -> None:
        """Keeps the best `memory` / 2 candidates, and the latest `memory` / 4 of the others."""
        by_time = sorted(self._times, key=self._times.__getitem__)
        kept = set(by_time[: self._memory // 2])
        kept.update([candidate for candidate in self._times if candidate not in kept][-self._memory // 4 :])
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
        """The logarithm of each remembered candidate's time relative to the best, compressed if it is large.

        A failure counts as slow as the slowest candidate, and at least twice as slow as the best. As long as nothing
        works there is nothing to learn from, and the result is empty.
        """
        if self.best is None:
            return {}
        soft, best = self.options.soft, self._times[self.best]
        slowest = max([2 * best, *(time for time in self._times.values() if time < math.inf)])
        return {
            candidate: soft * math.log1p(math.log(min(time, slowest) / best) / soft)
            for candidate, time in self._times.items()
        }
