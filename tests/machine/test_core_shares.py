from __future__ import annotations

import itertools
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from stormdrop.machine.core_shares import CoreShares


@pytest.mark.parametrize(("most", "share"), [(1, 1), (3, 3), (4, 4), (8, 4)])
def test_a_call_that_is_alone_has_what_it_wants(most: int, share: int) -> None:
    shares = CoreShares(4)
    for _ in range(2):
        with shares.taken(most) as taken:
            assert taken == share


def test_a_call_waits_until_a_core_is_free() -> None:
    shares, order = CoreShares(2), []

    def second() -> None:
        with shares.taken(2) as share:
            order.append(share)

    with shares.taken(2):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.05)
        order.append(0)
    thread.join(10)
    assert order == [0, 2]


@pytest.mark.parametrize("cores", [1, 2, 5])
def test_calls_never_have_more_than_all_cores_and_share_them_equally(cores: int) -> None:
    shares, lock = CoreShares(cores), threading.Lock()
    in_use, most_in_use, taken = 0, 0, []

    def call(seed: int) -> None:
        nonlocal in_use, most_in_use
        rng = random.Random(seed)
        for _ in range(50):
            with shares.taken(rng.randint(1, cores)) as share:
                with lock:
                    in_use += share
                    most_in_use = max(most_in_use, in_use)
                    taken.append(share)
                time.sleep(rng.random() * 1e-4)
                with lock:
                    in_use -= share

    with ThreadPoolExecutor(2 * cores + 2) as pool:
        list(pool.map(call, range(2 * cores + 2)))
    assert most_in_use == cores and min(taken) == 1
    with shares.taken(cores) as alone:
        assert alone == cores  # nothing is lost


def test_a_call_that_fails_gives_its_share_back() -> None:
    shares = CoreShares(2)
    with pytest.raises(KeyError), shares.taken(2):
        raise KeyError
    with shares.taken(2) as share:
        assert share == 2


def test_ctrl_c_at_any_line_loses_no_core() -> None:
    shares = CoreShares(2)
    for steps in itertools.count():
        left = steps

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal left
            if not frame.f_code.co_name.endswith("take") or event == "call":
                return trace
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            with shares.taken(2):
                break
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        with shares.taken(2) as share:
            assert share == 2, f"after {steps} steps"
    assert steps > 4


def test_an_interrupted_waiter_leaves_the_core_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    shares, waiting, done = CoreShares(1), threading.Semaphore(0), []
    wait_for = shares._freed.wait_for

    def interrupted(_: object) -> None:
        waiting.release()
        shares._freed.wait()
        raise KeyboardInterrupt

    def first() -> None:
        with pytest.raises(KeyboardInterrupt), shares.taken(1):
            done.append("first")

    def second() -> None:
        with shares.taken(1):
            done.append("second")

    with shares.taken(1):
        threads = [threading.Thread(target=work, daemon=True) for work in (first, second)]
        monkeypatch.setattr(shares._freed, "wait_for", interrupted)
        threads[0].start()
        assert waiting.acquire(timeout=10)
        monkeypatch.setattr(shares._freed, "wait_for", wait_for)
        threads[1].start()
        while len(shares._freed._waiters) < 2:  # type: ignore[attr-defined]
            time.sleep(0.001)
    for thread in threads:
        thread.join(10)
    assert done == ["second"]
