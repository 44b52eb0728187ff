"""Several devices at once: each candidate is measured on one of them, and the order of the requests is kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from stormdrop.errors import MeasureError
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Target
from stormdrop.measure.local import LocalMeasurer
from stormdrop.measure.parallel import ParallelMeasurer
from stormdrop.records import open_store
from stormdrop.sketches.registry import sketches_for
from stormdrop.testing.faults import ChosenFaults, Plain
from stormdrop.trial import Candidate, Measurement, Phases, Request, Status
from stormdrop.tuning.tune import tune

REQUESTS = [Request(Candidate("space", (number,)), 1) for number in range(7)]


class Device:
    """Reports the number of a candidate as its time. With `together` it waits until all devices have a candidate."""

    def __init__(self, together: threading.Barrier | None = None, fails_at: int | None = None) -> None:
        self.together, self.fails_at = together, fails_at
        self.measured: list[int] = []
        self.stopped = self.closed = False

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        try:
            for request in requests:
                (number,) = request.candidate.point
                if number == self.fails_at:
                    raise MeasureError("the device fell off the bus")
                if self.together is not None:
                    self.together.wait(timeout=10)
                self.measured.append(number)
                yield Measurement(Status.OK, (float(number + 1),), "", Phases())
        finally:
            self.stopped = True

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        return [Measurement(Status.OK, (1.0,) * rounds, "", Phases()) for _ in candidates]

    def close(self) -> None:
        self.closed = True


def test_in_turns_and_at_the_same_time() -> None:
    devices = [Device(threading.Barrier(2)) for _ in range(2)]
    devices[1].together = devices[0].together
    with ParallelMeasurer(devices) as parallel:
        measurements = list(parallel.measure(REQUESTS[:6]))
        assert len(parallel.race([REQUESTS[0].candidate], 3)[0].seconds) == 3
    assert [measurement.seconds for measurement in measurements] == [(float(number + 1),) for number in range(6)]
    assert [device.measured for device in devices] == [[0, 2, 4], [1, 3, 5]]
    assert all(device.closed for device in devices)


def test_fewer_candidates_than_devices() -> None:
    devices = [Device() for _ in range(3)]
    with ParallelMeasurer(devices) as parallel:
        assert len(list(parallel.measure(REQUESTS[:1]))) == 1
        assert list(parallel.measure([])) == []
    assert [device.measured for device in devices] == [[0], [], []]


def test_an_error_of_one_device_ends_all() -> None:
    devices = [Device(), Device(fails_at=3)]
    with ParallelMeasurer(devices) as parallel:
        measurements = parallel.measure(REQUESTS)
        assert [next(measurements).seconds for _ in range(3)] == [(1.0,), (2.0,), (3.0,)]
        with pytest.raises(MeasureError, match="fell off the bus"):
            next(measurements)
    assert all(device.stopped for device in devices)


def test_a_closed_iterator_stops_the_devices() -> None:
    devices = [Device(), Device()]
    measurements = ParallelMeasurer(devices).measure(REQUESTS)
    next(measurements)
    measurements.close()
    assert all(device.stopped for device in devices)
    assert not [thread for thread in threading.enumerate() if "work" in thread.name]


@pytest.mark.compiles
def test_phases_of_devices_side_by_side_are_within_the_wall_time(
    workload: Workload, target: Target, tmp_path: Path
) -> None:
    sketches = sketches_for(workload, target)

    def device(number: int) -> LocalMeasurer:
        lock_path = tmp_path / f"lock{number}"
        return LocalMeasurer(workload, target, *zip(*sketches, strict=True), workers=1, lock_path=lock_path)

    with ParallelMeasurer([device(0), device(1)]) as parallel, open_store(tmp_path / "records.db") as store:
        begin = time.perf_counter()
        result = tune(workload, target=target, search="random", trials=12, store=store, measurer=parallel)
        wall = time.perf_counter() - begin
    built = sum(device.account.built for device in parallel.measurers if isinstance(device, LocalMeasurer))
    assert built >= 12
    assert result.phases["build"] > 0 and result.phases["run"] > 0
    assert sum(result.phases.values()) <= wall


@pytest.mark.compiles
def test_a_closed_iterator_does_not_wait_for_a_candidate_that_hangs(
    workload: Workload, target: Target, candidate: Callable[..., Candidate], tmp_path: Path
) -> None:
    sketch, stop = ChosenFaults(Plain()), threading.Event()
    space = sketch.space(workload, target)
    assert space is not None

    def device(number: int) -> LocalMeasurer:
        settings = {"workers": 1, "run_timeout": 60.0, "lock_path": tmp_path / f"lock{number}", "stop": stop}
        return LocalMeasurer(workload, target, [sketch], [space], **settings)  # type: ignore[arg-type]

    batch = [candidate(4), candidate(4, "hang_run"), candidate(8), candidate(8)]
    with ParallelMeasurer([device(0), device(1)], stop) as parallel:
        measurements = parallel.measure([Request(member, 1) for member in batch])
        assert next(measurements).ok
        time.sleep(2.0)  # the other device hangs by now
        begin = time.perf_counter()
        measurements.close()
        assert time.perf_counter() - begin < 5
        # Both can be used again.
        assert all(measurement.ok for measurement in parallel.measure([Request(candidate(16), 1)] * 2))
        # The race lasts long enough that the event is looked at.
        assert all(measurement.ok for measurement in parallel.race([candidate(8), candidate(16)], 500))
