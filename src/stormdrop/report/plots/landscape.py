"""The plot of all times over two knobs, with the path of a search (Droplet Search paper, Figures 5 and 10)."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke

from .. import formatting

Document = Mapping[str, Any]

_TICKS = (1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2, 3, 5, 7, 10, 20, 50, 100, 200, 500, 1000)
_MAX_LABELS = 24
_OUTSIDE: Mapping[str, Any] = {"facecolor": "#F4F4F4", "edgecolor": "#BBBBBB", "hatch": "////", "linewidth": 0}
_OUTLINE = [withStroke(linewidth=3.2, foreground="black")]


def heat_map(document: Document) -> Figure:
    """Plots the times of all points of a plane over the best of them.

    The colour scale is logarithmic: yellow is fast, violet is slow. A failed point is black with a cross, and a point
    outside the space is hatched. The path joins the best candidates after each batch of the search. A ring marks the
    best point of the plane, and a dot marks each point that the search evaluated.

    Args:
        document: The document of `stormdrop landscape --json`.

    Returns:
        The figure.
    """
    ratios = np.array(document["seconds"], dtype=np.float64) / document["optimum"]
    rows, columns = ratios.shape
    size = (float(np.clip(0.34 * columns, 4.0, 10.0)) + 2.6, float(np.clip(0.34 * rows, 3.2, 9.0)) + 2.4)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.add_subplot()
    worst = max(float(np.nanmax(ratios)), 1.02)
    image = axis.imshow(ratios, cmap="viridis_r", norm=LogNorm(1.0, worst), origin="lower", aspect="auto")
    _colour_bar(figure, axis, image, worst)
    handles = _mark_missing_times(axis, document["statuses"])
    _draw_path(axis, document)
    for knob_axis, values, name in zip((axis.xaxis, axis.yaxis), document["values"], document["knobs"], strict=True):
        step = -(-len(values) // _MAX_LABELS)
        knob_axis.set_ticks(
            range(0, len(values), step), [formatting.value(value) for value in values[::step]], fontsize=8
        )
        knob_axis.set_label_text(name, fontsize=9)
    if max(len(formatting.value(value)) for value in document["values"][0]) > 3:
        axis.tick_params(axis="x", rotation=90)
    axis.set_title(_title(document, int(size[0] * 13)), fontsize=9)
    handles = [*axis.get_legend_handles_labels()[0], *handles]
    per_row = 4 if size[0] < 9 else 7
    figure.legend(handles=handles, loc="outside lower center", ncols=per_row, fontsize=8, facecolor="#DDDDDD")
    return figure


def _colour_bar(figure: Figure, axis: Axes, image: Any, worst: float) -> None:
    ticks = [1.0]
    for tick in _TICKS:
        if ticks[-1] * worst ** (1 / 12) <= tick <= worst:
            ticks.append(tick)
    bar = figure.colorbar(image, ax=axis, pad=0.02)
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks], fontsize=8)
    bar.minorticks_off()
    bar.set_label("time / best of this plane", fontsize=9)


def _mark_missing_times(axis: Axes, statuses: Sequence[Sequence[str | None]]) -> list[Artist]:
    """Marks the points that have no time. Returns the entries for the legend that matplotlib does not add by itself."""
    kinds = np.array([[2 if status is None else int(status != "ok") for status in row] for row in statuses])
    handles: list[Artist] = []
    failed = np.argwhere(kinds == 1)
    outside = np.argwhere(kinds == 2)
    for y, x in outside:
        axis.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, **_OUTSIDE))
    for y, x in failed:
        axis.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor="black", linewidth=0))
    if len(failed):
        axis.plot(failed[:, 1], failed[:, 0], "x", color="#D55E00", markersize=5, label="failed")
    if len(outside):
        handles.append(Patch(**_OUTSIDE, label="outside the space"))
    return handles


def _draw_path(axis: Axes, document: Document) -> None:
    evaluated = np.array(document["evaluated"]).reshape(-1, 2)
    path = np.array(document["path"]).reshape(-1, 2)
    best = document["optimum_at"]
    axis.plot(
        evaluated[:, 0], evaluated[:, 1], "o", color="white", markeredgecolor="black", markersize=3.5, label="evaluated"
    )
    if len(path):
        axis.plot(path[:, 0], path[:, 1], "-", color="white", linewidth=1.8, path_effects=_OUTLINE, label="path")
        for (x, y), marker, size, label in ((path[0], "s", 8, "start of the path"), (path[-1], "*", 14, "end")):
            axis.plot(
                [x], [y], marker, color="white", markeredgecolor="black", markersize=size, linestyle="", label=label
            )
    ring: dict[str, Any] = {"color": "none", "markeredgecolor": "#D55E00", "markeredgewidth": 2.2, "markersize": 17}
    axis.plot([best[0]], [best[1]], "o", label="best", **ring)


def _title(document: Document, width: int) -> str:
    ratio = document["best_over_optimum"]
    ending = "nothing worked" if ratio is None else f"ends at {ratio:.3f} times the best"
    lines = [
        document["ground"],
        f"{document['search']}, seed {document['seed']}: {document['evaluations']} evaluations, {ending}",
        *textwrap.wrap(formatting.config(document["fixed"]), width)[:4],
    ]
    return "\n".join(lines)
