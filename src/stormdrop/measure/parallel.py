"""Several devices that measure at the same time: each candidate on one of them, in turns."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from queue import Queue
from typing import Any

from ..trial import Candidate, Measurement, Phases, Request
from .contract import Measurer


class ParallelMeasurer(Measurer):
    """Measurers of the same workload, each on a device of its own; what races, races on the first."""

    def __init__(self, measurers: Sequence[Measurer], stop: threading.Event | None = None) -> None:
        """They are closed with this one. `stop` is theirs, too: where it is set, they give up what they are at."""
        self.measurers = list(measurers)
        self._stop = threading.Event() if stop is None else stop
        self._open = ExitStack()
        for each in self.measurers:
            self._open.callback(each.close)

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        """One measurement per request, in order, each as soon as it and those before it are known."""
        count = len(self.measurers)
        answers: list[Queue[Measurement | BaseException]] = [Queue() for _ in self.measurers]

        def work(at: int) -> None:
            own = self.measurers[at].measure(requests[at::count])
            try:
                for measurement in own:
                    answers[at].put(measurement)
                    if self._stop.is_set():
                        break
            except BaseException as error:  # noqa: BLE001  handed to who asked
                answers[at].put(error)
            finally:
                close = getattr(own, "close", None)
                if close is not None:
                    close()

        threads = [threading.Thread(target=work, args=(at,)) for at in range(min(count, len(requests)))]
        for thread in threads:
            thread.start()
        try:
            for number in range(len(requests)):
                answer = answers[number % count].get()
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
            self._stop.clear()

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        """As the first measurer does it."""
        self._stop.clear()  # a second Ctrl-C may have come before `measure` did
        return self.measurers[0].race(candidates, rounds)

    def wall_seconds(self, spent: Phases) -> Mapping[str, float]:
        """Those of the device that was at work for longest. The phases are shared out evenly."""
        count = len(self.measurers)
        share = Phases(spent.schedule / count, spent.build / count, spent.run / count, spent.check / count)
        by_device = [measurer.wall_seconds(share) for measurer in self.measurers]
        return max(by_device, key=lambda seconds: sum(seconds.values()))

    def conditions(self) -> dict[str, Any]:
        """The conditions of each device: a list of one entry per device under each name."""
        by_device = [measurer.conditions() for measurer in self.measurers]
        names = dict.fromkeys(name for conditions in by_device for name in conditions)
        return {name: [value for conditions in by_device for value in conditions.get(name, [])] for name in names}

    def close(self) -> None:
        """Closes all of them."""
        self._open.close()
