"""The cores of this process, shared out to the calls of models that are in progress at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 2e-3
"""Seconds for which a call that waits lets later ones pass."""

_LOOK = 0.1
"""Seconds between two looks of a call that waits. A call that an interrupt has ended may not have notified it."""


class CoreShares:
    """Gives each call some of the cores, so that all calls together have no more threads than there are cores.

    A call that is alone has as many cores as it wants. Several calls that are in progress or wait share the cores out
    equally. A call waits only if no core is free, or if another one has waited for more than `PATIENCE` seconds.
    Threads may use one object at the same time.

    Without that patience a thread that calls again at once takes the core that it has just given back, before those
    that wait for it have woken up. They were passed over for a second and more. To hand a core over takes some 50 us,
    though: short calls pass others over for a moment, and few calls pay for it.

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
        self._since: dict[threading.Lock, float] = {}  # since when calls wait, on the monotonic clock
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
            free = self._cores if alone else self._free_for(call) or self._wait(call)
            self._shares[call] = share = min(most, free, max(1, self._cores // len(self._shares)))
            if self._since and share < free:
                self._freed.notify_all()  # the next one that waits was not the first when it looked
            return share

    def _wait(self, call: threading.Lock) -> int:
        self._since[call] = time.monotonic()
        free = 0
        while not free:
            free = self._freed.wait_for(lambda: self._free_for(call), _LOOK)
        del self._since[call]
        return free

    def _free_for(self, call: threading.Lock) -> int:
        """The number of cores that a call may have: none if one that came before it has waited long enough."""
        free = self._free()
        if free and self._since:
            first, since = next(iter(self._since.items()))
            if first is not call and time.monotonic() - since > PATIENCE:
                return 0
        return free

    def _give(self, call: threading.Lock) -> None:
        """Gives the cores of a call back, as far as it has taken any."""
        with self._lock:
            if self._since:
                self._since.pop(call, None)  # an interrupt has ended it while it waited
            self._shares.pop(call, None)
            if self._shares:
                self._freed.notify_all()  # an interrupted waiter may have been the one that was notified

    def _free(self) -> int:
        """The number of cores that no call has. Calls that have ended without saying so are forgotten."""
        known: dict[threading.Lock, Any]
        for known in (self._since, self._shares):  # each by itself, as an interrupt may come between the two
            for ended in [call for call in known if not call.locked()]:
                del known[ended]
        return self._cores - sum(self._shares.values())
