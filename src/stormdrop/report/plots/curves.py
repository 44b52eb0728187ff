"""Plots of how good the best candidate so far is, against evaluations and against wall time.

They follow Figure 5 of the NoSE paper and Figure 19 of the Droplet Search paper, whose star marks convergence. Unlike
the papers, they show times over the optimum instead of rates, and medians with quartiles instead of means, because runs
are few and their results are skewed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray

from ..summary import WITHIN, best_after, best_at, name_of_optimum
from .style import MAX_SEARCHES, legend, line_style, panels

Array = NDArray[np.float64]
Document = Mapping[str, Any]
BestOverOptimum = Callable[[Document, float | None, Any], Array]
"""`summary.best_at` or `summary.best_after`."""
End = Callable[[Document], float]
"""Where on the horizontal axis a run ended."""

_MAX_BANDS = 6  # the bands of more searches would hide each other
_MAX_SPAN = 1e3  # the largest ratio of the ends of an axis of seconds
_MAX_OVER = 3.0  # the upper end of an axis, in optima above the optimum, is at most this


def by_evaluations(document: Document) -> Figure:
    """Plots the best time over the optimum against evaluations, in one panel per ground.

    A line is the median over the seeds. Up to six searches also have a band from quartile to quartile. If there are
    several grounds, the first panel is the mean over them.

    Args:
        document: The document of a comparison (`summary.comparison_document`).

    Returns:
        The figure.
    """
    marks = np.arange(1, document["trials"] + 1, dtype=np.float64)
    return _best(document, lambda runs: marks, best_at, lambda run: run["evaluations"])


def by_seconds(document: Document) -> Figure:
    """Plots the best time over the optimum against the wall time of a run, otherwise as `by_evaluations` does."""

    def marks(runs: Sequence[Document]) -> Array:
        ends = [run["seconds"] for run in runs]
        starts = [_seconds_to_first(run) for run in runs if run["trajectory"]["evaluations"]]
        return np.geomspace(max(min([*starts, max(ends) / 10]), max(ends) / _MAX_SPAN), max(ends), 300)

    return _best(document, marks, best_after, lambda run: run["seconds"], log=True)


def within(document: Document) -> Figure:
    """Plots the share of runs whose best time is within 5% and 10% of the optimum, against evaluations.

    Args:
        document: The document of a comparison (`summary.comparison_document`).

    Returns:
        A figure with a panel for 5% and one for 10%, each over the runs of all grounds.
    """
    aim = name_of_optimum(document["grounds"])
    figure, axes = panels([f"within {round(100 * (factor - 1))}% of the {aim}" for factor in WITHIN.values()])
    marks = np.arange(1, document["trials"] + 1)
    optimum = {ground["ground"]: ground["optimum"] for ground in document["grounds"]}
    for axis, factor in zip(axes, WITHIN.values(), strict=True):
        for index, search in _shown_searches(document):
            runs = [run for run in document["runs"] if run["search"] == search]
            share = np.mean([best_at(run, optimum[run["ground"]], marks) <= factor for run in runs], axis=0)
            axis.plot(marks, share, label=search, linewidth=1.6, drawstyle="steps-post", **line_style(index))
        _evaluation_axis(axis, document["trials"])
        axis.set_ylim(-0.02, 1.02)
        axis.yaxis.set_major_formatter(PercentFormatter(1.0))
        axis.set_ylabel("share of runs", fontsize=9)
    legend(figure, axes[0])
    return figure


def _best(
    document: Document,
    marks_of: Callable[[Sequence[Document]], Array],
    best_over_optimum: BestOverOptimum,
    end_of: End,
    log: bool = False,
) -> Figure:
    """The figure of `by_evaluations` and `by_seconds`; `marks_of` gives the positions at which runs are evaluated."""
    grounds = document["grounds"]
    several = len(grounds) > 1
    titles = [ground["ground"] for ground in grounds]
    figure, axes = panels([f"mean over {len(grounds)} spaces", *titles] if several else titles)
    panels_of = [([ground], ground["summary"]) for ground in grounds]
    for axis, (shown, summary) in zip(axes, [(grounds, document["summary"])] * several + panels_of, strict=True):
        optima = {ground["ground"]: ground["optimum"] for ground in shown}
        runs = [run for run in document["runs"] if run["ground"] in optima]
        marks = marks_of(runs)
        for index, search in _shown_searches(document):
            of_search = [run for run in runs if run["search"] == search]
            curves = [
                np.array([best_over_optimum(run, optimum, marks) for run in of_search if run["ground"] == ground])
                for ground, optimum in optima.items()
            ]
            low, middle, high = _quartiles(curves[0])
            if len(shown) > 1:
                middle = np.mean([np.mean(on_ground, axis=0) for on_ground in curves], axis=0)
            elif len(document["searches"]) <= _MAX_BANDS:
                axis.fill_between(
                    marks,
                    low,
                    np.minimum(high, 1e3),
                    alpha=0.13,
                    linewidth=0,
                    step="post",
                    color=line_style(index)["color"],
                )
            _draw_curve(axis, index, search, marks, middle, of_search, end_of)
        _finish_axes(axis, shown, summary, marks, log)
    legend(figure, axes[0])
    return figure


def _draw_curve(
    axis: Axes, index: int, search: str, marks: Array, values: Array, runs: Sequence[Document], end_of: End
) -> None:
    """Draws a line, and a star where the median run converged if more than half of the runs did."""
    shown = np.where(np.isfinite(values), values, np.nan)
    axis.plot(marks, shown, label=search, linewidth=1.6, drawstyle="steps-post", **line_style(index))
    ends = [end_of(run) for run in runs if run["converged"]]
    if 2 * len(ends) > len(runs):
        end = float(np.median(ends))
        value = shown[min(int(np.searchsorted(marks, end)), len(marks) - 1)]
        axis.plot(
            [end],
            [value],
            marker="*",
            markersize=9,
            color=line_style(index)["color"],
            markeredgecolor="white",
            zorder=5,
        )


def _finish_axes(axis: Axes, grounds: Sequence[Document], summary: Sequence[Document], marks: Array, log: bool) -> None:
    """Sets the axes. The vertical one ends a little above the worst search at the first checkpoint."""
    early = [next(iter(entry["at"].values()))["best_over_optimum"]["mean"] for entry in summary]
    over = min(_MAX_OVER, 1.25 * (max([1.08, *(mean for mean in early if mean is not None)]) - 1))
    axis.set_ylim(1 - 0.03 * over, 1 + over)
    axis.set_ylabel(f"best / {name_of_optimum(grounds)}", fontsize=9)
    if log:
        axis.set_xscale("log")
        axis.set_xlim(marks[0], marks[-1])
        axis.set_xlabel("seconds of measuring and searching", fontsize=9)
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=8))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
    else:
        _evaluation_axis(axis, len(marks))


def _evaluation_axis(axis: Axes, trials: int) -> None:
    axis.set_xlabel("evaluations", fontsize=9)
    axis.set_xlim(1, max(trials, 2))
    if trials > 1000:
        axis.set_xscale("log")


def _quartiles(values: Array) -> Array:
    """Quartiles over the runs, of shape (3, marks). They are values of runs, because some may be infinite."""
    return np.quantile(values, [0.25, 0.5, 0.75], axis=0, method="inverted_cdf")


def _seconds_to_first(run: Document) -> float:
    """The wall time of a run up to its first improvement, in seconds."""
    return float(sum(run["trajectory"][part][0] for part in run["phases"]))


def _shown_searches(document: Document) -> list[tuple[int, str]]:
    """The best `MAX_SEARCHES` searches, numbered in the order of the document."""
    ends = {entry["search"]: entry["best_over_optimum"]["mean"] for entry in document["summary"]}
    best = sorted(ends, key=lambda search: np.inf if ends[search] is None else ends[search])[:MAX_SEARCHES]
    return list(enumerate(search for search in document["searches"] if search in best))
