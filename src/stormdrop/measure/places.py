"""Several equal places that measure one workload at the same time, and of which some may die, hang or fall behind.

A place is a board behind TVM's RPC tracker (`boards.py`), or a machine of a fleet (`fleet/fleet.py`). It has a measurer
with a connection of its own, and takes the next candidates as soon as it is free.

- A candidate that fails at one place while it runs is tried at others. Only what fails at three, or at all that there
  are, is at fault. Until that is known, these places get nothing new.
- A place that cannot measure any more is given up. Its candidates go elsewhere.
- If places have nothing left to do, they also take what another one needs too long for. The first answer counts.
"""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import ClassVar

from ..errors import LockTimeout, MeasureError, one_line
from ..trial import Candidate, Measurement, Phases, Request, Status
from .contract import Measurer

_MOST_TRIALS = 3  # places at which a candidate is tried
_MOST_BLAMES = 3  # candidates in a row that failed at one place and worked at another
_LOOK_SECONDS = 0.1  # between two looks of a place that has nothing to do
_LEAST_LATE_SECONDS = 0.3  # nothing is measured twice before it has taken so long
_REMEMBERED = 64  # answers from which the usual time of a candidate follows
_PLACES_FAULT = {Status.RUNTIME, Status.RUN_TIMEOUT, Status.UNKNOWN}  # perhaps

_logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Place:
    """A place that measures.

    Args:
        name: What messages call it.
        measurer: Measures there. Only one thread at a time uses it.
        width: How many candidates it takes at a time; as many as it can build side by side.
        connected: Whether it can be used, as far as is known. A failure ends the connection.
        lost: Whether it was given up.
        reason: Why it was given up.
        blames: Candidates in a row that failed there and worked elsewhere.
        accused: Whether no other place has yet tried what failed here.
    """

    name: str
    measurer: Measurer
    width: int = 1
    connected: bool = True
    lost: bool = False
    reason: str = ""
    blames: int = 0
    accused: bool = False


@dataclass(eq=False)
class _Job:
    """A request on its way."""

    request: Request
    failed_at: set[Place] = field(default_factory=set)
    takers: int = 0  # places that measure it at this moment
    answer: Measurement | None = None


class PlacesMeasurer(Measurer):
    """Measures candidates at several places at the same time. A race takes place at one of them.

    Times of different places are compared, because the places are taken to be equal. A subclass says how a place that
    has lost its connection gets another one (`_is_ready`).

    Attributes:
        places: The places.
    """

    kind: ClassVar[str] = "place"
    """What a place is called in messages."""

    patience: ClassVar[float | None] = None
    """A candidate is late if it takes so many times the usual time; None if none ever is."""

    def __init__(self, where: str, places: Sequence[Place], stop: threading.Event) -> None:
        """Joins the measurers of one workload.

        Args:
            where: What messages call all places together.
            places: The places. Their measurers are closed together with this one.
            stop: The event that the measurers were given. It is set to make them give up, and cleared afterwards.
        """
        self.places = list(places)
        self._where = where
        self._stop = stop
        self._wall = 0.0  # seconds in `measure`
        self._open = ExitStack()
        for place in places:
            self._open.callback(place.measurer.close)
        self._open.callback(self._end)
        # What the threads of the places share. It is used under the lock of these two conditions. There may be hundreds
        # of threads, so those that have nothing to do are woken up only if there is something to do.
        lock = threading.RLock()
        self._changed, self._answered = threading.Condition(lock), threading.Condition(lock)
        self._jobs: deque[_Job] = deque()  # nobody has taken them
        self._announced: list[_Job] = []  # nobody has asked for their answers yet
        self._left = 0  # jobs without an answer
        self._running: dict[Place, tuple[float, list[_Job]]] = {}  # since when, and what
        self._taken: deque[float] = deque(maxlen=_REMEMBERED)  # seconds per candidate of the latest answers
        self._usual = 0.0  # their median
        self._threads: dict[Place, threading.Thread] = {}  # of places that are at work
        self._error: BaseException | None = None

    def announce(self, requests: Sequence[Request]) -> None:
        """See `Measurer.announce`. Places begin with these requests when nothing else is left.

        What is under way and will not come is measured to its end, unless nothing at all will come.
        """
        if not requests:
            self._end()
            return
        with self._changed:
            known = self._announced
            self._announced = [_taken_from(known, request) or self._added(request) for request in requests]
            for job in known:  # they will not come
                if job in self._jobs:
                    self._jobs.remove(job)
                    self._left -= 1
                elif job.answer is None:
                    self._announced.append(job)

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        """See `Measurer.measure`."""
        begin = time.perf_counter()
        self._alive()  # raises if there is none
        with self._changed:
            asked = [_taken_from(self._announced, request) or self._added(request) for request in requests]
            ahead = set(self._announced)
            self._jobs = deque(sorted(self._jobs, key=lambda job: job in ahead))
        try:
            self._start()
            for job in asked:
                yield self._answer(job)
            done = True
        except BaseException:
            done = False
            raise
        finally:
            if not (done and self._announced):
                self._end()
            self._wall += time.perf_counter() - begin

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        """See `Measurer.race`. It is run again at another place if no candidate worked at the first one."""
        self._end()
        raced: list[Measurement] = []
        for place in self._alive():
            if not self._is_ready(place, lambda: False):
                continue
            place.measurer.deadline = self.deadline
            try:
                raced = place.measurer.race(candidates, rounds)
            except LockTimeout:
                raise
            except MeasureError as error:
                self._give_up(place, one_line(error))
                continue
            if any(measurement.ok for measurement in raced):
                return raced
            place.connected = False
        if not raced:
            raise MeasureError(self._none_left())
        return raced

    def wall_seconds(self, spent: Phases) -> Mapping[str, float]:
        """See `Measurer.wall_seconds`. The wall time is shared in the proportion of the seconds of all places."""
        share = min(1.0, self._wall / spent.total) if spent.total else 0.0
        return {name: seconds * share for name, seconds in asdict(spent).items()}

    def close(self) -> None:
        """Closes all measurers."""
        self._open.close()

    # What subclasses decide

    def _is_ready(self, place: Place, enough: Callable[[], bool]) -> bool:
        """Waits until a place can measure. False if it was given up, or if `enough()`."""
        return not place.lost

    def _overtake(self, place: Place) -> None:
        """Another place has answered everything that this one still measures."""

    # Helpers

    def _none_left(self) -> str:
        reason = next((place.reason for place in reversed(self.places) if place.reason), "")
        return f"no {self.kind} of {self._where} is left" + (f": {reason}" if reason else "")

    def _alive(self) -> list[Place]:
        alive = [place for place in self.places if not place.lost]
        if not alive:
            raise MeasureError(self._none_left())
        return alive

    def _others(self, places: set[Place]) -> int:
        """How many places there are besides these."""
        return sum(not place.lost for place in self.places if place not in places)

    def _give_up(self, place: Place, reason: str) -> None:
        if place.lost:
            return
        place.lost, place.reason = True, reason
        _logger.warning("%s %s of %s is given up: %s", self.kind, place.name, self._where, reason)
        if not any(not other.lost for other in self.places):
            raise MeasureError(f"no {self.kind} of {self._where} is left: {reason}")

    def _added(self, request: Request) -> _Job:
        """A job for a request, for any place."""
        job = _Job(request)
        self._jobs.append(job)
        self._left += 1
        return job

    def _answer(self, job: _Job) -> Measurement:
        """Waits for the answer to a job. Raises what went wrong in a thread."""
        with self._changed:
            while job.answer is None:
                if self._error is not None:
                    raise self._error
                self._answered.wait()
            return job.answer

    def _start(self) -> None:
        """Lets all places work that do not yet."""
        with self._changed:
            for place in self._alive():
                place.measurer.deadline = self.deadline
                if place not in self._threads:
                    place.accused = False
                    self._threads[place] = threading.Thread(target=self._work, args=(place,))
                    self._threads[place].start()
            self._changed.notify_all()

    def _end(self) -> None:
        """Ends all work, also what was announced."""
        with self._changed:
            threads = list(self._threads.values())
            self._stop.set()
            self._changed.notify_all()
        for thread in threads:
            thread.join()
        self._stop.clear()
        self._jobs.clear()
        self._announced.clear()
        self._left, self._error = 0, None

    # In the threads

    def _work(self, place: Place) -> None:
        """Measures at one place until there is nothing left to measure."""
        try:
            while self._goes_on(place):
                if self._is_ready(place, lambda: self._stop.is_set() or not self._left):
                    jobs = self._next(place)
                    if jobs:
                        self._measure(place, jobs)
        except BaseException as error:  # noqa: BLE001  raised in the thread that iterates over the measurements
            with self._changed:
                self._error = self._error or error
                self._threads.pop(place, None)
                self._answered.notify_all()

    def _goes_on(self, place: Place) -> bool:
        """Whether a place has to go on. If not, its thread counts as ended from now on."""
        with self._changed:
            if self._left and not place.lost and not self._stop.is_set():
                return True
            self._threads.pop(place, None)
            return False

    def _next(self, place: Place) -> list[_Job]:
        """The next jobs for a place; none if there will be none. What has failed there is for others."""
        with self._changed:
            while self._left and not place.lost and not self._stop.is_set():
                jobs = self._open_jobs(place) or self._late_jobs(place)
                if jobs:
                    for job in jobs:
                        job.takers += 1
                    self._running[place] = (time.perf_counter(), jobs)
                    return jobs
                self._changed.wait(_LOOK_SECONDS)
        return []

    def _open_jobs(self, place: Place) -> list[_Job]:
        """Takes the place's share of what nobody has taken."""
        allowed = [job for job in self._jobs if self._may_take(place, job)]
        jobs = allowed[: self._share(place, len(allowed))]
        for job in jobs:
            self._jobs.remove(job)
        return jobs

    def _late_jobs(self, place: Place) -> list[_Job]:
        """What another place should have answered by now, and nobody else measures."""
        if self.patience is None or not self._taken:
            return []
        now = time.perf_counter()
        for other, (begin, jobs) in self._running.items():
            if other is place or now - begin <= max(_LEAST_LATE_SECONDS, self.patience * self._usual * len(jobs)):
                continue
            waiting = [job for job in jobs if not job.answer and job.takers == 1 and place not in job.failed_at]
            if waiting:
                return waiting[: self._share(place, len(waiting))]
        return []

    def _share(self, place: Place, count: int) -> int:
        """How many of so many jobs a place takes at a time: all places get some if there are enough."""
        return min(place.width, -(-count // max(1, self._others(set()))))

    def _may_take(self, place: Place, job: _Job) -> bool:
        if self._others(job.failed_at) == 0:
            return True  # all others were given up meanwhile
        return place not in job.failed_at and not (place.accused and not job.failed_at)

    def _measure(self, place: Place, jobs: list[_Job]) -> None:
        begin, connected = time.perf_counter(), True
        try:
            measurements = place.measurer.measure([job.request for job in jobs])
            for job, measurement in zip(jobs, measurements, strict=True):
                connected = connected and measurement.status not in _PLACES_FAULT
                with self._changed:
                    if job.answer is None and self._counts(place, job, measurement):
                        job.answer = measurement
                        self._left -= 1
                        self._answered.notify_all()
        except MeasureError as error:
            with self._changed:
                del self._running[place]
                self._hand_back(jobs)
                overtaken = all(job.answer for job in jobs)
            if isinstance(error, LockTimeout):
                raise
            if not (overtaken or self._stop.is_set()):
                self._give_up(place, one_line(error))
            return
        with self._changed:
            self._taken.append((time.perf_counter() - begin) / len(jobs))
            self._usual = statistics.median(self._taken)
            del self._running[place]
            place.connected = connected
            self._hand_back(jobs)
            for other, (_, others_jobs) in self._running.items():
                if all(job.answer for job in others_jobs):
                    self._overtake(other)

    def _hand_back(self, jobs: Sequence[_Job]) -> None:
        """Gives jobs back that a place has ended with; those that nobody has answered or measures are for others."""
        before = len(self._jobs)
        for job in jobs:
            job.takers -= 1
            if not job.answer and not job.takers:
                self._jobs.appendleft(job)
        self._answered.notify_all()
        if len(self._jobs) > before or not self._left:
            self._changed.notify_all()

    def _counts(self, place: Place, job: _Job, measurement: Measurement) -> bool:
        """Whether a measurement is the answer to its request, or another place has to try it as well."""
        if measurement.status in _PLACES_FAULT:
            job.failed_at.add(place)
            if len(job.failed_at) < _MOST_TRIALS and self._others(job.failed_at):
                place.accused = True
                return False
        for accused in job.failed_at:
            accused.accused = False
            if measurement.ok:
                self._blame(accused)
        if measurement.ok:
            place.blames = 0
        return True

    def _blame(self, place: Place) -> None:
        place.blames += 1
        if place.blames == _MOST_BLAMES and self._others({place}):
            self._give_up(place, f"{_MOST_BLAMES} candidates failed there that work elsewhere")


def _taken_from(jobs: list[_Job], request: Request) -> _Job | None:
    """Takes the first job for a request out of a list; None if there is none."""
    for position, job in enumerate(jobs):
        if job.request == request:
            return jobs.pop(position)
    return None
