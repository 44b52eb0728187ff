"""The page of a bench: ours beside its peers, with intervals and the times of all rounds."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from .. import formatting
from ..documents import Bench, Contender, Service
from ..plots.model_plots import latencies
from ..plots.style import COLOURS
from ..plots.svg import Numbering, draw_boxes, plain, plot
from .page import render


def bench_page(bench: Bench, command: str) -> str:
    """Renders the page of a bench.

    Args:
        bench: Its document.
        command: The command that repeats it.

    Returns:
        The page.
    """
    numbering, contenders = Numbering(), bench["contenders"]
    entries = [(each["name"], each["seconds"], each["interval"]) for each in contenders]
    said = "; ".join(f"{name} {formatting.time(seconds)}" for name, seconds, _ in entries)
    sampled = [each for each in contenders if each.get("samples")]
    return render(
        "bench.html",
        bench=bench,
        ours=contenders[0],
        peers=sorted(contenders[1:], key=lambda each: each["seconds"]),
        plot=numbering.inline(latencies(entries), f"Times of an execution: {said}"),
        boxes=numbering.inline(boxes(sampled), "The times of all rounds of each contender") if sampled else None,
        load=bench.get("load"),
        services=services_of(bench),
        command=command,
    )


def services_of(bench: Bench) -> list[tuple[str, Service]]:
    """How each contender served several calls at a time, by the number of calls; empty if that was not measured."""
    services = [(each["name"], service) for each in bench["contenders"] for service in each.get("services", [])]
    return sorted(services, key=lambda each: each[1]["at_a_time"])


def boxes(contenders: Sequence[Contender]) -> Figure:
    """Plots the times of all rounds as boxes from quartile to quartile, with every round as a dot.

    Args:
        contenders: The contenders, which have `samples`; ours first.
    """
    figure, axis = plot(height=1.0 + 0.5 * len(contenders))
    samples = [each["samples"] for each in contenders]
    rows = range(len(contenders))
    draw_boxes(axis, samples)
    for row, times in zip(rows, samples, strict=True):
        axis.plot(times, [row] * len(times), "o", color=COLOURS[0], markersize=4, alpha=0.55, linewidth=0)
    axis.set_yticks(list(rows), [plain(each["name"]) for each in contenders])
    axis.set_ylim(len(contenders) - 0.5, -0.5)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: formatting.time(seconds)))
    axis.set_xlabel("time of an execution in each round")
    return figure
