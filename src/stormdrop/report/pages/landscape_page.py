"""The page of a landscape: the times over two knobs as a surface that can be turned, with the path of a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import formatting
from ..plots.landscape import heat_map
from ..plots.svg import Numbering
from .page import render

Document = Mapping[str, Any]


def landscape_page(document: Document, command: str) -> str:
    """Renders the page of a landscape.

    Args:
        document: The document of `stormdrop landscape --json`.
        command: The command that repeats it.

    Returns:
        The page.
    """
    optimum = document["optimum"]
    surface = {
        "knobs": list(document["knobs"]),
        "values": [[formatting.value(value) for value in values] for values in document["values"]],
        "ratios": [[None if seconds is None else seconds / optimum for seconds in row] for row in document["seconds"]],
        "path": [list(point) for point in document["path"]],
        "evaluated": [list(point) for point in document["evaluated"]],
        "best": list(document["optimum_at"]),
    }
    caption = "The same from above: yellow is fast, violet is slow, black with a cross is a failure."
    figure = heat_map(document)
    for text in figure.legends[0].get_texts():
        text.set_color("#111111")  # its ground is light, also on a dark page
    return render(
        "landscape.html",
        document=document,
        surface=surface,
        caption=caption,
        plot=Numbering().inline(figure, caption),
        command=command,
    )
