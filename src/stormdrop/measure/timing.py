"""Timing a callable: warm-up, then samples that are each the mean of a few executions.

On a CPU the loop (`wall`) is plain Python around `perf_counter`. A call through TVM's interface costs 0.1 microseconds
here; TVM's `time_evaluator` costs 0.3 ms to set up and executes once more per use.
Knows nothing of TVM, so that peers are timed by the same code.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat

Call = Callable[[], object]
Executions = Callable[[Call, int], float]
"""Mean seconds of so many executions, back to back."""

SAMPLE_SECONDS = 2e-3
"""A sample lasts at least this long, however short one execution is."""

LEAST_ROUNDS, MOST_ROUNDS = 3, 15
"""Rounds of a race."""

_SHORT = 1e-3  # seconds: below this one execution is too noisy to judge a kernel by
_CACHE_MATTERS = 20e-3  # seconds: below this an execution with cold caches is visibly slower
_LONG = 0.1  # seconds: from here on no execution is thrown away
_VERY_LONG = 1.0  # seconds: from here on not even the first


@dataclass(frozen=True)
class TimingPlan:
    """How to take samples: `repeats` of them, each of as many executions as fill `sample_seconds`.

    An execution slower than `cutoff` seconds marks the callable as hopeless: it gets one sample of one execution.
    """

    repeats: int = 3
    sample_seconds: float = SAMPLE_SECONDS
    cutoff: float | None = None


def rounds_within(turns: Sequence[float], seconds: float, least: int = LEAST_ROUNDS, most: int = MOST_ROUNDS) -> int:
    """The rounds that fit into a time.

    Args:
        turns: wall seconds of each turn of a round.
        seconds: wall seconds of all rounds.
        least: the fewest rounds, however long they take.
        most: the most rounds, however short they are.
    """
    return int(max(least, min(most, seconds / max(sum(turns), 1e-9))))


def wall(call: Call, number: int) -> float:
    """Mean wall seconds of `number` executions, back to back."""
    start = time.perf_counter()
    for _ in repeat(None, number):
        call()
    return (time.perf_counter() - start) / number


def sample(
    call: Call, plan: TimingPlan, first: float | None = None, executions: Executions = wall, least: int = 1
) -> list[float]:
    """Samples of a callable, in seconds per execution.

    `least` executions are the fewest that tell its speed; `first` is the duration of its first execution, where there
    was one already; without it, one is done here.
    """
    with _undisturbed():
        warm = executions(call, 1) if first is None else first
        once = warm if warm >= _VERY_LONG else _estimate(call, executions, least)
        samples = [once] if once >= _LONG else []
        if plan.cutoff is not None and once > plan.cutoff:
            return [once]
        number = _number(once, plan.sample_seconds)
        while len(samples) < plan.repeats:
            samples.append(executions(call, number))
        return samples


def interleaved(
    calls: Sequence[Call],
    rounds: int,
    sample_seconds: float = SAMPLE_SECONDS,
    executions: Executions = wall,
    least: int = 1,
) -> list[list[float]]:
    """Samples of several callables, taken in turns: entry `[i][r]` is the sample of `calls[i]` in round `r`.

    Every other round goes through them backwards, so that a drift of the machine's speed favours none. Each
    must have been executed before.
    """
    with _undisturbed():
        once = [_estimate(call, executions, least) for call in calls]
        numbers = [_number(seconds, sample_seconds) for seconds in once]
        samples: list[list[float]] = [[] for _ in calls]
        for turn in range(rounds):
            order = range(len(calls)) if turn % 2 == 0 else reversed(range(len(calls)))
            for index in order:
                if once[index] < _CACHE_MATTERS:
                    calls[index]()  # the callable before it has filled the caches with its own data
                samples[index].append(executions(calls[index], numbers[index]))
        return samples


def _estimate(call: Call, executions: Executions, least: int) -> float:
    """One execution; of short ones the best of three: waking a thread pool can take longer than the kernel."""
    once = executions(call, 1)
    return once if once >= _SHORT else min(once, *(executions(call, least) for _ in range(2)))


def _number(once: float, sample_seconds: float) -> int:
    return max(1, math.ceil(sample_seconds / max(once, 1e-7)))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No garbage collection between two executions."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
