"""The machine-wide lock: its holder is stopped or killed, something else is in its place, many processes want it."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import oracle
from contract import Case, Kind, Outcome
from disturbed import Tuning
from material import shared
from sandbox import INSIDE, Process, Sandbox, check_end, sandbox

RUNS = 60

_LOCK = "stormdrop.lock"
_FILES = (_LOCK, f"{_LOCK}.gate")
_TELL_AFTER = 5.0  # seconds of waiting after which the user must have been told


@dataclass(frozen=True)
class Holder:
    """Another process holds the lock, and is stopped or killed.

    Args:
        file: The lock file.
        stopped: Seconds for which it is stopped; 0 if it is killed.
        seconds: Seconds until then, and seconds for which it holds the lock afterwards.
        seed: The seed of the search.
    """

    file: str
    stopped: float
    seconds: float
    seed: int

    def run(self, folder: Path) -> Outcome:
        material, outcome = shared(), Outcome(f"the holder of {self.file} is {'stopped' if self.stopped else 'killed'}")
        with sandbox(folder, material.machine) as home:
            total = 2 * self.seconds + self.stopped
            holder = home.start([INSIDE / "lock_holder.py", home.temporary / self.file, str(total)])
            _wait_until_held(home)
            tuning = Tuning(home, material, outcome, self.seed)
            process = tuning.start()
            time.sleep(self.seconds)
            if self.stopped:
                holder.popen.send_signal(signal.SIGSTOP)
                begin = _waiting_since(process)
                time.sleep(self.stopped)
                told = f"process {holder.popen.pid}" in (home.folder / "process2.err").read_text()
                waited = 0.0 if begin is None else time.monotonic() - begin
                if process.running and waited > 2 * _TELL_AFTER:
                    outcome.require(told, Kind.OTHER, f"nobody was told who holds the lock in {waited:.0f} s")
                holder.popen.send_signal(signal.SIGCONT)
            else:
                holder.popen.kill()
            holder.popen.wait()
            tuning.check_run(process.wait(), [0])
            tuning.finish()
            _check_exclusive(outcome, home.log)
        return outcome


def _wait_until_held(home: Sandbox) -> None:
    end = time.monotonic() + 20
    while "held" not in (home.folder / "process1.out").read_text():
        if time.monotonic() > end:
            raise RuntimeError("the lock cannot be held")
        time.sleep(0.02)


def _waiting_since(process: Process) -> float | None:
    """When the tuning began to search, if it holds no lock since."""
    log = process.log
    return log[-1]["time"] if log and log[-1].get("instant") == "search" else None


@dataclass(frozen=True)
class InItsPlace:
    """Something else than a regular file is in the place of a lock file.

    Args:
        file: The lock file.
        what: "link", "dangling link", "pipe" or "folder".
        seed: The seed of the search.
    """

    file: str
    what: str
    seed: int

    def run(self, folder: Path) -> Outcome:
        material, outcome = shared(), Outcome(f"a {self.what} in the place of {self.file}")
        with sandbox(folder, material.machine) as home:
            path, victim = home.temporary / self.file, home.folder / "victim"
            if self.what == "link":
                victim.write_text("untouched")
                victim.chmod(0o600)
            _put(path, self.what, victim)
            tuning = Tuning(home, material, outcome, self.seed)
            end = tuning.start().wait()
            check_end(outcome, end, [1])
            outcome.require(str(path) in end.errors, Kind.OTHER, f"the message does not name {path.name}")
            if self.what == "link":
                same = victim.read_text() == "untouched" and victim.stat().st_mode & 0o777 == 0o600
                outcome.require(same, Kind.WRONG, "the file behind the link was changed")
            if self.what == "dangling link":
                outcome.require(not victim.exists(), Kind.WRONG, "the file behind the link was made")
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()
            tuning.finish()
        return outcome


def _put(path: Path, what: str, victim: Path) -> None:
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to(victim)


@dataclass(frozen=True)
class Many:
    """Eight processes tune at once. No kernel runs beside another one, nor beside a compilation.

    Args:
        count: How many.
        seed: The seed of the first one.
    """

    count: int
    seed: int

    def run(self, folder: Path) -> Outcome:
        material, outcome = shared(), Outcome(f"{self.count} processes at once")
        with sandbox(folder, material.machine) as home:
            command = ["tune-op", "matmul", "m=32", "n=32", "k=32", "--search", "random", "--trials", "3"]
            processes = [
                home.stormdrop(
                    *command, "--db", home.database, "--seed", self.seed + index, "--fresh", "--json", limit=300
                )
                for index in range(self.count)
            ]
            ends = [process.wait() for process in processes]
            for end in ends:
                check_end(outcome, end, [0])
            home.check_left(outcome)
            oracle.check_integrity(outcome, home.database)
            rows = oracle.trials(home.database)
            oracle.check_acknowledged(outcome, home.log, rows)
            oracle.check_statuses(outcome, rows)
            _check_exclusive(outcome, home.log)
        return outcome


def _check_exclusive(outcome: Outcome, log: list[dict[str, Any]]) -> None:
    """Checks that whoever held the lock exclusively was alone. A killed process gives it back with its end."""
    holders: dict[int, str] = {}
    for line in sorted((line for line in log if line["event"] in ("hold", "release")), key=lambda line: line["time"]):
        if line["event"] == "release":
            holders.pop(line["pid"], None)
            continue
        others = {pid: kind for pid, kind in holders.items() if pid != line["pid"]}
        alone = not others if line["kind"] == "exclusive" else "exclusive" not in others.values()
        outcome.require(alone, Kind.WRONG, f"the lock is {line['kind']} beside {sorted(others.values())}")
        holders[line["pid"]] = line["kind"]


def runs(rng: random.Random) -> Iterator[Case]:
    """Of ten runs four have a holder, five something in the lock's place, and one many processes."""
    while True:
        for what in ("link", "dangling link", "pipe", "folder", rng.choice(["link", "pipe"])):
            yield InItsPlace(rng.choice(_FILES), what, rng.randrange(1000))
        for stopped in (0.0, 0.0, 12.0, 15.0 + 10 * rng.random()):
            yield Holder(rng.choice(_FILES), stopped, 1 + 5 * rng.random(), rng.randrange(1000))
        yield Many(8, rng.randrange(1000))
