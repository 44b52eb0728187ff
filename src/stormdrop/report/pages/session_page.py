"""The page of a session: what its search tried, what won, how sure that is, and how to repeat it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ...records.contract import Outcome, State
from ...records.reading.session_document import kept_phases
from .. import formatting
from ..code import highlighted
from ..kernels import MEMORY, Roofline, place_in_roofline
from ..plots.style import COLOURS
from ..plots.svg import Numbering, plot
from ..search_end import sentence
from .page import render

Document = Mapping[str, Any]

_MOST_CODE = 60_000  # characters
_MOST_ROWS = 20  # of the table of candidates
_MOST_DOTS = 3_000
_FAILED = "#A63400"


def session_page(session: Document, kernel: Document, repeat: str | None, report: str) -> str:
    """Renders the page of a session.

    Args:
        session: The document of the session with its trials (`records.reading.session_document`).
        kernel: What is known of its kernel: `flops`, `bytes`, `limits` (None if unknown), the `tir` of its best
            schedule and its `steps`, and the `reason` why there are none.
        repeat: The command that tunes it again; None if no command can.
        report: The command that makes this page.

    Returns:
        The page.
    """
    trials, outcome = session["trials"], session["outcome"] or asdict(Outcome())
    extra = outcome["extra"]
    numbering, ranked = Numbering(), _ranked(trials)
    place = _place(kernel, outcome["seconds"])
    return render(
        "session.html",
        session=session,
        layers=session.get("layers", ()),
        outcome=outcome,
        speedup=extra.get("speedup"),
        disturbed=bool(extra.get("disturbed")),
        kernel=kernel,
        place=place,
        rate=kernel["flops"] / outcome["seconds"] if kernel["flops"] and outcome["seconds"] else None,
        why=_why(session, place, ranked),
        plot=_trials_plot(trials, numbering),
        ranked=ranked[:_MOST_ROWS],
        candidates=len({_key(trial) for trial in trials}),
        sketches=_by_sketch(session, ranked),
        phases=_phases(trials, extra),
        statuses=dict(Counter(trial["status"] for trial in trials).most_common()),
        errors=Counter(trial["error"] for trial in trials if trial["error"]).most_common(10),
        suspect=sum(trial["suspect"] for trial in trials),
        code=highlighted(kernel["tir"], _MOST_CODE) if kernel["tir"] else None,
        repeat=repeat,
        report=report,
    )


def _key(trial: Document) -> str:
    return f"{trial['sketch']}({formatting.config(trial['config'])})"


def _ranked(trials: Sequence[Document]) -> list[dict[str, Any]]:
    """The candidates that worked, with the median over all of their samples, the fastest first."""
    samples: dict[str, list[float]] = {}
    first: dict[str, Document] = {}
    for trial in trials:
        if trial["status"] == "ok":
            key = _key(trial)
            samples.setdefault(key, []).extend(trial["seconds"])
            first.setdefault(key, trial)
    ranked = [
        {
            "sketch": first[key]["sketch"],
            "config": first[key]["config"],
            "seconds": float(np.median(seconds)),
            "samples": len(seconds),
        }
        for key, seconds in samples.items()
    ]
    return sorted(ranked, key=lambda each: each["seconds"])


def _place(kernel: Document, seconds: float | None) -> Roofline | None:
    if seconds is None or kernel["flops"] is None or kernel["limits"] is None:
        return None
    return place_in_roofline(kernel["flops"], kernel["bytes"], seconds, kernel["limits"])


def _why(session: Document, place: Roofline | None, ranked: Sequence[Document]) -> list[str]:
    """Why the kernel is not faster, as far as the records say it."""
    sentences = []
    outcome = session["outcome"]
    if place is not None:
        limit = "memory bandwidth" if place.bound == MEMORY else "arithmetic peak"
        sentences.append(f"It is at {formatting.percent(place.fraction)} of this machine's {limit}.")
    tried = formatting.count(len({_key(trial) for trial in session["trials"]}), "candidate")
    if outcome is None:
        sentences.append(f"The session has no result yet; {tried} were tried.")
    elif session["state"] != State.FINISHED.value:
        sentences.append(f"Its search was interrupted after {tried}: more time may help.")
    else:
        sentences.append(sentence(tried, outcome["converged"], outcome["extra"]))
    if ranked and len(ranked) > 1:
        near = sum(each["seconds"] <= 1.05 * ranked[0]["seconds"] for each in ranked)
        sentences.append(f"{formatting.count(near, 'candidate')} measured within 5% of the fastest.")
    return sentences


def _by_sketch(session: Document, ranked: Sequence[Document]) -> list[dict[str, Any]]:
    """For each sketch what was tried of it, and its fastest candidate."""
    tried = Counter(trial["sketch"] for trial in session["trials"])
    failed = Counter(trial["sketch"] for trial in session["trials"] if trial["status"] != "ok")
    return [
        {
            "sketch": name,
            "tried": tried[name],
            "failed": failed[name],
            "best": next((each for each in ranked if each["sketch"] == name), None),
        }
        for name in session["setting"]["sketches"]
    ]


def _phases(trials: Sequence[Document], extra: Document) -> dict[str, float]:
    """Wall seconds by phase: those of the whole session, or those of its measurements if it has no result."""
    if kept := kept_phases(extra):
        return kept
    sums: Counter[str] = Counter()
    for trial in trials:
        sums.update(trial["phases"])
    return dict(sums)


def _trials_plot(trials: Sequence[Document], numbering: Numbering) -> Markup | None:
    """All measurements over the seconds of tuning, and the fastest so far."""
    if not any(trial["status"] == "ok" for trial in trials):
        return None
    figure = _trials_figure(trials)
    return numbering.inline(figure, "Every measurement over the seconds of tuning, and the fastest candidate so far")


def _trials_figure(trials: Sequence[Document]) -> Figure:
    figure, axis = plot(height=3.2)
    working = [trial for trial in trials if trial["status"] == "ok"]
    elapsed = np.array([trial["elapsed"] for trial in working])
    seconds = np.array([np.median(trial["seconds"]) for trial in working])
    shown = slice(None, None, -(-len(working) // _MOST_DOTS))
    axis.plot(elapsed[shown], seconds[shown], "o", color=COLOURS[5], markersize=3.5, alpha=0.8, linewidth=0)
    axis.step(elapsed, np.minimum.accumulate(seconds), where="post", color=COLOURS[0], linewidth=1.8)
    failed = [trial["elapsed"] for trial in trials if trial["status"] != "ok"][:_MOST_DOTS]
    if failed:
        axis.plot(failed, [seconds.max() * 1.3] * len(failed), "x", color=_FAILED, markersize=5, linewidth=0)
    axis.set_yscale("log")
    axis.set_xlabel("seconds of tuning")
    axis.set_ylabel("time of the candidate")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formatting.time(value)))
    axis.yaxis.set_minor_formatter(NullFormatter())
    return figure
