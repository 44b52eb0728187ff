"""What all plots share: colours that the colour-blind tell apart, panels with one legend, and PNG files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C564B")
"""Okabe and Ito's, without their yellow, which is lost on white; the last is brown."""

MOST = 12
"""Searches in one plot; of more, the best are shown."""


def line(at: int) -> dict[str, Any]:
    """Colour and dashes of the search at this place: where colours come again, the dashes differ."""
    return {"color": COLOURS[at % len(COLOURS)], "linestyle": ("-", "--")[at // len(COLOURS) % 2]}


def panels(titles: Sequence[str], height: float | None = None) -> tuple[Figure, list[Axes]]:
    """A figure with a panel per title, of this height in inches each; fewer panels are larger."""
    columns = min(len(titles), min((3, 4), key=lambda count: -len(titles) % count))
    width, usual = {1: (7.5, 4.6), 2: (5.2, 3.6)}.get(len(titles), (4.2, 3.2))
    height = usual if height is None else height
    rows = math.ceil(len(titles) / columns)
    figure = Figure(figsize=(width * columns, height * rows + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(rows, columns, at + 1) for at in range(len(titles))]
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    return figure, axes


def legend(figure: Figure, axis: Axes) -> None:
    """One legend below all panels, of what has a label in this one."""
    handles, labels = axis.get_legend_handles_labels()
    inches = 0.6 + 0.075 * max(map(len, labels), default=0)
    columns = max(1, int(figure.get_figwidth() / inches))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)


def save(figure: Figure, path: Path) -> None:
    """Writes a PNG."""
    figure.savefig(path, dpi=150)
