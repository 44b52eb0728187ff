"""Which thread the kernels of a call run in: the calling thread if it goes on calling, else one that is kept.

TVM gives every thread that calls it a pool of threads of its own. Pools of threads that end with their first call would
cost more than the call, and those of a thousand threads that are there at one time would fill the machine. So few
threads get a pool:

- the main thread, from its first call on;
- another thread after `SHORT` calls, while fewer than `POOLS` such threads are alive;
- executors, which run the calls of all others. There are as many as there were such calls at one time, and `CoreShares`
  lets no more calls run at one time than there are cores.

To hand a call over takes some 20 us. A thread that keeps calling, as that of a server, does so a few times only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

SHORT = 16
"""Calls of a thread that executors run before the thread gets a pool of its own."""

POOLS = 16
"""Threads, besides the main thread and the executors, that have a pool at one time, at most."""

_free = [None] * POOLS  # an element for each pool that a thread may still have; lists are safe between threads


class _Seat:
    """The right of a thread to have a pool. It ends with the thread, whose local variables it is one of."""

    def __del__(self) -> None:
        _free.append(None)


class _Caller(threading.local):
    """What is known of the thread that asks for it."""

    def __init__(self) -> None:
        self.calls = 0
        self.seat: object | None = object() if threading.current_thread() is threading.main_thread() else None

    def takes_seat(self) -> bool:
        """Counts a call of a thread without a seat, and takes one if it has called often and one is free."""
        self.calls += 1
        if self.calls <= SHORT:
            return False
        try:
            _free.pop()
        except IndexError:
            return False
        self.seat = _Seat()
        return True


class _Executor:
    """A thread that runs functions for others, one at a time. It ends with the process."""

    def __init__(self) -> None:
        self._begun, self._ended = threading.Lock(), threading.Lock()
        self._begun.acquire()
        self._ended.acquire()
        self._function: Callable[[], Any] | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        threading.Thread(target=self._serve, name="stormdrop-calls", daemon=True).start()

    def run(self, function: Callable[[], T]) -> T:
        """What a function returns, or raises, in the thread."""
        self._function = function
        self._begun.release()
        self._ended.acquire()
        result, error = self._result, self._error
        self._function = self._result = self._error = None
        _idle.append(self)  # not before: a call that is interrupted while it waits leaves a thread that works
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def _serve(self) -> None:
        _caller.seat = self
        while self._begun.acquire():
            assert self._function is not None
            try:
                self._result = self._function()
            except BaseException as error:  # noqa: BLE001  it is raised again in the calling thread
                self._error = error
            self._ended.release()


_caller = _Caller()
_idle: list[_Executor] = []


def runs_kernels() -> bool:
    """Whether the calling thread has a pool, so that kernels may run in it. It is asked once for each call."""
    return _caller.seat is not None or _caller.takes_seat()


def run_elsewhere(function: Callable[[], T]) -> T:
    """Runs a function in an executor.

    Args:
        function: The function, which calls kernels.

    Returns:
        What it returns.

    Raises:
        Exception: Whatever the function raises.
    """
    try:
        executor = _idle.pop()
    except IndexError:
        executor = _Executor()
    return executor.run(function)
