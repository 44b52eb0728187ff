"""The tables of autotvm.py in Markdown: Figures 11 and 18 of the Droplet Search paper, from what is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from _common import markdown
from _race import similar

Entries = Sequence[Mapping[str, Any]]

_SAME = "="
"""Marks what the paper's test does not tell from the fastest of the row (light grey in its figures)."""


def model_table(entries: Entries, models: Sequence[str], arms: Sequence[str]) -> str:
    """Figure 11: a row per model and search.

    `speed` is the first search's time over theirs, with its 95% interval. `=` marks the times that the paper's test
    does not tell from the fastest. The search of a model takes as long as those of its distinct kernels together.
    """
    headings = ["model", "search", "latency", f"speed over {arms[0]}", "search time", "candidates", "notes"]
    lines: list[list[str]] = []
    tunings = _tunings(entries)
    for model in models:
        of_model = [entry for entry in entries if entry.get("model") == model]
        layers: Entries = next((entry["layers"] for entry in reversed(of_model) if "layers" in entry), [])
        raced = next((entry for entry in reversed(of_model) if entry.get("arms") == list(arms)), None)
        if raced is None:
            lines.append([model, f"{_finished(layers, tunings, arms)} tunings, no race yet", *[""] * 5])
            continue
        times = {name: figures for name, figures in raced["race"].items() if name != "disturbed"}
        fastest = min(times.values(), key=lambda figures: figures["seconds"])
        for name, figures in times.items():
            low, high = figures["speed_interval"]
            keys = dict.fromkeys(layer["key"] for layer in layers)
            own = [tunings[key, name] for key in keys if (key, name) in tunings]
            seconds = sum(entry["search_seconds"] for entry in own)
            measured, failed = (sum(entry[key] for entry in own) for key in ("measured", "failed"))
            converged = sum(entry["converged"] for entry in own)
            lines.append(
                [
                    model,
                    name,
                    f"{1e3 * figures['seconds']:.2f} ms{_mark(figures, fastest)}",
                    f"{figures['speed']:.3f} ({low:.3f} to {high:.3f})",
                    f"{seconds / 60:.1f} min" if own else "",
                    f"{measured} ({failed} failed), {converged} of {len(own)} kernels converged" if own else "",
                    _notes(raced["models"][name], raced["race"]["disturbed"]),
                ]
            )
    return markdown(headings, lines)


def layer_table(entries: Entries, models: Sequence[str], arms: Sequence[str]) -> str:
    """Figure 18: a row per kernel, and in it each search's time, seconds of search, and candidates.

    `=` as in `model_table`. The sums count each distinct kernel once, as the paper's do; they leave out a kernel for
    which a search has found nothing that works.
    """
    tunings = _tunings(entries)
    tables = []
    for model in models:
        of_model = [entry for entry in entries if entry.get("model") == model]
        layers: Entries = next((entry["layers"] for entry in reversed(of_model) if "layers" in entry), [])
        wanted = [entry for entry in entries if "layer" in entry and entry["arms"] == list(arms)]
        races = {entry["layer"]: entry["race"] or {} for entry in wanted}
        headings = [f"{model}: kernel", "points", *arms]
        lines: list[list[str]] = []
        sums: dict[str, Any] = {arm: [0.0, 0.0, 0] for arm in arms}
        for layer in layers:
            key, raced = layer["key"], races.get(layer["key"])
            own = {arm: tunings[key, arm] for arm in arms if (key, arm) in tunings}
            if not layer["template"] or raced is None or not own:
                continue
            times = {name: figures for name, figures in raced.items() if name != "disturbed"}
            fastest = min(times.values(), key=lambda figures: figures["seconds"], default=None)
            cells = []
            for arm in arms:
                if arm not in times or fastest is None:
                    cells.append("failed" if arm in own and own[arm]["best"] is None else "")
                    continue
                seconds, effort = times[arm]["seconds"], own[arm]
                sums[arm] = [a + b for a, b in zip(sums[arm], _cell(seconds, effort), strict=True)]
                cells.append(_figures(*_cell(seconds, effort), mark=_mark(times[arm], fastest)))
            entry = next(iter(own.values()))
            lines.append([f"{entry['name']} ({_calls(layer['weight'])})", str(entry["space"]), *cells])
        lines.append(["sum", "", *(_figures(*sums[arm]) for arm in arms)])
        tables.append(markdown(headings, lines))
    return "\n\n".join(tables)


def _tunings(entries: Entries) -> dict[tuple[str, str], Mapping[str, Any]]:
    return {(entry["key"], entry["search"]): entry for entry in entries if "key" in entry}


def _finished(layers: Entries, tunings: Mapping[tuple[str, str], Any], arms: Sequence[str]) -> str:
    wanted = [(layer["key"], arm) for layer in layers if layer["template"] for arm in arms]
    return f"{sum(each in tunings for each in wanted)} of {len(wanted)}"


def _cell(seconds: float, effort: Mapping[str, Any]) -> tuple[float, float, int]:
    return seconds, effort["search_seconds"], effort["measured"]


def _figures(seconds: float, search_seconds: float, measured: int, mark: str = "") -> str:
    return f"{1e3 * seconds:.3f} ms{mark}, {search_seconds:.0f} s, {measured}"


def _calls(weight: int) -> str:
    return f"{weight} call" if weight == 1 else f"{weight} calls"


def _mark(figures: Mapping[str, Any], fastest: Mapping[str, Any]) -> str:
    return f" {_SAME}" if similar(figures["samples"], fastest["samples"]) else ""


def _notes(model: Mapping[str, Any], disturbed: int) -> str:
    notes = [f"error {model['error']:.0e}"]
    if model.get("without"):
        notes.append(f"nothing works for {', '.join(model['without'])}")
    if model["replaced"]:
        notes.append(f"wrong with {', '.join(model['replaced'])}, which were replaced")
    if disturbed:
        notes.append(f"{disturbed} rounds disturbed")
    return "; ".join(notes)
