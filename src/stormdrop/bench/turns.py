"""Contenders take turns on a machine that nobody else measures on.

In each round, every contender warms up and is then timed. Each round begins with another contender, so that the order
favours none of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from ..machine.sharing.lock import MachineLock
from ..measure.timing import TimingPlan
from .contender_process import ContenderProcess

TURN = TimingPlan(repeats=5, sample_seconds=10e-3)
"""How a contender is timed in its turn, unless a caller has another plan."""


@dataclass(frozen=True)
class RoundTimes:
    """The times of contenders that took turns.

    Attributes:
        seconds: `seconds[i][r]` is the time of contender `i` in round `r`: the median of the samples of its turn, in
            seconds per execution.
        disturbed: In how many of the rounds something else used the machine.
    """

    seconds: list[list[float]]
    disturbed: int


def silent(phase: str) -> None:
    """Tells nobody what is done."""


def take_turns(
    processes: Sequence[ContenderProcess],
    rounds: int,
    plan: TimingPlan = TURN,
    on_phase: Callable[[str], None] = silent,
    whole_calls: bool = False,
) -> RoundTimes:
    """Times contenders in turns, one round at a time under the machine-wide lock.

    A round that foreign load disturbed is measured again, at most `rounds` times in all. Its effect would not cancel
    in a ratio: a competitor for the cores hurts one thread pool more than another, and a spinning barrier can become
    ten times slower.

    Args:
        processes: The contenders.
        rounds: The number of rounds.
        plan: How a contender is timed in its turn.
        on_phase: Is told which round begins.
        whole_calls: On a GPU: whether copies from and to this machine are timed, too.

    Raises:
        MeasureError: A contender failed, or its process died.
    """
    seconds: list[list[float]] = [[] for _ in processes]
    disturbed, retries, first, retried = 0, rounds, 0, False
    with closing(MachineLock()) as lock:
        while len(seconds[0]) < rounds:
            again = ", again because of other load" if retried else ""
            on_phase(f"round {len(seconds[0]) + 1} of {rounds}{again}")
            with lock.exclusive():
                times, suspect = _one_round(processes, first, plan, whole_calls)
            first += 1
            retried = suspect and retries > 0
            if retried:
                retries -= 1
                continue
            disturbed += suspect
            for contender_seconds, time in zip(seconds, times, strict=True):
                contender_seconds.append(time)
    return RoundTimes(seconds, disturbed)


def _one_round(
    processes: Sequence[ContenderProcess], first: int, plan: TimingPlan, whole_calls: bool
) -> tuple[list[float], bool]:
    """One turn of each contender, beginning with number `first`: their times, and whether any turn was disturbed."""
    times = [0.0] * len(processes)
    disturbed = False
    for position in range(len(processes)):
        index = (first + position) % len(processes)
        samples, suspect = processes[index].take_turn(plan, whole_calls)
        times[index] = statistics.median(samples)
        disturbed = disturbed or suspect
    return times, disturbed
