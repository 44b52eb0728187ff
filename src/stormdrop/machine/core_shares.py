"""The cores of this process, shared out to the calls of models that are in progress at the same time."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager


class CoreShares:
    """Gives each call some of the cores, so that all calls together have no more threads than there are cores.

    A call that is alone has as many cores as it wants. Several calls that are in progress or wait share the cores out
    equally. A call waits only if no core is free. Threads may use one object at the same time.

    Args:
        cores: The number of cores.

    Example:
        >>> shares = CoreShares(4)
        >>> with shares.taken(4) as alone:
        ...     alone
        4
        >>> with shares.taken(1), shares.taken(4) as second:
        ...     second
        2
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._shares: dict[object, int] = {}  # the cores of each call that is in progress or, with none yet, waits
        self._lock = threading.RLock()
        self._freed = threading.Condition(self._lock)

    def taken(self, most: int) -> AbstractContextManager[int]:
        """Take a share of the cores, and give it back in the end.

        Args:
            most: The most cores that the call can use.

        Returns:
            What is entered with the number of cores that the call has, from 1 to `most`.
        """
        return _Call(self, most)

    def _take(self, call: object, most: int) -> int:
        """The cores of a call. What it has is noted in one step, so that Ctrl-C at any point loses none."""
        with self._lock:
            self._shares[call] = 0
            free = self._free() or self._freed.wait_for(self._free)
            self._shares[call] = share = min(most, free, max(1, self._cores // len(self._shares)))
            return share

    def _give(self, call: object) -> None:
        """Give the cores of a call back, as far as it has taken any."""
        with self._lock:
            self._shares.pop(call, None)
            if self._shares:
                self._freed.notify_all()  # an interrupted waiter may have been the one that was notified

    def _free(self) -> int:
        return self._cores - sum(self._shares.values())


class _Call(AbstractContextManager[int]):
    """A call with its share. Every call of a model makes one: a generator would take it a microsecond longer."""

    def __init__(self, shares: CoreShares, most: int) -> None:
        self._shares, self._most = shares, most

    def __enter__(self) -> int:
        try:
            return self._shares._take(self, self._most)
        except BaseException:
            self._shares._give(self)
            raise

    def __exit__(self, *_: object) -> None:
        self._shares._give(self)
