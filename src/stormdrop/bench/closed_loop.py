"""A closed loop: callers that call for some time, each of which calls again as soon as it has its answer.

This is the load of a server that is always asked by as many clients, and that of `trtexec` with as many streams. The
file knows nothing of TVM, so that peers are timed by the same code.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from ..measure.timing import Call

MOST_CALLS = 256
"""Calls at a time, at most: each has memory of its own."""

_WARM_UP = 0.1  # of a turn: threads are woken, and caches are filled again


@dataclass(frozen=True)
class LoopTimes:
    """What the callers of a turn have seen.

    Attributes:
        seconds: The latency of each call, in seconds.
        rate: Calls per second of all callers together.
    """

    seconds: Sequence[float]
    rate: float


def closed_loop(calls: Sequence[Call], seconds: float, executor: Executor) -> LoopTimes:
    """Lets each caller call for some time, after a warm-up of a tenth of it.

    A call that has begun is waited for, however long it takes: a loop that left it out would never see a slow one. The
    rate is the sum of those of the callers, each until the end of its own last call.

    Args:
        calls: What each caller calls.
        seconds: How long it begins new calls.
        executor: Its threads are the callers; it has one for each. A single caller is the calling thread.

    Raises:
        Exception: Whatever a call raises. The other callers end with their next call.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> with ThreadPoolExecutor(2) as threads:
        ...     times = closed_loop([lambda: time.sleep(0.02)] * 2, 0.1, threads)
        >>> len(times.seconds) >= 2 and min(times.seconds) >= 0.02
        True
    """
    together = threading.Barrier(len(calls))
    if len(calls) == 1:
        taken = [_caller(calls[0], seconds, together)]
    else:
        callers = [executor.submit(_caller, call, seconds, together) for call in calls]
        failures = [failure for caller in callers if (failure := caller.exception()) is not None]
        for failure in sorted(failures, key=lambda failure: isinstance(failure, threading.BrokenBarrierError)):
            raise failure  # not the error of those that waited for the one that failed
        taken = [caller.result() for caller in callers]
    rate = sum(len(latencies) / wall for latencies, wall in taken)
    return LoopTimes([latency for latencies, _ in taken for latency in latencies], rate)


def _caller(call: Call, seconds: float, together: threading.Barrier) -> tuple[Sequence[float], float]:
    """The latencies of one caller, and the seconds from its first call to the end of its last one."""
    latencies = array("d")  # holds no objects, so that the garbage collector has nothing to look at
    try:
        warm = time.perf_counter() + _WARM_UP * seconds
        call()
        while time.perf_counter() < warm:
            call()
        together.wait()
        begin = before = now = time.perf_counter()
        while now < begin + seconds and not together.broken:
            call()
            now = time.perf_counter()
            latencies.append(now - before)
            before = now
    except BaseException:
        together.abort()
        raise
    return latencies, now - begin
