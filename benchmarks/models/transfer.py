"""How much the records of one network save when another network is tuned.

    transfer.py [--first resnet50] [--second resnet18] [--time 120] [--show] [--fresh]

The second model is tuned twice: from nothing, and with records that hold a tuning of the first model. Records answer
equal kernels; the search of other kernels begins where those of the first model have ended. The figures of a tuning
are: measured candidates, seconds, answered kernels, and the seconds until the kernels of the model together were within
3% of the final result of the tuning from nothing. In the end both tuned models take turns.

The results are saved in benchmarks/out/models_transfer.jsonl, and are not measured again unless `--fresh` asks for it.
It takes six minutes. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import OUT, Campaign, campaign_parser, machine
from _graphs import NAMES, graph
from _race import artifacts, race

import stormdrop as sd
from stormdrop.cli.output import table
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.records import Store

_NAME = "models_transfer"
_FOLDER = OUT / _NAME
NEAR = 1.03


def main() -> None:
    options = _options()
    campaign = Campaign(OUT / f"{_NAME}.jsonl", machine(), options, document="pairs")
    pair = f"{options.first}, {options.second}"
    setting = {"time": options.time, "seed": options.seed}
    show(options.first, options.second, campaign.collect([pair], lambda _: measure(options), setting)[pair])


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Tunes the first model, and the second one without and with its records; times both results in turns."""
    with sd.open_store("sqlite://") as empty, sd.open_store("sqlite://") as known:
        alone = tune(options.second, "alone", options, empty)
        before = tune(options.first, "first", options, known)
        after = tune(options.second, "after", options, known)
    feeds = random_feeds(sd.load(_FOLDER / "alone").inputs, options.seed)
    figures = race(artifacts(_FOLDER, ["alone", "after"], feeds), "alone", options.rounds)
    return {"first": before, "alone": alone, "after": after, "race": figures}


def tune(name: str, role: str, options: argparse.Namespace, store: Store) -> dict[str, Any]:
    """Tunes one model and returns the figures of the tuning. The artifact stays on disk."""
    artifact = _FOLDER / role
    shutil.rmtree(artifact, ignore_errors=True)
    print(f"{name} ({role})", file=sys.stderr, flush=True)
    result = sd.tune_model(graph(name), time=options.time, seed=options.seed, store=store, out=artifact)
    if result.interrupted:
        sys.exit(130)
    document = result.to_json()
    tasks = [task for task in document["tasks"] if task["trials"]]
    return {
        "measured": document["trials"] - document["reused"],
        "seconds": document["seconds"],
        "kernels": len(tasks),
        "answered": sum(task["reused"] == task["trials"] for task in tasks),
        "converged": sum(task["converged"] for task in tasks),
        "curve": document["curve"],
    }


def show(first: str, second: str, entry: dict[str, Any]) -> None:
    """Prints a row per tuning."""
    goal = NEAR * entry["alone"]["curve"][-1][1]
    rows = []
    for role, what in (("first", first), ("alone", f"{second} from nothing"), ("after", f"{second} after {first}")):
        figures = entry[role]
        never = None if figures["curve"] else 0.0
        reached = next((moment for moment, latency in figures["curve"] if latency <= goal), never)
        rows.append(
            [
                what,
                str(figures["measured"]),
                f"{figures['answered']} of {figures['kernels']}",
                f"{figures['seconds']:.0f} s",
                "" if role == "first" else "never" if reached is None else f"{reached:.1f} s",
                f"{figures['converged']} of {figures['kernels']}",
            ]
        )
    headings = ["", "measured", "answered", "tuning", f"within {NEAR - 1:.0%} of the end from nothing", "converged"]
    table(headings, rows)
    speed, (low, high) = entry["race"]["after"]["speed"], entry["race"]["after"]["speed_interval"]
    print(f"\nspeed of the model after {first} over that from nothing: {speed:.3f} ({low:.3f} to {high:.3f})")
    if entry["race"]["disturbed"]:
        print(f"{entry['race']['disturbed']} rounds disturbed")


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--first", default="resnet50", choices=NAMES, help="the model with records (%(default)s)")
    parser.add_argument(
        "--second", default="resnet18", choices=NAMES, help="the model that is tuned twice (%(default)s)"
    )
    parser.add_argument("--time", type=float, default=120.0, help="the most seconds of each tuning (%(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of the race (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of everything random (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
