"""The tables and bars of `run.py`: Figures 2, 6, 11 to 13 and Tables 2 and 3 of the AF-DS paper."""

from __future__ import annotations

import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from _common import bars

from stormdrop.cli.output import table
from stormdrop.statistics import ratio_interval

NETWORKS = {"M": "BERT", "Y": "YOLO-9000", "R": "ResNet-50"}

_LEAST = 1e-4  # that runs differ by, for the geometric mean
_TRIALS = (64, 128, 256, 512, 1000)


def show(name: str, entries: Mapping[str, Any], against: str) -> None:
    """Prints a row per shape and a table of the means of the networks, and draws bars of these means.

    Args:
        name: the name of the file of the bars.
        entries: the shapes.
        against: the arm that the others are compared with, besides torch.
    """
    kinds = list(dict.fromkeys(label.partition(" #")[0] for entry in entries.values() for label in entry["efforts"]))
    with_torch = any(label.startswith("torch") for entry in entries.values() for label in entry["times"])
    rival = "torch (cuBLAS, cuDNN; no TF32)" if with_torch else against
    rows: list[list[str]] = []
    speeds: dict[str, dict[str, float]] = {}  # over torch (over `against` without torch), by shape and kind
    variable: defaultdict[str, dict[str, float]] = defaultdict(dict)
    reach: defaultdict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    spent: defaultdict[str, list[Mapping[str, float]]] = defaultdict(list)
    for shape, entry in entries.items():
        times = entry["times"]
        if not times:
            print(f"{shape}: {entry.get('failed', 'no tuning has found a kernel')}", file=sys.stderr)
            continue
        of_torch = [rounds for label, rounds in times.items() if label.startswith("torch")]
        others = [rounds for label, rounds in times.items() if label.partition(" #")[0] == against]
        reference = min(of_torch or others or times.values(), key=statistics.median)
        row, speeds[shape] = [shape, f"{1e6 * statistics.median(reference):.0f} us"], {}
        for kind in kinds:
            labels = [label for label in times if label.partition(" #")[0] == kind]
            if not labels:
                row.append("-")
                continue
            ratios = [ratio_interval(reference, times[label]).estimate for label in labels]
            speeds[shape][kind] = statistics.fmean(ratios)
            reach[kind][shape] = speeds[shape][kind] - min(ratios), max(ratios) - speeds[shape][kind]
            variable[kind][shape] = (max(ratios) - min(ratios)) / max(ratios)
            spent[kind] += [entry["efforts"][label] for label in labels]
            row.append(f"{speeds[shape][kind]:.3f} ({variable[kind][shape]:.1%})")
        rows.append(row)
    table(["", "reference", *kinds], rows, f"speed over that of {rival}, mean of the runs; variability")
    groups = {network: [shape for shape in speeds if shape[0] == letter] for letter, network in NETWORKS.items()}
    groups = {network: shapes for network, shapes in groups.items() if shapes} | {"all": list(speeds)}
    rows = []
    means: dict[str, list[float]] = {}
    for kind in kinds:
        over_torch = [
            _mean([speeds[shape][kind] for shape in shapes if kind in speeds[shape]]) for shapes in groups.values()
        ]
        both = [[shape for shape in shapes if {kind, against} <= set(speeds[shape])] for shapes in groups.values()]
        over_ansor = [_mean([speeds[shape][kind] / speeds[shape][against] for shape in shapes]) for shapes in both]
        varied = [
            _mean([max(_LEAST, variable[kind][shape]) for shape in shapes if shape in variable[kind]])
            for shapes in groups.values()
        ]
        if spent[kind]:
            means[kind] = over_torch
            efforts = spent[kind]
            seconds, trials = (statistics.fmean(effort[what] for effort in efforts) for what in ("seconds", "trials"))
            figures = zip(over_torch, over_ansor, varied, strict=True)
            rows.append(
                [kind, *(f"{a:.3f} / {b:.3f}, {c:.1%}" for a, b, c in figures), f"{seconds:.0f} s", f"{trials:.0f}"]
            )
    table(
        ["", *groups, "tuning", "candidates"],
        rows,
        f"geometric means of the speeds over {rival} / over {against}, and of the variability",
    )
    if means:
        print(bars(name, f"Speed over {rival}", "geometric mean", list(groups), means))
        heights = {kind: [speeds[shape].get(kind, 0.0) for shape in speeds] for kind in means}
        ranges = {kind: list(zip(*(reach[kind].get(shape, (0, 0)) for shape in speeds), strict=True)) for kind in means}
        title = f"Speed over {rival}, mean of the runs; from the slowest to the fastest (Figures 6, 11 to 13)"
        print(bars(f"{name}_shapes", title, "speed", list(speeds), heights, ranges))
    show_curves(entries)


def show_curves(entries: Mapping[str, Any]) -> None:
    """Prints by trials how far the runs are from the best of all (Figure 2): the slowest, their mean, the fastest."""
    rows = []
    for shape, entry in entries.items():
        curves: defaultdict[str, list[Sequence[Sequence[float]]]] = defaultdict(list)
        for label, effort in entry["efforts"].items():
            if worked := [at for at in effort.get("curve", ()) if at[2] is not None]:
                curves[label.partition(" #")[0]].append(worked)
        best = min((at[2] for runs in curves.values() for run in runs for at in run), default=math.nan)
        for kind, runs in curves.items():
            row = [shape, kind]
            for trials in _TRIALS:
                reached = [min((at[2] for at in run if at[0] <= trials), default=math.inf) for run in runs]
                shares = [best / seconds for seconds in reached]
                row.append(f"{min(shares):.2f} {statistics.fmean(shares):.2f} {max(shares):.2f}")
            rows.append(row)
    if rows:
        title = "Speed over that of the best of all runs, after so many trials: slowest, mean, fastest (Figure 2)"
        table(["", "", *map(str, _TRIALS)], rows, title)


def _mean(ratios: Sequence[float]) -> float:
    return statistics.geometric_mean(ratios) if ratios else math.nan
