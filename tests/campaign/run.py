"""Runs campaigns: `python tests/campaign/run.py [NAME...] [--runs N] [--out FILE] [--seed S] [--time T]`.

Each run appends a line to the file. A campaign goes on where the file ends, so it may be ended at any time. Without
names all campaigns run, with their whole number of runs, which takes some hours. The exit code is 1 if a rule was
broken. What a campaign is, `contract.py` says.
"""

from __future__ import annotations

import argparse
import importlib
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import cast

from contract import Campaign, Case, Kind, Outcome
from ledger import Ledger, findings, graphs, refuses_too_much, table

CAMPAIGNS = (
    "candidates",
    "signals",
    "kills",
    "storage",
    "locks",
    "pairs",
    "environment",
    "damaged_files",
    "false_wins",
    "random_graphs",
)


def load(name: str) -> Campaign:
    """A campaign by name."""
    return cast(Campaign, importlib.import_module(name))


def run_case(case: Case, keep: Path | None = None) -> Outcome:
    """Runs a case in a folder of its own.

    Args:
        case: The case.
        keep: Where the folder of a case with findings is moved to.
    """
    folder = Path(tempfile.mkdtemp(prefix="stormdrop-run-"))
    try:
        outcome = case.run(folder / "run")
        if keep is not None and outcome.findings:
            shutil.move(folder / "run", keep)
        return outcome
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(name: str, ledger: Ledger, *, seed: int, count: int | None, keep: Path | None, until: float) -> None:
    """Runs a campaign until it has had so many runs, without those that the ledger has."""
    campaign = load(name)
    count = campaign.RUNS if count is None else count
    done = ledger.done(name, seed)
    counted = sum(line["runs"] for line in ledger.lines if (line["campaign"], line["seed"]) == (name, seed))
    # A generator of its own for each campaign: the cases of one do not depend on which others run.
    for number, case in enumerate(campaign.runs(random.Random(f"{name} {seed}"))):
        if counted >= count or time.monotonic() > until:
            return
        if number in done:
            continue
        start = time.monotonic()
        try:
            outcome = run_case(case, None if keep is None else keep / f"{name}-{seed}-{number}")
        except Exception:  # noqa: BLE001  one broken case must not end a campaign of hours
            outcome = Outcome(f"{case}")
            outcome.add(Kind.OTHER, f"the campaign itself failed: {traceback.format_exc()[-500:]}")
        counted += outcome.runs
        ledger.add(name, seed, number, time.monotonic() - start, outcome)
        verdict = outcome.skipped or "; ".join(f"{f.kind.value}: {f.text}" for f in outcome.findings) or "ok"
        print(f"{name} {counted}/{count} {outcome.fault}: {verdict}", flush=True)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *CAMPAIGNS], metavar="NAME", help=", ".join(CAMPAIGNS))
    parser.add_argument("--runs", type=int, help="runs of each campaign; by default the whole")
    parser.add_argument("--out", type=Path, default=Path("out/campaign.jsonl"), help="the ledger")
    parser.add_argument("--seed", type=int, default=0, help="decides the cases")
    parser.add_argument("--keep", type=Path, help="a folder for what runs with findings have left")
    parser.add_argument("--time", type=float, help="seconds after which no further run begins")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # tidies up
    given.out.parent.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(given.out)
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    until = float("inf") if given.time is None else time.monotonic() + given.time
    for name in given.names or CAMPAIGNS:
        run(name, ledger, seed=given.seed, count=given.runs, keep=given.keep, until=until)
    print("", table(ledger.lines), graphs(ledger.lines), findings(ledger.lines), sep="\n")
    broken = any(line["findings"] for line in ledger.lines) or refuses_too_much(ledger.lines)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
