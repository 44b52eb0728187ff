"""Whether searches differ: tests over pairs of runs with the same seed on the same ground."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]

ALPHA = 0.05
"""The p-value below which a difference counts as significant."""
_DRAWS = 10_000


def differences(ends: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Compares all pairs of searches.

    Over several grounds the result holds for these grounds, not for others: grounds differ more than seeds do.

    Args:
        ends: For each search, the best over the optimum at the end of each run, infinite if no candidate worked. Entry
            i of all searches belongs to the same seed and ground.

    Returns:
        For each pair of searches: their names `a` and `b`; `ratio`, the geometric mean of a's ends over b's (below 1 if
        a is better), with its 95% bootstrap `interval`; `p` of a Wilcoxon signed-rank test on the logarithms, corrected
        by Holm's method over all pairs; `significant`; the number of `pairs` of runs. Runs of a pair in which no
        candidate worked for either search are left out. `ratio` and `interval` are None if none worked for one of them.

    Example:
        >>> [pair] = differences({"a": [1.0, 1.1, 1.0], "b": [2.0, 2.2, 2.0]})
        >>> round(pair["ratio"], 3), pair["p"], pair["significant"]
        (0.5, 0.25, False)
    """
    logs = {search: np.log(np.asarray(values, dtype=np.float64)) for search, values in ends.items()}
    pairs = list(itertools.combinations(logs, 2))
    log_ratios = [_log_ratios(logs[a], logs[b]) for a, b in pairs]
    corrected = holm([_signed_rank(values) for values in log_ratios])
    compared = []
    for (a, b), values, p in zip(pairs, log_ratios, corrected, strict=True):
        ratio, interval = _ratio(values)
        pair = {"a": a, "b": b, "ratio": ratio, "interval": interval, "p": p}
        compared.append({**pair, "significant": p < ALPHA, "pairs": len(values)})
    return compared


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number by Holm's method.

    The i-th smallest of n values is multiplied by n - i + 1, and is never less than the corrected value before it.

    Args:
        p_values: The p-values of n tests.

    Returns:
        The corrected values, in the same order.
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(np.asarray(p_values)[order] * factors))
    return [float(p) for p in corrected]


def _log_ratios(a: Array, b: Array) -> Array:
    """Differences of the logarithms. A pair of two infinite ends is left out; one infinite end gives infinity."""
    usable = ~(np.isinf(a) & np.isinf(b))
    return a[usable] - b[usable]


def _signed_rank(log_ratios: Array) -> float:
    """The two-sided p-value. Pairs without a difference carry no information; infinities have the highest rank."""
    nonzero = np.clip(log_ratios[log_ratios != 0.0], -1e9, 1e9)
    return float(stats.wilcoxon(nonzero).pvalue) if len(nonzero) else 1.0


def _ratio(log_ratios: Array) -> tuple[float | None, list[float] | None]:
    """The geometric mean and its percentile bootstrap interval over pairs.

    The random draws are always the same, so that one document always has one interval.
    """
    n = len(log_ratios)
    if not n or not np.isfinite(log_ratios).all():
        return None, None
    counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=_DRAWS)
    low, high = np.exp(np.quantile(counts @ log_ratios / n, [0.025, 0.975]))
    return float(np.exp(log_ratios.mean())), [float(low), float(high)]


def verdict(document: Mapping[str, Any]) -> list[str]:
    """How each other search differs from the one with the lowest mean, a line for each.

    Args:
        document: The document of `stormdrop compare --json`.

    Returns:
        The lines. The first one says so if there are too few runs for any difference to be significant.
    """
    means = {entry["search"]: entry["best_over_optimum"]["mean"] for entry in document["summary"]}
    ends = {search: mean for search, mean in means.items() if mean is not None}
    if not ends or len(document["searches"]) < 2:
        return []
    best = min(ends, key=ends.__getitem__)
    pairs = document["differences"]
    lines = []
    if len(pairs) * _least_p(max(pair["pairs"] for pair in pairs)) >= ALPHA:
        enough = next(n for n in itertools.count(1) if len(pairs) * _least_p(n) < ALPHA)
        lines.append(
            f"too few runs for a significant difference: with this number of searches it takes {enough} pairs of runs"
        )
    for pair in pairs:
        if best not in (pair["a"], pair["b"]):
            continue
        swapped = pair["a"] == best
        other = pair["b"] if swapped else pair["a"]
        line = f"{other}: " if pair["significant"] else f"{other}: not significantly different from {best}, "
        if pair["ratio"] is not None:
            bounds = [pair["ratio"], *pair["interval"]]
            ratio, *interval = [1 / bound for bound in bounds] if swapped else bounds
            line += f"{ratio:.3f} times the time of {best} (95% interval {min(interval):.3f} to {max(interval):.3f}), "
        elif pair["significant"]:
            line += f"different from {best}, "
        lines.append(f"{line}p = {pair['p']:.2g} over {pair['pairs']} pairs")
    return lines


def _least_p(pairs: int) -> float:
    """The lowest p that a signed-rank test can have: all of `pairs` pairs agree."""
    return float(2.0 ** (1 - pairs))
