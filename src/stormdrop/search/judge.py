"""Who decides that a descent may move: the paper's test on stored samples, or a comparison within batches.

A judge keeps all samples of a search, estimates each candidate's time, and picks the next incumbent from a
pool. Deciding may ask for more samples, so `decide` is a generator of batches like the search itself.
"""

from __future__ import annotations

import itertools
import math
import statistics
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from decimal import Decimal
from functools import partial

from ..statistics import Noise, Verdict, compare, rank, student
from ..trial import Candidate, Request, Trial

Decision = Generator[list[Request], list[Trial], Candidate | None]
# A challenger whose gain still looks smaller than this after two batches gets no more samples.
_WORTH = 0.003

Samples = tuple[float, ...]
Batch = Mapping[Candidate, Sequence[Samples]]


class Judge(ABC):
    """Keeps what was observed. A candidate that failed once is out for good: it is never moved to."""

    brackets: bool
    """Whether a batch should open and close with its anchor, which is the incumbent."""

    def __init__(self) -> None:
        self._known: set[Candidate] = set()
        self._failed: set[Candidate] = set()

    def record(self, trials: Sequence[Trial], anchor: Candidate | None) -> None:
        """Take in one batch; `anchor` is the candidate in it that was known before, if there is one."""
        self._known.update(trial.candidate for trial in trials)
        self._failed.update(trial.candidate for trial in trials if not trial.ok)
        self._keep([trial for trial in trials if trial.ok], anchor)

    def known(self, candidate: Candidate) -> bool:
        """Whether it was ever measured."""
        return candidate in self._known

    def ok(self, candidate: Candidate) -> bool:
        """Whether it was measured and never failed."""
        return candidate in self._known and candidate not in self._failed

    @abstractmethod
    def _keep(self, trials: Sequence[Trial], anchor: Candidate | None) -> None: ...

    @abstractmethod
    def estimate(self, candidate: Candidate) -> float:
        """Seconds, comparable across the whole search. Only for candidates that are `ok`."""

    @abstractmethod
    def decide(self, pool: Sequence[Candidate], incumbent: Candidate) -> Decision:
        """Returns the member of the pool that is faster than the incumbent, or None. All of them are `ok`."""


class StoredSamples(Judge):
    """The paper's: the fastest of the pool against the incumbent, by the samples that each was measured with.

    The incumbent is never measured again (Droplet Search paper, section 3.3 and Figure 4, lines 11 to 15).
    """

    brackets = False

    def __init__(self, faster: Callable[[Samples, Samples], bool]) -> None:
        super().__init__()
        self._faster = faster
        self._samples: defaultdict[Candidate, Samples] = defaultdict(tuple)

    def _keep(self, trials: Sequence[Trial], anchor: Candidate | None) -> None:
        for trial in trials:
            self._samples[trial.candidate] += trial.measurement.seconds

    def estimate(self, candidate: Candidate) -> float:
        """The mean of the samples, the paper's running time."""
        return statistics.fmean(self._samples[candidate])

    def decide(self, pool: Sequence[Candidate], incumbent: Candidate) -> Decision:
        """One test, of the best of the pool."""
        yield from ()  # stored samples are all there is: nothing to ask
        if not pool:
            return None
        best = min(pool, key=self.estimate)
        return best if self._faster(self._samples[best], self._samples[incumbent]) else None


class SharedBatches(Judge):
    """Ours: only groups of the same batch are compared, so that a machine that drifts between batches cannot win.

    Each batch opens and closes with the incumbent. The two groups tell the noise between groups of one batch;
    the incumbent as the anchor carries estimates from batch to batch. The best of the pool is tested with a
    correction for being the best of many. While it is faster but not significantly, it and the incumbent alone
    are measured again, three times each in turns, up to `contests` times a decision: samples of known candidates
    cost milliseconds, where a new candidate costs a compilation and a stop too early costs the rest of the way.
    """

    brackets = True

    def __init__(self, alpha: float, repeats: int, contests: int) -> None:
        super().__init__()
        self._alpha, self._repeats, self._contests = alpha, repeats, contests
        self._batches: list[Batch] = []
        self._levels: defaultdict[Candidate, list[float]] = defaultdict(list)
        self._noise: Noise | None = None

    def _keep(self, trials: Sequence[Trial], anchor: Candidate | None) -> None:
        batch: defaultdict[Candidate, list[Samples]] = defaultdict(list)
        for trial in trials:
            batch[trial.candidate].append(trial.measurement.seconds)
        self._batches.append(dict(batch))
        self._noise = None
        times = {c: statistics.fmean(math.log(statistics.median(g)) for g in groups) for c, groups in batch.items()}
        drift = 0.0
        if anchor in times and anchor in self._levels:
            drift = times[anchor] - self._level(anchor)
        for candidate, time in times.items():
            # The anchor defines the scale: its own level must not move while others are read off it.
            if candidate != anchor or candidate not in self._levels:
                self._levels[candidate].append(time - drift)

    def _level(self, candidate: Candidate) -> float:
        return statistics.fmean(self._levels[candidate])

    def estimate(self, candidate: Candidate) -> float:
        """The median of its groups, with each batch's drift taken out by the batch's anchor."""
        return math.exp(self._level(candidate))

    def decide(self, pool: Sequence[Candidate], incumbent: Candidate) -> Decision:
        """The best of the pool against the incumbent; where it loses on better evidence, the next best.

        Two chances, each worth half of alpha. At once, on the batch that the challenger was chosen from, with the
        correction for being the best of the pool. Else in contests: their samples were taken after the choice and
        are not biased by it, so only the number of looks at them is corrected for.
        """
        rivals = [candidate for candidate in pool if self._level(candidate) < self._level(incumbent)]
        if rivals:
            best = min(rivals, key=self._level)
            if self._verdict(best, incumbent, self._batches, best_of=len(pool)) is Verdict.FASTER:
                return best
        chosen_at = len(self._batches)
        for _ in range(self._contests):
            if not rivals:
                break
            best = min(rivals, key=self._level)
            # The order lets a steady drift cancel.
            order = (incumbent, best, best, incumbent, incumbent, best)
            trials = yield [Request(candidate, self._repeats) for candidate in order]
            self.record(trials, incumbent)
            if not self.ok(incumbent):
                break
            verdict = self._verdict(best, incumbent, self._batches[chosen_at:], best_of=self._contests)
            if verdict is Verdict.FASTER and self.ok(best):
                return best
            if verdict is Verdict.NOT_FASTER:
                rivals.remove(best)
            rivals = [c for c in rivals if self.ok(c) and self._level(c) < self._level(incumbent)]
        return None

    def _verdict(self, challenger: Candidate, incumbent: Candidate, batches: Sequence[Batch], best_of: int) -> Verdict:
        pairs = [(b[challenger], b[incumbent]) for b in batches if challenger in b and incumbent in b]
        if not pairs:
            return Verdict.UNDECIDED
        found = compare(pairs, self._current_noise(), self._alpha / 2, best_of)
        if found.verdict is Verdict.UNDECIDED and len(pairs) > 1 and found.ratio > 1 - _WORTH:
            return Verdict.NOT_FASTER
        return found.verdict

    def _current_noise(self) -> Noise:
        if self._noise is None:
            self._noise = Noise.estimate(groups for batch in self._batches for groups in batch.values())
        return self._noise


def least_repeats(confidence: float) -> int:
    """The samples a side without which "rank" accepts nothing: 4 at 0.95, 5 at 0.99, 8 at 0.999, 13 at 0.99999.

    With n samples a side its smallest p, where every sample of the challenger is below all of the incumbent's, is
    1 / C(2n, n), which must be below 1 - confidence; from seven on the normal approximation makes it larger.
    """
    return next(n for n in itertools.count(1) if rank(range(n), range(n, 2 * n), _alpha(confidence)))


def judge(test: str, confidence: float, repeats: int, contests: int) -> Judge:
    """The judge for a value of the option `test`: "ours", "student", "rank" or "none"."""
    alpha = _alpha(confidence)
    if test == "ours":
        return SharedBatches(alpha, repeats, contests)
    if test == "none":
        return StoredSamples(lambda challenger, incumbent: statistics.fmean(challenger) < statistics.fmean(incumbent))
    return StoredSamples(partial({"student": student, "rank": rank}[test], alpha=alpha))


def _alpha(confidence: float) -> float:
    """1 - confidence in decimal: in binary 1 - 0.95 is above 0.05, the smallest p of three samples a side."""
    return float(1 - Decimal(str(confidence)))
