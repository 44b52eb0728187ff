"""The plots of a tuned model's page: latencies with intervals, the roofline, the latency while it was tuned."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from .. import formatting
from ..documents import Limits
from ..kernels import KernelView
from .style import COLOURS
from .svg import plain, plot

_NAMED = 6
"""How many kernels the roofline names. The names of more would hide each other."""


def latencies(entries: Sequence[tuple[str, float, Sequence[float]]]) -> Figure:
    """Plots times with their intervals, one below the other.

    Args:
        entries: Name, median and 95% interval in seconds; the first is ours.
    """
    figure, axis = plot(height=0.9 + 0.36 * len(entries))
    for row, (_, seconds, (low, high)) in enumerate(entries):
        colour = COLOURS[0] if row == 0 else COLOURS[1]
        axis.plot([low, high], [row, row], color=colour, linewidth=6, alpha=0.4, solid_capstyle="butt")
        axis.plot([seconds], [row], "o", color=colour, markersize=7)
        axis.annotate(formatting.time(seconds), (high, row), xytext=(6, 0), textcoords="offset points", va="center")
    axis.set_yticks(range(len(entries)), [plain(name) for name, _, _ in entries])
    axis.set_ylim(len(entries) - 0.5, -0.5)
    axis.set_xlim(0, 1.18 * max(high for _, _, (_, high) in entries))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: formatting.time(seconds) if seconds else "0"))
    axis.set_xlabel("time of an execution; the bar is the 95% interval")
    return figure


def roofline(views: Sequence[KernelView], limits: Limits) -> Figure | None:
    """Plots the kernels below the machine's limits. The area of a dot grows with the kernel's share of the execution.

    Args:
        views: The kernels, the costliest first.
        limits: The machine's limits.

    Returns:
        The figure; None if no kernel computes anything whose work is known.
    """
    placed = [(view, view.roofline) for view in views if view.roofline is not None and view.roofline.rate > 0]
    if not placed:
        return None
    figure, axis = plot(height=3.6)
    ridge = limits["flops"] / limits["bandwidth"]
    intensities = [place.intensity for _, place in placed if math.isfinite(place.intensity)]
    low, high = min([*intensities, ridge]) / 2, max([*intensities, ridge]) * 3
    xs = np.geomspace(low, high, 200)
    axis.plot(xs, np.minimum(limits["flops"], xs * limits["bandwidth"]), color="#000000", linewidth=1.4)
    for view, place in placed:
        area = 30 + 500 * (view.share or 0.0)
        colour = COLOURS[0] if place.intensity >= ridge else COLOURS[1]
        axis.scatter([place.intensity], [place.rate], s=area, color=colour, alpha=0.65, linewidth=0)
    for view, place in placed[:_NAMED]:
        axis.annotate(
            str(view.position),
            (place.intensity, place.rate),
            xytext=(8, 6),
            textcoords="offset points",
            fontsize=9,
        )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("FLOP per byte that must be moved")
    axis.set_ylabel("GFLOP/s")
    for part in (axis.xaxis, axis.yaxis):
        part.set_minor_formatter(NullFormatter())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1e9:g}"))
    return figure


def over_time(curve: Sequence[Sequence[float]], of: str) -> Figure | None:
    """Plots a time that falls while a tuning goes on.

    Args:
        curve: (seconds of tuning, seconds of an execution), in order.
        of: What the times are of.

    Returns:
        The figure; None for an empty curve.
    """
    if not curve:
        return None
    figure, axis = plot(height=2.5)
    elapsed, seconds = [entry[0] for entry in curve], [entry[1] for entry in curve]
    axis.step(elapsed, seconds, where="post", color=COLOURS[0], linewidth=1.8)
    axis.plot(elapsed, seconds, "o", color=COLOURS[0], markersize=3.5)
    axis.set_ylim(0, 1.15 * max(seconds))
    axis.set_xlim(0, 1.03 * elapsed[-1])
    axis.set_xlabel("seconds of tuning")
    axis.set_ylabel(of)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formatting.time(value) if value else "0"))
    return figure
