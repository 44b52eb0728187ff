"""Tunes the six micro-kernels of the papers and times them beside torch and TensorFlow, in interleaved rounds.

    microkernels.py [--target cuda] [--minutes 9] [--shapes K0,K3] [--searches storm,droplet:preset=paper]
                    [--trials 1000] [--rounds 15] [--show] [--fresh]

They are those of Figure 17 of the Droplet Search paper and of Figure 19 of the DPAnsor paper: matmul, conv2d,
depthwise convolution, average pooling, sum and ReLU (K0 to K5 in _shapes.py). By default each is tuned by `droplet` and
`annealing` (Droplet and XGB of Figure 17), `evolutionary` (Ansor, with 1,000 trials in Figure 19), `dpansor` with N of
100 and 300 (Figure 19), all as their papers print them, and by `storm`. A search ends when it has converged or spent
`--trials`. `original` is the kernel without a schedule, which Figure 17 has, too; on a GPU its outputs are spread over
blocks and threads. It takes part on GPUs; on a CPU it has to be asked for, because K1 takes half a minute.

Where this differs from the papers: on a CPU TensorFlow is a `tf.function` with and without XLA, and torch is eager or
has its weights packed; the papers call both eagerly. On a GPU torch is captured in a CUDA graph, and TensorFlow takes
no part. The searches have the built-in sketches, among them Winograd for K1 on a CPU, not the templates of TOPI, which
has none for the last three kernels. Intervals of times (95%) stand beside the papers' test (Student's t, 5%, three
samples: `_race.similar`).

Every tuning and every race is one line of benchmarks/recorded/microkernels.jsonl (on a GPU:
benchmarks/out/microkernels_cuda.jsonl) as soon as it is done; a second run goes on from there, also in the middle of a
tuning that `--minutes` has ended. `--show` prints what is kept as Markdown. With 1,000 trials it takes hours. Run it on
an idle machine. `--target opencl` is a dry run where there is no GPU, with PoCL.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from _common import Campaign, campaign_parser, chosen, machine, markdown
from _contenders import PEERS, operator_specs
from _race import race, similar
from _shapes import MICRO, SHAPES
from _slices import Slice, SlicedTuning, add_target, kept_in, target_here, tuned

from stormdrop.bench.result import TOLERANCE
from stormdrop.compare.search_spec import SearchSpec, parse_searches
from stormdrop.machine.contract import CPU, Machine

MICRO_KERNELS = [name for name, shape in SHAPES.items() if shape.origin == MICRO]
SEARCHES = (
    "droplet:preset=paper,annealing:preset=paper,evolutionary:preset=paper,dpansor:preset=paper:N=100,"
    "dpansor:preset=paper:N=300,storm"
)
DEFAULT_PEERS = {**PEERS, CPU: ("torch", "torch-packed", "tensorflow", "tensorflow-xla")}


def main() -> None:
    options = _options()
    setting = {"trials": options.trials, "seed": options.seed}
    target = None if options.show else target_here(options.target)
    host = None if target is None else machine(target)
    campaign = Campaign(kept_in("microkernels", options.target), host, options, several=True)
    if target is not None:
        with Slice(options.minutes) as slice_:
            for name in options.shapes:
                complete(campaign, name, setting, options, target, slice_)
    kept = [entry for entry in campaign.entries if all(entry[key] == value for key, value in setting.items())]
    print(table([entry for entry in kept if entry["shape"] in options.shapes]))


def complete(
    campaign: Campaign,
    name: str,
    setting: Mapping[str, Any],
    options: argparse.Namespace,
    target: Machine,
    slice_: Slice,
) -> None:
    """Tunes a kernel with the searches that are missing, and races the results with the peers."""
    key = {"shape": name, **setting}
    workload = SHAPES[name].workload()
    searches: list[SearchSpec] = options.searches

    def one(search: SearchSpec) -> dict[str, Any]:
        what = f"{name}: {search.label}, {options.trials} trials, seed {options.seed}, {target.machine}"
        tuning = tuned(
            slice_,
            what,
            workload,
            fresh=options.fresh,
            target=target,
            search=search.name,
            options=search.options,
            trials=options.trials,
            seed=options.seed,
        )
        return described_tuning(tuning)

    done = [campaign.once({**key, "search": search.label}, partial(one, search)) for search in searches]

    def raced() -> dict[str, Any]:
        slice_.check()
        working = {tuning["search"]: tuning["best"] for tuning in done if tuning["best"] is not None}
        if not working:
            sys.exit(f"{name}: no search has found a kernel that works: {done[0]['error']}")
        specs = operator_specs(workload, target, working, options.against, options.seed)
        return {"race": race(specs, next(iter(working)), options.rounds)}

    campaign.once({**key, "contenders": [*(search.label for search in searches), *options.against]}, raced)


def described_tuning(tuning: SlicedTuning) -> dict[str, Any]:
    """A tuning from nothing as an entry. Without a working candidate `best` is None, and the error says why."""
    result = tuning.result
    best = result.best
    return {
        "best": None if best is None else {"sketch": best.sketch, "config": dict(best.config)},
        "error": result.error,
        "tuning_seconds": tuning.seconds,
        "measured": result.trials,
        "failed": result.failed,
        "converged": result.converged,
        "curve": [list(point) for point in result.curve],
    }


def table(entries: Sequence[Mapping[str, Any]]) -> str:
    """A row per kernel and contender, in Markdown."""
    tunings = {(entry["shape"], entry["search"]): entry for entry in entries if "search" in entry}
    races = {entry["shape"]: entry["race"] for entry in entries if "race" in entry}
    headings = ["kernel", "contender", "time", "over the fastest", "the same by the papers' test", "tuning"]
    rows = []
    for shape, raced in races.items():
        kernel = SHAPES[shape].workload().name
        times = {name: figures for name, figures in raced.items() if name != "disturbed"}
        fastest = min(times, key=lambda name: times[name]["seconds"])
        for name, figures in times.items():
            tuning = tunings.get((shape, name))
            wrong = "" if figures["error"] <= TOLERANCE else f", WRONG by {figures['error']:.0e}"
            effort = "" if tuning is None else f"{tuning['tuning_seconds']:.0f} s, {tuning['measured']} trials"
            same = similar(figures["samples"], times[fastest]["samples"])
            ratio = figures["seconds"] / times[fastest]["seconds"]
            low, high = figures["interval"]
            time = f"{1e3 * figures['seconds']:.4f} ms ({1e3 * low:.4f} to {1e3 * high:.4f})"
            rows.append([kernel, f"{name}{wrong}", time, f"{ratio:.3f}", "yes" if same else "no", effort])
        missing = [label for (of, label), tuning in tunings.items() if of == shape and tuning["best"] is None]
        rows += [[kernel, label, "failed", "", "", tunings[shape, label]["error"]] for label in missing]
    return markdown(headings, rows)


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    add_target(parser)
    parser.add_argument("--shapes", default=",".join(MICRO_KERNELS), help="kernels, separated by commas (%(default)s)")
    parser.add_argument("--searches", default=SEARCHES, help="searches, separated by commas (%(default)s)")
    parser.add_argument("--trials", type=int, default=1000, help="the most candidates of a tuning (%(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of a race (%(default)s)")
    parser.add_argument("--against", help="peers, separated by commas (those that the target has, see above)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of everything random (%(default)s)")
    options = parser.parse_args()
    options.shapes, options.searches = chosen(options.shapes, MICRO_KERNELS, "shape"), parse_searches(options.searches)
    device = options.target.partition("/")[0]
    against = ",".join(DEFAULT_PEERS.get(device, ())) if options.against is None else options.against
    options.against = chosen(against, PEERS.get(device, ()), "peer") if against else []
    return options


if __name__ == "__main__":
    main()
