"""kill -9 at a random instant of a model's tuning, up to three times before it is resumed to its end."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from contract import Outcome
from disturbed import Tuning
from material import shared
from sandbox import sandbox

RUNS = 200


@dataclass(frozen=True)
class Kills:
    """Some kills.

    Args:
        fractions: When each comes, as a share of the time of an undisturbed run.
        group: Whether the whole group is killed, or the parent alone.
        older: Whether an older artifact is there.
        seed: The seed of the search.
    """

    fractions: tuple[float, ...]
    group: bool
    older: bool
    seed: int

    def run(self, folder: Path) -> Outcome:
        material = shared()
        outcome = Outcome(f"{len(self.fractions)} x kill -9 of the {'group' if self.group else 'parent'}")
        with sandbox(folder, material.machine) as home:
            tuning = Tuning(home, material, outcome, self.seed, self.older)
            for fraction in self.fractions:
                process = tuning.start()
                time.sleep(fraction * material.seconds)
                if self.group:
                    process.kill_group()
                else:
                    process.popen.kill()
                tuning.kills += 1
                tuning.check_run(process.wait(), [-signal.SIGKILL, 0], killed=True)
            tuning.finish()
        return outcome


def runs(rng: random.Random) -> Iterator[Kills]:
    """Random instants."""
    while True:
        count = rng.choice([1, 1, 2, 3])
        yield Kills(
            tuple(1.1 * rng.random() for _ in range(count)), rng.random() < 0.5, rng.random() < 0.5, rng.randrange(1000)
        )
