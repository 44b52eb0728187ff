"""What boards and machines of a fleet have in common: shares, late candidates, the wall time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from stormdrop.errors import LockTimeout, MeasureError
from stormdrop.measure import places
from stormdrop.measure.contract import Measurer
from stormdrop.measure.places import Place, PlacesMeasurer
from stormdrop.trial import Candidate, Measurement, Phases, Request, Status


class Worker(Measurer):
    """Takes so many seconds per candidate, and longer for some points at the first time; it can be woken up."""

    def __init__(self, seconds: float, slow: dict[int, float] | None = None, error: MeasureError | None = None) -> None:
        self.seconds, self.slow, self.error = seconds, {} if slow is None else slow, error
        self.chunks: list[list[int]] = []
        self.woken = threading.Event()

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        points = [request.candidate.point[0] for request in requests]
        self.chunks.append(points)
        if self.error is not None:
            raise self.error
        for point in points:
            if self.woken.wait(self.slow.pop(point, self.seconds)):
                raise MeasureError("it was woken up")
            yield Measurement(Status.OK, (1.0 + point,), phases=Phases(run=self.seconds))

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        if self.error is not None:
            raise self.error
        return [Measurement(Status.OK, (1.0,) * rounds) for _ in candidates]

    def close(self) -> None: ...


class Impatient(PlacesMeasurer):
    patience = 2.0

    def _overtake(self, place: Place) -> None:
        assert isinstance(place.measurer, Worker)
        place.measurer.woken.set()


def requests(count: int) -> list[Request]:
    return [Request(Candidate("sketch", (point,)), 1) for point in range(count)]


def joined(*workers: Worker, width: int = 1) -> Impatient:
    places = [Place(str(number), worker, width) for number, worker in enumerate(workers, start=1)]
    return Impatient("here", places, threading.Event())


def test_a_late_candidate_is_measured_elsewhere_and_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_LEAST_LATE_SECONDS", 2.0)  # longer than any other one takes on a busy machine
    slow = {0: 60.0}  # of whichever takes it first
    workers = [Worker(0.01, slow), Worker(0.01, slow)]
    begin = time.perf_counter()
    with joined(*workers) as measurer:
        found = list(measurer.measure(requests(12)))
    assert time.perf_counter() - begin < 20
    assert [measurement.seconds for measurement in found] == [(1.0 + point,) for point in range(12)]
    stuck, free = sorted(workers, key=lambda worker: not worker.woken.is_set())
    assert stuck.chunks[-1] == [0] and [0] in free.chunks, "the late one went to the other place"
    assert len(stuck.chunks) + len(free.chunks) == 13, "nothing else was measured twice"
    assert stuck.woken.is_set() and not free.woken.is_set() and not any(place.lost for place in measurer.places), (
        "being late is no reason to go"
    )


def test_a_place_takes_no_more_than_its_share() -> None:
    workers = [Worker(0.2) for _ in range(3)]
    with joined(*workers, width=4) as measurer:
        assert len(list(measurer.measure(requests(8)))) == 8
    chunks = [chunk for worker in workers for chunk in worker.chunks]
    assert all(worker.chunks for worker in workers) and max(map(len, chunks)) == 3
    alone = Worker(0.0)
    with joined(alone, width=4) as measurer:
        assert len(list(measurer.measure(requests(8)))) == 8
    assert list(map(len, alone.chunks)) == [4, 4]


def test_the_phases_of_all_places_are_within_the_wall_time() -> None:
    with joined(*(Worker(0.05) for _ in range(4))) as measurer:
        begin = time.perf_counter()
        found = list(measurer.measure(requests(16)))
        wall = time.perf_counter() - begin
        spent = sum((measurement.phases for measurement in found), Phases())
        assert spent.total == pytest.approx(0.8)
        assert 0.1 < sum(measurer.wall_seconds(spent).values()) <= wall


def test_a_machine_that_is_not_free_in_time_is_no_lost_place() -> None:
    with joined(Worker(0.0, error=LockTimeout("not free in time"))) as measurer:
        for attempt in (lambda: list(measurer.measure(requests(2))), lambda: measurer.race([Candidate("a", (1,))], 2)):
            with pytest.raises(LockTimeout, match="not free in time"):
                attempt()
        assert not measurer.places[0].lost


def test_the_last_place_says_why_none_is_left() -> None:
    with joined(Worker(0.0, error=MeasureError("gone"))) as measurer:
        for _ in range(2):
            with pytest.raises(MeasureError, match="no place of here is left: MeasureError: gone"):
                list(measurer.measure(requests(2)))


def test_what_is_announced_is_measured_while_the_slowest_of_the_batch_is() -> None:
    workers = [Worker(0.02, slow := {0: 0.6}), Worker(0.02, slow)]
    with joined(*workers) as measurer:
        measurer.announce(requests(10))
        assert [measurement.seconds for measurement in measurer.measure(requests(2))] == [(1.0,), (2.0,)]
        done = {point for worker in workers for (point,) in worker.chunks}
        assert len(done) > 6, "the other place has gone on"
        measurer.announce([])  # nothing more is wanted
        assert not [thread for thread in threading.enumerate() if "_work" in thread.name]
        measurer.announce(requests(10)[2:])
        found = list(measurer.measure(requests(10)[2:6]))
        found += measurer.measure(requests(10)[6:])
    assert [measurement.seconds for measurement in found] == [(1.0 + point,) for point in range(2, 10)]
    assert not [thread for thread in threading.enumerate() if "_work" in thread.name]


def test_each_announced_candidate_is_measured_once() -> None:
    workers = [Worker(0.005) for _ in range(3)]
    with joined(*workers) as measurer:
        found: list[Measurement] = []
        for first in range(0, 60, 6):
            measurer.announce(requests(60)[first : first + 12])
            found += measurer.measure(requests(60)[first : first + 6])
        assert [measurement.seconds for measurement in found] == [(1.0 + point,) for point in range(60)]
    assert sorted(point for worker in workers for (point,) in worker.chunks) == list(range(60))


def test_a_race_ends_what_was_announced() -> None:
    worker = Worker(0.1)
    with joined(worker) as measurer:
        measurer.announce(requests(500))
        assert len(list(measurer.measure(requests(1)))) == 1
        assert len(measurer.race([Candidate("a", (1,))], 2)[0].seconds) == 2
        assert len(worker.chunks) < 50


def test_less_may_come_than_was_announced() -> None:
    workers = [Worker(0.1), Worker(0.1)]
    with joined(*workers) as measurer:
        measurer.announce(requests(200))
        found = list(measurer.measure(requests(2)))
        measurer.announce(requests(6)[2:])
        found += measurer.measure(requests(6)[2:])
        assert [measurement.seconds for measurement in found] == [(1.0 + point,) for point in range(6)]
        measurer.announce([])
        found = list(measurer.measure(requests(3)))
        assert [measurement.seconds for measurement in found] == [(1.0 + point,) for point in range(3)]
    measured = [point for worker in workers for chunk in worker.chunks for point in chunk]
    assert len(measured) < 100, "most of what did not come was not measured"
