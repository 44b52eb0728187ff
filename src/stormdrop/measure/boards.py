"""Several equal boards that measure at the same time, and of which some may die or hang meanwhile.

Each place of a rack has a measurer with a connection of its own (`places.py`). A place that has lost its board gets
another one that the tracker has free. A place that gets none any more is given up, and the others go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import TargetError
from ..machine.remote.tracker import boards, wait_for_boards
from .contract import KernelSetup, Measurer, Site
from .local import LocalMeasurer
from .places import Place, PlacesMeasurer
from .pool.pool import WorkerPool

GIVE_UP_SECONDS = 20.0
"""Seconds without a free board after which a place that has lost its board is given up."""

_ASK_SECONDS = 0.25  # between two questions to the tracker


class BoardsMeasurer(PlacesMeasurer):
    """Measures candidates on all places of a rack at the same time.

    Times of different boards are compared, because boards of one key are taken to be equal. A race takes place on one
    board.
    """

    kind = "board"

    def __init__(
        self, rack: str, measurers: Sequence[Measurer], stop: threading.Event, lost: dict[int, str] | None = None
    ) -> None:
        """Joins measurers of the same workload.

        Args:
            rack: The address of the boards, as of `machine.remote.tracker.address`.
            measurers: One per place. They are closed together with this one.
            stop: The event that these measurers were given. It is set to make them give up, and cleared afterwards.
            lost: Why places were given up, by their position, if measurers of other workloads use the same places:
                what one of them gives up, the others do not try again.
        """
        places = [Place(str(number), measurer) for number, measurer in enumerate(measurers, start=1)]
        super().__init__(rack, places, stop)
        self._lost = {} if lost is None else lost

    def conditions(self) -> dict[str, Any]:
        """How many boards were used, and how many of their places were given up."""
        return {"boards": len(self.places), "boards_lost": sum(place.lost for place in self.places)}

    def _is_ready(self, place: Place, enough: Callable[[], bool]) -> bool:
        """Waits until a place that has lost its board may get one again. False if it was given up, or `enough()`."""
        if (known := self._lost.get(self.places.index(place))) is not None:
            self._give_up(place, known)
            return False
        if place.connected:
            return True
        deadline = time.perf_counter() + GIVE_UP_SECONDS
        reason = "its board does not come back"
        while not enough():
            try:
                if boards(self._where).free:
                    place.connected = True
                    return True
            except TargetError as error:
                reason = str(error)
            if time.perf_counter() > deadline:
                self._give_up(place, reason)
                return False
            time.sleep(_ASK_SECONDS)
        return False

    def _give_up(self, place: Place, reason: str) -> None:
        self._lost[self.places.index(place)] = reason
        super()._give_up(place, reason)


class HeldBoards(Site):
    """The boards of a rack for all kernels of a model: a worker process for each, which the kernels use in turns.

    Args:
        rack: The address of the boards.
        cores: The cores that a kernel uses there.

    Raises:
        TargetError: No board becomes free, or the tracker or the key is gone.
        MeasureError: No worker can be started.
    """

    def __init__(self, rack: str, cores: int) -> None:
        self._rack, self._lost = rack, dict[int, str]()
        self._pools: list[WorkerPool] = []
        try:
            for _ in range(wait_for_boards(rack)):
                self._pools.append(WorkerPool(cores, 1))
        except BaseException:
            self.close()
            raise

    @property
    def width(self) -> int:
        """How many candidates the boards measure at the same time, at least 1."""
        return max(1, len(self._pools) - len(self._lost))

    def measurer(self, setup: KernelSetup) -> BoardsMeasurer:
        """See `Site.measurer`. One measurer at a time measures."""
        stop = threading.Event()
        places = [LocalMeasurer(setup, pool=pool, elsewhere=True, stop=stop) for pool in self._pools]
        return BoardsMeasurer(self._rack, places, stop, self._lost)

    def close(self) -> None:
        """Gives the boards back."""
        for pool in self._pools:
            pool.close()
