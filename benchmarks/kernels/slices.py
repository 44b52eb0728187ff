"""The droplet expectation on kernels of this machine: planes of two knobs, with every point measured.

    slices.py [--slices conv3x3_rows,softmax] [--show] [--fresh]

Droplet Search paper, Definition 3.6, section 4.1 and Figure 10: from the unoptimized kernel a chain of ever faster
neighbours leads to the optimum. A slice is a plane on which two knobs vary; the other knobs have the values of the
default schedule. The whole plane is measured twice, some minutes apart; the difference of the two is the noise. Then
there are four ways to descend from every point:

    steepest    to the fastest neighbour, by the medians, as long as one is faster
    tolerant    the same, but it may pass points that are slower by no more than the noise
    chain       any tolerant descent, whichever ends best: this is what the expectation asks for
    droplet     the search itself, with its treatment of noise, on the measured samples

The figures are the shares that end within 3% and 10% of the best of the plane. The *corner*, with all knobs at their
lowest values, stands for the unoptimized kernel. A line of the plane has *one valley* if all tolerant descents on it
have the same end. It is *convex* if no second difference along it is negative beyond the noise (all steps of a knob
count as equal). `margin` is how far two times may differ by noise; if it is large, a slice says little.

Every slice is saved in benchmarks/out/slices.jsonl as soon as it is done. The next run skips it unless its sketch has
changed. All slices take a quarter of an hour. Run it on an idle machine.
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

from _common import OUT, Campaign, campaign_parser, chosen, machine
from matplotlib.image import imsave
from spaces import fingerprints, workload_of

from stormdrop.cli.output import table
from stormdrop.compare.landscape import Landscape, landscape
from stormdrop.compare.search_run import run_search
from stormdrop.compare.search_spec import parse_searches
from stormdrop.ir.workload import Workload
from stormdrop.measure.replay import Recorded, Recording
from stormdrop.report.plots.landscape import heat_map
from stormdrop.report.plots.style import save as save_figure
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
"""By name: a kernel, the two knobs that vary, and values of others that differ from the default schedule."""

CLOSE = (1.03, 1.1)
WAYS = ("steepest", "tolerant", "chain", "droplet")

_NAME = "slices"
_PER_ROW = 3  # pictures side by side
_FEWEST = 3  # points of a line; shorter ones are left out

Neighbours = Callable[[Point], Sequence[Point]]


def main() -> None:
    options = _options()
    host = machine()
    campaign = Campaign(OUT / f"{_NAME}.jsonl", host, options, document="kernels")

    def setting(name: str) -> dict[str, Any]:
        return {"sketches": fingerprints(workload_of(SLICES[name][0]))}

    def work(name: str) -> dict[str, Any]:
        text, knobs, fixed = SLICES[name]
        return measure([workload_of(text)] * 2, knobs, fixed)

    entries = campaign.collect(options.slices, work, setting)
    print(f"{host['cpu']}, {host['cores']} cores")
    show(entries)
    print(draw(entries, _NAME))


def measure(grounds: Sequence[Workload | Recording], knobs: Sequence[str], fixed: Mapping[str, str]) -> dict[str, Any]:
    """Measures a plane; returns it as `Landscape.to_json` does, with figures and droplet's path from the corner.

    Args:
        grounds: the kernel, or a recording of it, for the first and for the second time that the plane is measured.
        knobs: the two knobs.
        fixed: values of others that differ from the default schedule.
    """
    (droplet,) = parse_searches("droplet")
    first, second = (landscape(ground, knobs, droplet, fixed=fixed) for ground in grounds)
    noise = _noise(first.plane, second.plane)
    pooled = {
        candidate: Recorded(known.seconds + again.seconds)
        if known.seconds and again.seconds
        else min(known, again, key=_worked)
        for candidate, known in first.plane.recorded.items()
        for again in [second.plane.recorded[candidate]]
    }
    plane = Recording(first.ground, first.plane.spaces, pooled)
    corner = Candidate(
        plane.spaces[0].name, min(candidate.point for candidate, known in pooled.items() if known.seconds)
    )
    whole = dataclasses.replace(
        first, plane=plane, trace=_droplet(plane, corner, 0), suspect=first.suspect + second.suspect
    )
    return {"plane": whole.to_json(), **_figures(whole, corner, noise)}


def _noise(first: Recording, second: Recording) -> float:
    """The standard deviation of the log of a point's median over both passes, by the median difference of the passes.

    A drift that all points have in common is not counted as noise.
    """
    pairs = [(first.truth(candidate), second.truth(candidate)) for candidate in first.recorded]
    logs = np.log([before / after for before, after in pairs if before is not None and after is not None])
    spread = 1.4826 * np.median(np.abs(logs - np.median(logs)))
    return float(spread / 2)


def _worked(known: Recorded) -> bool:
    return bool(known.seconds)


def _droplet(plane: Recording, start: Candidate, seed: int) -> Trace:
    knowledge = Knowledge(starts=(start,))
    search = create("droplet", plane.spaces, np.random.default_rng([seed, 0]), knowledge)
    with plane.measurer(np.random.default_rng([seed, 1])) as measurer:
        return run_search(search, measurer, len(plane.recorded))


def _figures(plane_of_slice: Landscape, corner: Candidate, noise: float) -> dict[str, Any]:
    """All figures of a plane. Times are over the best time of the plane."""
    plane, (space,) = plane_of_slice.plane, plane_of_slice.plane.spaces
    best = plane.optimum_seconds
    truths = {candidate.point: plane.truth(candidate) for candidate in plane.recorded}
    times = {point: seconds / best for point, seconds in truths.items() if seconds is not None}
    margin = 2 * math.sqrt(2) * noise  # 5% of equal times differ by more
    steepest = descents(times, space.neighbours)
    tolerant = descents(times, space.neighbours, margin)
    traces = {start: _droplet(plane, Candidate(space.name, start), row) for row, start in enumerate(times)}
    reached = {start: times[trace.winner.point] if trace.winner else math.inf for start, trace in traces.items()}
    return {
        "noise": noise,
        "margin": margin,
        "points": len(plane.recorded),
        "failed": len(plane.recorded) - len(times),
        "corner": times[corner.point],
        "origin": times.get(space.origin),
        "minima": _minima(times, steepest),
        "minima_beyond_noise": _minima(times, tolerant),
        "steepest": _ends({start: times[descent.end] for start, descent in steepest.items()}, corner.point),
        "tolerant": _ends({start: times[descent.end] for start, descent in tolerant.items()}, corner.point),
        "chain": _ends({start: descent.chain for start, descent in tolerant.items()}, corner.point),
        "droplet": _ends(reached, corner.point),
        "evaluations": {
            "mean": statistics.fmean(len(trace) for trace in traces.values()),
            "corner": len(traces[corner.point]),
        },
        "hops": {
            "mean": statistics.fmean(descent.hops for descent in steepest.values()),
            "most": max(descent.hops for descent in steepest.values()),
            "corner": steepest[corner.point].hops,
        },
        # All knobs are ordinal, so every coordinate of a point is a knob.
        "axes": [_lines(times, axis, margin) for axis in range(len(space.knobs))],
    }


@dataclass(frozen=True)
class Descent:
    """From one point: the end of steepest descent, its number of hops, and the lowest time of any descent."""

    end: Point
    hops: int
    chain: float


def descents(times: Mapping[Point, float], neighbours: Neighbours, margin: float = 0.0) -> dict[Point, Descent]:
    """The descents from every point. On the way to a faster point they may pass points slower by at most the margin."""

    def order(point: Point) -> tuple[float, Point]:
        return times[point], point

    results: dict[Point, Descent] = {}
    for point in sorted(times, key=order):  # so faster points are known before slower ones
        level = times[point] * math.exp(margin)
        plateau, rim, faster = {point}, [point], []
        while rim:
            reached = (neighbour for passed in rim for neighbour in neighbours(passed))
            new = dict.fromkeys(candidate for candidate in reached if candidate in times and candidate not in plateau)
            faster += [candidate for candidate in new if order(candidate) < order(point)]
            rim = [candidate for candidate in new if order(candidate) > order(point) and times[candidate] <= level]
            plateau.update(rim)
        if faster:
            best = results[min(faster, key=order)]
            results[point] = Descent(best.end, best.hops + 1, min(results[neighbour].chain for neighbour in faster))
        else:
            results[point] = Descent(point, 0, times[point])
    return results


def _lines(times: Mapping[Point, float], axis: int, margin: float) -> dict[str, int]:
    """How many lines along an axis there are, how many have one valley, and how many are convex."""
    lines: defaultdict[Point, list[float]] = defaultdict(list)
    for point in sorted(times):
        lines[point[:axis] + point[axis + 1 :]].append(times[point])
    long_lines = [line for line in lines.values() if len(line) >= _FEWEST]
    return {
        "lines": len(long_lines),
        "one_valley": sum(_valleys(line, margin) == 1 for line in long_lines),
        "convex": sum(_convex(line, margin) for line in long_lines),
    }


def _valleys(line: Sequence[float], margin: float) -> int:
    times: dict[Point, float] = {(position,): seconds for position, seconds in enumerate(line)}
    ends = descents(times, lambda point: [(point[0] - 1,), (point[0] + 1,)], margin)
    return len({descent.end for descent in ends.values()})


def _convex(line: Sequence[float], margin: float) -> bool:
    values = np.array(line)
    bent = values[:-2] + values[2:] - 2 * values[1:-1]
    # The margin is for the difference of two times. A second difference has six of their variances, not two.
    return bool((bent >= -math.sqrt(3) * margin * values[1:-1]).all())


def _minima(times: Mapping[Point, float], descents_of_plane: Mapping[Point, Descent]) -> list[float]:
    return sorted(times[point] for point, descent in descents_of_plane.items() if descent.end == point)


def _ends(ends: Mapping[Point, float], corner: Point) -> dict[str, float]:
    """The shares of points from which a way ends close to the best, and where it ends from the corner."""
    shares = {limit: statistics.fmean(end <= limit for end in ends.values()) for limit in CLOSE}
    return {**{_within(limit): share for limit, share in shares.items()}, "corner": ends[corner]}


def _within(limit: float) -> str:
    return f"within {limit - 1:.0%}"


def show(entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints a row per slice: first the plane, then where the descents end."""
    headings = [
        "",
        "knobs",
        "points",
        "failed",
        "disturbed",
        "margin",
        "corner",
        "origin",
        "minima",
        "beyond noise",
        "worst of them",
        "one valley",
        "convex",
    ]
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
    headings = [
        "",
        *(f"{way}: {_within(limit)}" for way in WAYS for limit in CLOSE),
        "hops",
        "most hops",
        "evaluations",
    ]
    rows = []
    for name, entry in entries.items():
        shares = [f"{entry[way][_within(limit)]:.0%}" for way, limit in itertools.product(WAYS, CLOSE)]
        hops = [f"{entry['hops']['mean']:.1f}", str(entry["hops"]["most"])]
        rows.append([name, *shares, *hops, f"{entry['evaluations']['mean']:.0f}"])
    table(headings, rows, "From all points that work: the share from which each way ends close to the best")
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


def draw(entries: Mapping[str, Mapping[str, Any]], script: str) -> Path:
    """Writes a picture of every plane with droplet's path from the corner, and one of all planes side by side."""
    images = []
    for name, entry in entries.items():
        figure = heat_map(entry["plane"])
        save_figure(figure, OUT / f"{script.removesuffix('s')}_{name}.png")
        canvas: Any = figure.canvas  # of matplotlib's Agg
        canvas.draw()
        images.append(np.asarray(canvas.buffer_rgba()))
    height, width = (max(image.shape[axis] for image in images) for axis in range(2))
    framed = [
        np.pad(image, [(0, height - image.shape[0]), (0, width - image.shape[1]), (0, 0)], constant_values=255)
        for image in images
    ]
    columns = min(_PER_ROW, len(framed))
    framed += [np.full_like(framed[0], 255)] * (-len(framed) % columns)
    path = OUT / f"{script}.png"
    imsave(path, np.vstack([np.hstack(framed[start : start + columns]) for start in range(0, len(framed), columns)]))
    return path


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--slices", default=",".join(SLICES), help="slices, separated by commas (%(default)s)")
    options = parser.parse_args()
    options.slices = chosen(options.slices, SLICES, "slice")
    return options


if __name__ == "__main__":
    main()
