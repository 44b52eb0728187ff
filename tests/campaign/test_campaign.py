"""A few runs of each campaign. `make campaign` does the whole."""

from __future__ import annotations

import json
import random
from pathlib import Path

import candidates
import damaged_files
import environment
import false_wins
import locks
import pairs
import pytest
import signals
import storage
from contract import Case, Kind, Outcome
from ledger import Ledger, findings, table
from run import CAMPAIGNS, load, run

CASES: dict[str, Case] = {
    "candidates": candidates.Session(
        seed=1, count=8, kinds=("segfault_run", "wrong", "raise", "exit_run", "unwritten", "memory_run")
    ),
    "signal": signals.Signal("TERM", "parent", "append", count=3, delay=0.0, stopped=0.0, older=True, seed=1),
    "storage": storage.Fault("database", 28, "write", at=30, count=0, older=False, seed=3),
    "lock": locks.InItsPlace("stormdrop.lock", "pipe", seed=4),
    "threads": pairs.TwoThreads("model", seed=5),
    "environment": environment.DefaultDatabase(),
    "files": damaged_files.Files("artifact", seed=6, count=8),
}


@pytest.mark.compiles
@pytest.mark.parametrize("name", CASES)
def test_a_run_breaks_no_rule(name: str, tmp_path: Path) -> None:
    outcome = CASES[name].run(tmp_path / "run")
    if outcome.skipped:
        pytest.skip(outcome.skipped)
    assert not outcome.findings


@pytest.mark.compiles
@pytest.mark.alone
def test_identical_kernels_race(tmp_path: Path) -> None:
    """A few races cannot say how many false wins there are, but each of them must have a result."""
    outcome = false_wins.Races(("matmul", "m=64", "n=48", "k=32"), busy=False, count=3).run(tmp_path / "run")
    assert not outcome.findings


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_a_seed_decides_the_cases(name: str) -> None:
    campaign = load(name)
    first, second = (campaign.runs(random.Random("seed")) for _ in range(2))
    drawn = [(str(next(first)), str(next(second))) for _ in range(30)]
    assert all(one == other for one, other in drawn)
    assert campaign.RUNS > 0


class Recorded:
    """A campaign whose cases note that they run."""

    RUNS = 4

    def __init__(self) -> None:
        self.ran: list[int] = []

    def runs(self, rng: random.Random):  # type: ignore[no-untyped-def]
        for number in range(100):
            yield Noted(self, number)


class Noted:
    def __init__(self, campaign: Recorded, number: int) -> None:
        self.campaign, self.number = campaign, number

    def run(self, folder: Path) -> Outcome:
        self.campaign.ran.append(self.number)
        if self.number == 2:
            raise RuntimeError("broken")
        outcome = Outcome("a fault")
        outcome.require(self.number != 1, Kind.LOST, "one is lost")
        return outcome


def test_a_campaign_goes_on_where_its_ledger_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign = Recorded()
    monkeypatch.setattr("run.load", lambda _: campaign)
    path = tmp_path / "ledger.jsonl"
    bounds = {"seed": 0, "keep": None, "until": float("inf")}
    run("pairs", Ledger(path), count=2, **bounds)  # type: ignore[arg-type]
    with path.open("a") as file:
        file.write('{"campaign": "pairs", "se')  # a kill in the midst of a line
    run("pairs", Ledger(path), count=None, **bounds)  # type: ignore[arg-type]
    assert campaign.ran == [0, 1, 2, 3]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["case"] for line in lines] == [0, 1, 2, 3]
    text = findings(lines)
    assert "one is lost" in text
    assert "RuntimeError" in text  # of the campaign itself
    assert table(lines).splitlines()[1].split() == ["pairs", "4", "0", "1", "0", "0", "0", "0", "1", "-"]


def test_claimed_wins_have_an_interval() -> None:
    line = {"campaign": "false_wins", "fault": "idle", "runs": 100, "findings": [], "wins": 5, "skipped": ""}
    assert "5 = 5.0% (1.6% to 11.3%)" in table([{**line, "notes": {"race": {}}}])
