"""Plots of what searches cost: where wall time goes, and how evaluations fail (NoSE paper, Figures 6 and 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ...trial import Status
from .style import COLOURS, legend, panels

Document = Mapping[str, Any]

_PHASES = dict(zip(("search", "schedule", "build", "run", "check"), COLOURS, strict=False))
_STATUSES = {
    Status.OK: "#C8C8C8",
    Status.INSTANTIATION: "#56B4E9",
    Status.COMPILE_HOST: "#0072B2",
    Status.COMPILE_DEVICE: "#009E73",
    Status.RUNTIME: "#D55E00",
    Status.WRONG_ANSWER: "#CC79A7",
    Status.BUILD_TIMEOUT: "#E69F00",
    Status.RUN_TIMEOUT: "#8C564B",
    Status.UNKNOWN: "#000000",
}


def time(document: Document) -> Figure:
    """Plots which shares of wall time go into searching, scheduling, building, running and checking.

    The number at a bar is the mean time of a run in seconds. As Figure 6 of the NoSE paper.

    Args:
        document: The document of a comparison (`summary.comparison_document`).

    Returns:
        A figure with one bar per search.
    """
    summary = document["summary"]
    figure, (axis,) = panels(["where the wall time of a run goes, and how long it is on average"], _height(summary))
    _bars(axis, [entry["search"] for entry in summary], [entry["phases"] for entry in summary], _PHASES)
    for row, entry in enumerate(summary):
        axis.annotate(f"{entry['seconds']:.3g} s", (1.01, row), va="center", fontsize=8, annotation_clip=False)
    legend(figure, axis)
    return figure


def statuses(document: Document) -> Figure:
    """Plots which shares of the evaluations, and of the seconds spent on them, ended with which status.

    As Figure 7 A and B of the NoSE paper.

    Args:
        document: The document of a comparison (`summary.comparison_document`).

    Returns:
        A figure with two panels, each with one bar per search.
    """
    summary = document["summary"]
    figure, axes = panels(["evaluations by status", "time of measuring by status"], _height(summary))
    names = [entry["search"] for entry in summary]
    colours = {status.value: colour for status, colour in _STATUSES.items()}
    _bars(axes[0], names, [entry["statuses"] for entry in summary], colours)
    _bars(axes[1], names, [entry["status_seconds"] for entry in summary], colours)
    axes[1].set_yticklabels([])
    legend(figure, axes[0])
    return figure


def _height(bars: Sequence[Document]) -> float:
    return 1.0 + 0.32 * len(bars)


def _bars(axis: Axes, names: Sequence[str], parts: Sequence[Mapping[str, float]], colours: Mapping[str, str]) -> None:
    """Draws one bar per search from the shares of its parts. A part that no search has is left out."""
    totals = np.array([max(sum(amounts.values()), 1e-30) for amounts in parts])
    left = np.zeros(len(names))
    for part, colour in colours.items():
        share = np.array([amounts.get(part, 0.0) for amounts in parts]) / totals
        if share.any():
            axis.barh(range(len(names)), share, left=left, color=colour, label=part, height=0.72)
            left += share
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set_xlim(0, 1)
    axis.xaxis.set_major_formatter(PercentFormatter(1.0))
    axis.grid(visible=False, axis="y")
