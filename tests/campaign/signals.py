"""Signals to the parent, a worker or the whole group, at the instants of a model's tuning."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from contract import Kind, Outcome
from disturbed import Tuning
from material import shared
from sandbox import Process, sandbox

RUNS = 250

_INSTANTS = ("load", "import", "search", "append", "race", "compile", "verify", "save")
_WITH_WORKERS = ("append", "race")
_OCCURRENCES = {"search": 4, "append": 6, "race": 4}  # how often an instant occurs, at least
_SIGNALS = ("INT", "INT twice", "TERM", "HUP", "KILL", "STOP")
_WHOM = ("parent", "parent", "worker", "group")
_TWICE = 1.2  # seconds: signals within one second count as one


@dataclass(frozen=True)
class Signal:
    """One signal at one instant.

    Args:
        name: The signal. After STOP comes CONT.
        whom: "parent", "worker" or "group".
        instant: When, as the launcher calls it.
        count: The so-many-th time that the instant is reached.
        delay: Seconds after the instant.
        stopped: Seconds between STOP and CONT.
        older: Whether an older artifact is there.
        seed: The seed of the search.
    """

    name: str
    whom: str
    instant: str
    count: int
    delay: float
    stopped: float
    older: bool
    seed: int

    def run(self, folder: Path) -> Outcome:
        material = shared()
        outcome = Outcome(f"{self.name} to the {self.whom} at {self.instant}")
        with sandbox(folder, material.machine) as home:
            tuning = Tuning(home, material, outcome, self.seed, self.older)
            process = tuning.start()
            if process.reached(self.instant, self.count):
                time.sleep(self.delay)
                self._send(process, tuning)
            else:
                outcome.add(Kind.OTHER, f"{self.instant} was not reached {self.count} times: the shim sees it no more")
            end = process.wait()
            tuning.check_run(end, self._codes(end.complete), killed=self.name in ("KILL", "INT twice"))
            tuning.finish()
        return outcome

    def _send(self, process: Process, tuning: Tuning) -> None:
        number = getattr(signal, f"SIG{self.name.split()[0]}")
        if self.name != "STOP":
            tuning.kills += 1  # what was in flight is measured again
            # A worker that is told to end costs the candidate that it runs; Ctrl-C is for the parent.
            tuning.failures += self.whom != "parent" and self.name in ("TERM", "HUP", "KILL")
        targets = self._targets(process)
        for send in targets:
            send(number)
        if self.name == "INT twice":
            time.sleep(_TWICE)
            for send in targets:
                send(number)
        if self.name == "STOP":
            time.sleep(self.stopped)
            for send in targets:
                send(signal.SIGCONT)

    def _targets(self, process: Process) -> list[_Send]:
        if self.whom == "parent":
            return [_Send(process.popen.pid)]
        if self.whom == "group":
            return [_Send(process.popen.pid, group=True)]
        return [_Send(worker.pid) for worker in process.workers[:1]]

    def _codes(self, complete: bool) -> list[int]:
        if self.whom == "worker" or self.name == "STOP":
            return [0]
        if self.name == "KILL":
            return [-signal.SIGKILL, 0]  # it may have ended before
        number = getattr(signal, f"SIG{self.name.split()[0]}")
        # Once the result is printed the signal has its default action, which a shell also shows as 128 and its number.
        return [128 + number, 0, *([-number] if complete else [])]


@dataclass(frozen=True)
class _Send:
    pid: int
    group: bool = False

    def __call__(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            (os.killpg if self.group else os.kill)(self.pid, number)


def runs(rng: random.Random) -> Iterator[Signal]:
    """All signals to everybody at all instants, in a random order, again and again."""
    while True:
        grid = [(name, whom, instant) for name in _SIGNALS for whom in _WHOM for instant in _INSTANTS]
        rng.shuffle(grid)
        for name, whom, instant in grid:
            if whom == "worker" and instant not in _WITH_WORKERS:
                instant = rng.choice(_WITH_WORKERS)
            yield Signal(
                name=name,
                whom=whom,
                instant=instant,
                count=rng.randint(1, _OCCURRENCES.get(instant, 1)),
                delay=rng.choice([0.0, 0.3 * rng.random()]),
                stopped=0.2 + 1.5 * rng.random(),
                older=rng.random() < 0.5,
                seed=rng.randrange(1000),
            )
