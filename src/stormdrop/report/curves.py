"""How good the best so far is, and how often close to the optimum: against evaluations, and against wall time.

As in Figure 5 of the NoSE paper and Figure 19 of the Droplet Search paper (whose star marks convergence), but with
times over the optimum instead of rates, and medians with quartiles instead of means: runs are few and skewed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray

from .style import MOST, legend, line, panels
from .summary import WITHIN, best_after, best_at, reference

Array = NDArray[np.float64]
Document = Mapping[str, Any]
Held = Callable[[Document, float | None, Any], Array]
End = Callable[[Document], float]

_BANDS = 6  # searches with bands; those of more hide each other
_SPAN = 1e3  # between the ends of an axis of seconds, at most
_WORST = 3.0  # over the optimum at the upper end of an axis, at most


def by_evaluations(document: Document) -> Figure:
    """Best over optimum against evaluations: median over the seeds, a panel per ground.

    The band of a few searches goes from quartile to quartile. With several grounds the first panel is their mean.
    """
    marks = np.arange(1, document["trials"] + 1, dtype=np.float64)
    return _best(document, lambda runs: marks, best_at, lambda run: run["evaluations"])


def by_seconds(document: Document) -> Figure:
    """Best over optimum against the wall time of a run, measuring and searching; otherwise as `by_evaluations`."""

    def marks(runs: Sequence[Document]) -> Array:
        ends = [run["seconds"] for run in runs]
        starts = [_first(run) for run in runs if run["trajectory"]["evaluations"]]
        return np.geomspace(max(min([*starts, max(ends) / 10]), max(ends) / _SPAN), max(ends), 300)

    return _best(document, marks, best_after, lambda run: run["seconds"], log=True)


def within(document: Document) -> Figure:
    """The share of runs whose best is within 5% and 10% of the optimum, against evaluations, over all grounds."""
    aim = reference(document["grounds"])
    figure, axes = panels([f"within {round(100 * (factor - 1))}% of the {aim}" for factor in WITHIN.values()])
    marks = np.arange(1, document["trials"] + 1)
    optimum = {ground["ground"]: ground["optimum"] for ground in document["grounds"]}
    for axis, factor in zip(axes, WITHIN.values(), strict=True):
        for at, search in _shown(document):
            runs = [run for run in document["runs"] if run["search"] == search]
            share = np.mean([best_at(run, optimum[run["ground"]], marks) <= factor for run in runs], axis=0)
            axis.plot(marks, share, label=search, linewidth=1.6, drawstyle="steps-post", **line(at))
        _evaluations(axis, document["trials"])
        axis.set_ylim(-0.02, 1.02)
        axis.yaxis.set_major_formatter(PercentFormatter(1.0))
        axis.set_ylabel("share of runs", fontsize=9)
    legend(figure, axes[0])
    return figure


def _best(
    document: Document,
    marks_of: Callable[[Sequence[Document]], Array],
    held: Held,
    end_of: End,
    log: bool = False,
) -> Figure:
    grounds = document["grounds"]
    several = len(grounds) > 1
    titles = [ground["ground"] for ground in grounds]
    figure, axes = panels([f"mean over {len(grounds)} spaces", *titles] if several else titles)
    for axis, ground in zip(axes[several:], grounds, strict=True):
        runs = [run for run in document["runs"] if run["ground"] == ground["ground"]]
        marks = marks_of(runs)
        for at, search in _shown(document):
            own = [run for run in runs if run["search"] == search]
            low, middle, high = _quartiles(np.array([held(run, ground["optimum"], marks) for run in own]))
            if len(document["searches"]) <= _BANDS:
                axis.fill_between(
                    marks, low, np.minimum(high, 1e3), alpha=0.13, linewidth=0, step="post", color=line(at)["color"]
                )
            _curve(axis, at, search, marks, middle, own, end_of)
        _finish(axis, [ground], ground["summary"], marks, log)
    if several:
        marks = marks_of(document["runs"])
        for at, search in _shown(document):
            means = []
            for ground in grounds:
                own = [run for run in document["runs"] if (run["ground"], run["search"]) == (ground["ground"], search)]
                means.append(np.mean([held(run, ground["optimum"], marks) for run in own], axis=0))
            everywhere = [run for run in document["runs"] if run["search"] == search]
            _curve(axes[0], at, search, marks, np.mean(means, axis=0), everywhere, end_of)
        _finish(axes[0], grounds, document["summary"], marks, log)
    legend(figure, axes[0])
    return figure


def _curve(
    axis: Axes, at: int, search: str, marks: Array, values: Array, runs: Sequence[Document], end_of: End
) -> None:
    """A line, and a star where the median run converged if most did."""
    shown = np.where(np.isfinite(values), values, np.nan)
    axis.plot(marks, shown, label=search, linewidth=1.6, drawstyle="steps-post", **line(at))
    ends = [end_of(run) for run in runs if run["converged"]]
    if 2 * len(ends) > len(runs):
        end = float(np.median(ends))
        value = shown[min(int(np.searchsorted(marks, end)), len(marks) - 1)]
        axis.plot([end], [value], marker="*", markersize=9, color=line(at)["color"], markeredgecolor="white", zorder=5)


def _finish(axis: Axes, grounds: Sequence[Document], summary: Sequence[Document], marks: Array, log: bool) -> None:
    """The axes: from the optimum to where the worst search is at the first checkpoint, or a bit more."""
    early = [next(iter(each["at"].values()))["best_over_optimum"]["mean"] for each in summary]
    over = min(_WORST, 1.25 * (max([1.08, *(mean for mean in early if mean is not None)]) - 1))
    axis.set_ylim(1 - 0.03 * over, 1 + over)
    axis.set_ylabel(f"best / {reference(grounds)}", fontsize=9)
    if log:
        axis.set_xscale("log")
        axis.set_xlim(marks[0], marks[-1])
        axis.set_xlabel("seconds of measuring and searching", fontsize=9)
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=8))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
    else:
        _evaluations(axis, len(marks))


def _evaluations(axis: Axes, trials: int) -> None:
    axis.set_xlabel("evaluations", fontsize=9)
    axis.set_xlim(1, max(trials, 2))
    if trials > 1000:
        axis.set_xscale("log")


def _quartiles(values: Array) -> Array:
    """Quartiles over the runs, shape (3, marks), of values that may be infinite: taken from the sorted runs."""
    return np.quantile(values, [0.25, 0.5, 0.75], axis=0, method="inverted_cdf")


def _first(run: Document) -> float:
    return float(sum(run["trajectory"][part][0] for part in run["phases"]))


def _shown(document: Document) -> list[tuple[int, str]]:
    """The searches with their places, the best `MOST` of them."""
    ends = {each["search"]: each["best_over_optimum"]["mean"] for each in document["summary"]}
    best = sorted(ends, key=lambda search: np.inf if ends[search] is None else ends[search])[:MOST]
    return [(at, search) for at, search in enumerate(search for search in document["searches"] if search in best)]
