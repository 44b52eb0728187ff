"""Results as small HTML for Jupyter: a few lines, a table and a plot, in the colours of the notebook.

Without matplotlib there is no plot: what was tuned is shown all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from ..optional_packages import PLOTS, installed
from .formatting import config, count, interval, percent, plain_ratio, ratios, time
from .headline import headline, kernel_headline, never_tuned
from .layer_label import label_of
from .search_end import IN_WORDS, end_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .plots.svg import Numbering

Document = Mapping[str, Any]

_MOST_KERNELS = 8
_label = partial(label_of, width=44)  # the layers of a kernel in few words


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
    nothing = "no candidate worked" if document["trials"] else "nothing was measured"
    found = _table(("", "time", "95% interval"), rows) if rows else Markup("<p>{}</p>").format(nothing)
    said = Markup()
    if best is not None:
        said += Markup("<p><code>{}({})</code></p>").format(best["sketch"], config(best["config"]))
        said += Markup("<p>{}</p>").format(kernel_headline(document))
    return _whole(
        str(document.get("op") or document.get("name") or "a search"),
        found + said + _effort(document) + _curve(document, "best candidate", "the best so far"),
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
        (_label(task), str(task["weight"]), time(task["seconds"]), task["sketch"] or "plain")
        for task in tasks[:_MOST_KERNELS]
    ]
    left, untuned = len(tasks) - len(kernels), never_tuned(document)
    return _whole(
        str(document["model"]),
        Markup("<p>{}</p>").format(headline(document))
        + _table(("", "latency", "95% interval"), rows)
        + _table(("kernel", "calls", "each, alone", "sketch"), kernels)
        + (Markup("<p>and {} more kernels</p>").format(left) if left else Markup())
        + Markup("<p>{}</p>" if untuned else "").format(untuned)
        + _effort(document)
        + _curve(document, "kernels together", "the time of all kernels together"),
    )


def compiled_html(document: Document) -> str:
    """A compiled model: what it takes and gives, and for which machine; how fast it is, if its tuning is known.

    Args:
        document: `name`, `machine`, `precision`, `inputs` and `outputs` in words, `sizes` (empty if there is one), and
            `kernels` (the `flops` of a call of each by its name). Of the document of its tuning `latency`, `untuned`,
            `speedup`, `verified` and `profile`, each of which may be None.

    Returns:
        HTML. Every text of the document is escaped.
    """
    facts = [("machine", document["machine"]), ("precision", document["precision"])]
    facts += [("inputs", document["inputs"]), ("outputs", document["outputs"])]
    facts += [("sizes", "; ".join(document["sizes"]))] if document["sizes"] else []
    latency, untuned, verified = document["latency"], document["untuned"], document["verified"]
    if latency and latency["seconds"] is not None:
        facts.append(("latency", f"{time(latency['seconds'])} ({interval(latency['interval'])})"))
    if untuned and untuned["seconds"] is not None:
        faster = f", {document['speedup'][0]:.2f} times as long as the tuned model" if document["speedup"] else ""
        facts.append(("default schedules", f"{time(untuned['seconds'])}{faster}"))
    if verified and verified["max_error"] is not None:
        facts.append(("error", f"{verified['max_error']:.1e} against {verified['against']}"))
    disturbed = _disturbed(latency and latency.get("disturbed"), "the timing: the figures are not reliable")
    return _whole(document["name"], _table((), facts) + disturbed + _kernels(document))


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
            plain_ratio(each["ratio"]),
            ratios(each["ratio_interval"]),
        )
        for each in contenders
    ]
    return _whole(
        str(document["what"]),
        _table(("", "time", "over ours", "95% interval"), rows) + _intervals(contenders),
    )


def _kernels(document: Document) -> Markup:
    """The kernels, folded away: with their times if the model was profiled, else with their operations."""
    profile = document["profile"]
    headings: tuple[str, ...] = ("kernel", "MFLOP a call")
    rows: list[tuple[str, ...]] = [(name, f"{work['flops'] / 1e6:.3g}") for name, work in document["kernels"].items()]
    if profile:
        headings = ("kernel", "calls", "together", "share")
        rows = [
            (_label(each), str(each["calls"]), time(each["seconds"]), percent(each["seconds"] / profile["seconds"]))
            for each in profile["kernels"]
        ]
    if not rows:
        return Markup()
    summary = Markup("<summary>{}</summary>").format(count(len(rows), "kernel"))
    return Markup("<details>{}{}</details>").format(summary, _table(headings, rows))


def _disturbed(whether: Any, what: str) -> Markup:
    return Markup("<p>Something else used the machine during {}.</p>").format(what) if whether else Markup()


def _whole(title: str, content: Markup) -> str:
    return str(Markup("<div><strong>{}</strong>{}</div>").format(title, content))


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    lines = [
        Markup("<tr>{}</tr>").format(Markup("").join(Markup("<td>{}</td>").format(cell) for cell in row))
        for row in rows
    ]
    cells = Markup("").join(Markup("<th>{}</th>").format(heading) for heading in headings)
    head = Markup("<thead><tr>{}</tr></thead>").format(cells) if headings else Markup()
    return Markup("<table>{}<tbody>{}</tbody></table>").format(head, Markup("").join(lines))


def _effort(document: Document) -> Markup:
    text = f"{document['trials']} trials, {document['failed']} failed, {document['seconds']:.1f} s"
    return Markup("<p>{}: {}{}</p>").format(document["search"], text, _ended(document))


def _ended(document: Document) -> str:
    """Why the search ended; nothing if the document does not say it, as that of a model that has not converged."""
    if document.get("interrupted"):
        return ", interrupted"
    if document.get("ended_by"):
        return f", ended by an error: {document['ended_by']}"
    if not (document["converged"] or document.get("end")):
        return ""
    return f", {IN_WORDS[end_of(document['converged'], document)]}"


def _curve(document: Document, of: str, title: str) -> Markup:
    """The plot of a time that falls while a tuning goes on."""
    if not installed(PLOTS):
        return Markup()
    from .plots.model_plots import over_time

    return _plot(over_time(document["curve"], of), title)


def _intervals(contenders: Sequence[Document]) -> Markup:
    """The plot of the times of contenders."""
    if not installed(PLOTS):
        return Markup()
    from .plots.model_plots import latencies

    figure = latencies([(each["name"], each["seconds"], each["interval"]) for each in contenders])
    return _plot(figure, "times of an execution")


@cache
def _numbering() -> Numbering:
    """That of the plots of this process: a notebook shows several."""
    from .plots.svg import Numbering

    return Numbering("notebook-")


def _plot(figure: Figure | None, title: str) -> Markup:
    if figure is None:
        return Markup()
    plot = _numbering().inline(figure, title)
    return Markup('<div style="fill:currentColor;font-family:sans-serif">{}</div>').format(plot)
