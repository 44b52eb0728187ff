"""The cores of this process, shared out to the calls of models that are in progress at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_LOOK = 0.1
"""Seconds between two looks of a call that waits. A call that an interrupt has ended may not have notified it."""


class CoreShares:
    """Gives each call some of the cores, so that all calls together have no more threads than there are cores.

    A call that is alone has as many cores as it wants. Several calls that are in progress or wait share the cores out
    equally. A call waits only if no core is free. Threads may use one object at the same time.

    Ctrl-C at any point loses no core. A `finally` alone does not ensure this, as an interrupt may come when the
    function that gives the cores back has just begun. So each call holds a lock, which Python's interpreter releases
    whatever happens, and a call whose lock is released has no cores.

    Args:
        cores: The number of cores.

    Example:
        >>> shares = CoreShares(4)
        >>> shares.call(4, lambda alone: alone)
        4
        >>> shares.call(1, lambda first: shares.call(4, lambda second: second))
        2
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        # The cores of each call that is in progress or, with none yet, waits. A call is known by its lock.
        self._shares: dict[threading.Lock, int] = {}
        self._lock = threading.RLock()
        self._freed = threading.Condition(self._lock)

    def call(self, most: int, function: Callable[..., T], *arguments: Any) -> T:
        """Calls a function that uses a share of the cores.

        Args:
            most: The most cores that the function can use.
            function: Gets the number of cores that it has, from 1 to `most`, and the arguments.
            arguments: What else it gets.

        Returns:
            What the function returns.

        Raises:
            Exception: Whatever the function raises.
        """
        call = threading.Lock()
        with call:
            try:
                return function(self._take(call, most), *arguments)
            finally:
                self._give(call)

    def _take(self, call: threading.Lock, most: int) -> int:
        with self._lock:
            self._shares[call] = 0
            alone = len(self._shares) == 1  # as nearly always: the shares need not be added up
            free = self._cores if alone else self._free() or self._wait()
            self._shares[call] = share = min(most, free, max(1, self._cores // len(self._shares)))
            return share

    def _wait(self) -> int:
        free = 0
        while not free:
            free = self._freed.wait_for(self._free, _LOOK)
        return free

    def _give(self, call: threading.Lock) -> None:
        """Gives the cores of a call back, as far as it has taken any."""
        with self._lock:
            self._shares.pop(call, None)
            if self._shares:
                self._freed.notify_all()  # an interrupted waiter may have been the one that was notified

    def _free(self) -> int:
        """The number of cores that no call has."""
        for ended in [call for call in self._shares if not call.locked()]:
            del self._shares[ended]
        return self._cores - sum(self._shares.values())
