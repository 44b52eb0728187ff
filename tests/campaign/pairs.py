"""Two at once: on one artifact, one session, one database, and in two threads of one process."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import oracle
from contract import Case, Kind, Outcome
from disturbed import Tuning
from material import Material, shared
from sandbox import INSIDE, Sandbox, check_end, sandbox

RUNS = 100


@dataclass(frozen=True)
class SameArtifact:
    """Two tunings save to one place.

    Args:
        delay: Seconds between their beginnings.
        older: Whether an older artifact is there.
        seed: The seed of the first search.
    """

    delay: float
    older: bool
    seed: int

    def run(self, folder: Path) -> Outcome:
        material, outcome = shared(), Outcome("two tunings with one --out")
        with sandbox(folder, material.machine) as home:
            if self.older:
                shutil.copytree(material.older, home.artifact)
            first = home.stormdrop(*material.tune(home, "--seed", self.seed))
            time.sleep(self.delay)
            second = home.stormdrop(*material.tune(home, "--seed", self.seed + 1))
            for process in (first, second):
                check_end(outcome, process.wait(), [0])
            _check_all(outcome, home, material)
        return outcome


@dataclass(frozen=True)
class SameSession:
    """Two runs resume one session.

    Args:
        count: The append at which the session was interrupted.
        delay: Seconds between the two runs.
        seed: The seed of the search.
    """

    count: int
    delay: float
    seed: int

    def run(self, folder: Path) -> Outcome:
        material, outcome = shared(), Outcome("two runs resume one session")
        with sandbox(folder, material.machine) as home:
            tuning = Tuning(home, material, outcome, self.seed)
            process = tuning.start()
            reached = process.reached("append", self.count)
            outcome.require(reached, Kind.OTHER, f"there was no append {self.count}")
            process.popen.send_signal(signal.SIGINT)
            tuning.kills += 1
            tuning.check_run(process.wait(), [130, 0])
            before = oracle.trials(home.database)
            first = tuning.start()
            time.sleep(self.delay)
            second = tuning.start()
            for process in (first, second):
                check_end(outcome, process.wait(), [0])
            rows = oracle.trials(home.database)
            oracle.check_prefix(outcome, before, rows)
            points = [(row[0], row[3], row[4]) for row in rows]
            outcome.require(len(points) == len(set(points)), Kind.LOST, "a session holds a candidate twice")
            _check_all(outcome, home, material)
        return outcome


@dataclass(frozen=True)
class ImportMeanwhile:
    """Records are imported and exported while a tuning writes to the database.

    Args:
        count: The append at which the first import begins.
        seed: The seed of the search.
    """

    count: int
    seed: int

    def run(self, folder: Path) -> Outcome:
        material, outcome = shared(), Outcome("import and export during a tuning")
        with sandbox(folder, material.machine) as home:
            process = home.stormdrop(*material.tune(home, "--seed", self.seed))
            outcome.require(process.reached("append", self.count), Kind.OTHER, f"there was no append {self.count}")
            exported = home.folder / "exported.jsonl"
            commands: tuple[list[str | Path], ...]
            commands = (["import", material.records], ["export", exported], ["import", exported])
            for words in commands:
                end = home.start(["-m", "stormdrop", "db", *words, "--db", home.database]).wait()
                check_end(outcome, end, [0], f"db {words[0]}")
            end = process.wait()
            check_end(outcome, end, [0])
            if end.code == 0:
                lines = material.records.read_text().splitlines()
                brought = sum(line.startswith('{"trial"') for line in lines)
                stored = len(oracle.trials(home.database))
                wanted = end.document["trials"] + brought
                outcome.require(stored == wanted, Kind.LOST, f"{stored} trials are stored, not {wanted}")
            _check_all(outcome, home, material)
        return outcome


@dataclass(frozen=True)
class TwoThreads:
    """Two threads of one process.

    Args:
        what: "tune" or "model".
        seed: The seed of the search.
    """

    what: str
    seed: int

    def run(self, folder: Path) -> Outcome:
        material, outcome = shared(), Outcome(f"two threads: {self.what}")
        with sandbox(folder, material.machine) as home:
            operands = [home.database, self.seed] if self.what == "tune" else [material.older, material.expected]
            end = home.start([INSIDE / "two_threads.py", self.what, *map(str, operands)]).wait()
            check_end(outcome, end, [0])
            for fault in json.loads(end.output.splitlines()[-1]) if end.code == 0 else ():
                outcome.add(Kind.WRONG, fault)
            home.check_left(outcome)
            oracle.check_integrity(outcome, home.database)
            oracle.check_statuses(outcome, oracle.trials(home.database))
        return outcome


def _check_all(outcome: Outcome, home: Sandbox, material: Material) -> None:
    home.check_left(outcome)
    home.check_descriptors(outcome)
    oracle.check_integrity(outcome, home.database)
    rows = oracle.trials(home.database)
    oracle.check_acknowledged(outcome, home.log, rows)
    oracle.check_statuses(outcome, rows)
    oracle.check_artifact(outcome, home, material.expected, required=True)


def runs(rng: random.Random) -> Iterator[Case]:
    """All kinds in turns."""
    while True:
        yield SameArtifact(rng.choice([0.0, rng.random()]), rng.random() < 0.5, rng.randrange(1000))
        yield SameSession(rng.randint(1, 7), rng.choice([0.0, rng.random()]), rng.randrange(1000))
        yield ImportMeanwhile(rng.randint(1, 7), rng.randrange(1000))
        yield TwoThreads(rng.choice(["tune", "model"]), rng.randrange(1000))
