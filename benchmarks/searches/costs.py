"""How long searches take: time in ask and tell per evaluation up to 100, 1,000 and 5,000 evaluations, and its growth.

    python benchmarks/searches/costs.py [--quick]

The space is synthetic, so that measuring takes no time: some 10^6 points of 8 knobs under constraints, a cost with
interactions and ripples, noise between and within measurements, and failures. Searches are asked for batches of 8.

A search that converges earlier is measured until then; droplet does so after some dozens of evaluations. storm's
convergence is switched off (worth=0); dpansor ends when its droplet does. The figures are wall seconds, and CPU seconds
of all threads. They include the creation of a search, but not the import of the libraries that it needs. `growth` is
the exponent p of marginal cost ~ evaluations^p, fitted to four parts of the range; the marginal cost is what one more
evaluation takes after so many.

Run it alone on an idle machine: it measures time, one search after the other. The linear algebra uses as many threads
as it does by default. OPENBLAS_NUM_THREADS changes that, and is written into the result.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from _grounds import OUT, describe_machine, save, table
from numpy.typing import NDArray

from stormdrop.compare.search_spec import SearchSpec, parse_searches
from stormdrop.report.plots import style
from stormdrop.search import names, needs_prior
from stormdrop.space import Constraint, Ordinal, Space
from stormdrop.testing.searches import Objective, objective_of
from stormdrop.trial import Candidate, Trial
from stormdrop.tuning.request import BATCH

Array = NDArray[np.float64]

SEARCHES = ["storm:worth=0", *(name for name in names() if name != "storm" and not needs_prior(name))]
MARKS = (100, 1000, 5000)
TARGETS = {"storm": 10.0, "nose": 10.0, "gradient": 10.0, "droplet": 1.0}
"""Milliseconds of wall time per evaluation, up to `UP_TO` evaluations."""
UP_TO = 1000

_PARTS = 4  # windows between two marks
_WARM_UP = 80  # evaluations of an earlier run that loads libraries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--searches", default=",".join(SEARCHES), help="as for `stormdrop compare` (%(default)s)")
    parser.add_argument("--trials", type=int, default=MARKS[-1], help="evaluations at most (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="300 evaluations at most, to try it: a minute")
    arguments = parser.parse_args()
    trials = 300 if arguments.quick else arguments.trials
    machine = describe_machine("numpy", "scipy", "xgboost-cpu")

    size = ground()[0].size
    print(f"{size} points, batches of {BATCH}, {trials} evaluations at most, milliseconds per evaluation\n")
    results = []
    for spec in parse_searches(arguments.searches):
        run(spec, min(_WARM_UP, trials), arguments.seed)
        gc.collect()
        results.append(summarise(spec, run(spec, trials, arguments.seed)))
        print(f"{spec.label}: {results[-1]['evaluations']} evaluations", flush=True)
    _show(results, [mark for mark in MARKS if mark <= trials])
    machine["OPENBLAS_NUM_THREADS"] = os.environ.get("OPENBLAS_NUM_THREADS")
    document = {"machine": machine, "points": size, "batch": BATCH, "trials": trials, "seed": arguments.seed}
    print(save("costs", {**document, "searches": results}))
    print(_draw(results))


@dataclass(frozen=True)
class Cost:
    """The evaluations, wall seconds and CPU seconds until the end of every batch; the longest ask in seconds."""

    evaluations: Array
    wall: Array
    cpu: Array
    longest: float
    converged: bool

    def between(self, seconds: Array, low: float, high: float) -> float:
        """Milliseconds per evaluation in a range of evaluations."""
        begin, end = np.interp([low, high], [0.0, *self.evaluations], [0.0, *seconds])
        return 1e3 * float(end - begin) / (high - low)


def run(spec: SearchSpec, trials: int, seed: int) -> Cost:
    """One run on a new space, because enumerating the space is part of the cost."""
    space, objective = ground()
    wall, cpu = time.perf_counter(), time.process_time()
    search = spec.create([space], seed)
    spent, spent_cpu = time.perf_counter() - wall, time.process_time() - cpu
    measured: dict[Candidate, int] = {}
    rows, longest = [], 0.0
    while len(measured) < trials:
        wall, cpu = time.perf_counter(), time.process_time()
        requests = search.ask(BATCH)
        ask_seconds, ask_cpu = time.perf_counter() - wall, time.process_time() - cpu
        if not requests:
            break
        trials_of_batch = []
        for request in requests:
            times = measured.get(request.candidate, 0)
            trials_of_batch.append(Trial(request.candidate, objective(request, times)))
            measured[request.candidate] = times + 1
        wall, cpu = time.perf_counter(), time.process_time()
        search.tell(trials_of_batch)
        spent += ask_seconds + time.perf_counter() - wall
        spent_cpu += ask_cpu + time.process_time() - cpu
        longest = max(longest, ask_seconds)
        rows.append([len(measured), spent, spent_cpu])
    evaluations, walls, cpus = np.array(rows).T
    return Cost(evaluations, walls, cpus, longest, search.converged)


def summarise(spec: SearchSpec, cost: Cost) -> dict[str, Any]:
    """The figures of a run in milliseconds per evaluation; None for a mark that was not reached."""
    end = float(cost.evaluations[-1])
    bounds = [float(mark) for mark in MARKS if mark <= end]
    edges = [0.0, *bounds[:1]] if bounds else [0.0, end]
    for low, high in itertools.pairwise(bounds):
        edges += np.geomspace(low, high, _PARTS + 1)[1:].tolist()
    if bounds and end > 1.2 * bounds[-1]:
        edges.append(end)
    windows = [
        {"from": low, "to": high, "wall": cost.between(cost.wall, low, high), "cpu": cost.between(cost.cpu, low, high)}
        for low, high in itertools.pairwise(edges)
    ]
    target = TARGETS.get(spec.name)
    worst = max(window["wall"] for window in windows if window["from"] < UP_TO)
    return {
        "search": spec.label,
        "evaluations": int(end),
        "converged": cost.converged,
        "mean_wall": {str(mark): cost.between(cost.wall, 0, mark) if mark <= end else None for mark in MARKS},
        "mean_cpu": {str(mark): cost.between(cost.cpu, 0, mark) if mark <= end else None for mark in MARKS},
        "whole_wall": cost.between(cost.wall, 0, end),
        "whole_cpu": cost.between(cost.cpu, 0, end),
        "windows": windows,
        "growth": {
            f"{low} to {high}": _exponent([w for w in windows if low <= w["from"] and w["to"] <= high])
            for low, high in itertools.pairwise(MARKS)
        },
        "longest_ask_ms": 1e3 * cost.longest,
        "worst_window": worst,
        "target": target,
        "met": None if target is None else worst < target,
    }


def ground() -> tuple[Space, Objective]:
    """A synthetic space and the objective on it."""
    powers = [2**i for i in range(9)]
    knobs = [
        Ordinal("tile_m", powers),
        Ordinal("tile_n", powers),
        Ordinal("threads_m", powers[:6]),
        Ordinal("threads_n", powers[:6]),
        Ordinal("depth", powers[:7]),
        Ordinal("vector", powers[:4]),
        Ordinal("unroll", [0, 1, 2, 4, 8, 16, 64]),
        Ordinal("stages", range(1, 8)),
    ]
    constraints = [
        Constraint(("tile_m", "tile_n"), lambda m, n: m * n <= 2**13, "accumulators fit"),
        Constraint(("threads_m", "threads_n"), lambda m, n: 8 <= m * n <= 512, "8 to 512 threads"),
        Constraint(("tile_m", "threads_m"), lambda tile, threads: threads <= tile, "a row per thread"),
        Constraint(("tile_n", "threads_n"), lambda tile, threads: threads <= tile, "a column per thread"),
        Constraint(("depth", "vector"), lambda depth, vector: vector <= depth, "whole vectors"),
    ]
    space = Space("made up", knobs, constraints)
    rng = np.random.default_rng(0)
    best, weights = rng.uniform(0.2, 0.8, 8), rng.uniform(0.5, 3.0, 8)
    pairs = rng.normal(0.0, 0.6, (8, 8))
    waves, phases = rng.normal(0.0, 6.0, (6, 8)), rng.uniform(0.0, 2 * math.pi, 6)
    last = np.array([knob.count - 1 for knob in knobs])

    def seconds(candidate: Candidate) -> float:
        x = np.array(candidate.point) / last - best
        ripples = 0.05 * np.sin(waves @ x + phases).sum()
        return 1e-3 * math.exp(float(weights @ x**2 + 0.3 * x @ pairs @ x + ripples))

    def fails(candidate: Candidate) -> bool:
        config: list[Any] = [knob.values[index] for knob, index in zip(knobs, candidate.point, strict=True)]
        return bool((config[0] + config[1]) * config[4] * config[7] > 2**15)  # the stages do not fit into memory

    return space, objective_of(seconds, between=0.005, within=0.01, fails=fails)


def _exponent(windows: Sequence[dict[str, float]]) -> float | None:
    """The exponent of the power law through the marginal costs; None for fewer than two of them."""
    if len(windows) < 2:
        return None
    middles = [math.log(math.sqrt(window["from"] * window["to"])) for window in windows]
    slope, _ = np.polyfit(middles, [math.log(max(window["wall"], 1e-6)) for window in windows], 1)
    return float(slope)


def _show(results: Sequence[dict[str, Any]], marks: Sequence[int]) -> None:
    rows = []
    for entry in results:
        means = [_figure(entry[f"mean_{kind}"][str(mark)]) for kind in ("wall", "cpu") for mark in marks]
        growth = [_figure(value, 2) for value in entry["growth"].values()]
        verdict = "-" if entry["target"] is None else f"{'met' if entry['met'] else 'NOT MET'} (< {entry['target']:g})"
        end = f"{entry['evaluations']}{' (converged)' if entry['converged'] else ''}"
        whole = [_figure(entry["whole_wall"]), _figure(entry["whole_cpu"])]
        longest = f"{entry['longest_ask_ms']:.0f}"
        rows.append([entry["search"], end, *means, *whole, *growth, longest, _figure(entry["worst_window"]), verdict])
    heads = [f"{kind} to {mark}" for kind in ("wall", "CPU") for mark in marks]
    growths = [f"growth {span}" for span in results[0]["growth"]]
    columns = [*heads, "wall to end", "CPU to end", *growths, "longest ask, ms"]
    print()
    table(["", "evaluations", *columns, f"worst part to {UP_TO}", "target"], rows)


def _figure(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _draw(results: Sequence[dict[str, Any]]) -> str:
    figure, (axis,) = style.panels(["wall time of ask and tell per evaluation"])
    for index, entry in enumerate(results):
        middles = [math.sqrt(max(window["from"], 1.0) * window["to"]) for window in entry["windows"]]
        marginal = [window["wall"] for window in entry["windows"]]
        axis.plot(middles, marginal, marker="o", markersize=3, label=entry["search"], **style.line_style(index))
    for target in sorted(set(TARGETS.values())):
        axis.axhline(target, color="grey", linewidth=0.8, linestyle=":")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("evaluations", fontsize=9)
    axis.set_ylabel("ms per evaluation (dotted: targets)", fontsize=9)
    style.legend(figure, axis)
    OUT.mkdir(exist_ok=True)
    style.save(figure, OUT / "costs.png")
    return str(OUT / "costs.png")


if __name__ == "__main__":
    main()
