"""The page of a tuned model: what it gained, which kernels cost most and why, and how to repeat every figure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from .. import formatting
from ..code import highlighted
from ..diagnosis import why_not_faster
from ..documents import Bench, Tuning
from ..headline import kernels_left, never_tuned
from ..kernels import KernelView, kernel_views, layers_views
from ..layer_label import label_of
from ..plots.model_plots import latencies, over_time, roofline
from ..plots.svg import Numbering
from .bench_page import services_of
from .page import render

_MOST_OF_ONE = 16_000
_MOST_OF_ALL = 160_000
"""Characters of TensorIR on a page: of one kernel, and of all kernels together, the costliest first."""
_PLOTS = 8
"""How many kernels have a plot of their search: each takes 8 KB, and a fifth of a second."""


@dataclass(frozen=True)
class Details:
    """What a page says about one kernel.

    Attributes:
        view: The kernel.
        why: Why it is not faster.
        code: Its TensorIR, highlighted; None if it has none.
        plot: The time of its fastest schedule during its tuning; None if it was not tuned.
    """

    view: KernelView
    why: list[str]
    code: Markup | None
    plot: Markup | None


def model_page(
    tuning: Tuning, metadata: Mapping[str, Any], digest: str, folder: str, bench: Bench | None = None
) -> str:
    """Renders the page of a tuned model.

    Args:
        tuning: The document of its tuning.
        metadata: What its folder says about it: `metadata.json`.
        digest: The digest of its folder.
        folder: The folder, as commands name it.
        bench: The document of a bench of this model beside its peers; None if there is none.

    Returns:
        The page.
    """
    numbering, views = Numbering(), kernel_views(tuning)
    limits, statuses = tuning["limits"], _sum_of_statuses(tuning)
    roof = roofline(views, limits) if limits else None
    curve = over_time(tuning["curve"], "kernels together")
    folder = shlex.quote(folder)
    return render(
        "model.html",
        tuning=tuning,
        metadata=metadata,
        digest=digest,
        bench=bench,
        services=services_of(bench) if bench else [],
        views=views,
        layers=layers_views(tuning, views),
        folded=[layer for layer in tuning.get("layers", []) if not layer["kernels"]],
        details=_details(views, numbering),
        timed_inside=tuning["profile"] is not None,
        left=never_tuned(tuning),
        never_tuned=[
            (task, next((view for view in views if view.name == task["name"]), None)) for task in kernels_left(tuning)
        ],
        kept=[view for view in views if view.kept_default and view.share is not None],
        outside=_outside(tuning),
        latency_plot=_latency_plot(tuning, bench, numbering),
        roofline_plot=None if roof is None else numbering.inline(roof, "The kernels below the machine's limits"),
        curve_plot=None
        if curve is None
        else numbering.inline(curve, "The time of all kernels together while the model was tuned"),
        statuses=statuses,
        measurements=sum(statuses.values()),
        errors=_errors(tuning),
        commands={
            "tune": None if tuning["command"] is None else f"{tuning['command']} --out {folder}",
            "profile": f"stormdrop run {folder} --profile",
            "bench": f"stormdrop bench {folder} --json > bench.json",
            "percentiles": f"stormdrop bench {folder} --for 30s --json > bench.json",
            "with_bench": f"stormdrop report {folder} --bench bench.json --out report.html",
            "run": f"stormdrop run {folder} --digest {digest}",
            "limits": "stormdrop doctor --refresh",
            "records": "stormdrop db list",
        },
    )


def _details(views: list[KernelView], numbering: Numbering) -> list[Details]:
    """What the page says about each kernel, with as much TensorIR as the page can hold."""
    left = _MOST_OF_ALL
    details = []
    for view in views:
        program, search, code = view.kernel["tir"], view.search, None
        if program and left > 0:
            most = min(_MOST_OF_ONE, max(left, _MOST_OF_ONE // 8))
            code = highlighted(program, most)
            left -= min(most, len(program))
        plotted = search is not None and len(search["curve"]) > 1 and view.position <= _PLOTS
        curve = over_time(search["curve"], "best candidate") if search and plotted else None
        title = f"The time of the best candidate of {view.label} during its search"
        details.append(
            Details(view, why_not_faster(view), code, None if curve is None else numbering.inline(curve, title))
        )
    return details


def _latency_plot(tuning: Tuning, bench: Bench | None, numbering: Numbering) -> Markup | None:
    """The times of the model before and after its tuning, and of its peers; None if no time is known."""
    entries = []
    for name, timing in (("tuned", tuning["latency"]), ("default schedules", tuning["untuned"])):
        if timing and timing["seconds"] is not None:
            low, high = timing["interval"]
            assert low is not None and high is not None
            entries.append((name, timing["seconds"], [low, high]))
    if bench:
        entries += [(f"{each['name']} (bench)", each["seconds"], each["interval"]) for each in bench["contenders"]]
    if not entries:
        return None
    said = "; ".join(f"{name} {formatting.time(seconds)}" for name, seconds, _ in entries)
    return numbering.inline(latencies(entries), f"Times of an execution: {said}")


def _outside(tuning: Tuning) -> tuple[float, float] | None:
    """The seconds that are spent in none of the kernels in the table, and their share; None if they are not known."""
    profile = tuning["profile"]
    if not profile or not profile["seconds"]:
        return None
    outside = profile["outside"] + sum(each["seconds"] for each in profile["kernels"] if each["task"] is None)
    return outside, outside / profile["seconds"]


def _sum_of_statuses(tuning: Tuning) -> dict[str, int]:
    """How many candidates of all kernels have each status, the most frequent first."""
    sums: dict[str, int] = {}
    for kernel in tuning["kernels"]:
        for status, number in (kernel["search"]["statuses"] if kernel["search"] else {}).items():
            sums[status] = sums.get(status, 0) + number
    return dict(sorted(sums.items(), key=lambda entry: -entry[1]))


def _errors(tuning: Tuning) -> list[tuple[str, str]]:
    """The most frequent error of each kernel that has one."""
    return [
        (label_of(task), kernel["search"]["error"])
        for task, kernel in zip(tuning["tasks"], tuning["kernels"], strict=True)
        if kernel["search"] and kernel["search"]["error"]
    ]
