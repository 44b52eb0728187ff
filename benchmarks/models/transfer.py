"""What the records of one network save when another is tuned.

    transfer.py [--first resnet50] [--second resnet18] [--time 120] [--show]

The second model is tuned from nothing; then, with records that hold a tuning of the first, once more. Equal kernels are
answered by the records, the others begin where the first model's have ended. For both: candidates measured, seconds,
kernels answered, seconds until the model's kernels were in sum within 3% of what the tuning from nothing has found in
the end. Both models take turns in the end.

Kept in benchmarks/out/models_transfer.json. Six minutes. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import OUT, kept, machine, save
from graphs import NAMES, graph
from race import artifacts, race

import stormdrop as sd
from stormdrop.cli.output import table
from stormdrop.model.verify import random_feeds
from stormdrop.records import Store

_NAME = "models_transfer"
_KEPT = OUT / _NAME
NEAR = 1.03


def main() -> None:
    options = _options()
    where = machine()
    entries = kept(_NAME, where, "pairs")
    pair = f"{options.first}, {options.second}"
    if not options.show:
        with sd.open_store("sqlite://") as empty, sd.open_store("sqlite://") as known:
            alone = tuned(options.second, "alone", options, empty)
            before = tuned(options.first, "first", options, known)
            after = tuned(options.second, "after", options, known)
        feeds = random_feeds(sd.load(_KEPT / "alone").inputs, options.seed)
        found = race(artifacts(_KEPT, ["alone", "after"], feeds), "alone", options.rounds)
        entries[pair] = {"first": before, "alone": alone, "after": after, "race": found}
        save(_NAME, {"machine": where, "pairs": entries})
    show(options.first, options.second, entries[pair])


def tuned(name: str, role: str, options: argparse.Namespace, store: Store) -> dict[str, Any]:
    """What one tuning took; its artifact stays."""
    artifact = _KEPT / role
    shutil.rmtree(artifact, ignore_errors=True)
    print(f"{name} ({role})", file=sys.stderr, flush=True)
    found = sd.tune_model(graph(name), time=options.time, seed=options.seed, store=store, out=artifact)
    if found.interrupted:
        sys.exit(130)
    document = found.to_json()
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
        found = entry[role]
        reached = next((at for at, latency in found["curve"] if latency <= goal), None if found["curve"] else 0.0)
        rows.append(
            [
                what,
                str(found["measured"]),
                f"{found['answered']} of {found['kernels']}",
                f"{found['seconds']:.0f} s",
                "" if role == "first" else "never" if reached is None else f"{reached:.1f} s",
                f"{found['converged']} of {found['kernels']}",
            ]
        )
    headings = ["", "measured", "answered", "tuning", f"within {NEAR - 1:.0%} of the end from nothing", "converged"]
    table(headings, rows)
    speed, (low, high) = entry["race"]["after"]["speed"], entry["race"]["after"]["speed_interval"]
    print(f"\nspeed of the model after {first} over that from nothing: {speed:.3f} ({low:.3f} to {high:.3f})")
    if entry["race"]["disturbed"]:
        print(f"{entry['race']['disturbed']} rounds disturbed")


def _options() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--first", default="resnet50", choices=NAMES)
    asked.add_argument("--second", default="resnet18", choices=NAMES)
    asked.add_argument("--time", type=float, default=120.0, help="seconds of each tuning, at most (%(default)s)")
    asked.add_argument("--rounds", type=int, default=15, help="of the race (%(default)s)")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--show", action="store_true", help="print what is there, and measure nothing")
    return asked.parse_args()


if __name__ == "__main__":
    main()
