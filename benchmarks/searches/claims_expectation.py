"""The droplet expectation (Droplet Search paper, Definition 3.6, sections 4.1 and 4.4).

Noise-free, on all points: the expectation itself asks for a chain of ever faster neighbours from the origin to the
optimum. A steepest descent need not take it. So both are counted, from the origin and from every point.
With noise, by running the search: from the origin, and from random points.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from grounds import Settings, analytic, descend, document, loaded, random_start, save, spread, table

from stormdrop.measure.replay import Recording
from stormdrop.space import Space
from stormdrop.trial import Point

CLOSE = 1.05
_LEAST_POINTS = 9  # of a plane, to be called a landscape


@dataclass(frozen=True)
class Surface:
    """What the neighbourhood makes of the times of all points; shares are of the points that work.

    minima, close_minima    local minima; those among them within 5% of the optimum
    chain                   share with a chain of ever faster neighbours to a point within 5%; `to_optimum`: to it
    descent                 share from which steepest descent ends within 5%
    origin_...              the same of the first point that works; where its steepest descent ends, over the optimum
    """

    points: int
    minima: int
    close_minima: int
    chain: float
    descent: float
    to_optimum: float
    origin_chain: bool
    origin_to_optimum: bool
    origin_end: float


def surface(times: Mapping[Point, float], neighbours: Callable[[Point], Sequence[Point]], origin: Point) -> Surface:
    """Looks at the points from the fastest on: what is faster than a point is known before it."""
    best = min(times.values())
    ends: dict[Point, float] = {}
    close: set[Point] = set()
    optimal: set[Point] = set()
    minima = []
    for point in sorted(times, key=times.__getitem__):
        faster = [p for p in neighbours(point) if p in times and times[p] < times[point]]
        if not faster:
            minima.append(times[point] / best)
        ends[point] = ends[min(faster, key=times.__getitem__)] if faster else times[point] / best
        if times[point] <= CLOSE * best or any(p in close for p in faster):
            close.add(point)
        if times[point] == best or any(p in optimal for p in faster):
            optimal.add(point)
    share = 1 / len(times)
    return Surface(
        points=len(times),
        minima=len(minima),
        close_minima=sum(end <= CLOSE for end in minima),
        chain=share * len(close),
        descent=share * sum(end <= CLOSE for end in ends.values()),
        to_optimum=share * len(optimal),
        origin_chain=origin in close,
        origin_to_optimum=origin in optimal,
        origin_end=ends[origin],
    )


def expectation(asked: Settings) -> None:
    """Prints and keeps what holds of the expectation on recorded spaces, their planes, and analytic landscapes."""
    found = spread(_ground, asked.sources, asked.jobs)
    tasks = itertools.product(asked.sources, ("student", "ours"), (False, True), range(5 * asked.seeds))
    descents = spread(_descent, tasks, asked.jobs)
    print(f"\nThe droplet expectation: chains and steepest descents of all points; ends within {CLOSE - 1:.0%}")
    headings = ["", "points", "minima", "close", "origin: chain", "to optimum", "end", "all: chain", "descent"]
    table(headings, [_row(each) for each in found])
    print(f"\nDroplet Search with the recorded noise: ends within {CLOSE - 1:.0%}, and evaluations")
    rows = []
    for each in found:
        row = [each["ground"]]
        for test, randomly in itertools.product(("student", "ours"), (False, True)):
            own = [d for d in descents if (d["ground"], d["test"], d["random"]) == (each["ground"], test, randomly)]
            row += [f"{_share(own):.0%}", f"{statistics.fmean(d['evaluations'] for d in own):.0f}"]
        rows.append(row)
    table(["", *(f"{t} {s}" for t in ("student:", "ours:") for s in ("origin", "n", "random", "n"))], rows)
    print("\nPlanes of two knobs through the optimum (as Figure 10): share in which it holds")
    table(
        ["", "planes", "chain to optimum", "descent within 5%"],
        [
            [
                e["ground"],
                str(len(e["planes"])),
                _percent(p["origin_to_optimum"] for p in e["planes"]),
                _percent(p["origin_end"] <= CLOSE for p in e["planes"]),
            ]
            for e in found
        ],
    )
    formulas = spread(_ground, analytic(), asked.jobs)
    print("\nAnalytic landscapes (section 4.4)")
    table(headings, [_row(each) for each in formulas])
    save("claim_expectation", document(asked, grounds=found, descents=descents, analytic=formulas))


def _row(each: Mapping[str, Any]) -> list[str]:
    counts = [str(each[key]) for key in ("points", "minima", "close_minima")]
    origin = [
        "yes" if each["origin_chain"] else "no",
        "yes" if each["origin_to_optimum"] else "no",
        f"{each['origin_end']:.2f}",
    ]
    return [each["ground"], *counts, *origin, f"{each['chain']:.0%}", f"{each['descent']:.0%}"]


def _ground(source: str) -> dict[str, Any]:
    recording = loaded(source)
    space = next(space for space in recording.spaces if space.name == recording.optimum.sketch)
    times = {c.point: t for c in recording.recorded if c.sketch == space.name and (t := recording.truth(c)) is not None}
    whole = surface(times, space.neighbours, _first(space, times))
    planes = [vars(surface(plane, space.neighbours, min(plane))) for plane in _planes(recording, space, times)]
    return {"ground": recording.name, **vars(whole), "planes": planes}


def _first(space: Space, times: Mapping[Point, float]) -> Point:
    return space.origin if space.origin in times else min(times)


def _planes(recording: Recording, space: Space, times: Mapping[Point, float]) -> list[dict[Point, float]]:
    """The points that differ from the optimum in at most two knobs, by those knobs. Neighbours stay in a plane."""
    best = space.config(recording.optimum.point)
    planes: defaultdict[tuple[str, str], dict[Point, float]] = defaultdict(dict)
    for point, seconds in times.items():
        config = space.config(point)
        differing = [name for name in best if config[name] != best[name]]
        if len(differing) > 2:
            continue
        for pair in itertools.combinations(best, 2):
            if set(differing) <= set(pair):
                planes[pair][point] = seconds
    return [
        plane
        for pair, plane in planes.items()
        if len(plane) >= _LEAST_POINTS and all(_varies(space, plane, name) for name in pair)
    ]


def _varies(space: Space, plane: Mapping[Point, float], name: str) -> bool:
    return len({repr(space.config(point)[name]) for point in plane}) > 1


def _descent(task: tuple[str, str, bool, int]) -> dict[str, Any]:
    source, test, randomly, seed = task
    recording = loaded(source)
    start = random_start(recording, seed) if randomly else None
    measurer = recording.measurer(np.random.default_rng([seed, 1]))
    return {**descend(recording, measurer, seed, start, test=test), "test": test, "random": randomly}


def _share(descents: Sequence[Mapping[str, Any]]) -> float:
    return statistics.fmean(each["end"] is not None and each["end"] <= CLOSE for each in descents)


def _percent(held: Any) -> str:
    held = list(held)
    return f"{statistics.fmean(held):.0%}" if held else "-"
