"""Results as small HTML for Jupyter: a few lines, a table and a plot, in the colours of the notebook."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from .formatting import config, interval, ratios, time
from .headline import headline
from .plots.model_plots import latencies, over_time
from .plots.svg import inline

Document = Mapping[str, Any]

_numbers = itertools.count(1)
"""Numbers the plots of this process: a notebook shows several, and their inner names must differ."""

_MOST_KERNELS = 8


def kernel_html(document: Document) -> str:
    """The result of tuning one kernel, or a callable.

    Args:
        document: The document of `stormdrop tune-op --json`, or that of `MinimizeResult`.

    Returns:
        HTML. Every text of the document is escaped.

    Example:
        >>> counts = {"trials": 3, "failed": 3, "seconds": 1.0, "converged": False, "curve": [], "search": "storm"}
        >>> print(kernel_html({"op": "a <b>", "best": None, "baseline": {"seconds": None}, **counts}))
        <div><strong>a &lt;b&gt;</strong><p>no candidate worked</p><p>storm: 3 trials, 3 failed, 1.0 s</p></div>
    """
    best, rows = document["best"], []
    if best is not None:
        rows.append(("best", time(best["seconds"]), interval(best["interval"])))
        rows.append(("default", time(document["baseline"]["seconds"]), ""))
    found = _table(("", "time", "95% interval"), rows) if rows else Markup("<p>no candidate worked</p>")
    said = Markup()
    if best is not None:
        said = Markup("<p><code>{}({})</code></p>").format(best["sketch"], config(best["config"]))
        if best["speedup"]:
            text = f"{best['speedup'][0]:.2f} ({ratios(best['speedup'][1:])}) times as fast as the default"
            said += Markup("<p>{}</p>").format(text)
    return _whole(
        str(document.get("op") or document.get("name") or "a search"),
        found + said + _effort(document) + _plot(over_time(document["curve"], "best candidate"), "the best so far"),
    )


def model_html(document: Document) -> str:
    """The result of tuning a model: its latency, its costliest kernels, and how it was tuned.

    Args:
        document: The document of `stormdrop tune --json`.

    Returns:
        HTML. Every text of the document is escaped.
    """
    rows = [
        (name, time(timing["seconds"]), interval(timing["interval"]))
        for name, timing in (("tuned", document["latency"]), ("default schedules", document["untuned"]))
        if timing
    ]
    tasks = sorted(document["tasks"], key=lambda task: -(task["seconds"] or 0.0) * task["weight"])
    kernels = [
        (task["name"], str(task["weight"]), time(task["seconds"]), task["sketch"] or "plain")
        for task in tasks[:_MOST_KERNELS]
    ]
    left = len(tasks) - len(kernels)
    return _whole(
        str(document["model"]),
        Markup("<p>{}</p>").format(headline(document))
        + _table(("", "latency", "95% interval"), rows)
        + _table(("kernel", "calls", "each, alone", "sketch"), kernels)
        + (Markup("<p>and {} more kernels</p>").format(left) if left else Markup())
        + _effort(document)
        + _plot(over_time(document["curve"], "kernels together"), "the time of all kernels together"),
    )


def bench_html(document: Document) -> str:
    """The result of a bench: each contender with its interval.

    Args:
        document: The document of `stormdrop bench --json`.

    Returns:
        HTML. Every text of the document is escaped.
    """
    contenders = document["contenders"]
    rows = [
        (
            each["name"],
            time(each["seconds"]),
            f"{each['ratio']:.2f}",
            ratios(each["ratio_interval"]),
        )
        for each in contenders
    ]
    figure = latencies([(each["name"], each["seconds"], each["interval"]) for each in contenders])
    return _whole(
        str(document["what"]),
        _table(("", "time", "over ours", "95% interval"), rows) + _plot(figure, "times of an execution"),
    )


def _whole(title: str, content: Markup) -> str:
    return str(Markup("<div><strong>{}</strong>{}</div>").format(title, content))


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    lines = [
        Markup("<tr>{}</tr>").format(Markup("").join(Markup("<td>{}</td>").format(cell) for cell in row))
        for row in rows
    ]
    head = Markup("").join(Markup("<th>{}</th>").format(heading) for heading in headings)
    return Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(head, Markup("").join(lines))


def _effort(document: Document) -> Markup:
    text = f"{document['trials']} trials, {document['failed']} failed, {document['seconds']:.1f} s"
    ended = ", converged" if document["converged"] else ""
    return Markup("<p>{}: {}{}</p>").format(document["search"], text, ended)


def _plot(figure: Figure | None, title: str) -> Markup:
    if figure is None:
        return Markup()
    return Markup('<div style="fill:currentColor;font-family:sans-serif">{}</div>').format(
        inline(figure, title, f"notebook-{next(_numbers)}-")
    )
