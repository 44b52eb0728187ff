"""The tests of significance, our noise model, and intervals, compared with textbook formulas and simulations."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from stormdrop.statistics import (
    MOST_NOISE,
    Noise,
    Verdict,
    compare,
    median_interval,
    percentile_interval,
    plainly_faster,
    rank,
    ratio_interval,
    student,
)

WITHIN = 0.007


class TwoLevels:
    """A machine whose groups have noise on two levels, and a drift that each batch has in common."""

    def __init__(self, between: float, drift: float = 0.0, seed: int = 0) -> None:
        self.rng, self.between, self.drift = np.random.default_rng(seed), between, drift
        self.batch()

    def batch(self) -> None:
        self.common = self.rng.normal(0, self.drift)

    def group(self, speedup: float = 0.0, n: int = 3) -> list[float]:
        centre = self.common - speedup + self.rng.normal(0, self.between)
        return [float(s) for s in 1e-3 * np.exp(centre + self.rng.normal(0, WITHIN, n))]


def test_student_is_the_textbook_test() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        a, b = rng.normal(1.0, 0.1, 3).tolist(), rng.normal(1.1, 0.1, 4).tolist()
        assert student(a, b) == (stats.ttest_ind(a, b, alternative="less").pvalue < 0.05)


def test_student_without_variance_compares_values() -> None:
    assert student([1.0] * 3, [1.1] * 3)
    assert not student([1.1] * 3, [1.0] * 3)
    assert not student([1.0] * 3, [1.0] * 3)
    assert not student([1.0], [2.0])
    assert student([1.0], [2.0, 2.0])
    with pytest.raises(ValueError, match="at least one sample"):
        student([], [1.0])


def test_rank_is_the_textbook_test() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        a, b = rng.normal(1.0, 0.1, 5).tolist(), rng.normal(1.15, 0.1, 6).tolist()
        assert rank(a, b) == (stats.mannwhitneyu(a, b, alternative="less", method="exact").pvalue < 0.05)
        a, b = rng.normal(1.0, 0.1, 12).tolist(), rng.normal(1.1, 0.1, 12).tolist()
        assert rank(a, b) == (stats.mannwhitneyu(a, b, alternative="less", method="asymptotic").pvalue < 0.05)


def test_rank_needs_five_samples() -> None:
    assert not rank([1.0, 1.1, 1.2], [2.0, 2.1, 2.2])
    assert rank([1.0, 1.1, 1.2, 1.3, 1.4], [2.0, 2.1, 2.2, 2.3, 2.4])
    assert not rank([1.0] * 8, [1.0] * 8)


def test_the_papers_test_fires_on_noise_between_groups() -> None:
    """The nominal level is 5%. Without noise between groups the test keeps it. With a little, it fires two to three
    times as often, and the best of eight identical neighbours wins in about a third of the cases.
    """

    def rate(between: float, challengers: int) -> float:
        noise = TwoLevels(between)
        return float(
            np.mean(
                [
                    student(min((noise.group() for _ in range(challengers)), key=np.mean), noise.group())
                    for _ in range(1500)
                ]
            )
        )

    assert rate(0.0, 1) == pytest.approx(0.05, abs=0.02)
    assert 0.08 < rate(0.0045, 1) < 0.20
    assert 0.25 < rate(0.0045, 8) < 0.50
    assert rate(0.087, 8) > 0.7


def decide(noise: TwoLevels, speedup: float, challengers: int, history: int, contests: int = 3) -> Verdict:
    """One decision by all data so far: a batch bracketed by the incumbent, then more samples while it is undecided."""
    series: list[Sequence[Sequence[float]]] = []
    for _ in range(history):
        noise.batch()
        series.append([noise.group(), noise.group()])
    noise.batch()
    incumbent = [noise.group(), noise.group()]
    groups = [[noise.group(speedup if i == 0 else 0.0)] for i in range(challengers)]
    series += [incumbent, *groups]
    chosen = min(range(challengers), key=lambda i: np.median(groups[i][0]))
    pairs = [(groups[chosen], incumbent)]
    for _ in range(contests + 1):
        result = compare(pairs, Noise.estimate(series), best_of=challengers * (contests + 1))
        if result.verdict is not Verdict.UNDECIDED:
            break
        noise.batch()
        again = [noise.group(speedup if chosen == 0 else 0.0) for _ in range(2)], [noise.group() for _ in range(2)]
        pairs.append(again)
        series += again
    return result.verdict


@pytest.mark.parametrize(("between", "history"), [(0.003, 0), (0.01, 0), (0.01, 10), (0.03, 10), (0.087, 10)])
def test_our_false_positives_stay_near_the_nominal_level(between: float, history: int) -> None:
    """The best of eight identical challengers, with a drift of 8% between batches and four looks: nominally 5%."""
    noise = TwoLevels(between, drift=0.08)
    verdicts = [decide(noise, 0.0, 8, history) for _ in range(400)]
    assert np.mean([v is Verdict.FASTER for v in verdicts]) <= 0.08


def test_before_anything_is_known_of_a_very_noisy_machine_ours_errs_less_than_the_paper() -> None:
    """The prior says 1%. If the truth is 9% and nothing was seen yet, there are some false moves."""
    noise = TwoLevels(0.087, drift=0.08)
    assert np.mean([decide(noise, 0.0, 8, 0) is Verdict.FASTER for _ in range(400)]) < 0.35


def test_our_power() -> None:
    def power(between: float, speedup: float) -> float:
        noise = TwoLevels(between, drift=0.08)
        return float(np.mean([decide(noise, speedup, 8, 5) is Verdict.FASTER for _ in range(200)]))

    assert power(0.003, 0.03) > 0.95
    assert power(0.01, 0.05) > 0.9
    assert power(0.01, 0.20) > 0.99
    assert power(0.03, 0.20) > 0.95


def test_verdicts() -> None:
    noise = Noise(between=0.01, within=0.005, degrees=10)
    assert compare([([[1.0] * 3], [[1.3] * 3])], noise).verdict is Verdict.FASTER
    assert compare([([[1.3] * 3], [[1.0] * 3])], noise).verdict is Verdict.NOT_FASTER
    assert compare([([[1.0] * 3], [[1.0] * 3])], noise).verdict is Verdict.NOT_FASTER
    undecided = compare([([[1.0] * 3], [[1.01] * 3])], noise)
    assert undecided.verdict is Verdict.UNDECIDED
    assert undecided.ratio == pytest.approx(1 / 1.01)
    # A difference that is clear for one challenger is not clear for the best of a thousand.
    close = [([[1.0] * 3], [[1.04] * 3])]
    assert compare(close, noise).verdict is Verdict.FASTER
    assert compare(close, noise, best_of=1000).verdict is Verdict.UNDECIDED
    with pytest.raises(ValueError, match="nothing to compare"):
        compare([], noise)


def test_a_drift_between_batches_cancels() -> None:
    """The challenger is 10% slower, but half of its samples come from a time when everything was twice as fast."""
    pairs = [([[1.1] * 3], [[1.0] * 3]), ([[0.55] * 3], [[0.5] * 3])]
    assert compare(pairs, Noise()).ratio == pytest.approx(1.1)
    assert compare(pairs, Noise()).verdict is Verdict.NOT_FASTER


def test_the_noise_is_estimated() -> None:
    for between in (0.003, 0.03, 0.1):
        source = TwoLevels(between, drift=0.5)
        series = []
        for _ in range(200):
            source.batch()
            series.append([source.group(), source.group()])
        estimate = Noise.estimate(series)
        assert estimate.between == pytest.approx(between, rel=0.35)
        assert estimate.within == pytest.approx(WITHIN, rel=0.15)
        assert estimate.degrees == 202


def test_without_evidence_the_noise_is_the_prior() -> None:
    assert Noise.estimate([]) == Noise(0.01, 0.007, 2.0)
    assert Noise.estimate([[[1.0]]]) == Noise(0.01, 0.007, 2.0)


def test_a_few_disturbed_groups_do_not_spoil_the_estimate() -> None:
    source = TwoLevels(0.01)
    series = [[source.group(), source.group()] for _ in range(40)]
    for i in (3, 17):
        series[i][1] = [2 * s for s in series[i][1]]
    assert Noise.estimate(series).between < 0.02


def test_median_intervals_cover() -> None:
    rng = np.random.default_rng(0)
    for n in (3, 5, 6, 10, 25, 60):
        hits = 0
        for _ in range(1500):
            estimate, low, high = median_interval(np.exp(rng.normal(0, 0.05, n)).tolist())
            assert low <= estimate <= high
            hits += low <= 1.0 <= high
        assert hits / 1500 > 0.93, n
    # Timings have a long tail on one side.
    tail = [median_interval((1 + rng.exponential(1.0, 15)).tolist()) for _ in range(1500)]
    assert np.mean([i.low <= 1 + math.log(2) <= i.high for i in tail]) > 0.93


def test_more_samples_and_less_confidence_narrow_an_interval() -> None:
    samples = np.exp(np.random.default_rng(0).normal(0, 0.05, 80)).tolist()
    widths = [(i.high - i.low) for i in (median_interval(samples[:10]), median_interval(samples))]
    assert widths[1] < widths[0]
    assert median_interval(samples, 0.5).high < median_interval(samples, 0.99).high


def test_ratios_are_paired() -> None:
    """A drift that both kernels share does not change the ratio."""
    rng = np.random.default_rng(0)
    drift = np.exp(np.cumsum(rng.normal(0, 0.2, 12)))
    a, b = (1.5 * drift).tolist(), drift.tolist()
    ratio, low, high = ratio_interval(a, b)
    assert ratio == pytest.approx(1.5)
    assert high - low < 1e-9
    assert median_interval(a).high / median_interval(a).low > 1.3
    with pytest.raises(ValueError, match="same number of rounds"):
        ratio_interval([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="at least two"):
        ratio_interval([1.0], [1.0])


@pytest.mark.parametrize(
    ("challenger", "incumbent", "plain"),
    [
        ([1.0, 1.1, 0.9], [3.0, 3.1, 2.9], True),
        ([1.0, 1.1, 0.9], [1.3, 1.4, 1.2], False),  # the assumed noise may do this
        ([1.0, 1.1, 0.9] * 20, [1.3, 1.4, 1.2] * 20, True),
        ([3.0, 3.1, 2.9], [1.0, 1.1, 0.9], False),
        ([1.0, 1.0, 1.0], [3.0, 9.0, 1.1], False),  # the rounds contradict each other
        ([1.0, 1.0], [5.0, 5.0], True),
        ([1.0], [100.0], False),
        ([0.0, 1.0, 1.0], [3.0, 3.0, 3.0], False),
    ],
)
def test_what_few_rounds_are_enough_for(challenger: list[float], incumbent: list[float], plain: bool) -> None:
    assert plainly_faster(challenger, incumbent, alpha=1e-3) == plain


def test_a_few_rounds_of_the_assumed_noise_decide_wrongly_as_often_as_allowed() -> None:
    rng = np.random.default_rng(0)
    times = np.exp(rng.normal(0, MOST_NOISE / np.sqrt(2), (4000, 2, 3)))
    wrong = sum(plainly_faster(list(a), list(b), alpha=0.05) for a, b in times)
    assert 0.01 * len(times) < wrong < 0.05 * len(times)  # the spread of some of them is too large


@pytest.mark.parametrize(("percent", "fewest"), [(50, 6), (90, 36), (99, 368)])
def test_a_percentile_needs_enough_samples(percent: float, fewest: int) -> None:
    assert percentile_interval(range(fewest - 1), percent) is None
    known = percentile_interval(range(fewest), percent)
    assert known is not None and known.high == fewest - 1
    assert percentile_interval([], percent) is None


@pytest.mark.parametrize(("percent", "n"), [(50, 20), (90, 60), (99, 500)])
def test_the_interval_of_a_percentile_holds_the_true_one(percent: float, n: int) -> None:
    rng, true = np.random.default_rng(0), -math.log(1 - percent / 100)  # of the exponential distribution
    held = 0
    for _ in range(400):
        known = percentile_interval(rng.exponential(size=n).tolist(), percent)
        assert known is not None and known.low <= known.estimate <= known.high
        held += known.low <= true <= known.high
    assert held >= 0.93 * 400  # 95% are promised; fewer than 93% would come by chance once in 30 tries


def test_the_interval_of_the_50th_percentile_is_that_of_the_median() -> None:
    samples = np.random.default_rng(1).exponential(size=101).tolist()
    known, median = percentile_interval(samples, 50), median_interval(samples)
    assert known == median
