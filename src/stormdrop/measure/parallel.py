"""Several measurers that work at the same time, each on a device of its own. Candidates are dealt out in turns."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from queue import Queue
from typing import Any

from ..trial import Candidate, Measurement, Phases, Request
from .contract import Measurer


class ParallelMeasurer(Measurer):
    """Measures candidates on several devices at the same time.

    A race takes place on the first device, because times of different devices cannot be compared.

    Attributes:
        measurers: the measurer of each device.
    """

    def __init__(self, measurers: Sequence[Measurer], stop: threading.Event | None = None) -> None:
        """Joins measurers of the same workload.

        Args:
            measurers: one per device. They are closed together with this one.
            stop: the event that these measurers were given. It is set to make them give up, and cleared afterwards.
        """
        self.measurers = list(measurers)
        self._stop = threading.Event() if stop is None else stop
        self._open = ExitStack()
        for measurer in self.measurers:
            self._open.callback(measurer.close)

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        """See `Measurer.measure`. The request at position i goes to measurer i modulo their number."""
        count = len(self.measurers)
        results: list[Queue[Measurement | BaseException]] = [Queue() for _ in self.measurers]
        for measurer in self.measurers:
            measurer.deadline = self.deadline

        def work(device: int) -> None:
            measurements = self.measurers[device].measure(requests[device::count])
            try:
                for measurement in measurements:
                    results[device].put(measurement)
                    if self._stop.is_set():
                        break
            except BaseException as error:  # noqa: BLE001  raised in the thread that iterates over the measurements
                results[device].put(error)
            finally:
                close = getattr(measurements, "close", None)
                if close is not None:
                    close()

        threads = [threading.Thread(target=work, args=(device,)) for device in range(min(count, len(requests)))]
        for thread in threads:
            thread.start()
        try:
            for position in range(len(requests)):
                result = results[position % count].get()
                if isinstance(result, BaseException):
                    raise result
                yield result
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
            self._stop.clear()

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        """See `Measurer.race`. The first measurer runs it."""
        self._stop.clear()  # a second Ctrl-C may have interrupted `measure` before it cleared the event
        self.measurers[0].deadline = self.deadline
        return self.measurers[0].race(candidates, rounds)

    def wall_seconds(self, spent: Phases) -> Mapping[str, float]:
        """The wall seconds of the device that was at work for longest, if all have measured equal shares."""
        count = len(self.measurers)
        share = Phases(spent.schedule / count, spent.build / count, spent.run / count, spent.check / count)
        by_device = [measurer.wall_seconds(share) for measurer in self.measurers]
        return max(by_device, key=lambda seconds: sum(seconds.values()))

    def conditions(self) -> dict[str, Any]:
        """The conditions of all devices: under each name a list with one entry per device."""
        by_device = [measurer.conditions() for measurer in self.measurers]
        names = dict.fromkeys(name for conditions in by_device for name in conditions)
        return {name: [value for conditions in by_device for value in conditions.get(name, [])] for name in names}

    def close(self) -> None:
        """Closes all measurers."""
        self._open.close()
