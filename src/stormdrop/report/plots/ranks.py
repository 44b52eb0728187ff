"""The critical-difference diagram: the mean ranks of searches, and which of them are not significantly different.

After Demšar, Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 7 (2006), section 3.2.2 and Figure 1.
Deviation: instead of Nemenyi's test on ranks, a bar joins searches between which no pair differs significantly in the
document's own tests (Wilcoxon's, corrected after Holm), as Benavoli et al. (JMLR 17, 2016) recommend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import rankdata

from .svg import plain, plot

Document = Mapping[str, Any]


def mean_ranks(document: Document) -> dict[str, float]:
    """The mean rank of each search over all spaces and seeds, the best first. Equal results share their ranks.

    Args:
        document: The document of a comparison.

    Example:
        >>> runs = [{"ground": "g", "seed": 0, "search": name, "best_over_optimum": best}
        ...         for name, best in (("a", 1.0), ("b", None), ("c", 1.5))]
        >>> mean_ranks({"searches": ["a", "b", "c"], "runs": runs})
        {'a': 1.0, 'c': 2.0, 'b': 3.0}
    """
    results: dict[tuple[str, int], dict[str, float]] = {}
    for run in document["runs"]:
        best = run["best_over_optimum"]
        results.setdefault((run["ground"], run["seed"]), {})[run["search"]] = np.inf if best is None else best
    searches = list(document["searches"])
    ranks = np.mean([rankdata([of[search] for search in searches]) for of in results.values()], axis=0)
    return dict(sorted(zip(searches, map(float, ranks), strict=True), key=lambda entry: entry[1]))


def groups(ranks: Mapping[str, float], differences: Sequence[Document]) -> list[list[str]]:
    """The largest sets of searches, neighbours by rank, of which no two differ significantly.

    Args:
        ranks: The mean ranks, the best first.
        differences: The pairs of the document.

    Example:
        >>> pairs = [{"a": "a", "b": "b", "significant": False}, {"a": "a", "b": "c", "significant": True},
        ...          {"a": "b", "b": "c", "significant": False}]
        >>> groups({"a": 1.0, "b": 2.0, "c": 3.0}, pairs)
        [['a', 'b'], ['b', 'c']]
    """
    differ = {frozenset((pair["a"], pair["b"])) for pair in differences if pair["significant"]}
    names, found = list(ranks), list[list[str]]()
    for first in range(len(names)):
        last = first
        while last + 1 < len(names) and not any(
            frozenset((names[index], names[last + 1])) in differ for index in range(first, last + 1)
        ):
            last += 1
        if last > first and not (found and names[last] in found[-1]):
            found.append(names[first : last + 1])
    return found


def critical_differences(document: Document) -> Figure:
    """Plots the mean ranks on a line, with a bar across searches that are not significantly different.

    Args:
        document: The document of a comparison of two searches or more.
    """
    ranks = mean_ranks(document)
    joined = groups(ranks, document["differences"])
    figure, axis = plot(height=1.1 + 0.26 * (len(ranks) + len(joined)))
    for level, (search, rank) in enumerate(ranks.items()):
        depth = -1.0 - len(joined) - level
        axis.plot([rank, rank], [0, depth], color="#000000", linewidth=1.0)
        axis.plot([rank], [0], "o", color="#000000", markersize=4)
        right = rank > (1 + len(ranks)) / 2
        offset = (-5, 0) if right else (5, 0)
        label = f"{plain(search)}  {rank:.2f}"
        axis.annotate(
            label,
            (rank, depth),
            xytext=offset,
            textcoords="offset points",
            va="center",
            ha="right" if right else "left",
        )
    for level, names in enumerate(joined, start=1):
        ends = [ranks[names[0]] - 0.04, ranks[names[-1]] + 0.04]
        axis.plot(ends, [-level, -level], color="#D55E00", linewidth=4, solid_capstyle="butt")
    axis.set_xlim(0.8, len(ranks) + 0.2)
    axis.set_ylim(-1.6 - len(joined) - len(ranks), 0.4)
    axis.xaxis.tick_top()
    axis.xaxis.set_label_position("top")
    axis.set_xlabel("mean rank (1 is the best)")
    axis.set_xticks(range(1, len(ranks) + 1))
    axis.set_yticks([])
    axis.grid(visible=False)
    axis.spines[["left", "bottom"]].set_visible(False)
    axis.spines["top"].set_visible(True)
    return figure
