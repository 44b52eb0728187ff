from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from stormdrop.bench import closed_loop as loops
from stormdrop.bench.closed_loop import closed_loop


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


class Clock(threading.local):
    """A clock of each thread, which stands still except during a call."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def takes(self, seconds: float) -> Callable[[], None]:
        """A call that takes so long."""

        def call() -> None:
            self.now += seconds

        return call


def test_the_rate_is_that_of_littles_law(threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller whose calls take t seconds makes 1 / t calls per second, also if its last call ends after the time."""
    clock = Clock()
    monkeypatch.setattr(loops, "time", clock)
    each = [1 / 64, 1 / 32, 1 / 16, 1 / 8]
    times = closed_loop([clock.takes(seconds) for seconds in each], 9 / 16, threads)
    assert times.rate == 64 + 32 + 16 + 8
    assert sorted(times.seconds) == [1 / 64] * 36 + [1 / 32] * 18 + [1 / 16] * 9 + [1 / 8] * 5


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
