"""The one place that decides whether a kernel is faster than another; never by comparing means alone.

    student, rank       the tests of the Droplet Search paper, on two sets of samples
    Noise, compare      ours: samples in groups, groups in batches
    median_interval, ratio_interval    what a report says about a result

All times are seconds. A *group* is the samples that one request brought, taken back to back. A *batch* is the
groups taken within the same seconds or minutes.

Why ours: on a shared machine, samples of one kernel taken back to back differ by 0.7%, groups taken minutes
apart by 9%. A test that takes samples for independent declares identical kernels different two to three times
as often as it says, and the best of eight identical neighbours faster in a third of the cases. So the log of
a group's time is modelled as

    log t  =  kernel  +  what its batch has in common  +  between-group part  +  within-group part

and two kernels are compared by groups of the same batch, where the common part cancels.
"""

from __future__ import annotations

import enum
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

Group = Sequence[float]


class Verdict(enum.Enum):
    """The outcome of comparing a challenger with an incumbent."""

    FASTER = "faster"
    NOT_FASTER = "not faster"
    UNDECIDED = "undecided"  # faster by the estimate, but not significantly: worth more samples


# The paper's tests


def student(challenger: Group, incumbent: Group, alpha: float = 0.05) -> bool:
    """Whether the challenger is faster by a one-sided Student's t-test (Droplet Search paper, section 3.3).

    Pooled variance, as in the paper, which takes three samples of each and alpha = 0.05. Samples without any
    variance are compared by value. A single sample on both sides tells nothing of the variance: never faster.
    Raises ValueError for an empty group.
    """
    n, m = _sizes(challenger, incumbent)
    if n + m < 3:
        return False
    gain = statistics.fmean(incumbent) - statistics.fmean(challenger)
    pooled = (_squares(challenger) + _squares(incumbent)) / (n + m - 2)
    if pooled == 0.0:
        return gain > 0.0
    return _student_tail(gain / math.sqrt(pooled * (1 / n + 1 / m)), n + m - 2) < alpha


def rank(challenger: Group, incumbent: Group, alpha: float = 0.05) -> bool:
    """Whether the challenger is faster by a one-sided Mann-Whitney rank test (same paper, footnote 4).

    Needs five samples a side: with three, the smallest possible p is 1/20, which is not below 0.05, and the
    challenger can never win. Exact up to twelve samples together, ties included; beyond, by the normal
    approximation. Raises ValueError for an empty group.
    """
    n, m = _sizes(challenger, incumbent)
    ranks = _midranks([*challenger, *incumbent])
    observed = sum(ranks[:n])
    if n + m <= 12:
        sums = [sum(chosen) for chosen in itertools.combinations(ranks, n)]
        return sum(s <= observed for s in sums) / len(sums) < alpha
    mean = n * (n + m + 1) / 2
    centre = (n + m + 1) / 2
    variance = n * m / (n + m) / (n + m - 1) * sum((r - centre) ** 2 for r in ranks)
    return variance > 0.0 and float(special.ndtr((observed + 0.5 - mean) / math.sqrt(variance))) < alpha


# Ours


@dataclass(frozen=True)
class Noise:
    """Standard deviations of log times: between groups of one batch, and between samples of one group.

    `degrees` says how well `between` is known: the degrees of freedom of its estimate, prior included.
    """

    between: float = 0.01
    within: float = 0.007
    degrees: float = 2.0

    @classmethod
    def estimate(cls, repeated: Iterable[Sequence[Group]], prior: Noise | None = None) -> Noise:
        """The noise shown by `repeated`: each element is the groups of one kernel in one batch.

        One group tells of the noise within only; g groups give g - 1 degrees of freedom for the noise between.
        Both parts are robust: a machine that is disturbed now and then makes a few groups useless, and must not
        make all others look noisy. The prior (1% between groups, worth two degrees of freedom) is weak: it
        decides the first comparison and is outweighed after a few batches.
        """
        prior = prior or cls()
        return _estimate([[_locate(group) for group in groups] for groups in repeated], prior)


@dataclass(frozen=True)
class Comparison:
    """What `compare` found: the verdict, and the estimated ratio of challenger to incumbent (below 1 is faster)."""

    verdict: Verdict
    ratio: float
    p: float


def compare(
    pairs: Sequence[tuple[Sequence[Group], Sequence[Group]]], noise: Noise, alpha: float = 0.05, best_of: int = 1
) -> Comparison:
    """Whether the challenger is faster; `pairs` holds (challenger's groups, incumbent's groups) of shared batches.

    One-sided test on the difference of log times, each batch weighted by what its groups are worth under
    `noise`, Student's t with the noise's degrees of freedom. `best_of` is the number of chances that noise gets:
    the challengers from which this one was chosen for being the fastest, times the looks at the data while more
    is being asked for. Alpha is then Sidak's 1 - (1 - alpha)^(1 / best_of).

    Raises ValueError without a pair, or for a pair with no group on a side.
    """
    if not pairs:
        raise ValueError("nothing to compare: the two were never measured in the same batch")
    weights, gains = [], []
    for challenger, incumbent in pairs:
        ours, theirs = [_locate(g) for g in challenger], [_locate(g) for g in incumbent]
        gains.append(_mean(theirs) - _mean(ours))
        weights.append(1 / max(_variance(ours, noise) + _variance(theirs, noise), 1e-18))
    gain = sum(w * g for w, g in zip(weights, gains, strict=True)) / sum(weights)
    p = _student_tail(gain * math.sqrt(sum(weights)), noise.degrees)
    if gain <= 0.0:
        verdict = Verdict.NOT_FASTER
    elif p < 1 - (1 - alpha) ** (1 / max(best_of, 1)):
        verdict = Verdict.FASTER
    else:
        verdict = Verdict.UNDECIDED
    return Comparison(verdict, math.exp(-gain), p)


# Intervals


@dataclass(frozen=True)
class Interval:
    """An estimate with a confidence interval around it; `(estimate, low, high)` when unpacked."""

    estimate: float
    low: float
    high: float

    def __iter__(self) -> Iterator[float]:
        return iter((self.estimate, self.low, self.high))


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> Interval:
    """The median and an interval that holds the true one with at least this confidence. Samples must be positive.

    The interval ends at two order statistics, chosen by the binomial distribution: exact for every continuous
    distribution. Timings have a long tail to one side, for which an interval from a standard deviation is
    wrong, and a bootstrap of a dozen samples is too narrow and needs a seed. Too few samples for that (fewer
    than six at 95%) get a Student's t interval on the logs. Raises ValueError for fewer than two samples.
    """
    n = len(samples)
    if n < 2:
        raise ValueError(f"an interval needs at least two samples, not {n}")
    middle = statistics.median(samples)
    # the largest r with P(fewer than r of n fall below the median) at most (1 - confidence) / 2
    r, tail = 0, 0.5**n
    while tail <= (1 - confidence) / 2:
        r += 1
        tail += math.comb(n, r) * 0.5**n
    if r > 0:
        ordered = sorted(samples)
        return Interval(middle, ordered[r - 1], ordered[n - r])
    logs = [math.log(sample) for sample in samples]
    error = math.sqrt(_squares(logs) / (n - 1) / n * _MEDIAN_FACTOR.get(n, 1.5))
    half = float(special.stdtrit(n - 1, (1 + confidence) / 2)) * error
    return Interval(middle, middle * math.exp(-half), middle * math.exp(half))


def ratio_interval(a_rounds: Sequence[float], b_rounds: Sequence[float], confidence: float = 0.95) -> Interval:
    """The ratio a / b of two kernels measured in interleaved rounds, with its interval.

    The median of the rounds' ratios, by `median_interval`: what disturbs a round disturbs both of its samples
    and cancels. Raises ValueError for unequal lengths or fewer than two rounds.
    """
    if len(a_rounds) != len(b_rounds):
        raise ValueError(f"rounds come in pairs, not {len(a_rounds)} and {len(b_rounds)}")
    return median_interval([a / b for a, b in zip(a_rounds, b_rounds, strict=True)], confidence)


# Helpers


@dataclass(frozen=True)
class _Located:
    """A group on the log scale: its median, its samples' variance, their number."""

    centre: float
    variance: float
    n: int


def _locate(group: Group) -> _Located:
    """The median, not the mean: a group's first samples may be slow, and three samples hold one intruder."""
    logs = [math.log(sample) for sample in group]
    return _Located(statistics.median(logs), _squares(logs) / max(len(logs) - 1, 1), len(logs))


def _mean(groups: Sequence[_Located]) -> float:
    return statistics.fmean(group.centre for group in groups)


def _within_part(group: _Located, within: float) -> float:
    """Variance of a group's centre that is due to its samples."""
    return within**2 / group.n * _MEDIAN_FACTOR.get(group.n, 1.5)


# Variance of the median of n normal samples over that of their mean; it tends to pi/2.
_MEDIAN_FACTOR = {1: 1.0, 2: 1.0, 3: 1.346, 4: 1.192, 5: 1.434, 6: 1.289}


def _variance(groups: Sequence[_Located], noise: Noise) -> float:
    """Variance of the mean of a kernel's groups in one batch, without what the batch has in common."""
    return sum(noise.between**2 + _within_part(group, noise.within) for group in groups) / len(groups) ** 2


def _estimate(series: Sequence[Sequence[_Located]], prior: Noise) -> Noise:
    # A chi-square variable of d degrees has its median near d (1 - 2/(9d))^3.
    spreads = [(g.variance / (1 - 2 / (9 * (g.n - 1))) ** 3, g.n - 1) for groups in series for g in groups if g.n > 1]
    within = math.sqrt(statistics.median([prior.within**2, *(spread for spread, _ in spreads)]))
    # Each difference of successive groups is one look at twice the between-group variance plus the within part.
    looks = []
    for groups in series:
        for a, b in itertools.pairwise(groups):
            own = (_within_part(a, within) + _within_part(b, within)) / 2
            looks.append(((a.centre - b.centre) ** 2 / 2, own))
    if len(looks) >= 5:
        limit = 10 * max(statistics.median(look for look, _ in looks) / 0.455, prior.between**2)
        looks = [(min(look, limit), own) for look, own in looks]
    excess = max(0.0, sum(look - own for look, own in looks))
    degrees = prior.degrees + len(looks)
    between = math.sqrt((prior.degrees * prior.between**2 + excess) / degrees)
    return Noise(between, within, degrees)


def _sizes(challenger: Group, incumbent: Group) -> tuple[int, int]:
    if not challenger or not incumbent:
        raise ValueError("a test needs at least one sample on either side")
    return len(challenger), len(incumbent)


def _squares(samples: Sequence[float]) -> float:
    mean = statistics.fmean(samples)
    return sum((sample - mean) ** 2 for sample in samples)


def _student_tail(t: float, degrees: float) -> float:
    """P(T > t) for Student's t."""
    return float(special.stdtr(degrees, -t))


def _midranks(samples: Sequence[float]) -> list[float]:
    array = np.asarray(samples)
    return [float((array < x).sum() + ((array == x).sum() + 1) / 2) for x in array]
