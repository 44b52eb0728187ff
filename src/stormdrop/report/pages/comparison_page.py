"""The page of a comparison of searches: who is better and how sure that is, convergence, spread, costs, errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..differences import verdict
from ..plots import costs, curves
from ..plots.ranks import critical_differences, mean_ranks
from ..plots.style import COLOURS
from ..plots.svg import Numbering, draw_boxes, plain, plot
from ..summary import name_of_optimum
from .page import render

Document = Mapping[str, Any]

_MOST_GROUNDS = 12
"""With more spaces the page shows no panel for each: it would be too large."""


def comparison_page(document: Document, command: str) -> str:
    """Renders the page of a comparison.

    Args:
        document: The document of `stormdrop compare --json`.
        command: The command that repeats it.

    Returns:
        The page.
    """
    numbering = Numbering()
    several = len(document["searches"]) > 1
    aim = name_of_optimum(document["grounds"])
    plots = []
    if several:
        plots.append(
            (
                "Mean ranks over all runs. A bar joins searches that are not significantly different.",
                critical_differences(document),
            )
        )
    plots.append((f"The best time of each run over the {aim}, at its end.", ends(document)))
    if len(document["grounds"]) <= _MOST_GROUNDS:
        band = "The line is the median over the seeds, the band reaches from quartile to quartile."
        plots.append((f"The best so far against evaluations. {band}", curves.by_evaluations(document)))
        plots.append((f"The best so far against wall time. {band}", curves.by_seconds(document)))
    plots.append((f"The share of runs that are close to the {aim}.", curves.within(document)))
    plots.append(("Where the wall time of a run goes.", costs.time(document)))
    plots.append(("Evaluations, and the time of measuring, by status.", costs.statuses(document)))
    return render(
        "comparison.html",
        document=document,
        aim=aim,
        ranks=mean_ranks(document),
        verdict=verdict(document),
        plots=[(caption, numbering.inline(figure, caption)) for caption, figure in plots],
        suspect=sum(run["suspect"] for run in document["runs"]),
        command=command,
    )


def ends(document: Document) -> Figure:
    """Plots how good each run was in the end: a box for each search, with a dot for each run.

    Args:
        document: The document of a comparison. Runs in which no candidate worked are left out.
    """
    searches = document["searches"]
    figure, axis = plot(height=1.0 + 0.36 * len(searches))
    values = [
        [
            run["best_over_optimum"]
            for run in document["runs"]
            if run["search"] == search and run["best_over_optimum"] is not None
        ]
        for search in searches
    ]
    draw_boxes(axis, values)
    for row, of_search in enumerate(values):
        spread = np.linspace(-0.15, 0.15, len(of_search)) if len(of_search) > 1 else np.zeros(len(of_search))
        axis.plot(of_search, row + spread, "o", color=COLOURS[0], markersize=3.5, alpha=0.6, linewidth=0)
    axis.set_yticks(range(len(searches)), [plain(search) for search in searches])
    axis.set_ylim(len(searches) - 0.5, -0.5)
    axis.set_xlabel(f"best / {name_of_optimum(document['grounds'])}")
    return figure
