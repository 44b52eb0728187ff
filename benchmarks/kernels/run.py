"""56 kernels, each tuned from nothing, then beside all peers, interleaved.

    run.py [--shapes R2,Y3,M] [--time 20] [--rounds 15] [--against torch,onnxruntime] [--search storm] [--resume]

Each shape is written to benchmarks/out/kernels.json as soon as it is done: an interrupted run goes on with `--resume`.
Without it the shapes asked for are measured anew; those already there stay, unless their sketches have changed.
`--skip-tuning` benches the schedules that are kept there, `--show` prints and draws what is there and measures nothing,
`--direct` leaves out sketches that compute something else than the plain sum (Winograd) and keeps its own file,
kernels_direct.json; shapes that have no such sketch are taken from kernels.json where they are there.

Bytes are every input and output once; a kernel whose bytes fit into the caches (all L2 and the L3 together) is
listed apart where memory is the bound. Where memory is, and they do not fit, a copy of as many bytes takes turns with
the contenders: the share of the bandwidth is the copy's time over ours. 56 shapes take half an hour. Run it on an idle
machine.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import OUT, kept, machine, save
from figures import draw
from match import beside
from results import LOWEST, row, summary
from shapes import MEMORY, SHAPES, Shape, kind, moved
from spaces import fingerprints

import stormdrop as sd
from stormdrop.bench.bench import ROUNDS
from stormdrop.bench.peers import GROUPS, OPERATOR_PEERS
from stormdrop.errors import InputError, MeasureError, StormdropError
from stormdrop.sketches.registry import sketches_for

BENCH_SECONDS = 6.0
"""About how long a shape's contenders take turns."""

NEAR = 1.05  # of the final best: a tuning is there from when on what it has found is within this
HEADINGS = (
    f"{'':<5}{'':<9}{'ours':>10}{'GFLOP/s':>9}{'GB/s':>7}{'share':>7}  {'best peer':<14}{'its time / ours':<26}tuning"
)


def main() -> None:
    options = _options()
    where, name = machine(), "kernels_direct" if options.direct else "kernels"
    entries = kept(name, where, "shapes")
    entries = {each: entry for each, entry in entries.items() if _still(entry)}
    taken = _without_choice(kept("kernels", where, "shapes"), options) if options.direct else {}
    entries.update(taken)
    print(f"{where['cpu']}, {where['cores']} cores, {where['peak_gflops']:.0f} GFLOP/s, ", end="")
    print(f"{where['bandwidth_gbs']:.1f} GB/s, {where['versions']}\n\n{HEADINGS}")
    for shape in options.shapes:
        known = entries.get(shape.name)
        if not options.show and shape.name not in taken and not (options.resume and known and "bench" in known):
            if options.skip_tuning and not (known and "tuned" in known):
                print(f"{shape.name:<5}was not tuned yet")
                continue
            entries[shape.name] = measured(shape, options, where, known if options.skip_tuning else None)
            entries = {each: entries[each] for each in SHAPES if each in entries}
            save(name, {"machine": where, "summary": summary(_rows(entries, where)), "shapes": entries})
        if shape.name in entries:
            print(_line(entries[shape.name], where), flush=True)
    print()
    asked = {shape.name: entries[shape.name] for shape in options.shapes if shape.name in entries}
    found = summary(_rows(asked, where))
    failed = [each for each, entry in asked.items() if "bench" not in entry]
    for line in [*_summary_lines(found), *([f"FAILED: {', '.join(failed)}"] if failed else [])]:
        print(line)
    if drawn := [each for each in _rows(entries, where) if each["ratio"] is not None]:
        draw(OUT / f"{name}.png", where, drawn)
        print(OUT / f"{name}.png")
    sys.exit(bool(failed or found["wrong"]))


def measured(
    shape: Shape, options: argparse.Namespace, where: Mapping[str, Any], known: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The entry of one shape: tuned, unless `known` is an entry to take that from, and benched.

    Where either fails, the entry says why under "failed".
    """
    begin = time.perf_counter()
    workload, target = shape.workload(), sd.Target.detect()
    size = moved(workload)
    entry: dict[str, Any] = {
        "name": shape.name,
        "origin": shape.origin,
        "workload": workload.name,
        "flops": workload.flops,
        "bytes": size,
        "kind": kind(workload, where["peak_gflops"], where["bandwidth_gbs"]),
        "sketches": fingerprints(workload),
        "against": options.against,
        "in_cache": size <= target.caches,
    }
    try:
        entry["tuned"] = known["tuned"] if known else _tuned(workload, options, begin)
        entry["bench"] = beside(
            workload,
            entry["tuned"]["sketch"],
            entry["tuned"]["config"],
            options.against,
            threads=target.cores,
            seconds=BENCH_SECONDS,
            rounds=options.rounds,
            seed=options.seed,
            copied=size if entry["kind"] == MEMORY and not entry["in_cache"] else None,
        )
    except InputError:
        raise  # what was asked for is wrong, not this shape
    except StormdropError as error:
        entry["failed"] = str(error)
    return entry


def _without_choice(entries: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Those, tuned and benched as asked for, that have no other sketches: `--direct` changes nothing there."""
    target = sd.Target.detect()
    asked = {"search": options.search, "budget": options.time, "seed": options.seed}
    return {
        name: entry
        for name, entry in entries.items()
        if "bench" in entry
        and _still(entry)
        and all(entry["tuned"][key] == value for key, value in asked.items())
        and entry["against"] == options.against
        and not any(sketch.max_error for sketch, _ in sketches_for(SHAPES[name].workload(), target))
    }


def _still(entry: Mapping[str, Any]) -> bool:
    """Whether an entry is of the sketches as they are now."""
    return entry.get("sketches") == fingerprints(SHAPES[entry["name"]].workload())


def _tuned(workload: Any, options: argparse.Namespace, begin: float) -> dict[str, Any]:
    exact: dict[str, Any] = {"max_error": 0.0} if options.direct else {}
    with sd.open_store("sqlite://") as store:
        result = sd.tune(
            workload,
            search=options.search,
            time=options.time,
            seed=options.seed,
            store=store,
            fresh=True,
            started=begin,
            **exact,
        )
    if result.interrupted:
        sys.exit(130)
    if result.best is None:
        raise MeasureError(
            f"none of {result.trials} candidates worked in {result.seconds:.0f} s{result.error and ': '}{result.error}"
        )
    final = result.curve[-1][1]
    return {
        "sketch": result.best.sketch,
        "config": dict(result.best.config),
        "seconds": result.best.seconds,
        "default_seconds": result.baseline,
        "search": result.search,
        "budget": options.time,
        "seed": options.seed,
        "trials": result.trials,
        "failed": result.failed,
        "suspect": result.suspect,
        "converged": result.converged,
        "tuning_seconds": result.seconds,
        "found_seconds": next(elapsed for elapsed, best in result.curve if best <= NEAR * final),
        "phases": dict(result.phases),
        "curve": [list(point) for point in result.curve],
    }


def _rows(entries: Mapping[str, Mapping[str, Any]], where: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [row(entry, where) for entry in entries.values() if "bench" in entry]


def _line(entry: Mapping[str, Any], where: Mapping[str, Any]) -> str:
    if "bench" not in entry:
        return f"{entry['name']:<5}failed: {entry['failed']}"
    found, tuned = row(entry, where), entry["tuned"]
    speed = f"{1e6 * found['seconds']:>8.0f}us{found['gflops']:>9.0f}{found['gigabytes_per_second']:>7.1f}"
    place = f"{found['name']:<5}{found['kind']:<9}"
    versus = "no peer" if found["ratio"] is None else f"{found['ratio']:.3f} ({_interval(found['ratio_interval'])})"
    effort = f"{tuned['trials']} trials, {tuned['tuning_seconds']:.1f} s, there after {tuned['found_seconds']:.1f} s"
    notes = "".join(
        f", {note}"
        for note, holds in (
            ("WRONG", not found["agrees"]),
            ("in cache", found["in_cache"]),
            (f"{entry['bench']['disturbed']} rounds disturbed", entry["bench"]["disturbed"]),
        )
        if holds
    )
    sketch = f"{tuned['sketch']} {tuned['config']}"
    return f"{place}{speed}{found['share']:>7.0%}  {found['peer'] or '':<14}{versus:<26}{effort}{notes}; {sketch}"


def _summary_lines(found: Mapping[str, Any]) -> list[str]:
    lines = [f"{found['shapes']} shapes" + (f", WRONG: {', '.join(found['wrong'])}" if found["wrong"] else "")]
    if found["geometric_mean"]:
        mean, *interval = found["geometric_mean"]
        lines.append(f"time of the best peer over ours, geometric mean: {mean:.3f} ({_interval(interval)})")
        below = f"{len(found['below'])} below {LOWEST}, {len(found['surely_below'])} with all of their interval"
        lines.append(f"{below}: {', '.join(found['below']) or 'none'}")
    for key, said in (
        ("share_of_peak", "compute-bound: median share of peak"),
        ("share_of_bandwidth", "memory-bound, beyond the caches: median share of bandwidth"),
        ("share_of_bandwidth_in_cache", "memory-bound, within the caches: median share of memory's bandwidth"),
    ):
        if found[key] is not None:
            lines.append(f"{said} {found[key]:.0%}")
    return lines


def _interval(bounds: Any) -> str:
    low, high = bounds
    return f"{low:.3f} to {high:.3f}"


def _options() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--shapes", default=",".join(SHAPES), help="names, or letters of families (default: all)")
    asked.add_argument("--time", type=float, default=20.0, help="seconds of tuning per shape (%(default)s)")
    asked.add_argument("--rounds", type=int, default=ROUNDS, help="of a bench, at most (%(default)s)")
    asked.add_argument("--against", default=",".join(OPERATOR_PEERS), help="peers (%(default)s)")
    asked.add_argument("--search", default="storm")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--resume", action="store_true", help="leave out the shapes that are there")
    asked.add_argument("--skip-tuning", action="store_true", help="bench the schedules that are there")
    asked.add_argument("--direct", action="store_true", help="no sketch that rounds otherwise than the plain sum")
    asked.add_argument("--show", action="store_true", help="print and draw what is there, and measure nothing")
    options = asked.parse_args()
    wanted = options.shapes.split(",")
    families = {name.rstrip("0123456789") for name in SHAPES}
    if unknown := [name for name in wanted if name not in SHAPES and name not in families]:
        sys.exit(f"there is no shape {unknown[0]}: there is {', '.join(SHAPES)}")
    options.shapes = [shape for name, shape in SHAPES.items() if name in wanted or name.rstrip("0123456789") in wanted]
    named = [each for name in options.against.split(",") for each in GROUPS.get(name, (name,))]
    if unknown := [name for name in named if name not in OPERATOR_PEERS]:
        sys.exit(f"there is no peer {unknown[0]}: there is {', '.join(OPERATOR_PEERS)}")
    options.against = list(dict.fromkeys(named))
    return options


if __name__ == "__main__":
    main()
