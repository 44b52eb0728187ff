"""How often the prior is right: the times that it expects of schedules beside the measured ones.

    prior.py [--shapes M0,R2] [--points 30] [--time 10] [--show] [--fresh]

`--points` random points of the space of every sketch that applies to a shape are measured. The lowest of three samples
counts, because disturbances only make a kernel slower.

    rank        Spearman's rank correlation of the estimates with the times
    top 1       the time of the point with the lowest estimate, over the best time of these points
    top 5       the best time of the five points with the lowest estimates, over the best time of all
    random 5    the same for five random points, on average: what there is to gain

The prior is there for the *first choice*, the origin with the lowest estimate (if no sketch estimates, the default
schedule). It is compared in one race with the best that storm finds in `--time` seconds: `own` with the sketch of the
first choice only, `all` with all sketches that apply. 1.00 means that searching gained nothing. `across` is the rank
correlation over the points of all sketches that estimate, if several do.

Every shape is saved with all points in benchmarks/out/prior.jsonl as soon as it is done. The next run with the same
`--points` and `--time` skips it, unless its sketches have changed. 29 shapes take a quarter of an hour. Run it on an
idle machine.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import OUT, Campaign, campaign_parser, chosen, machine
from _shapes import SHAPES
from spaces import fingerprints

import stormdrop as sd
from stormdrop.measure.contract import KernelSetup
from stormdrop.measure.local import LocalMeasurer
from stormdrop.measure.pool.pool import WorkerPool
from stormdrop.sketches.knowledge import prior
from stormdrop.sketches.registry import sketches_for
from stormdrop.trial import Candidate, Measurement, Request
from stormdrop.tuning.request import BATCH

CHOSEN = "M0,M1,M4,Y0,Y2,Y3,Y6,Y9,R0,R1,R2,R4,R7,R11,R12,K0,MB0,MB1,MB3,DN1,IN2,IN3,BE0,BE2,VT0,VT1,BE3,BE4,DN2"
"""Shapes of the kernel benchmark: contractions of all kinds, and three that stream."""

TOP = 5


def main() -> None:
    options = _options()
    host = machine()
    campaign = Campaign(OUT / "prior.jsonl", host, options, document="kernels")

    def setting(name: str) -> dict[str, Any]:
        versions = fingerprints(SHAPES[name].workload())
        return {"points": options.points, "time": options.time, "sketches": versions}

    with WorkerPool(host["cores"]) as pool:
        entries = campaign.collect(
            options.shapes, lambda name: measure(SHAPES[name].workload(), options, pool), setting
        )
    show(campaign, entries)


def measure(workload: Any, options: argparse.Namespace, pool: WorkerPool) -> dict[str, Any]:
    """Measures a shape and returns its entry."""
    target = sd.Cpu.detect()
    pairs = sketches_for(workload, target)
    expected = prior(pairs, workload, target)
    rng = np.random.default_rng(0)
    drawn = [
        Candidate(space.name, point)
        for _, space in pairs
        for point in dict.fromkeys(space.sample(rng) for _ in range(options.points))
    ]
    estimates = np.full(len(drawn), np.nan) if expected is None else expected(drawn)
    measurements = _measurements(workload, pairs, [drawn[index] for index in rng.permutation(len(drawn))], pool)
    by_sketch: dict[str, Any] = {}
    for _, space in pairs:
        points = [
            {
                "config": space.config(candidate.point),
                "estimate": None if np.isnan(estimate) else float(estimate),
                "seconds": min(measurements[candidate].seconds) if measurements[candidate].ok else None,
                "suspect": measurements[candidate].suspect,
            }
            for candidate, estimate in zip(drawn, estimates, strict=True)
            if candidate.sketch == space.name
        ]
        by_sketch[space.name] = {"size": space.size, "points": points, **_agreement(points)}
    estimated = [point for figures in by_sketch.values() if figures["rank"] is not None for point in figures["points"]]
    several = sum(figures["rank"] is not None for figures in by_sketch.values()) > 1
    origins = [Candidate(space.name, space.origin) for _, space in pairs]
    costs = np.full(len(origins), np.nan) if expected is None else expected(origins)
    first = 0 if np.isnan(costs).all() else int(np.nanargmin(costs))
    order = [pairs[first], *pairs[:first], *pairs[first + 1 :]]
    first_only = _tuned(workload, order[:1], options, pool)
    return {
        "workload": workload.name,
        "spaces": by_sketch,
        "across": _agreement(estimated)["rank"] if several else None,
        "first": order[0][1].name,
        "own": first_only,
        "all": _tuned(workload, order, options, pool) if len(order) > 1 else first_only,
    }


def _measurements(
    workload: Any, pairs: Any, candidates: Sequence[Candidate], pool: WorkerPool
) -> dict[Candidate, Measurement]:
    """The measurements of the candidates, which are measured in this order."""
    sketches, spaces = zip(*pairs, strict=True)
    measurements: dict[Candidate, Measurement] = {}
    with LocalMeasurer(
        KernelSetup(workload, sd.Cpu.detect(), list(zip(sketches, spaces, strict=True))), pool=pool
    ) as measurer:
        for start in range(0, len(candidates), BATCH):
            batch = candidates[start : start + BATCH]
            requests = [Request(candidate, 3) for candidate in batch]
            measurements.update(zip(batch, measurer.measure(requests), strict=True))
    return measurements


def _agreement(points: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The figures that the module describes; None if there are no estimates, or too few points work."""
    known = [(point["estimate"], point["seconds"]) for point in points if point["seconds"] and point["estimate"]]
    if len(known) <= TOP:
        return {"rank": None, "top_1": None, "top_5": None, "random_5": None}
    times = [seconds for _, seconds in sorted(known)]
    best = min(times)
    # The lowest of five that are drawn without replacement is the k-th of n in C(n - k, 4) of C(n, 5) cases.
    ways = [math.comb(len(times) - rank, TOP - 1) for rank in range(1, len(times) + 1)]
    drawn = sum(way * seconds for way, seconds in zip(ways, sorted(times), strict=True)) / math.comb(len(times), TOP)
    return {
        "rank": float(spearmanr(*zip(*known, strict=True)).statistic),
        "top_1": times[0] / best,
        "top_5": min(times[:TOP]) / best,
        "random_5": drawn / best,
    }


def _tuned(workload: Any, pairs: Any, options: argparse.Namespace, pool: WorkerPool) -> dict[str, Any]:
    """What storm finds in these spaces; `first_choice` is its time over that of the origin of the first space."""
    with sd.open_store("sqlite://") as store:
        result = sd.tune(
            workload,
            sketches=[sketch for sketch, _ in pairs],
            search="storm",
            time=options.time,
            store=store,
            fresh=True,
            pool=pool,
        )
    if result.interrupted:
        sys.exit(130)
    first_choice = None
    if result.best is not None and result.baseline is not None:
        first_choice = result.best.seconds / result.baseline
    document = {**result.to_json(), "first_choice": first_choice}
    del document["curve"]
    return document


def show(campaign: Campaign, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints a row per shape and sketch, and the figures over all of them."""
    headings = [
        "",
        "sketch",
        "points",
        "rank",
        "top 1",
        "top 5",
        "random 5",
        "first choice: own",
        "all",
        "across",
        "best",
    ]
    rows = []
    for name, entry in entries.items():
        for sketch, figures in entry["spaces"].items():
            first = sketch == entry["first"]
            worked = sum(point["seconds"] is not None for point in figures["points"])
            own, overall = (entry[key]["first_choice"] if first else None for key in ("own", "all"))
            best = entry["all"]["best"]
            rows.append(
                [
                    name if first else "",
                    sketch,
                    f"{worked} of {figures['size']}",
                    *(_text(figures[key]) for key in ("rank", "top_1", "top_5", "random_5")),
                    *(_text(value) for value in (own, overall, entry["across"] if first else None)),
                    best["sketch"] if first and best else "",
                ]
            )
    campaign.table(headings, rows)
    every = [figures for entry in entries.values() for figures in entry["spaces"].values()]
    suspect = sum(point["suspect"] for figures in every for point in figures["points"])
    print(f"measured beside foreign load: {suspect} of {sum(len(figures['points']) for figures in every)} points")
    ranked = [figures for figures in every if figures["rank"] is not None]
    if ranked:
        ranks = [figures["rank"] for figures in ranked]
        print(
            f"rank correlation over {len(ranked)} spaces: median {statistics.median(ranks):.2f}, least {min(ranks):.2f}"
        )
        for key in ("top_1", "top_5", "random_5"):
            print(f"{key.replace('_', ' ')}: {_spread([figures[key] for figures in ranked], 'highest', max)}")
    for key in ("own", "all"):
        choices = [entry[key]["first_choice"] for entry in entries.values() if entry[key]["first_choice"]]
        if choices:
            print(f"speed of the first choice over that of the tuned kernel, {key}: {_spread(choices, 'lowest', min)}")


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _spread(ratios: Sequence[float], name: str, worst: Any) -> str:
    middle, mean = statistics.median(ratios), statistics.geometric_mean(ratios)
    return f"median {middle:.3f}, geometric mean {mean:.3f}, {name} {worst(ratios):.3f}"


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--shapes", default=CHOSEN, help="shapes, separated by commas (%(default)s)")
    parser.add_argument("--points", type=int, default=30, help="random points of each sketch (%(default)s)")
    parser.add_argument("--time", type=float, default=10.0, help="seconds of each tuning (%(default)s)")
    options = parser.parse_args()
    options.shapes = chosen(options.shapes, SHAPES, "shape")
    return options


if __name__ == "__main__":
    main()
