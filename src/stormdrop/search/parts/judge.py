"""Judges decide whether a descent may move: by the paper's test on stored samples, or by comparisons within batches.

The default is `SharedBatches`, which is ours. `StoredSamples` is the stop criterion of the Droplet Search paper,
section 3.3.

A judge keeps all samples of a search, estimates each candidate's time, and picks the next incumbent from a pool of
candidates. A decision may ask for more samples, so `decide` is a generator of batches like the search itself.
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

from ...statistics import Noise, Verdict, compare, rank, student
from ...trial import Candidate, Request, Trial

Decision = Generator[list[Request], list[Trial], Candidate | None]
"""Yields batches of requests, receives their trials, and returns the next incumbent, or None if there is none."""

Samples = tuple[float, ...]
"""The seconds of one group: the samples that one request brought."""

Batch = Mapping[Candidate, Sequence[Samples]]
"""The groups of each candidate in one batch."""

# A challenger whose gain still looks smaller than this share after two batches gets no more samples.
_WORTH = 0.003


class Judge(ABC):
    """Keeps what was observed and decides on moves. A candidate that failed once is never moved to."""

    brackets: bool
    """Whether a batch should open and close with its anchor, the incumbent."""

    def __init__(self) -> None:
        self._known: set[Candidate] = set()
        self._failed: set[Candidate] = set()

    def record(self, trials: Sequence[Trial], anchor: Candidate | None) -> None:
        """Records the trials of one batch.

        Args:
            trials: The trials.
            anchor: The candidate of the batch that was measured before too; None if there is none.
        """
        self._known.update(trial.candidate for trial in trials)
        self._failed.update(trial.candidate for trial in trials if not trial.ok)
        self._keep([trial for trial in trials if trial.ok], anchor)

    def known(self, candidate: Candidate) -> bool:
        """Whether the candidate was ever measured."""
        return candidate in self._known

    def ok(self, candidate: Candidate) -> bool:
        """Whether the candidate was measured and never failed."""
        return candidate in self._known and candidate not in self._failed

    @abstractmethod
    def _keep(self, trials: Sequence[Trial], anchor: Candidate | None) -> None: ...

    @abstractmethod
    def estimate(self, candidate: Candidate) -> float:
        """The estimated seconds of a candidate that is `ok`. Estimates of different batches can be compared."""

    @abstractmethod
    def decide(self, pool: Sequence[Candidate], incumbent: Candidate) -> Decision:
        """Decides whether the descent moves.

        Args:
            pool: The candidates to which it may move. All of them are `ok`.
            incumbent: The candidate at which it is. It is `ok`.

        Returns:
            A generator that returns the member of the pool that is faster than the incumbent, or None.
        """


class StoredSamples(Judge):
    """The paper's judge: it tests the fastest of the pool against the incumbent, with the samples that each has.

    The incumbent is never measured again (Droplet Search paper, section 3.3 and Figure 4, lines 11 to 15).

    Args:
        faster: Whether a challenger is faster, given its samples and those of the incumbent.
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
        """The mean of the samples, which is the paper's running time."""
        return statistics.fmean(self._samples[candidate])

    def decide(self, pool: Sequence[Candidate], incumbent: Candidate) -> Decision:
        """See `Judge.decide`: one test, of the best of the pool."""
        yield from ()  # the stored samples suffice, so nothing is requested
        if not pool:
            return None
        best = min(pool, key=self.estimate)
        return best if self._faster(self._samples[best], self._samples[incumbent]) else None


class SharedBatches(Judge):
    """Our judge: it compares only groups of the same batch, so that drift between batches decides nothing.

    Each batch opens and closes with the incumbent. Its two groups show the noise between groups of one batch. The
    incumbent is the batch's anchor: it makes estimates comparable from batch to batch. The best of the pool is tested
    with a correction for being the best of many. If it is faster but not significantly, it and the incumbent alone are
    measured again, three times each in turns, at most `contests` times per decision. This pays off: samples of known
    candidates cost milliseconds, but a new candidate costs a compilation, and a stop too early costs the rest of the
    descent.

    Args:
        alpha: The probability of a wrong move that a decision may have.
        repeats: Samples per request.
        contests: How often a decision may ask for more samples of the incumbent and one challenger.
    """

    brackets = True

    def __init__(self, alpha: float, repeats: int, contests: int) -> None:
        super().__init__()
        self._alpha, self._repeats, self._contests = alpha, repeats, contests
        self._batches: list[Batch] = []
        self._levels: defaultdict[Candidate, list[float]] = defaultdict(list)  # log seconds without drift, per batch
        self._noise: Noise | None = None

    def _keep(self, trials: Sequence[Trial], anchor: Candidate | None) -> None:
        batch: defaultdict[Candidate, list[Samples]] = defaultdict(list)
        for trial in trials:
            batch[trial.candidate].append(trial.measurement.seconds)
        self._batches.append(dict(batch))
        self._noise = None
        log_times = {
            candidate: statistics.fmean(math.log(statistics.median(group)) for group in groups)
            for candidate, groups in batch.items()
        }
        drift = 0.0
        if anchor in log_times and anchor in self._levels:
            drift = log_times[anchor] - self._level(anchor)
        for candidate, log_time in log_times.items():
            # The anchor defines the scale, so its own level must not change while others are measured against it.
            if candidate != anchor or candidate not in self._levels:
                self._levels[candidate].append(log_time - drift)

    def _level(self, candidate: Candidate) -> float:
        return statistics.fmean(self._levels[candidate])

    def estimate(self, candidate: Candidate) -> float:
        """The geometric mean of the medians of the groups, without the drift that the anchor of each batch shows."""
        return math.exp(self._level(candidate))

    def decide(self, pool: Sequence[Candidate], incumbent: Candidate) -> Decision:
        """See `Judge.decide`: the best of the pool is compared first.

        If more samples show that it is not faster, the next best is compared.

        A move has two chances, each worth half of alpha. The first is the batch from which the challenger was chosen,
        with a correction for being the best of the pool. The second are samples that are taken after the choice. The
        choice does not bias them, so only the number of looks at them is corrected for.
        """
        challengers = [candidate for candidate in pool if self._level(candidate) < self._level(incumbent)]
        if challengers:
            best = min(challengers, key=self._level)
            if self._verdict(best, incumbent, self._batches, best_of=len(pool)) is Verdict.FASTER:
                return best
        chosen_at = len(self._batches)
        for _ in range(self._contests):
            if not challengers:
                break
            best = min(challengers, key=self._level)
            # A steady drift cancels out in this order.
            order = (incumbent, best, best, incumbent, incumbent, best)
            trials = yield [Request(candidate, self._repeats) for candidate in order]
            self.record(trials, incumbent)
            if not self.ok(incumbent):
                break
            verdict = self._verdict(best, incumbent, self._batches[chosen_at:], best_of=self._contests)
            if verdict is Verdict.FASTER and self.ok(best):
                return best
            if verdict is Verdict.NOT_FASTER:
                challengers.remove(best)
            challengers = [
                challenger
                for challenger in challengers
                if self.ok(challenger) and self._level(challenger) < self._level(incumbent)
            ]
        return None

    def _verdict(self, challenger: Candidate, incumbent: Candidate, batches: Sequence[Batch], best_of: int) -> Verdict:
        shared = [batch for batch in batches if challenger in batch and incumbent in batch]
        if not shared:
            return Verdict.UNDECIDED
        pairs = [(batch[challenger], batch[incumbent]) for batch in shared]
        comparison = compare(pairs, self._current_noise(), self._alpha / 2, best_of)
        if comparison.verdict is Verdict.UNDECIDED and len(pairs) > 1 and comparison.ratio > 1 - _WORTH:
            return Verdict.NOT_FASTER
        return comparison.verdict

    def _current_noise(self) -> Noise:
        if self._noise is None:
            self._noise = Noise.estimate(groups for batch in self._batches for groups in batch.values())
        return self._noise


def least_repeats(confidence: float, sides: int = 1) -> int:
    """The smallest number of samples per group with which "rank" can accept: 4 at 0.95, 5 at 0.99, 8 at 0.999.

    Its smallest p with n samples per side, when every sample of the challenger is below all of the incumbent's, is
    1 / C(2n, n). It must be below (1 - confidence) / sides. From seven samples on, the normal approximation
    makes it larger.
    """
    return next(n for n in itertools.count(1) if rank(range(n), range(n, 2 * n), _alpha(confidence) / sides))


def judge(test: str, confidence: float, repeats: int, contests: int, sides: int = 1) -> Judge:
    """The judge for a value of droplet's option `test`: "ours", "student", "rank" or "none".

    With two sides, half of the test's level lies on the side of slower challengers, to which no descent moves.
    """
    alpha = _alpha(confidence) / sides
    if test == "ours":
        return SharedBatches(alpha, repeats, contests)
    if test == "none":
        return StoredSamples(lambda challenger, incumbent: statistics.fmean(challenger) < statistics.fmean(incumbent))
    return StoredSamples(partial({"student": student, "rank": rank}[test], alpha=alpha))


def _alpha(confidence: float) -> float:
    """1 - confidence, computed in decimal: in binary 1 - 0.95 exceeds 0.05, the smallest p of three samples a side."""
    return float(1 - Decimal(str(confidence)))
