"""Searches on an analytic model of a GPU: evaluations until they are within 5% of a known optimum, or until they end.

    analytic.py [--shape M0] [--device a100] [--seeds 10] [--trials 1000] [--no-origin]

The space is that of the CUDA sketch (Listing 1 of the AF-DS paper) for a matmul; it has tens of millions of points. The
seconds of the model come from the seven features (section 4.1 of the paper) and from how evenly blocks are distributed
over multiprocessors; see `rough_seconds`. It is not the model that picks default schedules: all tilings are computed
with it. Fetches of single elements, and loops that are not unrolled, take 1 to 8% more. The same model picks the origin
of the space, so searches that begin there (droplet, storm) have an advantage. `--no-origin` takes this advantage from
them: the origin is then the first point.

The optimum is known because all tilings are computed. Searches have their defaults. `gradient` and `evolutionary` run
with the encodings of the knobs, with the seven features, and with both. With the seven they are Ansor-AF-DS and
Ansor-AF; they then know what matters, because the model is made of these features. It needs no GPU, and takes a quarter
of an hour.
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
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))

from _common import bars, machine, save
from _shapes import SHAPES

from stormdrop.cli.output import table
from stormdrop.machine.gpu import GPUS, Gpu
from stormdrop.search import Knowledge, Search, create
from stormdrop.sketches.gpu.contraction import GpuContraction, find_fused_contraction
from stormdrop.sketches.gpu.features import NAMES, analytic_features
from stormdrop.sketches.gpu.limits import default_tiling, within_limits
from stormdrop.sketches.gpu.tiling import ContractionAxes, Tilings
from stormdrop.sketches.knowledge import features as features_of
from stormdrop.space import Space
from stormdrop.trial import Candidate, Measurement, Phases, Status, Trial

_NAME = "gpu_analytic"
_HIDING_WARPS = 64.0  # warps times the root of the independent outputs; as many hide all latencies
_NOT_HIDDEN = 0.2  # the share of the faster parts' time that the slowest part does not hide
_NEAR = 1.05
_FETCH = {1: 1.04, 2: 1.01, 4: 1.0}
_UNROLL = {0: 1.08, 16: 1.03, 64: 1.01, 512: 1.0, 1024: 1.01}
_CHUNK = 1 << 17  # tilings that are computed at once
_BATCH = 8  # candidates per ask
_CHECKPOINTS = (50, 100, 200, 500, 1000)  # evaluations
_PATIENCE = 100  # storm ends after so many proposals that are not worth a trial; its default is 24
RUNS: tuple[tuple[str, str, dict[str, int]], ...] = (
    ("storm", "knobs", {}),
    ("storm", "knobs", {"patience": _PATIENCE}),
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
    """A run of a search.

    Attributes:
        near: the number of distinct candidates until one was near the optimum; None if none was.
        spent: the number of distinct candidates until the end.
        speeds: the best speed after so many candidates, as a share of the optimum's speed.
    """

    near: int | None
    spent: int
    speeds: Mapping[int, float]

    @classmethod
    def from_costs(cls, costs: Sequence[float], optimum: float) -> Run:
        """`costs` in seconds, in the order in which they were asked for."""
        best = list(itertools.accumulate(costs, min))
        near = next((count for count, cost in enumerate(best, 1) if cost <= _NEAR * optimum), None)
        return cls(near, len(best), {count: optimum / best[min(count, len(best)) - 1] for count in _CHECKPOINTS})


def main() -> None:
    options = _options()
    workload, device, sketch = SHAPES[options.shape].workload(), GPUS[options.device], GpuContraction(listing_1=True)
    space = sketch.space(workload, device)
    assert space is not None
    contraction = find_fused_contraction(workload).axes
    tiles = default_tiling(contraction, device, rough_seconds)
    assert tiles is not None
    origin = {**tiles, "fetch0": 1, "fetch1": 1, "unroll": 64}
    space = Space(space.name, space.knobs, space.constraints, None if options.no_origin else origin)
    known = optimum(space, contraction, device)
    print(f"{options.shape}, {device.name}: {known['tilings']:,} tilings, {known['points']:,} points")
    print(
        f"optimum {1e6 * known['seconds']:.1f} us, a random point {known['median'] / known['seconds']:.1f} times that"
    )
    document, rows, drawn = [], [], {}
    for name, kind, settings in RUNS:
        runs = []
        for seed in options.seeds:
            knowledge = Knowledge(features=features_of([(sketch, space)], workload, device, kind))
            search = create(name, [space], np.random.default_rng(seed), knowledge, **settings)
            costs = costs_of(search, lambda columns: seconds(columns, contraction, device), space, seed, options.trials)
            runs.append(Run.from_costs(costs, known["seconds"]))
        reached = [run.near for run in runs if run.near is not None]
        middle = statistics.median(options.trials + 1 if run.near is None else run.near for run in runs)
        document.append({"search": name, "features": kind, "options": settings, "runs": [asdict(run) for run in runs]})
        within = f"{middle:.0f}" if middle <= options.trials else "-"
        spent = statistics.median(run.spent for run in runs)
        speeds = {count: statistics.median(run.speeds[count] for run in runs) for count in _CHECKPOINTS}
        label = " ".join([name, *(f"{option}={value}" for option, value in settings.items())])
        rows.append(
            [label, kind, f"{len(reached)} of {len(runs)}", within, f"{spent:.0f}", f"{speeds[_CHECKPOINTS[-1]]:.0%}"]
        )
        drawn[f"{label}, {kind}"] = list(speeds.values())
        print(f"{label}, {kind}", file=sys.stderr)
    table(["search", "its model sees", f"within {_NEAR - 1:.0%}", "after", "ends after", "speed then"], rows)
    title = f"{options.shape} on a model of an {device.name}: best so far"
    print(bars(_NAME, title, "share of the optimum's speed", [f"{count} evaluations" for count in _CHECKPOINTS], drawn))
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
    """The seconds of the model for n configurations, which are given as n values of each knob."""
    factors = {name: np.asarray(columns[name], dtype=np.int64) for name, _ in _axes(contraction)}
    other = np.vectorize(_FETCH.get)(columns["fetch0"]) * np.vectorize(_FETCH.get)(columns["fetch1"])
    expected = rough_seconds(Tilings(contraction, factors), device)
    return expected * other * np.vectorize(_UNROLL.get)(columns["unroll"])


def rough_seconds(tilings: Tilings, device: Gpu) -> NDArray[np.float64]:
    """A rough model of the time that n tilings take, from the seven features. It is not from the paper.

    The slowest of computing, global memory and shared memory takes its time, the others add a part of theirs. The sum
    grows if the blocks do not divide evenly among the multiprocessors. It picked default schedules until
    `stormdrop/sketches/gpu/times/tilings.py` did.

    Args:
        tilings: The tilings of one contraction.
        device: The GPU.

    Returns:
        Seconds, shape (n,).
    """
    columns = dict(zip(NAMES, analytic_features(tilings, device).T, strict=True))
    operations = tilings.axes.operations
    hidden = np.minimum(1.0, columns["WLP"] * np.sqrt(columns["ILP"]) / _HIDING_WARPS)
    compute = operations / device.flops / np.maximum(hidden, 1e-3)
    memory = operations / columns["OI_Global_Mem"] * tilings.axes.item_bytes / device.bandwidth
    # In a cycle a multiprocessor moves one word for each thread of a warp, and each lane multiplies and adds once.
    shared = operations / columns["OI_Shared_Mem"] / (device.multiprocessors * device.clock)
    parts = np.stack([compute, memory, shared])
    slowest = parts.max(axis=0)
    whole = slowest + _NOT_HIDDEN * (parts.sum(axis=0) - slowest)
    # Rounds of multiprocessors, not of waves, because WLP already counts that a small grid has few warps on each.
    rounds = tilings.blocks / device.multiprocessors
    return np.asarray(whole * np.ceil(rounds) / rounds, dtype=np.float64)


def optimum(space: Space, contraction: ContractionAxes, device: Gpu) -> dict[str, Any]:
    """The lowest seconds of all points, from those of all tilings."""
    knobs = {knob.name: knob for knob in space.knobs}
    names = [name for name, _ in _axes(contraction)]
    splits = [np.array([knobs[name].value(index) for index in knobs[name]], dtype=np.int64) for name in names]
    best, tilings, sample = np.inf, 0, []
    shapes = [len(split) for split in splits]
    total = int(np.prod(shapes))
    rng = np.random.default_rng(0)
    for begin in range(0, total, _CHUNK):
        at = np.unravel_index(np.arange(begin, min(begin + _CHUNK, total)), shapes)
        factors = {name: split[index] for name, split, index in zip(names, splits, at, strict=True)}
        tiling = Tilings(contraction, factors)
        inside = within_limits(tiling, device)
        if not inside.any():
            continue
        valid = {name: values[inside] for name, values in factors.items()}
        times = rough_seconds(Tilings(contraction, valid), device)
        best, tilings = min(best, float(times.min())), tilings + int(inside.sum())
        sample += rng.choice(times, min(20, len(times))).tolist()
    others = len(_FETCH) ** 2 * len(_UNROLL)
    return {"seconds": best, "tilings": tilings, "points": tilings * others, "median": float(np.median(sample))}


def _axes(contraction: ContractionAxes) -> list[tuple[str, int]]:
    return [*contraction.spatial, *contraction.reductions]


def costs_of(
    search: Search, model: Callable[[Mapping[str, Any]], Any], space: Space, seed: int, trials: int
) -> list[float]:
    """The seconds of the first `trials` distinct candidates, in the order in which a search asks for them."""
    costs: dict[Candidate, float] = {}
    noise = np.random.default_rng(seed)
    while len(costs) < trials and (requests := search.ask(_BATCH)):
        for request in requests:
            if request.candidate not in costs:
                costs[request.candidate] = float(model(space.columns([request.candidate.point]))[0])
            samples = costs[request.candidate] * (1 + 0.01 * np.abs(noise.standard_normal(request.repeats)))
            search.tell([Trial(request.candidate, Measurement(Status.OK, tuple(samples.tolist()), "", Phases()))])
    return list(costs.values())[:trials]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shape", default="M0", choices=["M0", "M1", "M2", "M3", "M4", "M5"], help="the matmul (%(default)s)"
    )
    parser.add_argument("--device", default="a100", choices=list(GPUS), help="the GPU of the model (%(default)s)")
    parser.add_argument("--seeds", type=int, default=10, help="runs of each search (%(default)s)")
    parser.add_argument("--trials", type=int, default=1000, help="evaluations of a run (%(default)s)")
    parser.add_argument("--no-origin", action="store_true", help="take the first point of the space as its origin")
    options = parser.parse_args()
    options.seeds = range(options.seeds)
    return options


if __name__ == "__main__":
    main()
