"""The droplet expectation on this machine's kernels: planes of two knobs, every point of them measured.

    slices.py [--slices conv3x3_rows,softmax] [--show]

Droplet Search paper, Definition 3.6, section 4.1 and Figure 10: from the unoptimized kernel a chain of ever faster
neighbours leads to the optimum. Two knobs vary, the others are those of the default schedule. The whole plane is
measured twice, minutes apart; how much the two differ is the noise. Then, from every point:

    steepest    to the fastest neighbour, by the medians, while there is a faster one
    tolerant    the same, but on the way what is slower by no more than noise is passed
    chain       some such way, whichever: what the expectation asks for
    droplet     the search itself, with all it does about noise, on the measured samples

and what of these ends within 3% and 10% of the best of the plane. The *corner*, all knobs at their least, stands for
the unoptimized kernel. A line of the plane has *one valley* where tolerant descents have one end on it; it is
*convex* where no second difference along it is negative beyond noise (the steps of a knob count as equal). `margin` is
what two times may differ by noise: where it is large, a slice says little.

Each slice is kept in benchmarks/out/slices.json as soon as it is done, and left out by the next run unless its sketch
has changed. All of them take a quarter of an hour. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import OUT, kept, machine, save
from matplotlib.image import imsave
from spaces import fingerprints

import stormdrop as sd
from stormdrop.cli.output import table
from stormdrop.compare.landscape import Landscape, landscape
from stormdrop.compare.search_run import run_search
from stormdrop.compare.search_spec import parse_searches
from stormdrop.measure.replay import Recorded, Recording
from stormdrop.report.landscape import heat_map
from stormdrop.report.style import save as save_figure
from stormdrop.search import Knowledge, create
from stormdrop.trial import Candidate, Point
from stormdrop.tuning.trace import Trace

_CONV = "conv2d n=1 h=56 w=56 ci=64 co=64 kh=3 kw=3 pad=1 bias=1 act=relu"
_MATMUL = "matmul m=512 n=512 k=512"
SLICES: Mapping[str, tuple[str, tuple[str, str], Mapping[str, str]]] = {
    "conv3x3_tile": (_CONV, ("rows_outer", "rows"), {}),
    "conv3x3_columns": (_CONV, ("rows_outer", "columns"), {}),
    "conv3x3_unroll": (_CONV, ("rows_outer", "unroll"), {}),
    "conv3x3_winograd": (_CONV, ("rows", "block"), {}),
    "matmul_tile": (_MATMUL, ("rows", "columns"), {"block": "1"}),
    "matmul_block": (_MATMUL, ("rows", "block"), {}),
    "conv1x1_block": ("conv2d n=1 h=28 w=28 ci=512 co=128 kh=1 kw=1 bias=1 act=relu", ("rows", "block"), {}),
    "depthwise_tile": ("depthwise_conv2d n=1 h=56 w=56 ci=144 kh=3 kw=3 pad=1 bias=1", ("rows_outer", "rows"), {}),
    "softmax": ("softmax m=1536 n=128", ("vectors", "unroll"), {}),
    "layer_norm": ("layer_norm m=512 n=768", ("vectors", "unroll"), {}),
    "reduce": ("reduce shape=512x4096 axis=0", ("vectors", "unroll"), {}),
    "transpose": ("transpose shape=2048x1024 perm=1x0", ("across", "columns"), {}),
}
"""A kernel, the knobs that vary, and what is not as in its default schedule. All knobs are ordinal."""

CLOSE = (1.03, 1.1)
WAYS = ("steepest", "tolerant", "chain", "droplet")

_NAME = "slices"
_PER_ROW = 3  # pictures
_FEWEST = 3  # points of a line that says something

Neighbours = Callable[[Point], Sequence[Point]]


def main() -> None:
    options = _options()
    where = machine()
    entries = kept(_NAME, where)
    for name in options.slices:
        text, knobs, at = SLICES[name]
        operator, *arguments = text.split()
        workload = sd.operators.create(operator, dict(each.split("=") for each in arguments))
        versions = fingerprints(workload)
        if options.show or entries.get(name, {}).get("sketches") == versions:
            continue
        print(f"{name}: {text}", file=sys.stderr)
        entries[name] = {"sketches": versions, **measured(workload, knobs, at)}
        save(_NAME, {"machine": where, "kernels": entries})
    chosen = {name: entries[name] for name in options.slices if name in entries}
    if chosen:
        print(f"{where['cpu']}, {where['cores']} cores")
        show(chosen)
        print(draw(chosen))


def measured(workload: Any, knobs: Sequence[str], fixed: Mapping[str, str]) -> dict[str, Any]:
    """A plane as `Landscape.to_json` has it, with droplet's walk from the corner, and what holds on it."""
    (droplet,) = parse_searches("droplet")
    first, second = (landscape(workload, knobs, droplet, at=fixed) for _ in range(2))
    noise = _noise(first.plane, second.plane)
    pooled = {
        at: Recorded(known.seconds + again.seconds)
        if known.seconds and again.seconds
        else min(known, again, key=_worked)
        for at, known in first.plane.recorded.items()
        for again in [second.plane.recorded[at]]
    }
    plane = Recording(first.ground, first.plane.spaces, pooled)
    corner = Candidate(plane.spaces[0].name, min(at.point for at, known in pooled.items() if known.seconds))
    whole = dataclasses.replace(
        first, plane=plane, walk=_droplet(plane, corner, 0), suspect=first.suspect + second.suspect
    )
    return {"plane": whole.to_json(), **_holds(whole, corner, noise)}


def _noise(first: Recording, second: Recording) -> float:
    """Standard deviation of the log of a point's median over both passes, by the median of what these differ.

    A drift of all points is no noise.
    """
    pairs = [(first.truth(at), second.truth(at)) for at in first.recorded]
    logs = np.log([one / other for one, other in pairs if one is not None and other is not None])
    spread = 1.4826 * np.median(np.abs(logs - np.median(logs)))
    return float(spread / 2)


def _worked(known: Recorded) -> bool:
    return bool(known.seconds)


def _droplet(plane: Recording, start: Candidate, seed: int) -> Trace:
    knowledge = Knowledge(starts=(start,))
    search = create("droplet", plane.spaces, np.random.default_rng([seed, 0]), knowledge)
    with plane.measurer(np.random.default_rng([seed, 1])) as measurer:
        return run_search(search, measurer, len(plane.recorded))


def _holds(found: Landscape, corner: Candidate, noise: float) -> dict[str, Any]:
    """All that is said of a plane. Times are over the best of it."""
    plane, (space,) = found.plane, found.plane.spaces
    best = plane.optimum_seconds
    times = {at.point: seconds / best for at in plane.recorded if (seconds := plane.truth(at)) is not None}
    margin = 2 * math.sqrt(2) * noise  # of equals, 5% differ by more
    steepest = descents(times, space.neighbours)
    tolerant = descents(times, space.neighbours, margin)
    walks = {at: _droplet(plane, Candidate(space.name, at), row) for row, at in enumerate(times)}
    reached = {at: times[each.winner.point] if each.winner else math.inf for at, each in walks.items()}
    return {
        "noise": noise,
        "margin": margin,
        "points": len(plane.recorded),
        "failed": len(plane.recorded) - len(times),
        "corner": times[corner.point],
        "origin": times.get(space.origin),
        "minima": _minima(times, steepest),
        "minima_beyond_noise": _minima(times, tolerant),
        "steepest": _ends({at: times[each.end] for at, each in steepest.items()}, corner.point),
        "tolerant": _ends({at: times[each.end] for at, each in tolerant.items()}, corner.point),
        "chain": _ends({at: each.chain for at, each in tolerant.items()}, corner.point),
        "droplet": _ends(reached, corner.point),
        "evaluations": {
            "mean": statistics.fmean(len(each) for each in walks.values()),
            "corner": len(walks[corner.point]),
        },
        "hops": {
            "mean": statistics.fmean(each.hops for each in steepest.values()),
            "most": max(each.hops for each in steepest.values()),
            "corner": steepest[corner.point].hops,
        },
        # A coordinate of a point is a knob here: all are ordinal.
        "axes": [_lines(times, at, margin) for at in range(len(space.knobs))],
    }


@dataclass(frozen=True)
class Descent:
    """From one point: where steepest descent ends and after how many steps, and the least time of any descent."""

    end: Point
    hops: int
    chain: float


def descents(times: Mapping[Point, float], neighbours: Neighbours, margin: float = 0.0) -> dict[Point, Descent]:
    """The descents from every point. On the way to a faster one they pass what is slower by at most the margin."""

    def order(point: Point) -> tuple[float, Point]:
        return times[point], point

    found: dict[Point, Descent] = {}
    for point in sorted(times, key=order):  # what is faster is known before
        level = times[point] * math.exp(margin)
        plateau, rim, faster = {point}, [point], []
        while rim:
            new = dict.fromkeys(n for r in rim for n in neighbours(r) if n in times and n not in plateau)
            faster += [n for n in new if order(n) < order(point)]
            rim = [n for n in new if order(n) > order(point) and times[n] <= level]
            plateau.update(rim)
        if faster:
            to = found[min(faster, key=order)]
            found[point] = Descent(to.end, to.hops + 1, min(found[each].chain for each in faster))
        else:
            found[point] = Descent(point, 0, times[point])
    return found


def _lines(times: Mapping[Point, float], axis: int, margin: float) -> dict[str, int]:
    """Of the lines along an axis how many have one valley, and how many are convex."""
    lines: defaultdict[Point, list[float]] = defaultdict(list)
    for point in sorted(times):
        lines[point[:axis] + point[axis + 1 :]].append(times[point])
    told = [line for line in lines.values() if len(line) >= _FEWEST]
    return {
        "lines": len(told),
        "one_valley": sum(_valleys(line, margin) == 1 for line in told),
        "convex": sum(_convex(line, margin) for line in told),
    }


def _valleys(line: Sequence[float], margin: float) -> int:
    times = {(at,): seconds for at, seconds in enumerate(line)}
    found = descents(times, lambda at: [(at[0] - 1,), (at[0] + 1,)], margin)
    return len({each.end for each in found.values()})


def _convex(line: Sequence[float], margin: float) -> bool:
    values = np.array(line)
    bent = values[:-2] + values[2:] - 2 * values[1:-1]
    # The margin is that of the difference of two times: here are six of their variances, not two.
    return bool((bent >= -math.sqrt(3) * margin * values[1:-1]).all())


def _minima(times: Mapping[Point, float], found: Mapping[Point, Descent]) -> list[float]:
    return sorted(times[at] for at, each in found.items() if each.end == at)


def _ends(ends: Mapping[Point, float], corner: Point) -> dict[str, float]:
    """The shares of points from which a way ends near the best, and what it comes to from the corner."""
    shares = {limit: statistics.fmean(end <= limit for end in ends.values()) for limit in CLOSE}
    return {**{_within(limit): share for limit, share in shares.items()}, "corner": ends[corner]}


def _within(limit: float) -> str:
    return f"within {limit - 1:.0%}"


def show(entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints a row per slice: the plane, then what the descents come to."""
    headings = [
        "",
        "knobs",
        "points",
        "failed",
        "margin",
        "corner",
        "origin",
        "minima",
        "beyond noise",
        "worst of them",
    ]
    headings += ["one valley", "convex"]
    rows = []
    for name, entry in entries.items():
        beyond = entry["minima_beyond_noise"]
        rows.append(
            [
                name,
                " x ".join(entry["plane"]["knobs"]),
                str(entry["points"]),
                str(entry["failed"]),
                str(entry["plane"]["suspect"]),
                f"{entry['margin']:.1%}",
                f"{entry['corner']:.2f}",
                "-" if entry["origin"] is None else f"{entry['origin']:.2f}",
                str(len(entry["minima"])),
                str(len(beyond)),
                f"{beyond[-1]:.2f}",
                *(
                    ", ".join(f"{axis[key]} of {axis['lines']}" for axis in entry["axes"])
                    for key in ("one_valley", "convex")
                ),
            ]
        )
    table(headings, rows, "Planes; times over the best of the plane; lines along the first knob, along the second")
    print()
    headings = ["", *(f"{way}: {_within(limit)}" for way in WAYS for limit in CLOSE), "hops", "at most", "evaluations"]
    rows = []
    for name, entry in entries.items():
        shares = [f"{entry[way][_within(limit)]:.0%}" for way, limit in itertools.product(WAYS, CLOSE)]
        hops = [f"{entry['hops']['mean']:.1f}", str(entry["hops"]["most"])]
        rows.append([name, *shares, *hops, f"{entry['evaluations']['mean']:.0f}"])
    table(headings, rows, "From all points that work: the share from which each way ends near the best")
    print()
    rows = [
        [
            name,
            *(f"{entry[way]['corner']:.3f}" for way in WAYS),
            str(entry["hops"]["corner"]),
            str(entry["evaluations"]["corner"]),
        ]
        for name, entry in entries.items()
    ]
    table(["", *WAYS, "hops", "evaluations"], rows, "From the corner: the end over the best")
    for limit in CLOSE:
        held = (f"{way} {sum(entry[way]['corner'] <= limit for entry in entries.values())}" for way in WAYS)
        print(f"{_within(limit)} from the corner, of {len(rows)}: {', '.join(held)}")


def draw(entries: Mapping[str, Mapping[str, Any]]) -> Path:
    """Writes a picture per plane with droplet's path from the corner, and one of all side by side."""
    images = []
    for name, entry in entries.items():
        figure = heat_map(entry["plane"])
        save_figure(figure, OUT / f"slice_{name}.png")
        figure.canvas.draw()
        images.append(np.asarray(figure.canvas.buffer_rgba()))
    height, width = (max(image.shape[axis] for image in images) for axis in range(2))
    framed = [
        np.pad(each, [(0, height - each.shape[0]), (0, width - each.shape[1]), (0, 0)], constant_values=255)
        for each in images
    ]
    columns = min(_PER_ROW, len(framed))
    framed += [np.full_like(framed[0], 255)] * (-len(framed) % columns)
    path = OUT / f"{_NAME}.png"
    imsave(path, np.vstack([np.hstack(framed[at : at + columns]) for at in range(0, len(framed), columns)]))
    return path


def _options() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--slices", default=",".join(SLICES), help="%(default)s")
    asked.add_argument("--show", action="store_true", help="print and draw what is there, and measure nothing")
    options = asked.parse_args()
    options.slices = options.slices.split(",")
    if unknown := [name for name in options.slices if name not in SLICES]:
        sys.exit(f"there is no slice {unknown[0]}: there is {', '.join(SLICES)}")
    return options


if __name__ == "__main__":
    main()
