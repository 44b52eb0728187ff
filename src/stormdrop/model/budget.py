"""What a model's tuning may take, and what of it a kernel can count on."""

from __future__ import annotations

import math
import time as clock
from collections.abc import Sequence
from dataclasses import dataclass

_RESERVE = 0.15  # of a time budget: compiling and verifying come after the tuning
_RACES = 0.1  # of a time budget, for the last races of all kernels
_SURE = 0.4  # of a time budget, what kernels can count on


@dataclass(frozen=True)
class Budget:
    """What a model's tuning may take: candidates to measure, wall seconds from `begin` on; None is no bound."""

    trials: int | None
    seconds: float | None
    begin: float

    def sure(self, position: int, shares: Sequence[float]) -> tuple[int | None, float | None]:
        """Trials and seconds that the task at this position can count on, whatever the others do.

        The same in every run of the same model and budget: by this a record is judged.
        """
        trials = None if self.trials is None else max(1, self.trials // len(shares))
        return trials, None if self.seconds is None else self.seconds * _SURE * shares[position]

    @property
    def left(self) -> float:
        """Seconds left for searching."""
        return self.after(_RESERVE + _RACES)

    @property
    def left_to_measure(self) -> float:
        """Seconds left for searching and for the last races."""
        return self.after(_RESERVE)

    def after(self, share: float) -> float:
        """Seconds left where so much of the time is kept for what comes later."""
        return math.inf if self.seconds is None else self.begin + self.seconds * (1 - share) - clock.perf_counter()


def shares(efforts: Sequence[float]) -> list[float]:
    """Parts that sum up to 1: half in equal parts, half by effort, for a light kernel may still be badly scheduled."""
    total = max(sum(efforts), 1e-9)
    return [0.5 / len(efforts) + 0.5 * effort / total for effort in efforts]
