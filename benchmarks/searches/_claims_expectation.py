"""The droplet expectation (Droplet Search paper, Definition 3.6, sections 4.1 and 4.4).

The expectation itself asks for a chain of ever faster neighbours from the origin to the optimum. A steepest descent
need not take that chain. So both are counted without noise, from the origin and from every point. With noise the search
itself runs, from the origin and from random points.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from _grounds import Settings, analytic, descend, document, loaded, random_start, save, spread, table

from stormdrop.measure.replay import Recording
from stormdrop.space import Space
from stormdrop.trial import Point

CLOSE = 1.05
_LEAST_POINTS = 9  # a plane with fewer is left out


@dataclass(frozen=True)
class Surface:
    """How the times of all points lie beside those of their neighbours; shares are of the points that work.

    minima, close_minima    number of local minima; number of those that are within 5% of the optimum
    chain                   share of points with a chain of ever faster neighbours to a point within 5%
    to_optimum              share of points with such a chain to the optimum itself
    descent                 share of points from which steepest descent ends within 5%
    nearer                  share of points that are fewer steps away from the origin than the optimum is
    origin_...              the same for the origin (or the first point, if the origin failed); `origin_end` is the time
                            at which its steepest descent ends, over the optimum
    """

    points: int
    minima: int
    close_minima: int
    chain: float
    descent: float
    to_optimum: float
    nearer: float
    origin_chain: bool
    origin_to_optimum: bool
    origin_end: float


def surface(times: Mapping[Point, float], neighbours: Callable[[Point], Sequence[Point]], origin: Point) -> Surface:
    """The surface of these times. Points are looked at from the fastest on, so faster neighbours are known already."""
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
    steps = {point: sum(abs(a - b) for a, b in zip(point, origin, strict=True)) for point in times}
    optimum = min(times, key=times.__getitem__)
    return Surface(
        points=len(times),
        minima=len(minima),
        close_minima=sum(end <= CLOSE for end in minima),
        chain=share * len(close),
        descent=share * sum(end <= CLOSE for end in ends.values()),
        to_optimum=share * len(optimal),
        nearer=share * sum(steps[point] < steps[optimum] for point in times),
        origin_chain=origin in close,
        origin_to_optimum=origin in optimal,
        origin_end=ends[origin],
    )


def expectation(settings: Settings) -> None:
    """Prints and saves how far the expectation holds on recorded spaces, their planes, and analytic landscapes."""
    grounds = spread(_ground, settings.sources, settings.jobs)
    tasks = itertools.product(settings.sources, ("student", "ours"), (False, True), range(5 * settings.seeds))
    descents = spread(_descent, tasks, settings.jobs)
    print(f"\nThe droplet expectation: chains and steepest descents of all points; ends within {CLOSE - 1:.0%}")
    headings = [
        "",
        "points",
        "minima",
        "close",
        "origin: chain",
        "to optimum",
        "end",
        "all: chain",
        "descent",
        "nearer",
    ]
    table(headings, [_row(ground) for ground in grounds])
    print(f"\nDroplet Search with the recorded noise: ends within {CLOSE - 1:.0%}, and evaluations")
    rows = []
    for ground in grounds:
        row = [ground["ground"]]
        for key in itertools.product((ground["ground"],), ("student", "ours"), (False, True)):
            group = [run for run in descents if (run["ground"], run["test"], run["random"]) == key]
            row += [f"{_share(group):.0%}", f"{statistics.fmean(run['evaluations'] for run in group):.0f}"]
        rows.append(row)
    table(["", *(f"{t} {s}" for t in ("student:", "ours:") for s in ("origin", "n", "random", "n"))], rows)
    print("\nPlanes of two knobs through the optimum (as Figure 10): share of them in which it holds")
    table(
        ["", "planes", "chain to optimum", "descent within 5%"],
        [
            [
                ground["ground"],
                str(len(ground["planes"])),
                _percent(plane["origin_to_optimum"] for plane in ground["planes"]),
                _percent(plane["origin_end"] <= CLOSE for plane in ground["planes"]),
            ]
            for ground in grounds
        ],
    )
    formulas = spread(_ground, analytic(), settings.jobs)
    print("\nAnalytic landscapes (section 4.4)")
    table(headings, [_row(ground) for ground in formulas])
    save("claim_expectation", document(settings, grounds=grounds, descents=descents, analytic=formulas))


def _row(ground: Mapping[str, Any]) -> list[str]:
    counts = [str(ground[key]) for key in ("points", "minima", "close_minima")]
    origin = [
        "yes" if ground["origin_chain"] else "no",
        "yes" if ground["origin_to_optimum"] else "no",
        f"{ground['origin_end']:.2f}",
    ]
    return [ground["ground"], *counts, *origin, *(f"{ground[key]:.0%}" for key in ("chain", "descent", "nearer"))]


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
    """For every two knobs the points that differ from the optimum in no other knob, if the plane is large enough."""
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
    return statistics.fmean(run["end"] is not None and run["end"] <= CLOSE for run in descents)


def _percent(answers: Iterable[bool]) -> str:
    values = list(answers)
    return f"{statistics.fmean(values):.0%}" if values else "-"
