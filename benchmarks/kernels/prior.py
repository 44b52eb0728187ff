"""How often the prior is right: what it expects of schedules beside what they take.

    prior.py [--shapes M0,R2] [--points 30] [--time 10] [--show]

For each shape, and each sketch that applies: `--points` random points of its space are measured. Of three samples the
least counts: what disturbs a kernel makes it slower.

    rank        Spearman's rank correlation of the estimates with the times
    top 1       the time of the point that the prior likes best, over the best of these points
    top 5       the best of the five that it likes best, over the best of all
    random 5    the same of five drawn blindly, on average: what there is to gain

Then what the prior is for: its *first choice*, the origin with the least estimate (where no sketch estimates, the
default schedule), beside what storm finds in `--time` seconds, both in one race: `own` with the sketch of the first
choice alone, `all` with all that apply. 1.00 means that searching gained nothing. `across` is the rank correlation
over the points of all sketches that estimate, where several do.

Each shape is kept in benchmarks/out/prior.json as soon as it is done, with every point, and left out by the next run
with the same `--points` and `--time`, unless its sketches have changed. 29 shapes take a quarter of an hour. Run it on
an idle machine.
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

from common import kept, machine, save
from shapes import SHAPES, chosen
from spaces import fingerprints

import stormdrop as sd
from stormdrop.cli.output import table
from stormdrop.measure.local import LocalMeasurer
from stormdrop.measure.pool import WorkerPool
from stormdrop.sketches.knowledge import prior
from stormdrop.sketches.registry import sketches_for
from stormdrop.trial import Candidate, Measurement, Request
from stormdrop.tuning.request import BATCH

CHOSEN = "M0,M1,M4,Y0,Y2,Y3,Y6,Y9,R0,R1,R2,R4,R7,R11,R12,K0,MB0,MB1,MB3,DN1,IN2,IN3,BE0,BE2,VT0,VT1,BE3,BE4,DN2"
"""Of the kernel benchmark: contractions of all kinds, and three that stream."""

TOP = 5

_NAME = "prior"


def main() -> None:
    options = _options()
    where = machine()
    entries = kept(_NAME, where)
    with WorkerPool(where["cores"]) as pool:
        for name in options.shapes:
            setting = {"points": options.points, "time": options.time}
            versions = {"sketches": fingerprints(SHAPES[name].workload())}
            known = entries.get(name, {})
            if options.show or all(known.get(key) == value for key, value in {**setting, **versions}.items()):
                continue
            print(name, file=sys.stderr)
            entries[name] = {**setting, **versions, **measured(SHAPES[name].workload(), options, pool)}
            save(_NAME, {"machine": where, "kernels": entries})
    chosen = {name: entries[name] for name in options.shapes if name in entries}
    if chosen:
        print(f"{where['cpu']}, {where['cores']} cores")
        show(chosen)


def measured(workload: Any, options: argparse.Namespace, pool: WorkerPool) -> dict[str, Any]:
    """The entry of a shape."""
    target = sd.Target.detect()
    found = sketches_for(workload, target)
    expected = prior(found, workload, target)
    rng = np.random.default_rng(0)
    drawn = [
        Candidate(space.name, point)
        for _, space in found
        for point in dict.fromkeys(space.sample(rng) for _ in range(options.points))
    ]
    estimates = np.full(len(drawn), np.nan) if expected is None else expected(drawn)
    answers = _answers(workload, found, [drawn[at] for at in rng.permutation(len(drawn))], pool)
    by_sketch: dict[str, Any] = {}
    for _, space in found:
        points = [
            {
                "config": space.config(candidate.point),
                "estimate": None if np.isnan(estimate) else float(estimate),
                "seconds": min(answers[candidate].seconds) if answers[candidate].ok else None,
                "suspect": answers[candidate].suspect,
            }
            for candidate, estimate in zip(drawn, estimates, strict=True)
            if candidate.sketch == space.name
        ]
        by_sketch[space.name] = {"size": space.size, "points": points, **_agreement(points)}
    told = [point for each in by_sketch.values() if each["rank"] is not None for point in each["points"]]
    several = sum(each["rank"] is not None for each in by_sketch.values()) > 1
    origins = [Candidate(space.name, space.origin) for _, space in found]
    costs = np.full(len(origins), np.nan) if expected is None else expected(origins)
    first = 0 if np.isnan(costs).all() else int(np.nanargmin(costs))
    order = [found[first], *found[:first], *found[first + 1 :]]
    own = _tuned(workload, order[:1], options, pool)
    return {
        "workload": workload.name,
        "spaces": by_sketch,
        "across": _agreement(told)["rank"] if several else None,
        "first": order[0][1].name,
        "own": own,
        "all": _tuned(workload, order, options, pool) if len(order) > 1 else own,
    }


def _answers(
    workload: Any, found: Any, candidates: Sequence[Candidate], pool: WorkerPool
) -> dict[Candidate, Measurement]:
    """Of each candidate, measured in their order."""
    sketches, spaces = zip(*found, strict=True)
    answers: dict[Candidate, Measurement] = {}
    with LocalMeasurer(workload, sd.Target.detect(), sketches, spaces, pool=pool) as measurer:
        for start in range(0, len(candidates), BATCH):
            batch = candidates[start : start + BATCH]
            requests = [Request(candidate, 3) for candidate in batch]
            answers.update(zip(batch, measurer.measure(requests), strict=True))
    return answers


def _agreement(points: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """See the module; None where nothing is estimated, or too few points work to tell."""
    known = [(each["estimate"], each["seconds"]) for each in points if each["seconds"] and each["estimate"]]
    if len(known) <= TOP:
        return {"rank": None, "top_1": None, "top_5": None, "random_5": None}
    times = [seconds for _, seconds in sorted(known)]
    best = min(times)
    # The least of five drawn without replacement is the k-th of n in C(n - k, 4) of C(n, 5) cases.
    ways = [math.comb(len(times) - rank, TOP - 1) for rank in range(1, len(times) + 1)]
    drawn = sum(way * seconds for way, seconds in zip(ways, sorted(times), strict=True)) / math.comb(len(times), TOP)
    return {
        "rank": float(spearmanr(*zip(*known, strict=True)).statistic),
        "top_1": times[0] / best,
        "top_5": min(times[:TOP]) / best,
        "random_5": drawn / best,
    }


def _tuned(workload: Any, found: Any, options: argparse.Namespace, pool: WorkerPool) -> dict[str, Any]:
    """What storm finds in the spaces of these sketches; `first_choice` is its time over that of the first's origin."""
    with sd.open_store("sqlite://") as store:
        result = sd.tune(
            workload,
            sketches=[sketch for sketch, _ in found],
            search="storm",
            time=options.time,
            store=store,
            fresh=True,
            pool=pool,
        )
    if result.interrupted:
        sys.exit(130)
    raced = result.best is not None and result.baseline is not None
    document = {**result.to_json(), "first_choice": result.best.seconds / result.baseline if raced else None}
    del document["curve"]
    return document


def show(entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints a row per shape and sketch, and what they come to together."""
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
        for sketch, each in entry["spaces"].items():
            first = sketch == entry["first"]
            worked = sum(point["seconds"] is not None for point in each["points"])
            own, most = (entry[key]["first_choice"] if first else None for key in ("own", "all"))
            best = entry["all"]["best"]
            rows.append(
                [
                    name if first else "",
                    sketch,
                    f"{worked} of {each['size']}",
                    *(_text(each[key]) for key in ("rank", "top_1", "top_5", "random_5")),
                    *(_text(value) for value in (own, most, entry["across"] if first else None)),
                    best["sketch"] if first and best else "",
                ]
            )
    table(headings, rows)
    every = [each for entry in entries.values() for each in entry["spaces"].values()]
    suspect = sum(point["suspect"] for each in every for point in each["points"])
    print(f"measured beside foreign load: {suspect} of {sum(len(each['points']) for each in every)} points")
    told = [each for each in every if each["rank"] is not None]
    if told:
        ranks = [each["rank"] for each in told]
        print(
            f"rank correlation over {len(told)} spaces: median {statistics.median(ranks):.2f}, least {min(ranks):.2f}"
        )
        for key in ("top_1", "top_5", "random_5"):
            print(f"{key.replace('_', ' ')}: {_spread([each[key] for each in told], 'most', max)}")
    for key in ("own", "all"):
        choices = [entry[key]["first_choice"] for entry in entries.values() if entry[key]["first_choice"]]
        if choices:
            print(f"speed of the first choice over that of the tuned kernel, {key}: {_spread(choices, 'least', min)}")


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _spread(ratios: Sequence[float], name: str, worst: Any) -> str:
    middle, mean = statistics.median(ratios), statistics.geometric_mean(ratios)
    return f"median {middle:.3f}, geometric mean {mean:.3f}, {name} {worst(ratios):.3f}"


def _options() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--shapes", default=CHOSEN, help="%(default)s")
    asked.add_argument("--points", type=int, default=30, help="of each sketch (%(default)s)")
    asked.add_argument("--time", type=float, default=10.0, help="seconds of a tuning (%(default)s)")
    asked.add_argument("--show", action="store_true", help="print what is there, and measure nothing")
    options = asked.parse_args()
    options.shapes = chosen(options.shapes)
    return options


if __name__ == "__main__":
    main()
