"""Storage that fails: a full or broken disk, a database that is locked, deleted, or answers no more."""

from __future__ import annotations

import contextlib
import errno
import functools
import random
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import oracle
from contract import Case, Kind, Outcome
from disturbed import Tuning
from material import shared
from sandbox import INSIDE, End, Process, Sandbox, check_end, sandbox

from stand_ins.postgresql import Server, Unavailable, server

RUNS = 120

_ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS)
_PLACES = {"database": "/records.db", "artifact": "/.model.sd.saving-"}
_LONGEST_LOCK = 40.0  # seconds


@functools.cache
def library() -> Path | str:
    """The library that makes system calls fail, or why there is none."""
    compiler = shutil.which("cc")
    if compiler is None:
        return "there is no cc on the PATH"
    built = shared().folder / "io_faults.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(built), str(INSIDE / "io_faults.c"), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return built if done.returncode == 0 else f"cc cannot build the library: {done.stderr.strip().splitlines()[:1]}"


@dataclass(frozen=True)
class Fault:
    """System calls that fail.

    Args:
        place: "database" or "artifact".
        error: The number of the error.
        call: "write", "sync" or "create".
        at: The first call that fails.
        count: How many fail; 0 for all that follow.
        older: Whether an older artifact is there.
        seed: The seed of the search.
    """

    place: str
    error: int
    call: str
    at: int
    count: int
    older: bool
    seed: int

    def run(self, folder: Path) -> Outcome:
        many = "all" if self.count == 0 else str(self.count)
        outcome = Outcome(f"{errno.errorcode[self.error]} of {many} {self.call} calls on the {self.place}")
        outcome.notes["at"] = self.at
        built = library()
        if isinstance(built, str):
            outcome.skipped = built
            return outcome
        material = shared()
        with sandbox(folder, material.machine) as home:
            tuning = Tuning(home, material, outcome, self.seed, self.older)
            environment = {
                "LD_PRELOAD": str(built),
                "FAULT_MATCH": f"{home.folder}{_PLACES[self.place]}",
                "FAULT_CALL": self.call,
                "FAULT_AT": str(self.at),
                "FAULT_FOR": str(self.count),
                "FAULT_ERRNO": str(self.error),
                "FAULT_SEEN": str(home.folder / "fault"),
            }
            end = tuning.start(environment=environment).wait()
            outcome.notes |= {"code": end.code, "struck": (home.folder / "fault").exists()}
            tuning.check_run(end, [0, 2])
            import_saved(outcome, home, end)
            tuning.finish()
        return outcome


def import_saved(outcome: Outcome, home: Sandbox, end: End) -> None:
    """Takes in the records that a run could not write, as its message says, and checks that none is missing."""
    for saved in [*home.folder.glob("stormdrop-records-*.jsonl"), *home.temporary.glob("stormdrop-records-*.jsonl")]:
        imported = home.start(["-m", "stormdrop", "db", "import", "--trusted", saved, "--db", home.database]).wait()
        check_end(outcome, imported, [0], f"the import of {saved.name}")
        saved.unlink()
    if end.code == 0:
        found, stored = end.document["trials"], len(oracle.trials(home.database))
        outcome.require(found <= stored, Kind.LOST, f"{found} trials were measured, and {stored} can be had")


@dataclass(frozen=True)
class Locked:
    """Another process holds a write transaction.

    Args:
        count: The append at which it begins.
        seconds: How long it takes.
        seed: The seed of the search.
    """

    count: int
    seconds: float
    seed: int

    def run(self, folder: Path) -> Outcome:
        material, outcome = shared(), Outcome("the database is locked")
        outcome.notes["seconds"] = self.seconds
        with sandbox(folder, material.machine) as home:
            tuning = Tuning(home, material, outcome, self.seed)
            process = tuning.start()
            reached = process.reached("append", self.count)
            outcome.require(reached, Kind.OTHER, f"there was no append {self.count}")
            with contextlib.closing(sqlite3.connect(home.database, timeout=30, isolation_level=None)) as connection:
                connection.execute("begin immediate")
                _wait(process, self.seconds)
                connection.execute("rollback")
            end = process.wait()
            tuning.check_run(end, [0])
            import_saved(outcome, home, end)
            tuning.finish()
        return outcome


def _wait(process: Process, seconds: float) -> None:
    """Waits so long, or until the process has ended."""
    end = time.monotonic() + seconds
    while process.running and time.monotonic() < end:
        time.sleep(0.05)


@dataclass(frozen=True)
class Deleted:
    """The database is deleted, with or without its log.

    Args:
        count: The append at which it happens.
        log: Whether its write-ahead log goes as well.
        seed: The seed of the search.
    """

    count: int
    log: bool
    seed: int

    def run(self, folder: Path) -> Outcome:
        material, outcome = shared(), Outcome(f"the database is deleted {'with' if self.log else 'without'} its log")
        with sandbox(folder, material.machine) as home:
            tuning = Tuning(home, material, outcome, self.seed)
            process = tuning.start()
            reached = process.reached("append", self.count)
            outcome.require(reached, Kind.OTHER, f"there was no append {self.count}")
            now = time.monotonic()
            home.database.unlink(missing_ok=True)
            for suffix in ("-wal", "-shm") if self.log else ():
                home.database.with_name(home.database.name + suffix).unlink(missing_ok=True)
            # A transaction may have been under way. What is committed later must be in a database that can be found.
            since = now + 0.5
            end = process.wait()
            tuning.check_run(end, [0], since=since)
            tuning.finish(since=since)
        return outcome


@dataclass(frozen=True)
class Postgres:
    """A PostgreSQL server stops to answer.

    Args:
        count: The append at which it stops.
        seconds: For how long.
        seed: The seed of the search.
    """

    count: int
    seconds: float
    seed: int

    def run(self, folder: Path) -> Outcome:
        outcome = Outcome("PostgreSQL stops answering")
        try:
            with server() as running:
                self._tune(folder, outcome, running)
        except Unavailable as error:
            outcome.skipped = str(error)
        return outcome

    def _tune(self, folder: Path, outcome: Outcome, running: Server) -> None:
        material = shared()
        with sandbox(folder, material.machine) as home:
            words = material.tune(home, "--seed", self.seed, "--resume", "--db", running.url)
            process = home.stormdrop(*words)
            outcome.require(process.reached("append", self.count), Kind.OTHER, f"there was no append {self.count}")
            running.stop()
            _wait(process, self.seconds)
            running.go_on()
            check_end(outcome, process.wait(), [0])
            home.check_left(outcome)
            oracle.check_artifact(outcome, home, material.expected, required=True)
            check_end(outcome, home.stormdrop(*words).wait(), [0], "the second run")
            oracle.check_measured_once(outcome, home.log)


def runs(rng: random.Random) -> Iterator[Case]:
    """Of twelve runs ten have failing system calls; one has a locked database, and one a deleted one, or a server."""
    while True:
        for position in range(12):
            seed = rng.randrange(1000)
            if position == 0:
                yield Locked(rng.randint(1, 8), rng.choice([2.0, 15.0, _LONGEST_LOCK]), seed)
            elif position == 1:
                others: list[Case] = [Deleted(rng.randint(1, 8), rng.random() < 0.5, seed), Postgres(2, 20.0, seed)]
                yield rng.choice(others)
            else:
                place = rng.choice(["database", "database", "artifact"])
                call = rng.choice(["write", "write", "write", "sync", "create"])
                highest = {"write": 80, "sync": 10, "create": 3}[call] if place == "database" else 4
                yield Fault(
                    place=place,
                    error=rng.choice(_ERRORS),
                    call=call,
                    at=rng.randint(1, highest),
                    count=rng.choice([0, 0, 1, 5]),
                    older=rng.random() < 0.5,
                    seed=seed,
                )
