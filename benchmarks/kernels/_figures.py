"""The figure of the kernel benchmark: the ratio of every shape to its best peer, and all shapes under the roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _results import LOWEST
from _shapes import COMPUTE, MEMORY
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from stormdrop.report.plots.style import COLOURS, save

_COLOURS = {COMPUTE: COLOURS[0], MEMORY: COLOURS[1]}


def draw(path: Path, machine: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes the PNG of rows from `results.row` that have a peer."""
    figure = Figure(figsize=(max(8.0, 0.24 * len(rows) + 2), 9.5), layout="constrained")
    FigureCanvasAgg(figure)
    ratios, roofline = figure.subplots(2, 1)
    _bars(ratios, rows)
    _roofline(roofline, machine, rows)
    figure.suptitle(f"float32 kernels, tuned from nothing, on {machine['cpu']}, {machine['cores']} cores", fontsize=11)
    save(figure, path)


def _bars(axis: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    for position, row in enumerate(rows):
        low, high = row["ratio_interval"]
        axis.bar(position, row["ratio"] - 1, 0.75, bottom=1, color=_COLOURS[row["kind"]])
        axis.plot([position, position], [low, high], color="black", linewidth=1.0)
    for bound in (COMPUTE, MEMORY):
        axis.bar(0, 0, bottom=1, color=_COLOURS[bound], label=f"{bound}-bound")
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.axhline(LOWEST, color="0.4", linewidth=0.8, linestyle=":")
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xticks(range(len(rows)), [f"{row['name']}\n{row['peer']}" for row in rows], rotation=90, fontsize=7)
    axis.set_xlim(-0.7, len(rows) - 0.3)
    axis.set_ylabel("time of the best peer / ours, with 95% interval", fontsize=9)
    axis.grid(axis="y", alpha=0.25, linewidth=0.6)
    axis.legend(fontsize=8, frameon=False)


def _roofline(axis: Any, machine: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    peak, bandwidth = machine["peak_gflops"], machine["bandwidth_gbs"]
    intensities = [row["intensity"] for row in rows] + [peak / bandwidth]
    ends = [min(intensities) / 2, peak / bandwidth, max(intensities) * 2]
    axis.plot(ends, [min(peak, bandwidth * end) for end in ends], color="black", linewidth=1.2)
    for in_cache, marker, place in ((False, "o", "beyond the caches"), (True, "^", "within the caches")):
        chosen = [row for row in rows if row["in_cache"] == in_cache]
        if chosen:
            ours = [row["gflops"] for row in chosen]
            theirs = [row["gflops"] / row["ratio"] for row in chosen]
            positions = [row["intensity"] for row in chosen]
            axis.vlines(positions, theirs, ours, color="0.7", linewidth=0.8)
            axis.plot(positions, theirs, marker, color="0.55", markersize=4, linestyle="", label=f"best peer, {place}")
            axis.plot(positions, ours, marker, color=COLOURS[0], markersize=5, linestyle="", label=f"ours, {place}")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("operations per byte moved (every input and output once)", fontsize=9)
    axis.set_ylabel("GFLOP/s; line: the measured limits", fontsize=9)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.legend(fontsize=8, frameon=False, loc="lower right")
