"""Which thread runs a call: threads that end soon, and those of a crowd, make no threads of TVM's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stormdrop.machine.cpu import Cpu
from stormdrop.machine.threads import thread_count
from stormdrop.model.artifact import callers
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.artifact.callers import POOLS, SHORT, run_elsewhere, runs_kernels
from stormdrop.model.building.compile import build
from stormdrop.model.graph.graph import Graph
from stormdrop.model.inputs.samples import random_feeds


@pytest.fixture(autouse=True)
def _no_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "_idle", [])


def in_thread(function: Callable[[], Any]) -> Any:
    """What a function returns in a thread of its own."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join(60)
    return results[0]


def run_kernels(function: Callable[[], Any]) -> Any:
    """What a function returns where kernels run."""
    return function() if runs_kernels() else run_elsewhere(function)


def who() -> Any:
    return run_kernels(threading.get_ident)


def test_the_main_thread_runs_its_own_calls() -> None:
    assert threading.current_thread() is threading.main_thread()
    assert who() == threading.get_ident()


def test_threads_that_end_soon_share_an_executor() -> None:
    ran = {in_thread(who) for _ in range(20)}
    assert len(ran) == 1 and threading.get_ident() not in ran


def test_a_thread_that_goes_on_calling_runs_its_own_calls() -> None:
    free = len(callers._free)

    def calls() -> list[bool]:
        own = [who() == threading.get_ident() for _ in range(SHORT + 5)]
        assert len(callers._free) == free - 1
        return own

    assert in_thread(calls) == [False] * SHORT + [True] * 5
    assert len(callers._free) == free, "its place is free after its end"


def test_no_more_threads_than_that_have_pools() -> None:
    together = POOLS + 4
    meeting, own = threading.Barrier(together, timeout=60), []

    def calls() -> None:
        results = [who() == threading.get_ident() for _ in range(SHORT + 1)]
        meeting.wait()  # all are alive
        own.append(results[-1])

    threads = [threading.Thread(target=calls) for _ in range(together)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(own) == POOLS and len(own) == together


def test_what_a_function_raises_arrives_and_the_executor_lives_on() -> None:
    def fails() -> None:
        raise KeyError("lost")

    def calls() -> int:
        with pytest.raises(KeyError, match="lost"):
            run_kernels(fails)
        return who()

    assert in_thread(calls) == in_thread(who)


def test_a_call_inside_of_a_call_stays_in_its_thread() -> None:
    assert len(set(in_thread(lambda: run_kernels(lambda: (threading.get_ident(), who()))))) == 1


@pytest.fixture(scope="module")
def model(residual: Graph, target: Cpu) -> CompiledModel:
    return build(residual, {}, target)


def tasks() -> int:
    """The threads of this process that the operating system knows."""
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.compiles
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the system does not list threads")
@pytest.mark.parametrize("together", [1, 50])
def test_short_lived_threads_leave_none_behind(model: CompiledModel, together: int) -> None:
    x = random_feeds(model.inputs, 1)["x"]
    expected = model(x)
    most = tasks() + thread_count() * thread_count()  # an executor for each core, with its pool
    most += together + 20  # threads that are joined and still on their way out
    wrong: list[int] = []

    def call() -> None:
        if not np.array_equal(model(x), expected):
            wrong.append(1)

    for _ in range(200 // together):
        threads = [threading.Thread(target=call) for _ in range(together)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert tasks() <= most
    assert not wrong
