"""Winograd beside the direct sketch: every convolution of stride 1 with a window of the kernel benchmark.

    winograd.py [--shapes Y1,R2] [--time 8] [--rounds 15] [--show]

The direct sketch and Winograd's with tiles of 2 and of 4 outputs along each axis are tuned by storm, each for `--time`
seconds by itself; then their best schedules take turns. `speed` is the direct one's time over theirs, round by round,
with its 95% interval; for 3x3 windows 2.25 and 4 times fewer multiplications are the bounds. `error` is
max|difference| / max|reference| with normal random inputs, the reference being NumPy's in float64.

Each shape is kept in benchmarks/out/winograd.json as soon as it is done, and left out by the next run with the same
`--time` and `--rounds`, unless its sketches have changed. Seventeen shapes take eight minutes. Run it on an idle
machine.
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

from common import kept, machine, save
from shapes import SHAPES, chosen

import stormdrop as sd
from stormdrop.cli.output import table
from stormdrop.measure.local import LocalMeasurer
from stormdrop.measure.pool import WorkerPool
from stormdrop.sketches.cpu.register_blocked import RegisterBlocked
from stormdrop.sketches.cpu.winograd.sketch import Winograd
from stormdrop.statistics import ratio_interval
from stormdrop.trial import Candidate

SKETCHES = (RegisterBlocked(), Winograd(2), Winograd(4))

_NAME = "winograd"


def main() -> None:
    options = _options()
    where = machine()
    entries = kept(_NAME, where)
    with WorkerPool(where["cores"]) as pool:
        for name in options.shapes:
            workload = SHAPES[name].workload()
            target = sd.Target.detect()
            spaces = [sketch.space(workload, target) for sketch in SKETCHES]
            versions = {space.name: space.fingerprint for space in spaces if space is not None}
            setting = {"time": options.time, "rounds": options.rounds, "sketches": versions}
            known = entries.get(name, {})
            if options.show or all(known.get(key) == value for key, value in setting.items()):
                continue
            print(f"{name}: {workload.name}", file=sys.stderr)
            entries[name] = {**setting, "workload": workload.name, "kernels": measured(workload, options, pool)}
            save(_NAME, {"machine": where, "kernels": entries})
    chosen = {name: entries[name] for name in options.shapes if name in entries}
    if chosen:
        print(f"{where['cpu']}, {where['cores']} cores")
        show(chosen)


def measured(workload: Any, options: argparse.Namespace, pool: WorkerPool) -> dict[str, Any]:
    """Per sketch: what its tuning found, its time beside the others, its speed over the direct one, its error."""
    target = sd.Target.detect()
    found = [(sketch, space) for sketch in SKETCHES if (space := sketch.space(workload, target)) is not None]
    tuned = [_tuned(workload, sketch, options, pool) for sketch, _ in found]
    candidates = [
        Candidate(space.name, space.point(result.best.config)) for (_, space), result in zip(found, tuned, strict=True)
    ]
    sketches, spaces = zip(*found, strict=True)
    with LocalMeasurer(workload, target, sketches, spaces, pool=pool) as measurer:
        raced = measurer.race(candidates, options.rounds)
    entry: dict[str, Any] = {}
    for result, each in zip(tuned, raced, strict=True):
        ratio = ratio_interval(raced[0].seconds, each.seconds)
        seconds = statistics.median(each.seconds)
        entry[result.best.sketch] = {
            "seconds": seconds,
            "gflops": workload.flops / seconds / 1e9,
            "speed": [*ratio],
            "error": _error(workload, result.best.kernel),
            "config": dict(result.best.config),
            "suspect": each.suspect,
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


def show(entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints a row per shape and sketch, and the geometric mean of the speeds."""
    rows = []
    speeds: dict[str, list[float]] = {}
    for name, entry in entries.items():
        for at, (sketch, each) in enumerate(entry["kernels"].items()):
            middle, low, high = each["speed"]
            speeds.setdefault(sketch, []).append(middle)
            rows.append(
                [
                    "" if at else name,
                    sketch,
                    f"{each['seconds'] * 1e6:.0f} us",
                    f"{each['gflops']:.0f}",
                    f"{middle:.2f} ({low:.2f} to {high:.2f})",
                    f"{each['error']:.1e}",
                    "suspect" if each["suspect"] else "",
                ]
            )
    table(["", "sketch", "time", "GFLOP/s of the direct sum", "speed", "error", ""], rows)
    for sketch, each in speeds.items():
        print(f"{sketch}: geometric mean of the speeds {statistics.geometric_mean(each):.2f}, least {min(each):.2f}")


def _options() -> argparse.Namespace:
    applicable = [
        name
        for name, shape in SHAPES.items()
        if shape.operator == "conv2d" and Winograd(2).space(shape.workload(), sd.Target.detect()) is not None
    ]
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--shapes", default=",".join(applicable), help="%(default)s")
    asked.add_argument("--time", type=float, default=8.0, help="seconds of a tuning (%(default)s)")
    asked.add_argument("--rounds", type=int, default=15, help="in which the best take turns (%(default)s)")
    asked.add_argument("--show", action="store_true", help="print what is there, and measure nothing")
    options = asked.parse_args()
    options.shapes = chosen(options.shapes, applicable)
    return options


if __name__ == "__main__":
    main()
