"""Timing a callable: a warm-up, then samples, each of which is the mean of a few executions.

On a CPU the timer is `time_calls`, plain Python around `perf_counter`. A call through TVM's interface costs 0.1
microseconds here. TVM's `time_evaluator` costs 0.3 ms to set up, and executes the kernel once more per use.

This file knows nothing of TVM, so that peers are timed by the same code.
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
"""One execution of a kernel, of a peer, or of anything else that is timed."""

Timer = Callable[[Call, int], float]
"""Executes a call a number of times, back to back, and returns the mean seconds of one execution."""

SAMPLE_SECONDS = 2e-3
"""The seconds that a sample lasts at least. Short executions are repeated until they fill them."""

FEWEST_ROUNDS, MOST_ROUNDS = 3, 15
"""The bounds for the rounds of a race."""

_SHORT = 1e-3  # seconds: below this one execution is too noisy to judge a kernel by
_CACHE_MATTERS = 20e-3  # seconds: below this an execution with cold caches is visibly slower
_LONG = 0.1  # seconds: from here on the execution that estimates the duration is used as a sample
_VERY_LONG = 1.0  # seconds: from here on the warm-up is used as a sample


@dataclass(frozen=True)
class TimingPlan:
    """How the samples of a callable are taken.

    Args:
        repeats: How many samples are taken.
        sample_seconds: The seconds that the executions of one sample fill together.
        cutoff: Seconds of one execution. A callable that takes longer is hopeless and gets one sample of one
            execution. None is no bound.
    """

    repeats: int = 3
    sample_seconds: float = SAMPLE_SECONDS
    cutoff: float | None = None


def rounds_within(turns: Sequence[float], seconds: float, fewest: int = FEWEST_ROUNDS, most: int = MOST_ROUNDS) -> int:
    """The number of rounds that fit into a time.

    Args:
        turns: Wall seconds of each turn of a round.
        seconds: Wall seconds of all rounds together.
        fewest: The fewest rounds, however long they take.
        most: The most rounds, however short they are.

    Example:
        >>> rounds_within([0.05, 0.05], seconds=1.0)
        10
    """
    return int(max(fewest, min(most, seconds / max(sum(turns), 1e-9))))


def time_calls(call: Call, number: int) -> float:
    """The mean wall seconds of `number` executions, back to back."""
    start = time.perf_counter()
    for _ in repeat(None, number):
        call()
    return (time.perf_counter() - start) / number


def sample(
    call: Call, plan: TimingPlan, first: float | None = None, timer: Timer = time_calls, fewest: int = 1
) -> list[float]:
    """Takes samples of one callable.

    Args:
        call: The callable.
        plan: How many samples, and how long each.
        first: Seconds of an execution that was done before; if None, the callable is executed once to warm up.
        timer: Times some executions.
        fewest: The fewest executions, back to back, that tell how fast the callable is.

    Returns:
        The samples in seconds per execution: `plan.repeats` of them, or one if the callable is hopeless.
    """
    with _no_garbage_collection():
        warm = timer(call, 1) if first is None else first
        once = warm if warm >= _VERY_LONG else _estimate(call, timer, fewest)
        samples = [once] if once >= _LONG else []
        if plan.cutoff is not None and once > plan.cutoff:
            return [once]
        number = _executions_per_sample(once, plan.sample_seconds)
        while len(samples) < plan.repeats:
            samples.append(timer(call, number))
        return samples


def interleaved(
    calls: Sequence[Call],
    rounds: int,
    sample_seconds: float = SAMPLE_SECONDS,
    timer: Timer = time_calls,
    fewest: int = 1,
) -> list[list[float]]:
    """Takes samples of several callables in turns.

    Every second round goes through the callables backwards, so that a drift of the machine's speed favours none.

    Args:
        calls: The callables. Each must have been executed before.
        rounds: How many samples are taken of each.
        sample_seconds: The seconds that the executions of one sample fill together.
        timer: Times some executions.
        fewest: The fewest executions, back to back, that tell how fast a callable is.

    Returns:
        The samples in seconds per execution: entry `[i][r]` is the sample of `calls[i]` in round `r`.
    """
    with _no_garbage_collection():
        once = [_estimate(call, timer, fewest) for call in calls]
        numbers = [_executions_per_sample(seconds, sample_seconds) for seconds in once]
        samples: list[list[float]] = [[] for _ in calls]
        for turn in range(rounds):
            order = range(len(calls)) if turn % 2 == 0 else reversed(range(len(calls)))
            for index in order:
                if once[index] < _CACHE_MATTERS:
                    calls[index]()  # the callable before it has filled the caches with its own data
                samples[index].append(timer(calls[index], numbers[index]))
        return samples


def _estimate(call: Call, timer: Timer, fewest: int) -> float:
    """The seconds of one execution.

    A short callable gets three tries, of which the best counts: waking a thread pool can take longer than the kernel.
    """
    once = timer(call, 1)
    return once if once >= _SHORT else min(once, *(timer(call, fewest) for _ in range(2)))


def _executions_per_sample(once: float, sample_seconds: float) -> int:
    return max(1, math.ceil(sample_seconds / max(once, 1e-7)))


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Garbage is not collected between two executions."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
