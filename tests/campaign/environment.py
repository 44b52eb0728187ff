"""Surroundings that a program does not expect: no home, one core, little memory, a clock that is set, no space."""

from __future__ import annotations

import errno
import os
import random
import resource
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract import Outcome
from disturbed import Tuning
from material import shared
from sandbox import check_end, sandbox
from storage import library

RUNS = 40

_GIGABYTE = 1 << 30
_DAY = 86400

_UNKNOWN_USER = """
import pwd

def unknown(number):
    raise KeyError(f"getpwuid(): uid not found: {number}")

pwd.getpwuid = unknown
from stormdrop.cli import main

main()
"""
"""Runs a command as a user that the system does not know, as in some containers."""


@dataclass(frozen=True)
class Surroundings:
    """One kind of surroundings.

    Args:
        name: What is unusual.
        codes: The exit codes that are right.
        seed: The seed of the search.
        variables: Variables that are set, or with None taken away.
        library: Whether the library is needed that makes system calls fail.
        before: Is called in the process before the program begins.
        cores: Whether `before` changes the number of cores. To others no record of this one applies.
    """

    name: str
    codes: tuple[int, ...]
    seed: int
    variables: Mapping[str, str | None]
    library: bool = False
    before: Callable[[], None] | None = None
    cores: bool = False

    def run(self, folder: Path) -> Outcome:
        outcome = Outcome(self.name)
        built = library() if self.library else ""
        if self.library and isinstance(built, str):
            outcome.skipped = built
            return outcome
        material = shared()
        with sandbox(folder, material.machine) as home:
            variables = {
                name: value and value.replace("TMP", str(home.temporary)) for name, value in self.variables.items()
            }
            if self.library:
                variables["LD_PRELOAD"] = str(built)
            tuning = Tuning(home, material, outcome, self.seed)
            end = tuning.start(environment=variables, before=self.before).wait()
            outcome.notes["code"] = end.code
            tuning.check_run(end, self.codes)
            same_machine: dict[str, Any] = {"before": self.before} if self.cores else {}
            tuning.finish(**same_machine)
        return outcome


@dataclass(frozen=True)
class DefaultDatabase:
    """No home, no --db, and a user that the system does not know: there is no place for records."""

    def run(self, folder: Path) -> Outcome:
        outcome = Outcome("no home and no --db")
        with sandbox(folder, shared().machine) as home:
            variables = dict.fromkeys(("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "USER", "LOGNAME"))
            end = home.start(["-c", _UNKNOWN_USER, "db", "list"], environment=variables).wait()
            check_end(outcome, end, [2])
            home.check_left(outcome)
        return outcome


def _one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _one_gigabyte() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_GIGABYTE, _GIGABYTE))


def runs(rng: random.Random) -> Iterator[Surroundings | DefaultDatabase]:
    """All kinds in turns."""
    full = {"FAULT_MATCH": "TMP", "FAULT_ERRNO": str(errno.ENOSPC), "FAULT_AT": "1", "FAULT_FOR": "0"}
    while True:
        seed = rng.randrange(1000)
        yield Surroundings("no HOME", (0,), seed, dict.fromkeys(("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME")))
        yield DefaultDatabase()
        yield Surroundings("one core", (0,), seed, {}, before=_one_core, cores=True)
        yield Surroundings("1 GB of memory", (0, 1, 2), seed, {}, before=_one_gigabyte)
        jump = str(rng.choice([-1, 1]) * rng.choice([3, 3600, _DAY, 400 * _DAY]))
        yield Surroundings("the clock is set back and forth", (0,), seed, {"CLOCK_JUMP": jump}, library=True)
        # The lock's files are there, because another tuning has made them, and nothing else can be written.
        yield Surroundings("a full temporary folder", (0, 1, 2), seed, {**full, "FAULT_CALL": "write"}, library=True)
        yield Surroundings(
            "a temporary folder in which nothing can be made",
            (0, 1, 2),  # with 0 there is another one
            seed,
            {**full, "FAULT_CALL": "create"},
            library=True,
        )
        yield Surroundings("a temporary folder that is not there", (0, 1, 2), seed, {"TMPDIR": "TMP/none"})
