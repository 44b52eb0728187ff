"""TVM MetaSchedule with its own search as a peer: how long it tunes, and how long we take to find a kernel as fast.

    metaschedule.py [--shapes R2,M0] [--trials 1000]     tune with MetaSchedule; what is kept with as many is skipped
    metaschedule.py --compare [--shapes R2,M0]           tune what is kept with storm, and race the final kernels

What MetaSchedule finds is kept in benchmarks/out/metaschedule, a file per shape: its best kernel so far against
seconds of tuning, and the trace of the best, from which the kernel is built again. How it is run is in
benchmarks/metaschedule_peer.py.

We are timed with everything in it, from nothing, by our default search. Both final kernels then take turns in
processes of their own: their ratio says where on our curve a kernel as fast as MetaSchedule's is, whatever each of the
two measures in its tuning. Run it on an idle machine.
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

import metaschedule_peer
from common import OUT, findable, machine, save
from shapes import SHAPES, Shape, chosen

import stormdrop as sd
from stormdrop.bench.bench import OURS, ROUNDS, TOLERANCE
from stormdrop.bench.contender import ContenderSpec
from stormdrop.bench.contender_process import ContenderProcess
from stormdrop.bench.peers.ours import ScheduledOperator
from stormdrop.bench.turns import take_turns
from stormdrop.ir.relative_error import relative_error
from stormdrop.machine import threads
from stormdrop.statistics import median_interval, ratio_interval

THEIRS = "metaschedule"
TEN = ("M0", "M2", "R1", "R2", "R5", "R9", "R11", "Y8", "MB1", "BE3")
"""Matmuls, convolutions with large and small windows and images, a depthwise convolution, a softmax."""

KEPT = OUT / THEIRS


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--shapes", default=",".join(TEN), help="%(default)s")
    asked.add_argument("--trials", type=int, default=1000, help="of MetaSchedule per shape (%(default)s)")
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--compare", action="store_true", help="tune with storm and race the final kernels")
    asked.add_argument("--time", type=float, default=20.0, help="seconds that storm may tune a shape (%(default)s)")
    asked.add_argument("--rounds", type=int, default=ROUNDS, help="of a race (%(default)s)")
    options = asked.parse_args()
    shapes = [SHAPES[name] for name in chosen(options.shapes)]
    threads.configure()
    if options.compare:
        compare(shapes, options)
        return
    for shape in shapes:
        known = kept(shape)
        if known is None or known["trials"] < options.trials:
            known = tune(shape, options.trials, options.seed)
            KEPT.mkdir(parents=True, exist_ok=True)
            (KEPT / f"{shape.name}.json").write_text(json.dumps(known) + "\n")
        best = "nothing" if known["seconds"] is None else f"{1e6 * known['seconds']:.0f} us"
        print(
            f"{shape.name:<5}{best} after {known['tuning_seconds']:.0f} s, found after {known['found_seconds']:.0f};"
            f" {known['trials']} trials, {known['failed']} failed, {known['seconds_per_trial']:.2f} s each",
            flush=True,
        )


def kept(shape: Shape) -> dict[str, Any] | None:
    """What MetaSchedule has found for a shape on this machine, if it is there."""
    path = KEPT / f"{shape.name}.json"
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text())
    same = (shape.workload().key, sd.Target.detect().machine)
    return found if (found["key"], found["machine"]) == same else None


def tune(shape: Shape, trials: int, seed: int) -> dict[str, Any]:
    """Tunes with MetaSchedule. `curve` are pairs of seconds of tuning, known at the end of each batch, and the best."""
    import tvm

    from stormdrop.sketches.meta_schedule import tunable

    workload, target = shape.workload(), sd.Target.detect()
    found = metaschedule_peer.tune([tunable(workload)], [1.0], target, seed, trials)
    (function,) = found.functions
    return {
        "name": shape.name,
        "workload": workload.name,
        "key": workload.key,
        "machine": target.machine,
        "tvm": tvm.__version__,
        "seed": seed,
        "trials": trials,  # as asked for: where a space is small, fewer are measured
        "measured": found.measured,
        "failed": found.failed,
        "tuning_seconds": found.seconds,
        "seconds_per_trial": found.seconds / max(1, found.measured),
        "found_seconds": function.curve[-1][0] if function.curve else found.seconds,
        "seconds": function.best,
        "curve": function.curve,
        "trace": function.trace,
    }


class Replayed(ScheduledOperator):
    """The kernel of a trace, as a contender: its constants laid out ahead, compiled as ours are."""

    def __init__(self, workload: Any, trace: Any, inputs: Sequence[Any], threads: int) -> None:
        from stormdrop.sketches.meta_schedule import replay

        super().__init__(workload, replay(workload, trace), inputs, {"threads": threads})


def compare(shapes: Sequence[Shape], options: argparse.Namespace) -> None:
    """Tunes every shape that is kept with storm, races the kernels, prints a line each and the means, saves all."""
    where, rows = machine(), []
    print(f"{where['cpu']}, {where['cores']} cores, {where['versions']}\n")
    for shape in shapes:
        known = kept(shape)
        if known is None or known["trace"] is None:
            print(f"{shape.name:<5}MetaSchedule has no kernel: tune it first")
            continue
        rows.append(compared(shape, known, options))
        print(_line(rows[-1]), flush=True)
    if rows:
        found = summary(rows)
        print(f"\n{_words(found)}")
        print(save(THEIRS, {"machine": where, "summary": found, "shapes": rows}))


def compared(shape: Shape, known: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The row of one shape; see `reached` for what `reached_seconds` is."""
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
    """Both final kernels in turns: seconds with 95% intervals, `ratio` of MetaSchedule's time over ours, `agree`."""
    inputs = workload.random_inputs(0)
    (expected,) = workload.reference(inputs)
    given = {"workload": workload, "inputs": inputs}
    entries = [
        ContenderSpec(OURS, "stormdrop.bench.peers.ours:TunedOperator", {**given, **ours}),
        ContenderSpec(THEIRS, "metaschedule:Replayed", {**given, "trace": trace}),
    ]
    findable(Path(__file__).parent)
    with ExitStack() as stack:
        players = [stack.enter_context(ContenderProcess(entry, sd.Target.detect().cores)) for entry in entries]
        errors = [relative_error(player.outputs()[0], expected) for player in players]
        times = take_turns(players, rounds)
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

    None where it had none: the ratio is below 1. The last value of our curve stands for our final kernel.
    """
    final = curve[-1][1]
    return next((elapsed for elapsed, seconds in curve if seconds <= ratio * final), None)


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Geometric means over the shapes: MetaSchedule's time over ours, of the kernels and, where reached, of tuning.

    `speedup_found` takes MetaSchedule's time until it had found its final kernel, `speedup` all of its tuning.
    """
    there = [row for row in rows if row["reached_seconds"] is not None]
    return {
        "shapes": len(rows),
        "reached": len(there),
        "wrong": [row["name"] for row in rows if not row["agree"]],
        "ratio": _mean([row["ratio"] for row in rows]),
        "speedup": _mean([row[THEIRS]["tuning_seconds"] / row["reached_seconds"] for row in there]),
        "speedup_found": _mean([row[THEIRS]["found_seconds"] / row["reached_seconds"] for row in there]),
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


def _words(found: Mapping[str, Any]) -> str:
    lines = [
        f"{found['reached']} of {found['shapes']} kernels of MetaSchedule's reached",
        f"its kernels' time over ours, geometric mean: {found['ratio']:.3f}",
    ]
    if found["reached"]:
        until = f"{found['speedup_found']:.1f} until it had found its kernel"
        lines.append(f"its tuning's time over ours to reach its kernel, where reached: {found['speedup']:.1f}, {until}")
    if found["wrong"]:
        lines.append(f"WRONG: {', '.join(found['wrong'])}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
