"""Tunes 68 kernels from nothing, and times each beside all its peers, in interleaved rounds.

    run.py [--shapes R2,Y3,M] [--time 20] [--rounds 15] [--against torch,onnxruntime] [--search storm] [--show]
           [--fresh]

Every shape is saved in benchmarks/out/kernels.jsonl as soon as it is done, and is not measured again with the same
options, unless its sketches have changed. `--skip-tuning` times the saved schedules. `--show` prints and draws what is
saved, and measures nothing. `--direct` leaves out the sketches that do not compute the plain sum (Winograd) and has its
own file, kernels_direct.jsonl; shapes that have no such sketch are taken from kernels.jsonl if they are saved there.

The bytes of a kernel are every input and output once. Memory-bound kernels whose bytes fit into the caches (all L2 and
the L3 together) are listed separately. If the bytes of a memory-bound kernel do not fit, a copy of as many bytes takes
turns with the contenders, and the share of the bandwidth is the copy's time over ours. 68 shapes take 40 minutes. Run
it on an idle machine.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from _beside_peers import time_beside_peers
from _common import OUT, Campaign, campaign_parser, machine
from _figures import draw
from _results import LOWEST, row, summary
from _shapes import MEMORY, SHAPES, Shape, kind, moved
from spaces import fingerprints

import stormdrop as sd
from stormdrop.bench.bench import ROUNDS
from stormdrop.bench.peers import GROUPS, OPERATOR_PEERS
from stormdrop.errors import InputError, MeasureError, StormdropError
from stormdrop.sketches.registry import sketches_for

BENCH_SECONDS = 6.0
"""About how long the contenders of a shape take turns."""

NEAR = 1.05  # a tuning has arrived when its best kernel is within this factor of its final one
HEADINGS = (
    f"{'':<5}{'':<9}{'ours':>10}{'GFLOP/s':>9}{'GB/s':>7}{'share':>7}  {'best peer':<14}{'its time / ours':<26}tuning"
)


_OF_TUNING = {"time": "budget", "search": "search", "seed": "seed"}
"""By the parts of a setting: their names in what is saved of a tuning."""


def main() -> None:
    options = _options()
    host, name = machine(), "kernels_direct" if options.direct else "kernels"
    campaign = Campaign(OUT / f"{name}.jsonl", host, options, retries=True, document="shapes")
    setting = {"time": options.time, "search": options.search, "seed": options.seed, "against": options.against}
    taken = _without_choice(Campaign(OUT / "kernels.jsonl", host, document="shapes"), setting) if options.direct else {}
    entries = {**_saved(campaign), **taken}
    print(f"{host['cpu']}, {host['cores']} cores, {host['peak_gflops']:.0f} GFLOP/s, ", end="")
    print(f"{host['bandwidth_gbs']:.1f} GB/s, {host['versions']}\n\n{HEADINGS}")
    for shape in options.shapes:
        known = entries.get(shape.name)
        if not options.show and shape.name not in taken:
            key = {"name": shape.name, "sketches": fingerprints(shape.workload())}
            if not options.skip_tuning:
                entries[shape.name] = campaign.once(key, partial(measure, shape, options, host), setting)
            elif known and "tuned" in known:
                tuned = {part: known["tuned"][name] for part, name in _OF_TUNING.items()}
                entry = measure(shape, options, host, known)
                entries[shape.name] = campaign.keep({**key, **setting, **tuned, **entry})
            else:
                print(f"{shape.name:<5}has not been tuned yet")
                continue
        if shape.name in entries:
            print(_line(entries[shape.name], host), flush=True)
    print()
    chosen = {shape.name: entries[shape.name] for shape in options.shapes if shape.name in entries}
    totals = summary(_rows(chosen, host))
    failed = [shape_name for shape_name, entry in chosen.items() if "bench" not in entry]
    for line in [*_summary_lines(totals), *([f"FAILED: {', '.join(failed)}"] if failed else [])]:
        print(line)
    every = {name: entries[name] for name in SHAPES if name in entries}
    if drawn := [figures for figures in _rows(every, host) if figures["ratio"] is not None]:
        draw(OUT / f"{name}.png", host, drawn)
        print(OUT / f"{name}.png")
    sys.exit(bool(failed or totals["wrong"]))


def measure(
    shape: Shape, options: argparse.Namespace, host: Mapping[str, Any], known: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Tunes one shape, times it beside its peers, and returns its entry.

    If `known` is an entry, its schedule is taken and nothing is tuned. If something fails, the entry says why under
    "failed".
    """
    begin = time.perf_counter()
    workload, target = shape.workload(), sd.Cpu.detect()
    size = moved(workload)
    entry: dict[str, Any] = {
        "origin": shape.origin,
        "workload": workload.name,
        "flops": workload.flops,
        "bytes": size,
        "kind": kind(workload, host["peak_gflops"], host["bandwidth_gbs"]),
        "in_cache": size <= target.caches,
    }
    try:
        entry["tuned"] = known["tuned"] if known else _tuned(workload, options, begin)
        entry["bench"] = time_beside_peers(
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
        raise  # an option is wrong, not this shape
    except StormdropError as error:
        entry["failed"] = str(error)
    return entry


def _saved(campaign: Campaign) -> dict[str, Any]:
    """The last entry of every shape that was measured with its sketches as they are now."""
    entries = {entry["name"]: entry for entry in campaign.entries}
    return {
        name: entry for name, entry in entries.items() if entry.get("sketches") == fingerprints(SHAPES[name].workload())
    }


def _without_choice(campaign: Campaign, setting: Mapping[str, Any]) -> dict[str, Any]:
    """The entries with this setting of the shapes that have no inexact sketch: `--direct` changes nothing for them."""
    target = sd.Cpu.detect()
    return {
        name: entry
        for name in {entry["name"]: None for entry in campaign.entries}
        if not any(sketch.max_error for sketch, _ in sketches_for(SHAPES[name].workload(), target))
        and (entry := campaign.known({"name": name, "sketches": fingerprints(SHAPES[name].workload())}, setting))
        and "bench" in entry
        and all(entry["tuned"][part] == setting[name] for name, part in _OF_TUNING.items())
    }


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


def _rows(entries: Mapping[str, Mapping[str, Any]], host: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [row(entry, host) for entry in entries.values() if "bench" in entry]


def _line(entry: Mapping[str, Any], host: Mapping[str, Any]) -> str:
    if "bench" not in entry:
        return f"{entry['name']:<5}failed: {entry['failed']}"
    figures, tuned = row(entry, host), entry["tuned"]
    speed = f"{1e6 * figures['seconds']:>8.0f}us{figures['gflops']:>9.0f}{figures['gigabytes_per_second']:>7.1f}"
    place = f"{figures['name']:<5}{figures['kind']:<9}"
    versus = "no peer"
    if figures["ratio"] is not None:
        versus = f"{figures['ratio']:.3f} ({_interval(figures['ratio_interval'])})"
    effort = f"{tuned['trials']} trials, {tuned['tuning_seconds']:.1f} s, arrived after {tuned['found_seconds']:.1f} s"
    notes = "".join(
        f", {note}"
        for note, holds in (
            ("WRONG", not figures["agrees"]),
            ("in cache", figures["in_cache"]),
            (f"{entry['bench']['disturbed']} rounds disturbed", entry["bench"]["disturbed"]),
        )
        if holds
    )
    sketch = f"{tuned['sketch']} {tuned['config']}"
    return f"{place}{speed}{figures['share']:>7.0%}  {figures['peer'] or '':<14}{versus:<26}{effort}{notes}; {sketch}"


def _summary_lines(totals: Mapping[str, Any]) -> list[str]:
    lines = [f"{totals['shapes']} shapes" + (f", WRONG: {', '.join(totals['wrong'])}" if totals["wrong"] else "")]
    if totals["geometric_mean"]:
        mean, *interval = totals["geometric_mean"]
        lines.append(f"time of the best peer over ours, geometric mean: {mean:.3f} ({_interval(interval)})")
        below = f"{len(totals['below'])} below {LOWEST}, {len(totals['surely_below'])} with all of their interval"
        lines.append(f"{below}: {', '.join(totals['below']) or 'none'}")
    for key, words in (
        ("share_of_peak", "compute-bound: median share of peak"),
        ("share_of_bandwidth", "memory-bound, beyond the caches: median share of bandwidth"),
        ("share_of_bandwidth_in_cache", "memory-bound, within the caches: median share of memory's bandwidth"),
    ):
        if totals[key] is not None:
            lines.append(f"{words} {totals[key]:.0%}")
    return lines


def _interval(bounds: Any) -> str:
    low, high = bounds
    return f"{low:.3f} to {high:.3f}"


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--shapes", default=",".join(SHAPES), help="names, or letters of families (default: all)")
    parser.add_argument("--time", type=float, default=20.0, help="seconds of tuning per shape (%(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="the most rounds with the peers (%(default)s)")
    parser.add_argument("--against", default=",".join(OPERATOR_PEERS), help="peers, separated by commas (%(default)s)")
    parser.add_argument("--search", default="storm", help="the search to tune with (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of everything random (%(default)s)")
    parser.add_argument("--skip-tuning", action="store_true", help="time the saved schedules, and tune nothing")
    parser.add_argument("--direct", action="store_true", help="leave out sketches that do not compute the plain sum")
    options = parser.parse_args()
    wanted = options.shapes.split(",")
    families = {name.rstrip("0123456789") for name in SHAPES}
    if unknown := [name for name in wanted if name not in SHAPES and name not in families]:
        sys.exit(f"there is no shape {unknown[0]}; the shapes are {', '.join(SHAPES)}")
    options.shapes = [shape for name, shape in SHAPES.items() if name in wanted or name.rstrip("0123456789") in wanted]
    groups = {name: [member for member in members if member in OPERATOR_PEERS] for name, members in GROUPS.items()}
    named = [peer for name in options.against.split(",") for peer in groups.get(name, [name])]
    if unknown := [name for name in named if name not in OPERATOR_PEERS]:
        sys.exit(f"there is no peer {unknown[0]}; the peers are {', '.join(OPERATOR_PEERS)}")
    options.against = list(dict.fromkeys(named))
    return options


if __name__ == "__main__":
    main()
