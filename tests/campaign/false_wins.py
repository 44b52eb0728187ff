"""Identical kernels race, idle and beside load. Nothing can win, so each claimed win is a false one.

A race may claim a false win in 5% of all cases: that is the confidence of its decision.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from contract import Kind, Outcome
from material import shared
from sandbox import INSIDE, check_end, sandbox

RUNS = 1000

_KERNELS = (
    ("matmul", "m=64", "n=48", "k=32"),
    ("matmul", "m=256", "n=256", "k=256"),
    ("softmax", "m=128", "n=512"),
    ("elementwise", "shape=256x1024", "kind=relu"),
    ("conv2d", "n=1", "h=28", "w=28", "ci=32", "co=32", "kh=3", "kw=3", "stride=1", "pad=1", "layout=NHWC"),
)

_BUSY = "while True: pass"


@dataclass(frozen=True)
class Races:
    """Races of one kernel in one process.

    Args:
        kernel: The operator and its arguments.
        busy: Whether a process of one busy loop runs beside them.
        count: The number of races.
    """

    kernel: tuple[str, ...]
    busy: bool
    count: int = 10

    def run(self, folder: Path) -> Outcome:
        outcome = Outcome(f"{self.kernel[0]} {'beside load' if self.busy else 'idle'}", runs=self.count)
        with sandbox(folder, shared().machine) as home:
            load = home.start(["-c", _BUSY]) if self.busy else None
            end = home.start([INSIDE / "identical_kernels.py", str(self.count), *self.kernel]).wait()
            if load is not None:
                load.kill_group()
            check_end(outcome, end, [0])
            home.check_left(outcome)
        races = [json.loads(line) for line in end.output.splitlines() if line.startswith("{")]
        if end.code == 0:
            outcome.require(len(races) == self.count, Kind.LOST, f"{len(races)} of {self.count} races have a result")
        failed = [race for race in races if race["working"] == 0]
        outcome.require(not failed, Kind.WRONG, "identical kernels failed in a race")
        speedups = [race["speedup"] for race in races if race["speedup"] is not None]
        outcome.wins = len(speedups)
        outcome.notes["race"] = {"disturbed": sum(race["disturbed"] for race in races), "speedups": speedups}
        return outcome


def runs(rng: random.Random) -> Iterator[Races]:
    """All kernels, idle and beside load, in turns."""
    while True:
        for kernel in _KERNELS:
            for busy in (False, True):
                yield Races(kernel, busy)
