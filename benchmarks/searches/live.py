"""All searches on three kernels of this machine: how fast a kernel is after how many seconds of tuning in all.

    live.py [--kernel matmul,conv3x3,conv1x1] [--searches storm,droplet] [--seeds 5] [--time 10] [--show]

Every search gets the same space, but no prior and no records. The searches take turns, seed by seed. A run ends after
`--time` seconds of wall time, or when its search has converged; from then on its result stays the same. In the end all
candidates that were ever the fastest of a run are measured once more, in turns. The fastest of them is the best known,
which all runs are compared with. A search has arrived at the moment from which on the candidate that it would report
stays within 3% of the best known.

Every kernel is saved in benchmarks/out as soon as it is done; `--show` prints what is saved and measures nothing. With
all searches and five seeds a kernel takes 8 minutes. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from _grounds import OUT, chosen, machine, save, table
from matplotlib.figure import Figure

import stormdrop as sd
from stormdrop.compare.comparison import compare
from stormdrop.compare.search_spec import parse_searches
from stormdrop.report.plots.style import COLOURS, panels
from stormdrop.report.plots.style import save as save_figure
from stormdrop.report.summary import best_after
from stormdrop.search import names, needs_prior
from stormdrop.tuning.result import Progress

KERNELS = {
    "matmul": sd.operators.matmul(m=512, n=512, k=512),
    "conv3x3": sd.operators.conv2d(n=1, h=56, w=56, ci=64, co=64, kh=3, kw=3, stride=1, pad=1),
    "conv1x1": sd.operators.conv2d(n=1, h=17, w=17, ci=1024, co=512, kh=1, kw=1),
}
# With the 300 trials of the DPAnsor paper, 10 s would leave no time to exploit; Ansor first gives a kernel 64 trials.
SEARCHES = ",".join("dpansor:N=64" if name == "dpansor" else name for name in names() if not needs_prior(name))
NEAR = 1.03
MARKS = (2.0, 5.0, 10.0)  # seconds
_UNBOUNDED = 1_000_000  # trials, because time is the limit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default=",".join(KERNELS), help="kernels, separated by commas (%(default)s)")
    parser.add_argument("--searches", default=SEARCHES, help="searches, separated by commas (%(default)s)")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each search (%(default)s)")
    parser.add_argument("--time", type=float, default=10.0, help="the most seconds of a run (%(default)s)")
    parser.add_argument("--show", action="store_true", help="print what is saved, and measure nothing")
    options = parser.parse_args()
    for name in chosen(options.kernel, KERNELS, "kernel"):
        path = OUT / f"live_{name}.json"
        if not options.show:
            measure(name, options.searches, options.seeds, options.time)
        elif not path.exists():
            print(f"\n{name}: not measured yet")
            continue
        show(name, json.loads(path.read_text()))


def measure(name: str, searches: str, seeds: int, seconds: float) -> None:
    """Runs all searches on one kernel and saves the document of the comparison."""
    specs = parse_searches(searches)
    print(f"\n{name}: about {len(specs) * seeds * seconds / 60 + 0.5:.0f} minutes", file=sys.stderr)
    comparison = compare(KERNELS[name], specs, seeds=seeds, trials=_UNBOUNDED, time=seconds, on_progress=_progress)
    print(file=sys.stderr)
    save(f"live_{name}", {"machine": machine(), **comparison.to_json()})


def show(name: str, document: Mapping[str, Any]) -> None:
    """Prints the tables and the verdicts of one kernel, and draws its figure."""
    host, best, limit = document["machine"], document["optimum"], document["time"]
    suspect = sum(run["suspect"] for run in document["runs"])
    print(f"\n{name} on {host['cpu']}, {host['cores']} cores: best known {1e3 * best:.4f} ms, {suspect} suspect")
    marks = [mark for mark in MARKS if mark < limit] + [limit]
    rows = []
    for search in document["searches"]:
        runs = _runs(document, search)
        times = [arrival(run, best, limit) for run in runs]
        reached = np.array([best_after(run, best, marks) for run in runs])
        summary = next(entry for entry in document["summary"] if entry["search"] == search)
        spent = sum(summary["phases"].values())
        rows.append(
            [
                search,
                _seconds(statistics.median(times)),
                f"{sum(map(math.isfinite, times))} of {len(times)}",
                *(f"{middle:.3f}" for middle in np.median(reached, axis=0)),
                f"{summary['evaluations']:.0f}",
                f"{summary['converged']:.0%}",
                f"{spent:.1f}",
                *(f"{part / spent:.0%}" for part in summary["phases"].values()),
            ]
        )
    over = [f"at {mark:g} s" for mark in marks]
    table(["", "within 3%", "seeds", *over, "trials", "converged", "seconds", *summary["phases"]], rows)
    for line in _verdicts(document, limit):
        print(line)
    path = OUT / f"live_{name}.png"
    save_figure(figure(name, document), path)
    print(path)


def arrival(run: Mapping[str, Any], best: float, limit: float) -> float:
    """The seconds from which on the best of a run stays within 3% of the best known; infinite if it never does."""
    trajectory = run["trajectory"]
    seconds = np.sum([trajectory[part] for part in run["phases"]], axis=0)
    inside = math.inf
    for moment, reached in zip(seconds, trajectory["best"], strict=True):
        if moment > limit:
            break
        if reached is None or reached > NEAR * best:
            inside = math.inf
        elif inside == math.inf:
            inside = float(moment)
    return inside


def figure(name: str, document: Mapping[str, Any]) -> Figure:
    """Draws best over best known against seconds: a panel per search with its median and range; storm's in grey."""
    best, limit = document["optimum"], document["time"]
    marks = np.linspace(0.0, limit, 400)
    held = {s: np.array([best_after(r, best, marks) for r in _runs(document, s)]) for s in document["searches"]}
    drawn, axes = panels(list(held))
    for axis, (search, reached) in zip(axes, held.items(), strict=True):
        shown = np.where(np.isfinite(reached), reached, 1e3)
        axis.fill_between(marks, shown.min(axis=0), shown.max(axis=0), alpha=0.2, linewidth=0, color=COLOURS[0])
        axis.plot(marks, np.median(shown, axis=0), color=COLOURS[0], linewidth=1.6)
        if "storm" in held and search != "storm":
            axis.plot(marks, np.median(np.minimum(held["storm"], 1e3), axis=0), color="0.5", linewidth=1.0)
        axis.axhline(NEAR, color="0.5", linewidth=0.8, linestyle=":")
        axis.set_xlim(0, limit)
        axis.set_ylim(0.99, 1.5)
        axis.set_xlabel("seconds", fontsize=8)
        axis.set_ylabel("best / best known", fontsize=8)
    seeds = document["seeds"]
    drawn.suptitle(f"{name}: median and range, seeds 0 to {seeds - 1}; grey: storm's median; dotted: 3%", fontsize=11)
    return drawn


def _verdicts(document: Mapping[str, Any], limit: float) -> list[str]:
    """What storm should achieve, and whether it does."""
    lines = []
    best = document["optimum"]
    times = {s: [arrival(run, best, limit) for run in _runs(document, s)] for s in document["searches"]}
    if "storm" in times:
        ends = [float(best_after(run, best, limit)) for run in _runs(document, "storm")]
        reached = [f"seed {seed} {'yes' if end <= NEAR else 'no'} ({end:.3f})" for seed, end in enumerate(ends)]
        lines.append(f"storm within 3% of the best known in {limit:g} s: {', '.join(reached)}")
    if {"storm", "droplet"} <= times.keys():
        ours, theirs = (statistics.median(times[search]) for search in ("storm", "droplet"))
        verdict = "yes" if ours <= theirs else "no"
        lines.append(f"storm no later than droplet at the median: {verdict} ({_seconds(ours)} and {_seconds(theirs)})")
    return lines


def _runs(document: Mapping[str, Any], search: str) -> Sequence[Mapping[str, Any]]:
    return [run for run in document["runs"] if run["search"] == search]


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if math.isfinite(value) else "-"


def _progress(progress: Progress) -> None:
    print(f"\r{progress.trials} candidates, {progress.elapsed:.0f} s", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
