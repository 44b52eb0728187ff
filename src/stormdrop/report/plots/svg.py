"""Plots as SVG inside a page: no script, text that can be selected, colours that follow the page's light or dark."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Sequence

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from .style import COLOURS

_PROLOGUE = re.compile(r"^.*?(?=<svg )", re.DOTALL)
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_ID = re.compile(r'\sid="([^"]+)"')
_REFERENCE = re.compile(r'(url\(#|href="#)([^")]+)')
_SIZE = re.compile(r'(<svg [^>]*?)width="[\d.]+pt" height="[\d.]+pt"')
_FONTS = re.compile(r"font-family: [^;\"]*;? ?")
_BLACK = "#000000"
_SPACE = re.compile(r"\n\s*")


class Numbering:
    """Gives each plot of a page its own prefix for the names inside it, which would collide otherwise.

    Args:
        prefix: The beginning of all of these prefixes.
    """

    def __init__(self, prefix: str = "p") -> None:
        self._prefix, self._numbers = prefix, itertools.count(1)

    def inline(self, figure: Figure, title: str) -> Markup:
        """A figure as an element of a page.

        Args:
            figure: The figure. What it draws in black has the colour of the page's text.
            title: What it shows, in words, for readers who do not see it.

        Returns:
            The element.
        """
        prefix = f"{self._prefix}{next(self._numbers)}-"
        file = io.StringIO()
        # Text stays text; names depend on what is drawn, so that equal documents give equal pages.
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "stormdrop"}):
            FigureCanvasSVG(figure)
            figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
        text = _COMMENT.sub("", _METADATA.sub("", _PROLOGUE.sub("", file.getvalue())))
        text = _FONTS.sub("", text)  # the page has its own
        used = {name for _, name in _REFERENCE.findall(text)}
        text = _ID.sub(lambda found: f' id="{prefix}{found[1]}"' if found[1] in used else "", text)
        text = _REFERENCE.sub(lambda found: f"{found[1]}{prefix}{found[2]}", text)
        width = 72 * figure.get_figwidth()  # in points; a page shows it from 0.75 to 1.53 pixels a point
        style = f"min-width:{0.75 * width:.0f}px;max-width:{1.53 * width:.0f}px"
        text = _SIZE.sub(
            lambda found: f'{found[1]}role="img" aria-label="{escape(title)}" style="{style}"', text, count=1
        )
        for number, colour in enumerate(COLOURS):
            own = "currentColor" if colour == _BLACK else f"var(--plot{number}, {colour.lower()})"
            text = text.replace(colour.lower(), own)
        return Markup(_SPACE.sub("\n", text))


def plot(height: float = 2.8, width: float = 6.4) -> tuple[Figure, Axes]:
    """A figure with one panel that fits the column of a page.

    Args:
        height: In inches.
        width: In inches.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    axis = figure.add_subplot()
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=9)
    return figure, axis


def draw_boxes(axis: Axes, rows: Sequence[Sequence[float]]) -> None:
    """Draws a horizontal box from quartile to quartile for each row, with a coloured line at the median.

    Args:
        axis: The panel. Row i is at height i.
        rows: The values of each row.
    """
    line = {"color": _BLACK, "linewidth": 1.0}
    axis.boxplot(
        rows,
        positions=range(len(rows)),
        orientation="horizontal",
        widths=0.5,
        showfliers=False,
        boxprops=line,
        whiskerprops=line,
        capprops=line,
        medianprops={"color": COLOURS[1], "linewidth": 2},
    )


def plain(name: str, most: int = 28) -> str:
    """A name as plain text of a plot, cut if it is long: a dollar sign begins no formula.

    Args:
        name: The name.
        most: Characters.

    Example:
        >>> plain("price of $x", 8)
        'price o…'
    """
    cut = name if len(name) <= most else f"{name[: most - 1]}…"
    return cut.replace("$", r"\$")
