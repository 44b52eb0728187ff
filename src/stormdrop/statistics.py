"""The statistical tests of whether a kernel is faster than another. None of them compares means alone.

    student, rank                      the tests of the Droplet Search paper (section 3.3), on two sets of samples
    Noise, compare                     our test: samples in groups, groups in batches
    median_interval, ratio_interval    what a report says about a result
    percentile_interval                the same of a service: the latency that so many of its calls do not exceed
    plainly_faster                     what a few rounds are enough for, if the noise is bounded
    plainly_faster_beside_load         the same beside other load

All times are seconds. A *group* is the samples that one request brought, taken back to back. A *batch* is the
groups that were taken within the same seconds or minutes.

Why we have a test of our own: on a shared machine, samples of one kernel that are taken back to back differ by 0.7%,
but groups that are taken minutes apart differ by 9%. A test that treats samples as independent declares identical
kernels different two to three times as often as it promises, and declares the best of eight identical neighbours
faster in a third of the cases. So we model the logarithm of a group's time as

    log t  =  kernel  +  what its batch has in common  +  between-group part  +  within-group part

and compare two kernels by groups of the same batch, where the common part cancels.
"""

from __future__ import annotations

import bisect
import enum
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

Group = Sequence[float]
"""The samples of one request, in seconds."""


MOST_NOISE = 0.25
"""The standard deviation of the logarithm of a round's ratio that `plainly_faster` assumes.

Of 2,336 rounds of two convolutions (20 and 10 ms) on a noisy virtual machine with two cores, it was 0.07.
"""

RARELY_TWICE = 0.05
"""The share of rounds beside other load in which one of two equal kernels takes twice as long as the other, or longer.

It was 0.05 for the worst of four kernels beside a busy loop, on two cores of a virtual machine (Emerald Rapids,
November 2026): one ratio of ten differed from 1 by a factor of 1.9 to one of the sides.
"""

FEW_ROUNDS = 5
"""Rounds beside other load that may agree with each other because nothing has disturbed them; fewer agree by chance."""


class Verdict(enum.Enum):
    """The outcome of comparing a challenger with an incumbent."""

    FASTER = "faster"
    NOT_FASTER = "not faster"
    UNDECIDED = "undecided"  # faster by the estimate, but not significantly: worth more samples


# The paper's tests


def student(challenger: Group, incumbent: Group, alpha: float = 0.05) -> bool:
    """Whether the challenger is faster by a one-sided Student's t-test (Droplet Search paper, section 3.3).

    The variance is pooled, as in the paper, which uses three samples of each kernel and alpha = 0.05. Samples without
    any variance are compared by value. If each kernel has a single sample, nothing is known about the variance, and
    the challenger is not faster.

    Args:
        challenger: The challenger's samples.
        incumbent: The incumbent's samples.
        alpha: The probability to call a challenger faster that is not.

    Raises:
        ValueError: A group is empty.

    Example:
        >>> student([1.00, 1.01, 1.02], [1.10, 1.11, 1.12])
        True
        >>> student([1.00, 1.10, 1.20], [1.10, 1.11, 1.12])
        False
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

    Use five samples per side: with three, the smallest possible p is 1/20, which is not below 0.05, so the challenger
    can never win. The test is exact for at most twelve samples together, ties included. For more it uses the normal
    approximation.

    Args:
        challenger: The challenger's samples.
        incumbent: The incumbent's samples.
        alpha: The probability to call a challenger faster that is not.

    Raises:
        ValueError: A group is empty.
    """
    from scipy import special  # imported late, here and below: it takes 0.3 s, and every command loads this module

    n, m = _sizes(challenger, incumbent)
    ranks = _midranks([*challenger, *incumbent])
    observed = sum(ranks[:n])
    if n + m <= 12:
        rank_sums = [sum(chosen) for chosen in itertools.combinations(ranks, n)]
        return sum(rank_sum <= observed for rank_sum in rank_sums) / len(rank_sums) < alpha
    mean = n * (n + m + 1) / 2
    centre = (n + m + 1) / 2
    variance = n * m / (n + m) / (n + m - 1) * sum((midrank - centre) ** 2 for midrank in ranks)
    return variance > 0.0 and float(special.ndtr((observed + 0.5 - mean) / math.sqrt(variance))) < alpha


# Ours


@dataclass(frozen=True)
class Noise:
    """The noise of a machine, as standard deviations of log times.

    Args:
        between: Between groups of one kernel in one batch.
        within: Between samples of one group.
        degrees: The degrees of freedom of `between`'s estimate, the prior included: how well it is known.
    """

    between: float = 0.01
    within: float = 0.007
    degrees: float = 2.0

    @classmethod
    def estimate(cls, repeated: Iterable[Sequence[Group]], prior: Noise | None = None) -> Noise:
        """Estimates the noise from repeated measurements.

        A single group shows only the noise within groups; g groups give g - 1 degrees of freedom for the noise
        between groups. Both estimates are robust: if a machine is disturbed now and then, a few groups are useless,
        but they must not make all others look noisy.

        Args:
            repeated: Each element is the groups of one kernel in one batch.
            prior: What is assumed before. The default (1% between groups, worth two degrees of freedom) is weak: it
                decides the first comparison, and a few batches outweigh it.
        """
        prior = prior or cls()
        return _estimate([[_locate(group) for group in groups] for groups in repeated], prior)


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`.

    Attributes:
        verdict: Whether the challenger is faster.
        ratio: The estimated ratio of the challenger's time to the incumbent's; below 1 the challenger is faster.
        p: The probability of such a difference if the two were equal.
    """

    verdict: Verdict
    ratio: float
    p: float


def compare(
    pairs: Sequence[tuple[Sequence[Group], Sequence[Group]]], noise: Noise, alpha: float = 0.05, best_of: int = 1
) -> Comparison:
    """Compares a challenger with an incumbent by groups of the same batches.

    This is a one-sided test on the difference of log times, by Student's t with the noise's degrees of freedom. The
    weight of each batch is what its groups are worth under the noise.

    Args:
        pairs: For each shared batch the challenger's groups and the incumbent's groups.
        noise: The noise of the machine.
        alpha: The probability to call a challenger faster that is not.
        best_of: The number of chances that noise gets: the number of challengers from which this one was chosen for
            being the fastest, times the number of looks at the data while more of it is taken. Alpha then becomes
            Sidak's 1 - (1 - alpha)^(1 / best_of).

    Raises:
        ValueError: There is no pair, or a pair has no group on one side.

    Example:
        >>> batch = ([[1.00, 1.01]], [[1.20, 1.21], [1.20, 1.22]])
        >>> compare([batch], Noise(between=0.01, within=0.007, degrees=10)).verdict
        <Verdict.FASTER: 'faster'>
    """
    if not pairs:
        raise ValueError("nothing to compare: the two were never measured in the same batch")
    weights, gains = [], []
    for challenger_groups, incumbent_groups in pairs:
        challenger = [_locate(group) for group in challenger_groups]
        incumbent = [_locate(group) for group in incumbent_groups]
        gains.append(_mean(incumbent) - _mean(challenger))
        weights.append(1 / max(_variance(challenger, noise) + _variance(incumbent, noise), 1e-18))
    gain = sum(weight * gain for weight, gain in zip(weights, gains, strict=True)) / sum(weights)
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
    """An estimate with a confidence interval around it. It unpacks as `(estimate, low, high)`."""

    estimate: float
    low: float
    high: float

    def __iter__(self) -> Iterator[float]:
        return iter((self.estimate, self.low, self.high))


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> Interval:
    """The median of samples, and an interval that holds the true median with at least this confidence.

    The interval ends at two order statistics that the binomial distribution selects, which is exact for every
    continuous distribution. Timings have a long tail on one side, so an interval from a standard deviation would be
    wrong. A bootstrap of a dozen samples would be too narrow and would need a seed. If there are too few samples for
    order statistics (fewer than six at 95%), the interval is Student's t interval on the logarithms.

    Args:
        samples: Positive numbers, at least two.
        confidence: The confidence, between 0 and 1.

    Raises:
        ValueError: There are fewer than two samples.

    Example:
        >>> median_interval([1.0, 1.2, 1.1, 1.3, 1.15, 1.05])
        Interval(estimate=1.125, low=1.0, high=1.3)
    """
    n = len(samples)
    if n < 2:
        raise ValueError(f"an interval needs at least two samples, not {n}")
    middle = statistics.median(samples)
    # r is the largest with P(fewer than r of n samples fall below the median) <= (1 - confidence) / 2.
    r = _order_statistic(n, (1 - confidence) / 2)
    if r > 0:
        ordered = sorted(samples)
        return Interval(middle, ordered[r - 1], ordered[n - r])
    logs = [math.log(sample) for sample in samples]
    error = math.sqrt(_squares(logs) / (n - 1) / n * _MEDIAN_FACTOR.get(n, 1.5))
    from scipy import special

    half = float(special.stdtrit(n - 1, (1 + confidence) / 2)) * error
    return Interval(middle, middle * math.exp(-half), middle * math.exp(half))


def percentile_interval(samples: Sequence[float], percent: float) -> Interval | None:
    """A percentile of samples, and an interval that holds the true one with a confidence of at least 95%.

    The interval ends at two order statistics that the binomial distribution selects, which is exact for independent
    samples of every continuous distribution. It says nothing if there are so few samples that even the largest may be
    below the true percentile: the 99th percentile needs 368 of them, the 90th 36, and the median 6.

    Args:
        samples: The samples, in any order.
        percent: The percentile, between 0 and 100.

    Returns:
        The percentile with its interval; None if the samples are too few for an interval.

    Example:
        >>> percentile_interval(range(1000), 90)
        Interval(estimate=899.1, low=880, high=918)
        >>> percentile_interval(range(367), 99) is None
        True
    """
    from scipy import special

    n, fraction, tail = len(samples), percent / 100, 0.025
    # Counted from 1, the true percentile is below sample number r with the probability P(fewer than r are below it).
    ranks = range(1, n + 1)
    low = bisect.bisect_right(ranks, tail, key=lambda r: float(special.bdtr(r - 1, n, fraction)))
    high = bisect.bisect_left(ranks, 1 - tail, key=lambda r: float(special.bdtr(r - 1, n, fraction)))
    if low < 1 or high >= n:
        return None
    ordered = sorted(samples)
    return Interval(float(np.quantile(ordered, fraction)), ordered[low - 1], ordered[high])


def ratio_interval(a_rounds: Sequence[float], b_rounds: Sequence[float], confidence: float = 0.95) -> Interval:
    """The ratio a / b of two kernels that were measured in interleaved rounds, with its interval.

    The estimate is the median of the rounds' ratios, by `median_interval`. What disturbs a round disturbs both of its
    samples and cancels.

    Args:
        a_rounds: The seconds of one kernel, one per round.
        b_rounds: The seconds of the other kernel in the same rounds.
        confidence: The confidence, between 0 and 1.

    Raises:
        ValueError: The two differ in length, or there are fewer than two rounds.
    """
    if len(a_rounds) != len(b_rounds):
        raise ValueError(f"the two kernels need the same number of rounds, not {len(a_rounds)} and {len(b_rounds)}")
    return median_interval([a / b for a, b in zip(a_rounds, b_rounds, strict=True)], confidence)


def plainly_faster(challenger_rounds: Sequence[float], incumbent_rounds: Sequence[float], alpha: float = 0.05) -> bool:
    """Whether a kernel is faster by so much that a few interleaved rounds are enough to choose it.

    Three rounds in which one kernel takes three times as long leave little doubt. Student's interval leaves much,
    because the spread of three numbers may be small by chance: at 99.9% it reaches 18 times their standard deviation
    to both sides. So this test takes the logarithm of a round's ratio to have the standard deviation `MOST_NOISE`. Its
    `alpha` holds under this assumption only: it serves to choose, and not to claim a speedup.

    Args:
        challenger_rounds: The seconds of one kernel, one per round.
        incumbent_rounds: The seconds of the other kernel in the same rounds.
        alpha: The probability to call a challenger faster that is not, if the noise is as assumed.

    Returns:
        Whether it is. It is not if the rounds differ from each other by more than the assumed noise, if there are
        fewer than two, or if a time is zero.

    Raises:
        ValueError: The two differ in length.

    Example:
        >>> plainly_faster([7.1, 7.0, 8.9], [22.7, 24.6, 21.5], alpha=1e-3)
        True
        >>> plainly_faster([16.1, 18.2, 14.9], [22.7, 24.6, 21.5], alpha=1e-3)
        False
    """
    pairs = list(zip(challenger_rounds, incumbent_rounds, strict=True))
    if len(pairs) < 2 or any(min(pair) <= 0 for pair in pairs):
        return False
    gains = [math.log(incumbent / challenger) for challenger, incumbent in pairs]
    error = statistics.NormalDist().inv_cdf(1 - alpha) * MOST_NOISE / math.sqrt(len(gains))
    return statistics.stdev(gains) <= MOST_NOISE and statistics.fmean(gains) > error


def plainly_faster_beside_load(
    challenger_rounds: Sequence[float], incumbent_rounds: Sequence[float], alpha: float = 0.05
) -> bool:
    """Whether a kernel is faster beyond doubt in interleaved rounds that other work has disturbed.

    Now and then a round takes several times as long there, and Student's interval is wide however many rounds there
    are. Three tests bear that, each with a third of `alpha`. One is by the ranks of all rounds, which needs eight to
    ten for the `alpha` of a large model. One counts the rounds in which the challenger has taken half of the
    incumbent's time or less: with equal kernels that happens in at most `RARELY_TWICE` of them. And from `FEW_ROUNDS`
    on, rounds that agree with each other are judged as `plainly_faster` does. Like it, this serves to choose.

    Args:
        challenger_rounds: The seconds of one kernel, one per round.
        incumbent_rounds: The seconds of the other kernel in the same rounds.
        alpha: The probability to call a challenger faster that is not, if the noise is as assumed.

    Raises:
        ValueError: The two differ in length, or are empty.

    Example:
        >>> plainly_faster_beside_load([85.0, 91.0, 120.0], [435.0, 440.0, 3100.0], alpha=1e-3)
        True
        >>> plainly_faster_beside_load([85.0, 91.0, 820.0], [135.0, 440.0, 130.0], alpha=1e-3)
        False
    """
    pairs = list(zip(challenger_rounds, incumbent_rounds, strict=True))
    half = sum(incumbent >= 2 * challenger for challenger, incumbent in pairs)
    chance = sum(
        math.comb(len(pairs), count) * RARELY_TWICE**count * (1 - RARELY_TWICE) ** (len(pairs) - count)
        for count in range(half, len(pairs) + 1)
    )
    third = alpha / 3
    agreeing = len(pairs) >= FEW_ROUNDS and plainly_faster(challenger_rounds, incumbent_rounds, third)
    return agreeing or chance <= third or rank(challenger_rounds, incumbent_rounds, third)


# Helpers


@dataclass(frozen=True)
class _Located:
    """A group on the log scale: its median, the variance of its samples, and their number."""

    centre: float
    variance: float
    n: int


def _locate(group: Group) -> _Located:
    """The centre is the median, not the mean, because a group's first samples may be slow or one may be disturbed."""
    logs = [math.log(sample) for sample in group]
    return _Located(statistics.median(logs), _squares(logs) / max(len(logs) - 1, 1), len(logs))


def _mean(groups: Sequence[_Located]) -> float:
    return statistics.fmean(group.centre for group in groups)


def _within_part(group: _Located, within: float) -> float:
    """The variance of a group's centre that is due to its samples."""
    return within**2 / group.n * _MEDIAN_FACTOR.get(group.n, 1.5)


_EXACT = 1_000  # samples up to which binomial coefficients are numbers of a float


def _order_statistic(n: int, tail: float) -> int:
    """The largest r with P(fewer than r of n samples fall below the median) <= tail."""
    if n > _EXACT:
        from scipy import special

        return bisect.bisect_right(range(1, n // 2 + 1), tail, key=lambda r: float(special.bdtr(r - 1, n, 0.5)))
    r, probability = 0, 0.5**n
    while probability <= tail:
        r += 1
        probability += math.comb(n, r) * 0.5**n
    return r


# The variance of the median of n normal samples, divided by that of their mean. It tends to pi/2.
_MEDIAN_FACTOR = {1: 1.0, 2: 1.0, 3: 1.346, 4: 1.192, 5: 1.434, 6: 1.289}


def _variance(groups: Sequence[_Located], noise: Noise) -> float:
    """The variance of the mean of a kernel's groups in one batch, without what the batch has in common."""
    return sum(noise.between**2 + _within_part(group, noise.within) for group in groups) / len(groups) ** 2


def _estimate(series: Sequence[Sequence[_Located]], prior: Noise) -> Noise:
    # A chi-square variable of d degrees has its median near d (1 - 2/(9d))^3.
    variances = [
        group.variance / (1 - 2 / (9 * (group.n - 1))) ** 3 for groups in series for group in groups if group.n > 1
    ]
    within = math.sqrt(statistics.median([prior.within**2, *variances]))
    # Half the square of the difference of two successive groups estimates the between-group variance plus the part that
    # is due to their samples.
    estimates = []
    for groups in series:
        for earlier, later in itertools.pairwise(groups):
            sample_part = (_within_part(earlier, within) + _within_part(later, within)) / 2
            estimates.append(((earlier.centre - later.centre) ** 2 / 2, sample_part))
    if len(estimates) >= 5:
        limit = 10 * max(statistics.median(estimate for estimate, _ in estimates) / 0.455, prior.between**2)
        estimates = [(min(estimate, limit), sample_part) for estimate, sample_part in estimates]
    excess = max(0.0, sum(estimate - sample_part for estimate, sample_part in estimates))
    degrees = prior.degrees + len(estimates)
    between = math.sqrt((prior.degrees * prior.between**2 + excess) / degrees)
    return Noise(between, within, degrees)


def _sizes(challenger: Group, incumbent: Group) -> tuple[int, int]:
    if not challenger or not incumbent:
        raise ValueError("a test needs at least one sample of each kernel")
    return len(challenger), len(incumbent)


def _squares(samples: Sequence[float]) -> float:
    mean = statistics.fmean(samples)
    return sum((sample - mean) ** 2 for sample in samples)


def _student_tail(t: float, degrees: float) -> float:
    """P(T > t) for Student's t."""
    from scipy import special

    return float(special.stdtr(degrees, -t))


def _midranks(samples: Sequence[float]) -> list[float]:
    array = np.asarray(samples)
    ordered = np.sort(array)
    below, upto = np.searchsorted(ordered, array, "left"), np.searchsorted(ordered, array, "right")
    return [float(rank) for rank in below + (upto - below + 1) / 2]
