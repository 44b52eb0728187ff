"""Whether searches differ: paired over the runs from the same seed on the same ground."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]

ALPHA = 0.05
_DRAWS = 10_000


def differences(ends: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """All pairs of searches, given how each run of each ended (best over optimum, infinite where nothing worked).

    Entry i of all searches belongs to the same seed and ground. Per pair: `a` and `b`, `ratio` (geometric mean of a's
    end over b's; below 1 a is better) with its 95% bootstrap `interval`, `p` of a Wilcoxon signed-rank test on the
    logs, corrected over all pairs after Holm, `significant`, and the number of `pairs`. The ratio is null where one
    of a pair found nothing; a pair in which neither did is left out. Over several grounds this tells of these grounds,
    not of others: grounds differ more than seeds do.
    """
    logs = {search: np.log(np.asarray(values, dtype=np.float64)) for search, values in ends.items()}
    pairs = list(itertools.combinations(logs, 2))
    gaps = [_gaps(logs[a], logs[b]) for a, b in pairs]
    found = []
    for (a, b), each, p in zip(pairs, gaps, holm([_signed_rank(each) for each in gaps]), strict=True):
        ratio, interval = _ratio(each)
        pair = {"a": a, "b": b, "ratio": ratio, "interval": interval, "p": p}
        found.append({**pair, "significant": p < ALPHA, "pairs": len(each)})
    return found


def holm(ps: Sequence[float]) -> list[float]:
    """p-values corrected for their number: the i-th smallest of n times n - i + 1, never less than one before it."""
    order = np.argsort(ps, kind="stable")
    factors = np.arange(len(ps), 0, -1)
    corrected = np.empty(len(ps))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(np.asarray(ps)[order] * factors))
    return [float(p) for p in corrected]


def _gaps(a: Array, b: Array) -> Array:
    """Differences of the pairs in which any found something, infinite where one did not."""
    telling = ~(np.isinf(a) & np.isinf(b))
    return a[telling] - b[telling]


def _signed_rank(gaps: Array) -> float:
    """Two-sided. Pairs without a difference tell nothing; what is infinite has the highest rank."""
    telling = np.clip(gaps[gaps != 0.0], -1e9, 1e9)
    return float(stats.wilcoxon(telling).pvalue) if len(telling) else 1.0


def _ratio(gaps: Array) -> tuple[float | None, list[float] | None]:
    """The percentile bootstrap over pairs; always the same draws, so that a document says the same twice."""
    n = len(gaps)
    if not n or not np.isfinite(gaps).all():
        return None, None
    counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=_DRAWS)
    low, high = np.exp(np.quantile(counts @ gaps / n, [0.025, 0.975]))
    return float(np.exp(gaps.mean())), [float(low), float(high)]
