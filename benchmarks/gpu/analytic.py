"""Searches on an analytic model of a GPU: evaluations until they are within 5% of a known optimum, or end.

    analytic.py [--shape M0] [--device a100] [--seeds 10] [--trials 1000] [--no-origin]

The space is that of the CUDA sketch (Listing 1 of the AF-DS paper) for a matmul, tens of millions of points. The
model's seconds come from the seven features (section 4.1 there) and from how evenly blocks fall on multiprocessors,
see `estimated_seconds` in `sketches/gpu/features.py`; fetches of single elements and loops that are not unrolled take
1 to 8% more.
As the model is what picks the space's origin, searches that begin there (droplet, storm) have an advantage:
`--no-origin` takes it from them, the first point is the origin then.

The optimum is found by computing all tilings. Each search has its defaults; `gradient` and `evolutionary` are run with
the knobs' encodings, with the seven features and with both: with the seven they are Ansor-AF-DS and Ansor-AF, and as
the model is made of them, they are told what matters. Needs no GPU; a quarter of an hour.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))

from common import bars, machine, save
from shapes import SHAPES

from stormdrop.cli.output import table
from stormdrop.machine.gpu import GPUS, Gpu
from stormdrop.search import Knowledge, Search, create
from stormdrop.sketches.gpu.contraction import GpuContraction, find_fused_contraction, within_limits
from stormdrop.sketches.gpu.features import estimated_seconds
from stormdrop.sketches.gpu.tiling import ContractionAxes, Tilings
from stormdrop.sketches.knowledge import features as described
from stormdrop.space import Space
from stormdrop.trial import Candidate, Measurement, Phases, Status, Trial

_NAME = "gpu_analytic"
_NEAR = 1.05
_FETCH = {1: 1.04, 2: 1.01, 4: 1.0}
_UNROLL = {0: 1.08, 16: 1.03, 64: 1.01, 512: 1.0, 1024: 1.01}
_AT_ONCE = 1 << 17
_AT_A_TIME = 8  # candidates that a search is asked for
_CHECKPOINTS = (50, 100, 200, 500, 1000)  # evaluations
_PATIENT = 100  # proposals not worth a trial after which storm ends, instead of 24
RUNS: tuple[tuple[str, str, dict[str, int]], ...] = (
    ("storm", "knobs", {}),
    ("storm", "knobs", {"patience": _PATIENT}),
    ("droplet", "knobs", {}),
    ("gradient", "knobs", {}),
    ("gradient", "analytic", {}),
    ("gradient", "both", {}),
    ("evolutionary", "knobs", {}),
    ("evolutionary", "analytic", {}),
    ("evolutionary", "both", {}),
    ("random", "knobs", {}),
)


@dataclass(frozen=True)
class Run:
    """Distinct candidates until one was near the optimum, and until the end; the best speed after so many, by count.

    Speeds are shares of the optimum's.
    """

    near: int | None
    spent: int
    speeds: Mapping[int, float]

    @classmethod
    def of(cls, costs: Sequence[float], optimum: float) -> Run:
        """`costs` in seconds, in the order in which they were asked for."""
        best = list(itertools.accumulate(costs, min))
        near = next((count for count, each in enumerate(best, 1) if each <= _NEAR * optimum), None)
        return cls(near, len(best), {count: optimum / best[min(count, len(best)) - 1] for count in _CHECKPOINTS})


def main() -> None:
    options = _options()
    workload, device, sketch = SHAPES[options.shape].workload(), GPUS[options.device], GpuContraction()
    space = sketch.space(workload, device)
    assert space is not None
    if options.no_origin:
        space = Space(space.name, space.knobs, space.constraints)
    contraction = find_fused_contraction(workload).axes
    known = optimum(space, contraction, device)
    print(f"{options.shape}, {device.name}: {known['tilings']:,} tilings, {known['points']:,} points")
    print(
        f"optimum {1e6 * known['seconds']:.1f} us, a random point {known['median'] / known['seconds']:.1f} times that"
    )
    document, rows, drawn = [], [], {}
    for name, kind, settings in RUNS:
        found = []
        for seed in options.seeds:
            seen = Knowledge(features=described([(sketch, space)], workload, device, kind))
            search = create(name, [space], np.random.default_rng(seed), seen, **settings)
            costs = asked(search, lambda columns: seconds(columns, contraction, device), space, seed, options.trials)
            found.append(Run.of(costs, known["seconds"]))
        reached = [each.near for each in found if each.near is not None]
        middle = statistics.median(options.trials + 1 if each.near is None else each.near for each in found)
        document.append(
            {"search": name, "features": kind, "options": settings, "runs": [asdict(each) for each in found]}
        )
        within = f"{middle:.0f}" if middle <= options.trials else "-"
        spent = statistics.median(each.spent for each in found)
        speeds = {at: statistics.median(each.speeds[at] for each in found) for at in _CHECKPOINTS}
        called = " ".join([name, *(f"{option}={value}" for option, value in settings.items())])
        rows.append(
            [called, kind, f"{len(reached)} of {len(found)}", within, f"{spent:.0f}", f"{speeds[_CHECKPOINTS[-1]]:.0%}"]
        )
        drawn[f"{called}, {kind}"] = list(speeds.values())
        print(f"{called}, {kind}", file=sys.stderr)
    table(["search", "its model sees", f"within {_NEAR - 1:.0%}", "after", "ends after", "speed then"], rows)
    title = f"{options.shape} on a model of an {device.name}: best so far"
    print(bars(_NAME, title, "share of the optimum's speed", [f"{each} evaluations" for each in _CHECKPOINTS], drawn))
    print(
        save(
            _NAME,
            {
                "machine": machine(),
                "no_origin": options.no_origin,
                "shape": options.shape,
                "device": device.name,
                "optimum": known,
                "runs": document,
            },
        )
    )


def seconds(columns: Mapping[str, Any], contraction: ContractionAxes, device: Gpu) -> Any:
    """The model, of n configurations given as n values of each knob."""
    factors = {name: np.asarray(columns[name], dtype=np.int64) for name, _ in _axes(contraction)}
    other = np.vectorize(_FETCH.get)(columns["fetch0"]) * np.vectorize(_FETCH.get)(columns["fetch1"])
    expected = estimated_seconds(Tilings(contraction, factors), device)
    return expected * other * np.vectorize(_UNROLL.get)(columns["unroll"])


def optimum(space: Space, contraction: ContractionAxes, device: Gpu) -> dict[str, Any]:
    """The least seconds of all points, by computing those of all tilings."""
    knobs = {knob.name: knob for knob in space.knobs}
    names = [name for name, _ in _axes(contraction)]
    splits = [np.array([knobs[name].value(each) for each in knobs[name]], dtype=np.int64) for name in names]
    best, tilings, sample = np.inf, 0, []
    shapes = [len(each) for each in splits]
    total = int(np.prod(shapes))
    rng = np.random.default_rng(0)
    for begin in range(0, total, _AT_ONCE):
        at = np.unravel_index(np.arange(begin, min(begin + _AT_ONCE, total)), shapes)
        factors = {name: split[index] for name, split, index in zip(names, splits, at, strict=True)}
        tiling = Tilings(contraction, factors)
        inside = within_limits(tiling, device)
        if not inside.any():
            continue
        kept = {name: each[inside] for name, each in factors.items()}
        found = estimated_seconds(Tilings(contraction, kept), device)
        best, tilings = min(best, float(found.min())), tilings + int(inside.sum())
        sample += rng.choice(found, min(20, len(found))).tolist()
    others = len(_FETCH) ** 2 * len(_UNROLL)
    return {"seconds": best, "tilings": tilings, "points": tilings * others, "median": float(np.median(sample))}


def _axes(contraction: ContractionAxes) -> list[tuple[str, int]]:
    return [*contraction.spatial, *contraction.reductions]


def asked(
    search: Search, model: Callable[[Mapping[str, Any]], Any], space: Space, seed: int, trials: int
) -> list[float]:
    """The seconds of distinct candidates, in the order in which a search asks for them, until there are so many."""
    costs: dict[Candidate, float] = {}
    noise = np.random.default_rng(seed)
    while len(costs) < trials and (requests := search.ask(_AT_A_TIME)):
        for request in requests:
            if request.candidate not in costs:
                costs[request.candidate] = float(model(space.columns([request.candidate.point]))[0])
            samples = costs[request.candidate] * (1 + 0.01 * np.abs(noise.standard_normal(request.repeats)))
            search.tell([Trial(request.candidate, Measurement(Status.OK, tuple(samples.tolist()), "", Phases()))])
    return list(costs.values())[:trials]


def _options() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--shape", default="M0", choices=["M0", "M1", "M2", "M3", "M4", "M5"])
    asked.add_argument("--device", default="a100", choices=list(GPUS))
    asked.add_argument("--seeds", type=int, default=10, help="(%(default)s)")
    asked.add_argument("--trials", type=int, default=1000, help="evaluations of a run (%(default)s)")
    asked.add_argument("--no-origin", action="store_true", help="the space's origin is its first point")
    options = asked.parse_args()
    options.seeds = range(options.seeds)
    return options


if __name__ == "__main__":
    main()
