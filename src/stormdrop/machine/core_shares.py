"""The cores of this process, shared out to the calls of models that are in progress at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
        self._cores = self._free = cores
        self._calls = 0  # that are in progress or wait
        self._freed = threading.Condition()

    @contextmanager
    def taken(self, most: int) -> Iterator[int]:
        """Take a share of the cores, and give it back in the end.

        Args:
            most: The most cores that the call can use.

        Yields:
            The number of cores that the call has, from 1 to `most`.
        """
        share = self.take(most)
        try:
            yield share
        finally:
            self.give(share)

    def take(self, most: int) -> int:
        """As `taken`, which is the safer way; the share must be given back with `give`."""
        with self._freed:
            self._calls += 1
            try:
                if not self._free:
                    self._freed.wait_for(lambda: self._free)
            except BaseException:
                self._calls -= 1
                self._freed.notify_all()  # this waiter may have been the one that was notified
                raise
            share = min(most, self._free, max(1, self._cores // self._calls))
            self._free -= share
            return share

    def give(self, share: int) -> None:
        """Give a share back that `take` has returned."""
        with self._freed:
            self._calls -= 1
            self._free += share
            self._freed.notify_all()
