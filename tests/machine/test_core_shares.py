from __future__ import annotations

import contextlib
import itertools
import linecache
import random
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from stormdrop.machine.sharing import core_shares
from stormdrop.machine.sharing.core_shares import CoreShares


@pytest.mark.parametrize(("most", "share"), [(1, 1), (3, 3), (4, 4), (8, 4)])
def test_a_call_that_is_alone_has_what_it_wants(most: int, share: int) -> None:
    shares = CoreShares(4)
    for _ in range(2):
        assert _all_of(shares, most) == share


def _all_of(shares: CoreShares, most: int) -> int:
    """The cores that a call gets which is alone."""
    return shares.call(most, lambda share: share)


def test_a_call_waits_until_a_core_is_free() -> None:
    shares, order = CoreShares(2), list[int]()

    def first(_: int) -> None:
        thread.start()
        time.sleep(0.05)
        order.append(0)

    thread = threading.Thread(target=shares.call, args=(2, order.append))
    shares.call(2, first)
    thread.join(10)
    assert order == [0, 2]


@pytest.mark.parametrize("cores", [1, 2, 5])
def test_calls_never_have_more_than_all_cores_and_share_them_equally(cores: int) -> None:
    shares, lock = CoreShares(cores), threading.Lock()
    in_use, most_in_use, taken = 0, 0, []

    def call(seed: int) -> None:
        rng = random.Random(seed)

        def use(share: int) -> None:
            nonlocal in_use, most_in_use
            with lock:
                in_use += share
                most_in_use = max(most_in_use, in_use)
                taken.append(share)
            time.sleep(rng.random() * 1e-4)
            with lock:
                in_use -= share

        for _ in range(50):
            shares.call(rng.randint(1, cores), use)

    with ThreadPoolExecutor(2 * cores + 2) as pool:
        list(pool.map(call, range(2 * cores + 2)))
    assert most_in_use == cores and min(taken) == 1
    assert _all_of(shares, cores) == cores  # nothing is lost


def test_a_call_that_fails_gives_its_share_back() -> None:
    shares = CoreShares(2)
    with pytest.raises(ZeroDivisionError):
        shares.call(2, lambda share: share / 0)
    assert _all_of(shares, 2) == 2


def test_ctrl_c_at_any_line_loses_no_core() -> None:
    """Ctrl-C when each function begins, too: there Python looks for signals.

    It does not where a `with` begins or ends, if that calls no function of Python.
    """
    shares = CoreShares(2)
    for steps in itertools.count():
        with _InterruptAfter(steps) as lines:
            _all_of(shares, 2)
        _expect_all_are_free(shares)
        if lines.left >= 0:
            break
    assert steps > 12


class _InterruptAfter:
    """Raises `KeyboardInterrupt` in this thread after so many lines of `CoreShares`, and catches it.

    Attributes:
        left: How many lines are left; below 0 if it has been raised.
    """

    def __init__(self, lines: int) -> None:
        self.left = lines

    def __enter__(self) -> _InterruptAfter:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        sys.settrace(self._before)
        return kind is KeyboardInterrupt and self.left < 0

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        file, line = frame.f_code.co_filename, frame.f_lineno
        at_with = event == "line" and linecache.getline(file, line).lstrip().startswith("with ")
        if file != core_shares.__file__ or event not in ("call", "line") or at_with:
            return self._trace
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return self._trace


@pytest.mark.timeout(method="thread")  # the other method uses the same clock
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system sends no signals after a time")
def test_ctrl_c_at_any_time_loses_no_core() -> None:
    shares, delays = CoreShares(2), random.Random(0)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(300):
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, delays.uniform(1e-6, 2e-5))
                while True:
                    shares.call(2, lambda share: share)
            _expect_all_are_free(shares)
    finally:
        signal.signal(signal.SIGALRM, before)


def _expect_all_are_free(shares: CoreShares) -> None:
    """Expects it of two cores. If a call had kept one, another one would wait for ever, or get one core."""
    assert shares._free() == 2
    assert _all_of(shares, 2) == 2


def test_a_call_waits_for_none_that_was_interrupted_before_it_could_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    shares, waits, taken = CoreShares(1), threading.Event(), list[int]()
    give, free = shares._give, shares._free

    def interrupted(_: object) -> None:
        monkeypatch.setattr(shares, "_give", give)
        raise KeyboardInterrupt

    def hurried() -> int:
        if not (count := free()):
            waits.set()
        return count

    def first(_: int) -> None:
        thread.start()
        assert waits.wait(10)

    monkeypatch.setattr(shares, "_give", interrupted)
    monkeypatch.setattr(shares, "_free", hurried)
    thread = threading.Thread(target=shares.call, args=(1, taken.append), daemon=True)
    with pytest.raises(KeyboardInterrupt):
        shares.call(1, first)
    thread.join(10)
    assert taken == [1]


@pytest.mark.timeout(30)
def test_calls_wait_for_no_waiter_that_has_ended() -> None:
    """Ctrl-C may come when a call has given its cores back, and is not yet off the list of those that wait."""
    shares = CoreShares(2)
    shares._since[threading.Lock()] = time.monotonic() - 10 * core_shares.PATIENCE
    assert shares.call(1, lambda _: _all_of(shares, 2)) == 1
    assert not shares._since


def test_ctrl_c_at_any_line_of_a_call_that_waits_leaves_no_waiter() -> None:
    shares = CoreShares(1)
    for steps in itertools.count():
        holds, lines = threading.Event(), _InterruptAfter(steps)

        def hold(_: int, holds: threading.Event = holds, lines: _InterruptAfter = lines) -> None:
            holds.set()
            end = time.monotonic() + 10
            while not shares._since and lines.left >= 0 and time.monotonic() < end:
                time.sleep(1e-4)  # until the call waits, or its interruption has come

        holder = threading.Thread(target=shares.call, args=(1, hold))
        holder.start()
        assert holds.wait(10)
        with lines:
            assert _all_of(shares, 1) == 1
        holder.join(10)
        assert shares._free() == 1 and not shares._since
        if lines.left >= 0:
            break
    assert steps > 20


def test_an_interrupted_waiter_leaves_the_core_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    shares, waiting, done = CoreShares(1), threading.Semaphore(0), []
    wait_for = shares._freed.wait_for

    def interrupted(*_: object) -> None:
        waiting.release()
        shares._freed.wait()
        raise KeyboardInterrupt

    def first() -> None:
        with pytest.raises(KeyboardInterrupt):
            shares.call(1, lambda _: done.append("first"))

    def second() -> None:
        shares.call(1, lambda _: done.append("second"))

    def holding(_: int) -> None:
        monkeypatch.setattr(shares._freed, "wait_for", interrupted)
        threads[0].start()
        assert waiting.acquire(timeout=10)
        monkeypatch.setattr(shares._freed, "wait_for", wait_for)
        threads[1].start()
        while len(shares._freed._waiters) < 2:  # type: ignore[attr-defined]
            time.sleep(0.001)

    threads = [threading.Thread(target=work, daemon=True) for work in (first, second)]
    shares.call(1, holding)
    for thread in threads:
        thread.join(10)
    assert done == ["second"]


def test_a_call_that_has_waited_long_enough_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that calls again at once does not take the core that it has just given back."""
    monkeypatch.setattr(core_shares, "PATIENCE", 0.0)
    shares, order = CoreShares(1), list[str]()

    def first(_: int) -> None:
        order.append("first")
        for number, thread in enumerate(threads, 1):
            thread.start()
            while len(shares._since) < number:
                time.sleep(1e-3)

    threads = [threading.Thread(target=shares.call, args=(1, lambda _, n=name: order.append(n))) for name in "ab"]
    shares.call(1, first)
    shares.call(1, lambda _: order.append("again"))
    for thread in threads:
        thread.join(10)
    assert order == ["first", "a", "b", "again"]


def test_several_that_wait_begin_when_several_cores_are_free() -> None:
    shares, begun = CoreShares(2), threading.Barrier(3, timeout=10)

    def second(share: int) -> None:
        assert share == 1
        begun.wait()  # both are in progress

    def first(_: int) -> None:
        for thread in threads:
            thread.start()
        while len(shares._freed._waiters) < 2:  # type: ignore[attr-defined]
            time.sleep(1e-3)

    threads = [threading.Thread(target=shares.call, args=(2, second)) for _ in range(2)]
    shares.call(2, first)
    begun.wait()
    for thread in threads:
        thread.join(10)
