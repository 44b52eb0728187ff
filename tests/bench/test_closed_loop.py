from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from stormdrop.bench.closed_loop import closed_loop


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def test_callers_call_at_the_same_time(threads: ThreadPoolExecutor) -> None:
    inside, most, lock = 0, 0, threading.Lock()

    def call() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.01)
        with lock:
            inside -= 1

    times = closed_loop([call] * 4, 0.2, threads)
    assert most == 4
    assert min(times.seconds) >= 0.01
    assert times.rate <= 400
    assert times.rate == pytest.approx(4 / (sum(times.seconds) / len(times.seconds)), rel=0.5)  # Little's law


def test_a_single_caller_is_the_calling_thread(threads: ThreadPoolExecutor) -> None:
    seen = set()
    closed_loop([lambda: seen.add(threading.get_ident())], 0.01, threads)
    assert seen == {threading.get_ident()}


def test_a_slow_call_is_waited_for(threads: ThreadPoolExecutor) -> None:
    times = closed_loop([lambda: time.sleep(0.1)] * 2, 0.01, threads)
    assert len(times.seconds) == 2 and min(times.seconds) >= 0.1


@pytest.mark.parametrize("good", [0, 3], ids=["at the first call", "later"])
def test_a_call_that_fails_ends_all(threads: ThreadPoolExecutor, good: int) -> None:
    left = good

    def fails() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise ZeroDivisionError

    begin = time.perf_counter()
    with pytest.raises(ZeroDivisionError):
        closed_loop([lambda: time.sleep(0.001), fails], 30.0 if good == 0 else 0.5, threads)
    assert time.perf_counter() - begin < 25
    assert len(closed_loop([lambda: time.sleep(0.001)] * 4, 0.02, threads).seconds) >= 4, "the threads are free again"
