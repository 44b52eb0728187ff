"""Several devices at once: each candidate is measured on one of them, and the order of the requests is kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from stand_ins.faults import ChosenFaults, Plain
from stormdrop.errors import MeasureError
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.measure.contract import KernelSetup, Measurer
from stormdrop.measure.gpus import GpusMeasurer
from stormdrop.measure.local import Limits, LocalMeasurer
from stormdrop.measure.places import Place
from stormdrop.records import open_store
from stormdrop.sketches.registry import sketches_for
from stormdrop.trial import Candidate, Measurement, Phases, Request, Status
from stormdrop.tuning.tune import tune

REQUESTS = [Request(Candidate("space", (number,)), 1) for number in range(7)]


class Device(Measurer):
    """Reports the number of a candidate as its time. With `together` it waits until all devices have a candidate."""

    def __init__(self, together: threading.Barrier | None = None) -> None:
        self.together = together
        self.measured: list[int] = []
        self.closed = False

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for request in requests:
            (number,) = request.candidate.point
            if self.together is not None:
                self.together.wait(timeout=10)
            self.measured.append(number)
            yield Measurement(Status.OK, (float(number + 1),), "", Phases())

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        return [Measurement(Status.OK, (1.0,) * rounds, "", Phases()) for _ in candidates]

    def conditions(self) -> dict[str, list[list[int]]]:
        return {"clocks": [[len(self.measured)]]}

    def close(self) -> None:
        self.closed = True


def on(*devices: Measurer, stop: threading.Event | None = None) -> GpusMeasurer:
    places = [Place(str(number), device) for number, device in enumerate(devices)]
    return GpusMeasurer("two GPUs", places, stop or threading.Event())


def test_at_the_same_time_and_in_order() -> None:
    barrier = threading.Barrier(2)
    devices = [Device(barrier), Device(barrier)]
    with on(*devices) as measurer:
        measurements = list(measurer.measure(REQUESTS[:6]))
        assert len(measurer.race([REQUESTS[0].candidate], 3)[0].seconds) == 3
        assert measurer.conditions() == {"clocks": [[3], [3]]}
    assert [measurement.seconds for measurement in measurements] == [(float(number + 1),) for number in range(6)]
    assert sorted(devices[0].measured + devices[1].measured) == list(range(6))
    assert all(device.closed for device in devices)


def test_fewer_candidates_than_devices() -> None:
    devices = [Device() for _ in range(3)]
    with on(*devices) as measurer:
        assert len(list(measurer.measure(REQUESTS[:1]))) == 1
        assert list(measurer.measure([])) == []
    assert sorted(device.measured for device in devices) == [[], [], [0]]


class Gone(Device):
    """Loses what it is asked first, and says so to the others."""

    def __init__(self, lost: threading.Event) -> None:
        super().__init__()
        self.lost = lost

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        self.lost.set()
        raise MeasureError("the device fell off the bus")


class Patient(Device):
    """Measures nothing before another device is lost."""

    def __init__(self, lost: threading.Event) -> None:
        super().__init__()
        self.lost = lost

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        assert self.lost.wait(60)
        yield from super().measure(requests)


def test_a_device_that_is_lost_costs_nothing_but_itself() -> None:
    lost = threading.Event()
    patient = Patient(lost)
    with on(patient, Gone(lost)) as measurer:
        assert [each.seconds for each in measurer.measure(REQUESTS)] == [(float(number + 1),) for number in range(7)]
        assert [place.lost for place in measurer.places] == [False, True]
    assert sorted(patient.measured) == list(range(7))
    with (
        on(Gone(lost), Gone(lost)) as measurer,
        pytest.raises(MeasureError, match=r"no GPU of two GPUs is left.* fell off the bus"),
    ):
        list(measurer.measure(REQUESTS))


def test_a_closed_iterator_stops_the_devices() -> None:
    with on(Device(), Device()) as measurer:
        measurements = measurer.measure(REQUESTS)
        next(measurements)
        cast(Generator[Measurement], measurements).close()
        assert len(list(measurer.measure(REQUESTS[:2]))) == 2, "they can be used again"


@pytest.mark.compiles
def test_phases_of_devices_side_by_side_are_within_the_wall_time(
    workload: Workload, target: Cpu, tmp_path: Path
) -> None:
    sketches = sketches_for(workload, target)

    def device(number: int) -> LocalMeasurer:
        lock_path = tmp_path / f"lock{number}"
        return LocalMeasurer(KernelSetup(workload, target, sketches), workers=1, lock_path=lock_path)

    with on(device(0), device(1)) as parallel, open_store(tmp_path / "records.db") as store:
        begin = time.perf_counter()
        result = tune(workload, target=target, search="random", trials=12, store=store, measurer=parallel)
        wall = time.perf_counter() - begin
    built = sum(place.measurer.account.built for place in parallel.places if isinstance(place.measurer, LocalMeasurer))
    assert built >= 12
    assert result.phases["build"] > 0 and result.phases["run"] > 0
    assert sum(result.phases.values()) <= wall


@pytest.mark.compiles
def test_a_closed_iterator_does_not_wait_for_a_candidate_that_hangs(
    workload: Workload, target: Cpu, candidate: Callable[..., Candidate], tmp_path: Path
) -> None:
    sketch, stop = ChosenFaults(Plain()), threading.Event()
    space = sketch.space(workload, target)
    assert space is not None

    def device(number: int) -> LocalMeasurer:
        return LocalMeasurer(
            KernelSetup(workload, target, [(sketch, space)]),
            workers=1,
            limits=Limits(run_seconds=60.0),
            lock_path=tmp_path / f"lock{number}",
            stop=stop,
        )

    batch = [candidate(4), candidate(4, "hang_run"), candidate(8), candidate(8)]
    with on(device(0), device(1), stop=stop) as parallel:
        measurements = parallel.measure([Request(member, 1) for member in batch])
        assert next(measurements).ok
        time.sleep(2.0)  # the other device hangs by now
        begin = time.perf_counter()
        assert isinstance(measurements, Generator)
        measurements.close()
        assert time.perf_counter() - begin < 5
        # Both can be used again.
        assert all(measurement.ok for measurement in parallel.measure([Request(candidate(16), 1)] * 2))
        # The race lasts long enough that the event is looked at.
        assert all(measurement.ok for measurement in parallel.race([candidate(8), candidate(16)], 500))
