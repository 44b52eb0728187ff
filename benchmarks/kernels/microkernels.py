"""Tunes the six micro-kernels of the papers and times them beside torch and TensorFlow, in interleaved rounds.

    microkernels.py [--shapes K0,K3] [--searches storm,droplet:preset=paper] [--trials 1000] [--rounds 15] [--show]
                    [--fresh]

They are those of Figure 17 of the Droplet Search paper and of Figure 19 of the DPAnsor paper: matmul, conv2d,
depthwise convolution, average pooling, sum and ReLU (K0 to K5 in _shapes.py). By default each is tuned by `droplet` and
`annealing` (Droplet and XGB of Figure 17), `evolutionary` (Ansor, with 1,000 trials in Figure 19), `dpansor` with N of
100 and 300 (Figure 19), all as their papers print them, and by `storm`. A search ends when it has converged or spent
`--trials`.

Where this differs from the papers: it is this machine's CPU, not a GPU. TensorFlow is a `tf.function` with and without
XLA, and torch is eager or has its weights packed; the papers call both eagerly. The searches have the built-in
sketches, among them Winograd for K1, not the templates of TOPI, which has none for the last three kernels. Intervals of
times (95%) stand beside the papers' test (Student's t, 5%, three samples: `_race.similar`).

Every tuning and every race is one line of benchmarks/recorded/microkernels.jsonl as soon as it is done; a second run
goes on from there. `--show` prints what is kept as Markdown. With 1,000 trials it takes hours. Run it on an idle
machine.
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

from _common import RECORDED, Campaign, campaign_parser, chosen, machine, markdown
from _race import race, similar
from _shapes import MICRO, SHAPES

import stormdrop as sd
from stormdrop.bench.contender import ContenderSpec
from stormdrop.bench.peers import OPERATOR_PEERS
from stormdrop.bench.result import TOLERANCE
from stormdrop.compare.search_spec import SearchSpec, parse_searches

MICRO_KERNELS = [name for name, shape in SHAPES.items() if shape.origin == MICRO]
SEARCHES = (
    "droplet:preset=paper,annealing:preset=paper,evolutionary:preset=paper,dpansor:preset=paper:N=100,"
    "dpansor:preset=paper:N=300,storm"
)
PEERS = ("torch", "torch-packed", "tensorflow", "tensorflow-xla")


def main() -> None:
    options = _options()
    setting = {"trials": options.trials, "seed": options.seed}
    host = None if options.show else machine()
    campaign = Campaign(RECORDED / "microkernels.jsonl", host, options, several=True)
    if not options.show:
        for name in options.shapes:
            complete(campaign, name, options.searches, setting, options)
    kept = [entry for entry in campaign.entries if all(entry[key] == value for key, value in setting.items())]
    print(table([entry for entry in kept if entry["shape"] in options.shapes]))


def complete(
    campaign: Campaign,
    name: str,
    searches: Sequence[SearchSpec],
    setting: Mapping[str, Any],
    options: argparse.Namespace,
) -> None:
    """Tunes a kernel with the searches that are missing, and races the results with the peers."""
    key = {"shape": name, **setting}
    done = [
        campaign.once({**key, "search": search.label}, partial(tuned, name, search, options.trials, options.seed))
        for search in searches
    ]

    def raced() -> dict[str, Any]:
        working = [tuning for tuning in done if tuning["best"] is not None]
        if not working:
            sys.exit(f"{name}: no search has found a kernel that works: {done[0]['error']}")
        return {"race": race(specs(name, working, options), working[0]["search"], options.rounds)}

    campaign.once({**key, "contenders": [*(search.label for search in searches), *options.against]}, raced)


def tuned(name: str, search: SearchSpec, trials: int, seed: int) -> dict[str, Any]:
    """One tuning from nothing. Without a working candidate `best` is None, and the error says why."""
    print(f"{name}: {search.label}", file=sys.stderr, flush=True)
    with sd.open_store("sqlite://") as store:
        result = sd.tune(
            SHAPES[name].workload(),
            search=search.name,
            options=search.options,
            trials=trials,
            seed=seed,
            store=store,
            fresh=True,
        )
    if result.interrupted:
        sys.exit(130)
    best = result.best
    return {
        "best": None if best is None else {"sketch": best.sketch, "config": dict(best.config)},
        "error": result.error,
        "tuning_seconds": result.seconds,
        "measured": result.trials,
        "failed": result.failed,
        "converged": result.converged,
        "curve": [list(point) for point in result.curve],
    }


def specs(name: str, tunings: Sequence[Mapping[str, Any]], options: argparse.Namespace) -> list[ContenderSpec]:
    """The best schedule of each tuning that has one, and the peers."""
    workload = SHAPES[name].workload()
    inputs = workload.random_inputs(options.seed)
    ours = {"workload": workload, "inputs": inputs}
    theirs = {"operator": workload.name.split()[0], "arguments": dict(workload.arguments), "inputs": inputs}
    maker = "stormdrop.bench.peers.ours:TunedOperator"
    found = [ContenderSpec(tuning["search"], maker, {**ours, **tuning["best"]}) for tuning in tunings]
    return [*found, *(ContenderSpec(peer, OPERATOR_PEERS[peer], theirs) for peer in options.against)]


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
    parser.add_argument("--shapes", default=",".join(MICRO_KERNELS), help="kernels, separated by commas (%(default)s)")
    parser.add_argument("--searches", default=SEARCHES, help="searches, separated by commas (%(default)s)")
    parser.add_argument("--trials", type=int, default=1000, help="the most candidates of a tuning (%(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of a race (%(default)s)")
    parser.add_argument("--against", default=",".join(PEERS), help="peers, separated by commas (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of everything random (%(default)s)")
    options = parser.parse_args()
    options.shapes, options.searches = chosen(options.shapes, MICRO_KERNELS, "shape"), parse_searches(options.searches)
    options.against = [peer for peer in options.against.split(",") if peer]
    if unknown := [peer for peer in options.against if peer not in OPERATOR_PEERS]:
        sys.exit(f"there is no peer {unknown[0]}; the peers are {', '.join(OPERATOR_PEERS)}")
    return options


if __name__ == "__main__":
    main()
