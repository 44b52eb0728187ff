"""What all plots share: colours that colour-blind readers can tell apart, panels with one legend, and PNG files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C564B")
"""The colours of Okabe and Ito. Brown replaces their yellow, which cannot be seen on white."""

MAX_SEARCHES = 12
"""How many searches a plot shows. If there are more, it shows the best ones."""


def line_style(index: int) -> dict[str, Any]:
    """The colour and the dashes of a search's line, as arguments of `Axes.plot`.

    Args:
        index: The place of the search among all searches. Colours repeat after eight, and then with other dashes.

    Returns:
        Keyword arguments.
    """
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": ("-", "--")[index // len(COLOURS) % 2]}


def panels(titles: Sequence[str], height: float | None = None) -> tuple[Figure, list[Axes]]:
    """A figure with a panel for each title.

    Args:
        titles: The titles of the panels.
        height: The height of each panel in inches. By default it depends on the number of panels.

    Returns:
        The figure and the axes of its panels.
    """
    columns = min(len(titles), min((3, 4), key=lambda count: -len(titles) % count))
    width, default_height = {1: (7.5, 4.6), 2: (5.2, 3.6)}.get(len(titles), (4.2, 3.2))
    height = default_height if height is None else height
    rows = math.ceil(len(titles) / columns)
    figure = Figure(figsize=(width * columns, height * rows + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(rows, columns, index + 1) for index in range(len(titles))]
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    return figure, axes


def legend(figure: Figure, axis: Axes) -> None:
    """Adds one legend below all panels. It lists what has a label in this panel."""
    handles, labels = axis.get_legend_handles_labels()
    inches = 0.6 + 0.075 * max(map(len, labels), default=0)
    columns = max(1, int(figure.get_figwidth() / inches))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as a PNG file."""
    figure.savefig(path, dpi=150)
