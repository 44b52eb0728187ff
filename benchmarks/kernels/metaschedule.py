"""TVM MetaSchedule with its own search as a peer: how long it tunes, and how soon we have a kernel that is as fast.

    metaschedule.py [--shapes R2,M0] [--trials 1000]     tune with MetaSchedule; skips shapes saved with as many trials
    metaschedule.py --compare [--shapes R2,M0]           tune the saved shapes with storm, and race the final kernels

The results of MetaSchedule are saved in benchmarks/out/metaschedule, a file per shape: the best kernel so far against
seconds of tuning, and the trace of the best, from which the kernel is built again. `_metaschedule_peer.py` says how
it is run.

Our default search tunes from nothing, and its time has everything in it. Then both final kernels take turns in separate
processes. Their ratio says where on our curve a kernel as fast as MetaSchedule's is, independently of what each tuning
measured itself. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import _metaschedule_peer
from _common import OUT, add_to_import_path, chosen, machine, save
from _shapes import SHAPES, Shape

import stormdrop as sd
from stormdrop.bench.bench import ROUNDS
from stormdrop.bench.contender import ContenderSpec
from stormdrop.bench.contender_process import ContenderProcess
from stormdrop.bench.peers.ours import ScheduledOperator
from stormdrop.bench.plan import OURS
from stormdrop.bench.result import TOLERANCE
from stormdrop.bench.turns import take_turns
from stormdrop.ir.relative_error import relative_error
from stormdrop.machine import threads
from stormdrop.statistics import median_interval, ratio_interval

THEIRS = "metaschedule"
TEN = ("M0", "M2", "R1", "R2", "R5", "R9", "R11", "Y8", "MB1", "BE3")
"""Matmuls, convolutions with large and small windows and images, a depthwise convolution, a softmax."""

FOLDER = OUT / THEIRS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(TEN), help="shapes, separated by commas (%(default)s)")
    parser.add_argument("--trials", type=int, default=1000, help="trials of MetaSchedule per shape (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the seed of both searches (%(default)s)")
    parser.add_argument("--compare", action="store_true", help="tune with storm and race the final kernels")
    parser.add_argument("--time", type=float, default=20.0, help="seconds that storm may tune a shape (%(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of the race (%(default)s)")
    options = parser.parse_args()
    shapes = [SHAPES[name] for name in chosen(options.shapes, SHAPES, "shape")]
    threads.configure()
    if options.compare:
        compare(shapes, options)
        return
    for shape in shapes:
        known = saved(shape)
        if known is None or known["trials"] < options.trials:
            known = tune(shape, options.trials, options.seed)
            FOLDER.mkdir(parents=True, exist_ok=True)
            (FOLDER / f"{shape.name}.json").write_text(json.dumps(known) + "\n")
        best = "nothing" if known["seconds"] is None else f"{1e6 * known['seconds']:.0f} us"
        print(
            f"{shape.name:<5}{best} after {known['tuning_seconds']:.0f} s, found after {known['found_seconds']:.0f};"
            f" {known['trials']} trials, {known['failed']} failed, {known['seconds_per_trial']:.2f} s each",
            flush=True,
        )


def saved(shape: Shape) -> dict[str, Any] | None:
    """The saved result of MetaSchedule for a shape on this machine; None if there is none."""
    path = FOLDER / f"{shape.name}.json"
    if not path.exists():
        return None
    known: dict[str, Any] = json.loads(path.read_text())
    same = (shape.workload().key, sd.Cpu.detect().machine)
    return known if (known["key"], known["machine"]) == same else None


def tune(shape: Shape, trials: int, seed: int) -> dict[str, Any]:
    """Tunes a shape with MetaSchedule and returns its entry.

    `curve` has pairs of seconds of tuning, known at the end of each batch, and seconds of the best kernel from then on.
    """
    import tvm

    from stormdrop.sketches.meta_schedule import tunable

    workload, target = shape.workload(), sd.Cpu.detect()
    result = _metaschedule_peer.tune([tunable(workload)], [1.0], target, seed, trials)
    (function,) = result.functions
    return {
        "name": shape.name,
        "workload": workload.name,
        "key": workload.key,
        "machine": target.machine,
        "tvm": tvm.__version__,
        "seed": seed,
        "trials": trials,  # the limit: fewer are measured if a space is small
        "measured": result.measured,
        "failed": result.failed,
        "tuning_seconds": result.seconds,
        "seconds_per_trial": result.seconds / max(1, result.measured),
        "found_seconds": function.curve[-1][0] if function.curve else result.seconds,
        "seconds": function.best,
        "curve": function.curve,
        "trace": function.trace,
    }


class Replayed(ScheduledOperator):
    """The kernel of a trace as a contender: its constants are laid out ahead, and it is compiled as ours are."""

    def __init__(self, workload: Any, trace: Any, inputs: Sequence[Any], threads: int) -> None:
        from stormdrop.sketches.meta_schedule import replay

        super().__init__(workload, replay(workload, trace), inputs, {"threads": threads})


def compare(shapes: Sequence[Shape], options: argparse.Namespace) -> None:
    """Tunes every saved shape with storm, races the kernels, prints a line per shape and the means, and saves all."""
    host, rows = machine(), []
    print(f"{host['cpu']}, {host['cores']} cores, {host['versions']}\n")
    for shape in shapes:
        known = saved(shape)
        if known is None or known["trace"] is None:
            print(f"{shape.name:<5}MetaSchedule has no kernel yet: run without --compare first")
            continue
        rows.append(compare_shape(shape, known, options))
        print(_line(rows[-1]), flush=True)
    if rows:
        means = summary(rows)
        print(f"\n{_words(means)}")
        print(save(THEIRS, {"machine": host, "summary": means, "shapes": rows}))


def compare_shape(shape: Shape, known: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Tunes and races one shape; returns its row. `reached` says what `reached_seconds` is."""
    begin = time.perf_counter()
    workload = shape.workload()
    with sd.open_store("sqlite://") as store:
        result = sd.tune(
            workload, search="storm", time=options.time, seed=options.seed, store=store, fresh=True, started=begin
        )
    if result.interrupted:
        sys.exit(130)
    if result.best is None:
        sys.exit(f"{shape.name}: no candidate worked: {result.error}")
    ours = {"sketch": result.best.sketch, "config": dict(result.best.config)}
    return {
        "name": shape.name,
        "workload": workload.name,
        **(raced := race(workload, ours, known["trace"], options.rounds)),
        "reached_seconds": reached(result.curve, raced["ratio"]),
        "tuning_seconds": result.seconds,
        "trials": result.trials,
        "converged": result.converged,
        "curve": [list(point) for point in result.curve],
        **ours,
        THEIRS: {key: value for key, value in known.items() if key != "trace"},
    }


def race(workload: Any, ours: Mapping[str, Any], trace: Any, rounds: int) -> dict[str, Any]:
    """Times both final kernels in turns: median seconds, and MetaSchedule's time over ours with its interval.

    `agree` says whether both outputs agree with NumPy's.
    """
    inputs = workload.random_inputs(0)
    (expected,) = workload.reference(inputs)
    arguments = {"workload": workload, "inputs": inputs}
    specs = [
        ContenderSpec(OURS, "stormdrop.bench.peers.ours:TunedOperator", {**arguments, **ours}),
        ContenderSpec(THEIRS, "metaschedule:Replayed", {**arguments, "trace": trace}),
    ]
    add_to_import_path(Path(__file__).parent)
    with ExitStack() as stack:
        processes = [stack.enter_context(ContenderProcess(spec, sd.Cpu.detect().cores)) for spec in specs]
        errors = [relative_error(process.outputs()[0], expected) for process in processes]
        times = take_turns(processes, rounds)
    mine, other = times.seconds
    ratio = ratio_interval(other, mine)
    return {
        "seconds": median_interval(mine).estimate,
        "their_seconds": median_interval(other).estimate,
        "ratio": ratio.estimate,
        "ratio_interval": [ratio.low, ratio.high],
        "disturbed": times.disturbed,
        "agree": all(error <= TOLERANCE for error in errors),
    }


def reached(curve: Sequence[tuple[float, float]], ratio: float) -> float | None:
    """Seconds after which our tuning had a kernel as fast as one that takes `ratio` of our final kernel's time.

    None if it had no such kernel: then the ratio is below 1. The last value of our curve stands for our final kernel.
    """
    final = curve[-1][1]
    return next((elapsed for elapsed, seconds in curve if seconds <= ratio * final), None)


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Geometric means over the shapes of MetaSchedule's time over ours, for kernels and for tunings that reached it.

    `speedup_found` takes MetaSchedule's time until it had found its final kernel, `speedup` all of its tuning.
    """
    reached_rows = [row for row in rows if row["reached_seconds"] is not None]
    return {
        "shapes": len(rows),
        "reached": len(reached_rows),
        "wrong": [row["name"] for row in rows if not row["agree"]],
        "ratio": _mean([row["ratio"] for row in rows]),
        "speedup": _mean([row[THEIRS]["tuning_seconds"] / row["reached_seconds"] for row in reached_rows]),
        "speedup_found": _mean([row[THEIRS]["found_seconds"] / row["reached_seconds"] for row in reached_rows]),
    }


def _mean(values: Sequence[float]) -> float | None:
    return math.exp(statistics.fmean(map(math.log, values))) if values else None


def _line(row: Mapping[str, Any]) -> str:
    low, high = row["ratio_interval"]
    kernels = f"{1e6 * row['seconds']:.0f} us; metaschedule {row['ratio']:.3f} ({low:.3f} to {high:.3f}) of that"
    peer = row[THEIRS]
    theirs = f"in {peer['tuning_seconds']:.0f} s ({peer['measured']} trials), found after {peer['found_seconds']:.0f}"
    if row["reached_seconds"] is None:
        ours = f"not reached in {row['tuning_seconds']:.1f} s"
    else:
        factor = peer["tuning_seconds"] / row["reached_seconds"]
        ours = f"reached after {row['reached_seconds']:.1f} s, {factor:.0f} times as fast"
    notes = (" WRONG" if not row["agree"] else "") + (f" {row['disturbed']} disturbed" if row["disturbed"] else "")
    return f"{row['name']:<5}{kernels} {theirs}; {ours}{notes}"


def _words(means: Mapping[str, Any]) -> str:
    lines = [
        f"{means['reached']} of {means['shapes']} kernels of MetaSchedule reached",
        f"its kernels' time over ours, geometric mean: {means['ratio']:.3f}",
    ]
    if means["reached"]:
        until = f"{means['speedup_found']:.1f} until it had found its kernel"
        lines.append(f"its tuning's time over ours to reach its kernel, where reached: {means['speedup']:.1f}, {until}")
    if means["wrong"]:
        lines.append(f"WRONG: {', '.join(means['wrong'])}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
