"""Several devices that measure at the same time: each candidate on one of them, in turns."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from queue import Queue

from ..trial import Candidate, Measurement, Request
from .contract import Measurer


class Several(Measurer):
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

    def close(self) -> None:
        """Closes all of them."""
        self._open.close()
