"""Winograd beside the direct sketch: every convolution of stride 1 with a window of the kernel benchmark.

    winograd.py [--shapes Y1,R2] [--time 8] [--rounds 15] [--show] [--fresh]

storm tunes the direct sketch and the Winograd sketches with tiles of 2 and of 4 outputs along each axis, each for
`--time` seconds. Then their best schedules take turns. `speed` is the time of the direct schedule over theirs, round by
round, with its 95% interval; for 3x3 windows the bounds are 2.25 and 4, by the number of multiplications. `error` is
max|difference| / max|reference| with normal random inputs; the reference is NumPy's in float64.

Every shape is saved in benchmarks/out/winograd.jsonl as soon as it is done. The next run with the same `--time` and
`--rounds` skips it, unless its sketches have changed. Seventeen shapes take eight minutes. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import OUT, Campaign, campaign_parser, chosen, machine
from _shapes import SHAPES

import stormdrop as sd
from stormdrop.measure.contract import KernelSetup
from stormdrop.measure.local import LocalMeasurer
from stormdrop.measure.pool.pool import WorkerPool
from stormdrop.sketches.cpu.contractions.register_blocked import RegisterBlocked
from stormdrop.sketches.cpu.winograd.sketch import Winograd
from stormdrop.statistics import ratio_interval
from stormdrop.trial import Candidate

SKETCHES = (RegisterBlocked(), Winograd(2), Winograd(4))


def main() -> None:
    options = _options()
    host, target = machine(), sd.Cpu.detect()
    campaign = Campaign(OUT / "winograd.jsonl", host, options, document="kernels")

    def setting(name: str) -> dict[str, Any]:
        spaces = [sketch.space(SHAPES[name].workload(), target) for sketch in SKETCHES]
        versions = {space.name: space.fingerprint for space in spaces if space is not None}
        return {"time": options.time, "rounds": options.rounds, "sketches": versions}

    def work(name: str) -> dict[str, Any]:
        workload = SHAPES[name].workload()
        return {"workload": workload.name, "kernels": measure(workload, options, pool)}

    with WorkerPool(host["cores"]) as pool:
        entries = campaign.collect(options.shapes, work, setting)
    show(campaign, entries)


def measure(workload: Any, options: argparse.Namespace, pool: WorkerPool) -> dict[str, Any]:
    """For each sketch: its best schedule, its time beside the others, its speed over the direct one, its error."""
    target = sd.Cpu.detect()
    pairs = [(sketch, space) for sketch in SKETCHES if (space := sketch.space(workload, target)) is not None]
    tuned = [_tuned(workload, sketch, options, pool) for sketch, _ in pairs]
    candidates = [
        Candidate(space.name, space.point(result.best.config)) for (_, space), result in zip(pairs, tuned, strict=True)
    ]
    sketches, spaces = zip(*pairs, strict=True)
    with LocalMeasurer(KernelSetup(workload, target, list(zip(sketches, spaces, strict=True))), pool=pool) as measurer:
        raced = measurer.race(candidates, options.rounds)
    entry: dict[str, Any] = {}
    for result, measurement in zip(tuned, raced, strict=True):
        ratio = ratio_interval(raced[0].seconds, measurement.seconds)
        seconds = statistics.median(measurement.seconds)
        entry[result.best.sketch] = {
            "seconds": seconds,
            "gflops": workload.flops / seconds / 1e9,
            "speed": [*ratio],
            "error": _error(workload, result.best.kernel),
            "config": dict(result.best.config),
            "suspect": measurement.suspect,
            "default_seconds": result.baseline,
            "trials": result.trials,
            "failed": result.failed,
        }
    return entry


def _tuned(workload: Any, sketch: Any, options: argparse.Namespace, pool: WorkerPool) -> Any:
    with sd.open_store("sqlite://") as store:
        result = sd.tune(
            workload, sketches=[sketch], search="storm", time=options.time, store=store, fresh=True, pool=pool
        )
    if result.interrupted:
        sys.exit(130)
    if result.best is None:
        sys.exit(f"none of the candidates of {sketch.name} worked: {result.error}")
    return result


def _error(workload: Any, kernel: Any) -> float:
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(spec.shape).astype(spec.dtype) for spec in workload.inputs]
    (wanted,) = workload.reference(inputs)
    return float(np.max(np.abs(kernel(*inputs).astype(np.float64) - wanted)) / np.max(np.abs(wanted)))


def show(campaign: Campaign, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints a row per shape and sketch, and the geometric means of the speeds."""
    rows = []
    speeds: dict[str, list[float]] = {}
    for name, entry in entries.items():
        for index, (sketch, figures) in enumerate(entry["kernels"].items()):
            middle, low, high = figures["speed"]
            speeds.setdefault(sketch, []).append(middle)
            rows.append(
                [
                    "" if index else name,
                    sketch,
                    f"{figures['seconds'] * 1e6:.0f} us",
                    f"{figures['gflops']:.0f}",
                    f"{middle:.2f} ({low:.2f} to {high:.2f})",
                    f"{figures['error']:.1e}",
                    "suspect" if figures["suspect"] else "",
                ]
            )
    campaign.table(["", "sketch", "time", "GFLOP/s of the direct sum", "speed", "error", ""], rows)
    for sketch, ratios in speeds.items():
        print(
            f"{sketch}: geometric mean of the speeds {statistics.geometric_mean(ratios):.2f}, lowest {min(ratios):.2f}"
        )


def _options() -> argparse.Namespace:
    applicable = [
        name
        for name, shape in SHAPES.items()
        if shape.operator == "conv2d" and Winograd(2).space(shape.workload(), sd.Cpu.detect()) is not None
    ]
    parser = campaign_parser(__doc__)
    parser.add_argument("--shapes", default=",".join(applicable), help="shapes, separated by commas (%(default)s)")
    parser.add_argument("--time", type=float, default=8.0, help="seconds of each tuning (%(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=15, help="rounds in which the best schedules take turns (%(default)s)"
    )
    options = parser.parse_args()
    options.shapes = chosen(options.shapes, applicable, "shape")
    return options


if __name__ == "__main__":
    main()
