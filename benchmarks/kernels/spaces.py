"""How large the spaces of each operator are, and how long searches take on them until they converge.

    spaces.py [--operators conv2d,softmax] [--time 20] [--seeds 2] [--show] [--fresh]

Spaces come from three sources: our sketches (those that `sd.tune` searches), sketches that rules derive as Ansor does,
and MetaSchedule's own design spaces. droplet and storm search ours from nothing. A search *ends* if it converges or has
tried all points; otherwise it is stopped after `--time`. Seconds are wall time with everything in it, including the
start of the workers and the last race. `over best` compares with the best of all runs, which were not raced.

A kernel is saved in benchmarks/out/spaces.json as soon as it is done. The next run with the same `--time` and `--seeds`
skips it, unless the spaces or the versions of its sketches have changed. `--show` prints what is saved and measures
nothing. All 21 kernels take up to half an hour. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import OUT, Campaign, campaign_parser, chosen, machine

import stormdrop as sd
from stormdrop.ir.workload import Workload
from stormdrop.sketches.meta_schedule import meta_schedule_sketches
from stormdrop.sketches.registry import sketches_for
from stormdrop.sketches.rules import derive

KERNELS = """
matmul m=512 n=512 k=512
dense m=128 n=768 k=768 bias=1
dense m=1 n=1000 k=2048 bias=1
batch_matmul b=12 m=128 n=64 k=128
attention_scores b=12 m=128 n=128 k=64
weight_only_dense m=1 n=768 k=768 group=32
conv1d n=1 l=128 ci=256 co=256 k=3 pad=1 bias=1 act=relu
conv2d n=1 h=28 w=28 ci=128 co=128 kh=3 kw=3 pad=1 bias=1 act=relu
conv2d n=1 h=28 w=28 ci=128 co=512 kh=1 kw=1 bias=1 act=relu
depthwise_conv2d n=1 h=56 w=56 ci=144 kh=3 kw=3 pad=1 bias=1 act=relu6
pool2d n=1 h=112 w=112 c=64 kh=3 kw=3 stride=2 pad=1
global_pool2d n=1 h=7 w=7 c=2048
reduce shape=128x512x256 axis=2
reduce shape=512x4096 axis=0
softmax m=1536 n=128
layer_norm m=128 n=768
rms_norm m=128 n=768
elementwise shape=1024x1024 kind=add
transpose shape=12x128x64 perm=1x0x2
transpose shape=1024x768 perm=1x0
concatenate shape=56x56x64 shape2=56x56x32 axis=2
""".strip().splitlines()
SEARCHES = ("droplet", "storm")
LEFT_OUT = ("attention",)  # counting the points of its spaces by MetaSchedule takes more than minutes


def main() -> None:
    options = _options()
    campaign = Campaign(OUT / "spaces.jsonl", machine(), options, document="kernels")

    def setting(text: str) -> dict[str, Any]:
        sketches = _ours(workload_of(text))
        return {"operator": text.split()[0], "time": options.time, "seeds": options.seeds, "sketches": sketches}

    def work(text: str) -> dict[str, Any]:
        workload = workload_of(text)
        points = sum(sketch["points"] for sketch in _ours(workload))
        return {"derived": _derived(workload), "runs": _runs(workload, points, options)}

    entries = campaign.collect(options.kernels, work, setting)
    show(campaign, entries)


def workload_of(text: str) -> Workload:
    """The kernel of an operator and its arguments, such as "matmul m=512 n=512 k=512"."""
    operator, *arguments = text.split()
    return sd.operators.create(operator, dict(argument.split("=") for argument in arguments))


def fingerprints(workload: Any) -> dict[str, str]:
    """The fingerprints of the spaces that `sd.tune` would search, by sketch. Figures of other spaces do not apply."""
    return {space.name: space.fingerprint for _, space in sketches_for(workload, sd.Cpu.detect())}


def show(campaign: Campaign, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints a row per kernel: the sizes of its spaces, and the median trials and seconds of each search."""
    headings = ["", "sketches: points", "by rules", "MetaSchedule"]
    for search in SEARCHES:
        headings += [f"{search}: trials", "share", "seconds", "ended", "over best"]
    rows = []
    for text, entry in entries.items():
        total = sum(sketch["points"] for sketch in entry["sketches"])
        row = [text, ", ".join(f"{sketch['name']}: {sketch['points']}" for sketch in entry["sketches"])]
        row += [_sizes(entry["derived"][source]) for source in ("rules", "meta_schedule")]
        best = min((run["best"] for run in entry["runs"] if run["best"]), default=None)
        for search in SEARCHES:
            runs = [run for run in entry["runs"] if run["search"] == search]
            trials = statistics.median(run["trials"] for run in runs)
            ends = [run["best"] / best for run in runs if run["best"]]
            row += [
                f"{trials:.0f}",
                f"{trials / total:.1%}",
                f"{statistics.median(run['seconds'] for run in runs):.1f}",
                f"{sum(run['ended'] for run in runs)} of {len(runs)}",
                f"{statistics.median(ends):.3f}" if ends else "-",
            ]
        rows.append(row)
    campaign.table(headings, rows)
    runs = [run for entry in entries.values() for run in entry["runs"]]
    suspect, every = (sum(run[key] for run in runs) for key in ("suspect", "measurements"))
    print(f"measured beside foreign load: {suspect} of {every} times")
    for search in SEARCHES:
        of_search = [run for run in runs if run["search"] == search]
        done = [run for run in of_search if run["ended"]]
        if done:
            trials, seconds = (statistics.median(run[key] for run in done) for key in ("trials", "seconds"))
            middle = f"{trials:.0f} trials and {seconds:.1f} s"
            print(f"{search}: {len(done)} of {len(of_search)} runs ended, at the median after {middle}")


def _ours(workload: Any) -> list[dict[str, Any]]:
    return [
        {"name": space.name, "points": space.size, "knobs": len(space.knobs), "fingerprint": space.fingerprint}
        for _, space in sketches_for(workload, sd.Cpu.detect())
    ]


def _derived(workload: Any) -> dict[str, list[int]]:
    """The sizes of the spaces that the other two sources make of the workload, one per sketch."""
    target = sd.Cpu.detect()
    sources: dict[str, Any] = {
        "rules": derive(workload, target),
        "meta_schedule": meta_schedule_sketches(workload, target),
    }
    spaces = {source: [sketch.space(workload, target) for sketch in sketches] for source, sketches in sources.items()}
    return {source: [space.size for space in group if space is not None] for source, group in spaces.items()}


def _runs(workload: Any, points: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs the searches in turns, seed by seed; `points` is the size of all spaces together."""
    runs = []
    for seed in range(options.seeds):
        for search in SEARCHES:
            with sd.open_store("sqlite://") as store:
                result = sd.tune(workload, search=search, time=options.time, seed=seed, store=store, fresh=True)
            if result.interrupted:
                sys.exit(130)
            runs.append(
                {
                    "search": search,
                    "seed": seed,
                    "trials": result.trials,
                    "failed": result.failed,
                    "suspect": result.suspect,
                    "measurements": sum(result.statuses.values()),
                    "seconds": result.seconds,
                    "phases": dict(result.phases),
                    "ended": result.converged or result.trials == points,
                    "best": result.best.seconds if result.best else None,
                    "sketch": result.best.sketch if result.best else None,
                    "default": result.baseline,
                }
            )
    return runs


def _sizes(sizes: Sequence[int]) -> str:
    return f"{len(sizes)}: {sum(sizes):.3g}" if sum(sizes) >= 1e5 else f"{len(sizes)}: {sum(sizes)}"


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--operators", help="operators, separated by commas (default: all)")
    parser.add_argument("--time", type=float, default=20.0, help="the most seconds of a run (%(default)s)")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each search (%(default)s)")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error("--seeds must be 1 or more")
    operators = {text.split()[0] for text in KERNELS}
    if absent := [name for name in sd.operators.names() if name not in (*operators, *LEFT_OUT)]:
        sys.exit(f"there is no kernel of operator {', '.join(absent)}: add one to KERNELS")
    every = sorted(operators)
    wanted = chosen(options.operators, every, "operator") if options.operators else every
    options.kernels = [text for text in KERNELS if text.split()[0] in wanted]
    return options


if __name__ == "__main__":
    main()
