"""What a model's tuning may take, and the part of it that each task is guaranteed."""

from __future__ import annotations

import math
import time as clock
from collections.abc import Sequence
from dataclasses import dataclass

from ...tuning.race import RACE_SECONDS

CHECKS = 0.05
"""The share of a time budget that the last verification and the last timing take."""

_RESERVE = 0.15  # of a time budget: compiling and verifying come after the tuning, if nobody knows what they take
_BUILDS = 1.5  # of the model: that of the winners, and of what other finalists have in place of them
_MOST_RESERVE = 0.3  # of a time budget, however long compiling takes
_RACES = 0.1  # of a time budget: the last races of all tasks
_GUARANTEED = 0.4  # of a time budget: what the tasks are guaranteed together
_RACE_START = 0.7  # seconds, about, until a race begins: its kernels are built in one worker
_SHORTEST_RACE = 0.1  # seconds
_FAIR_RACE = 0.3  # seconds: if there are too many tasks, the lightest have no race, so that each race has this much


@dataclass(frozen=True)
class Budget:
    """What a model's tuning may take.

    Attributes:
        trials: The most candidates to measure; None is no bound.
        seconds: The most wall seconds; None is no bound.
        begin: When the seconds began to count, a reading of `time.perf_counter`.
        build_seconds: Seconds that compiling the model takes; None if that is not known.
        verify_seconds: Seconds that verifying it takes.
    """

    trials: int | None
    seconds: float | None
    begin: float
    build_seconds: float | None = None
    verify_seconds: float = 0.0

    def guaranteed(self, position: int, shares: Sequence[float]) -> tuple[int | None, float | None]:
        """Trials and seconds that the task at this position is guaranteed, whatever the others do.

        They are equal in every run of the same model and budget, because the choice of records depends on them.
        """
        trials = None if self.trials is None else max(1, self.trials // len(shares))
        return trials, None if self.seconds is None else self.seconds * _GUARANTEED * shares[position]

    @property
    def elapsed(self) -> float:
        """Wall seconds since the beginning."""
        return clock.perf_counter() - self.begin

    @property
    def left(self) -> float:
        """Seconds left for searching."""
        return self.left_to_measure - (0.0 if self.seconds is None else _RACES * self.seconds)

    @property
    def left_to_measure(self) -> float:
        """Seconds left for searching and for the last races."""
        if self.seconds is None:
            return math.inf
        expected = _RESERVE * self.seconds
        if self.build_seconds is not None:
            expected = _BUILDS * self.build_seconds + self.verify_seconds + CHECKS * self.seconds
        return self.seconds - min(expected, _MOST_RESERVE * self.seconds) - self.elapsed

    def left_before(self, share: float) -> float:
        """Seconds left, without the share of the whole time that is kept for what comes later."""
        return math.inf if self.seconds is None else self.seconds * (1 - share) - self.elapsed

    def race_seconds(self, tasks: int) -> float:
        """Seconds of the next race, if this number of tasks still race; 0 if no time is left for one.

        If the time is not enough for all, those that race first have the longest races.
        """
        if self.seconds is None:
            return RACE_SECONDS
        return race_share(self.left_to_measure, tasks)


def race_share(left: float, tasks: int) -> float:
    """The seconds for which one of `tasks` tasks may race, if `left` seconds are left for all of them."""
    racing = max(1, min(tasks, int(left / (_RACE_START + _FAIR_RACE))))
    own = left / racing - _RACE_START
    return 0.0 if own < _SHORTEST_RACE else min(own, RACE_SECONDS)


def shares(efforts: Sequence[float]) -> list[float]:
    """The share of each task; their sum is 1.

    One half is shared out equally and the other by effort, because a light kernel may still be badly scheduled.
    """
    total = max(sum(efforts), 1e-9)
    return [0.5 / len(efforts) + 0.5 * effort / total for effort in efforts]
