"""The ledger: a file with one line per run, from which a campaign goes on, and the table of what was found."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contract import Finding, Kind, Outcome
from scipy.stats import binomtest

_VERDICTS = ("right", "refused", "unexplained", "wrong", "traceback", "crash", "hang")

_REFUSED = 0.01
"""The share of the random graphs that may be refused, each with a reason that names the operator."""


class Ledger:
    """A file of lines. A line that was cut off by a kill does not count, and its run is repeated."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = _read(path)
        if path.exists() and not path.read_bytes().endswith(b"\n"):
            path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))

    def done(self, campaign: str, seed: int) -> set[int]:
        """The numbers of the cases of a campaign that have run."""
        return {line["case"] for line in self.lines if (line["campaign"], line["seed"]) == (campaign, seed)}

    def add(self, campaign: str, seed: int, case: int, seconds: float, outcome: Outcome) -> None:
        """Appends a line. It is on the disk before the next run begins."""
        line = {
            "campaign": campaign,
            "seed": seed,
            "case": case,
            "fault": outcome.fault,
            "runs": outcome.runs,
            "findings": [[finding.kind.value, finding.text] for finding in outcome.findings],
            "wins": outcome.wins,
            "skipped": outcome.skipped,
            "notes": outcome.notes,
            "seconds": round(seconds, 2),
        }
        self.lines.append(line)
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def table(lines: Sequence[dict[str, Any]]) -> str:
    """One row per campaign: its runs, and the runs that broke a rule of each class."""
    heads = ["campaign", "runs", "skipped", *(kind.value for kind in Kind), "claimed wins"]
    rows = [heads]
    for campaign in dict.fromkeys(line["campaign"] for line in lines):
        mine = [line for line in lines if line["campaign"] == campaign]
        ran = sum(line["runs"] for line in mine if not line["skipped"])
        found = Counter(kind for line in mine for kind in {kind for kind, _ in line["findings"]})
        wins = sum(line["wins"] for line in mine)
        rows.append(
            [
                campaign,
                str(ran),
                str(sum(line["runs"] for line in mine if line["skipped"])),
                *(str(found[kind.value]) for kind in Kind),
                _share(wins, ran) if any("race" in line["notes"] for line in mine) else "-",
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _share(wins: int, runs: int) -> str:
    """A share with its exact binomial interval of 95%."""
    if not runs:
        return "-"
    interval = binomtest(wins, runs).proportion_ci(0.95, "exact")
    return f"{wins} = {wins / runs:.1%} ({interval.low:.1%} to {interval.high:.1%})"


def findings(lines: Sequence[dict[str, Any]]) -> str:
    """Every finding, and why cases were skipped."""
    text = []
    for line in lines:
        where = f"{line['campaign']} {line['seed']}/{line['case']} ({line['fault']})"
        text += [f"{where}: {Finding(Kind(kind), words)}" for kind, words in line["findings"]]
    skipped = Counter((line["campaign"], line["fault"], line["skipped"]) for line in lines if line["skipped"])
    text += [f"{campaign} ({fault}): skipped {count}: {why}" for (campaign, fault, why), count in skipped.items()]
    return "\n".join(text)


def graphs(lines: Sequence[dict[str, Any]]) -> str:
    """What became of random graphs: how many have each verdict, and why some were refused; empty without any."""
    mine = [line for line in lines if "verdicts" in line["notes"]]
    counts = sum((Counter(line["notes"]["verdicts"]) for line in mine), Counter[str]())
    if not counts:
        return ""
    shares = ", ".join(f"{verdict} {counts[verdict]}" for verdict in _VERDICTS)
    seconds, foreign = sum(line["seconds"] for line in mine), sum(line["notes"]["foreign"] for line in mine)
    total = f"{counts.total()} random graphs in {seconds:.0f} s: {shares}; {foreign} with a part that onnxruntime runs"
    return "\n".join([total, *(f"    refused: {reason}" for line in mine for reason in line["notes"]["refused"])])


def refuses_too_much(lines: Sequence[dict[str, Any]]) -> bool:
    """Whether more than a hundredth of the random graphs was refused."""
    mine = [line["notes"]["verdicts"] for line in lines if "verdicts" in line["notes"]]
    return sum(each.get("refused", 0) for each in mine) > _REFUSED * sum(sum(each.values()) for each in mine)
