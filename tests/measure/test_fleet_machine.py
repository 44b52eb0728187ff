"""What runs on a machine of a fleet, without Ray: calls that nobody waits for, and errors as values."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import cloudpickle
import pytest

from stormdrop.errors import LockTimeout, MeasureError
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.measure.contract import KernelSetup, Measurer
from stormdrop.measure.fleet.fleet_machine import FleetMachine, LocalWorkshop, Refusal, versions
from stormdrop.measure.fleet.identity import Calibration, MachineIdentity
from stormdrop.sketches.registry import sketches_for
from stormdrop.trial import Candidate, Measurement, Request, Status

TARGET = Cpu("cpu", "A CPU", "generic", 2, 8, 16, 1 << 15, 1 << 20, 1 << 25)
REQUESTS = [Request(Candidate("sketch", (point,)), 1) for point in range(3)]


class Workshop(LocalWorkshop):
    """Calibrates as it is told; an error is raised."""

    def __init__(self, *calibrations: Calibration | MeasureError) -> None:
        self.calibrations, self.closed = list(calibrations), False

    def identify(self) -> MachineIdentity:
        return MachineIdentity(TARGET, "0a1b")

    def calibrate(self, seconds: float) -> Calibration:
        following = self.calibrations.pop(0)
        if isinstance(following, MeasureError):
            raise following
        return following

    def width(self) -> int:
        return 3

    def close(self) -> None:
        self.closed = True


class Waiting(Measurer):
    """Waits for its event for a while, and then answers."""

    def __init__(self, stop: threading.Event, seconds: float) -> None:
        self.stop, self.seconds, self.closed = stop, seconds, False

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for _ in requests:
            if self.stop.wait(self.seconds):
                raise MeasureError("the measurement was stopped by its caller")
            yield Measurement(Status.OK, (self.deadline,))

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        raise LockTimeout("the machine was not free in time")

    def close(self) -> None:
        self.closed = True


def machine_with(seconds: float = 0.0) -> FleetMachine:
    machine = FleetMachine(Workshop(), "somebody")
    assert machine.open(1, cloudpickle.dumps(lambda workshop, stop: Waiting(stop, seconds))) is None
    return machine


def test_it_describes_itself_and_says_what_it_does() -> None:
    machine = FleetMachine(Workshop(Calibration(1.0), Calibration(2.0), LockTimeout("in use")), "somebody")
    assert machine.identify() == (MachineIdentity(TARGET, "0a1b"), 3, versions())
    assert machine.calibrate(1.0) == Calibration(1.0) and machine.calibrate(1.0) == Calibration(2.0)
    refusal = machine.calibrate(1.0)
    assert refusal == Refusal("in use", late=True) and isinstance(refusal.raised(), LockTimeout)
    sign = machine.ping()
    assert sign.holder == "somebody" and sign.calibration == Calibration(1.0), "the first one counts"
    assert sign.queue == sign.measured == 0 and time.time() - sign.since < 60


def test_measurements_and_the_deadline_of_the_holder() -> None:
    machine = machine_with()
    measured = machine.measure(1, 1, REQUESTS, 5.0)
    assert isinstance(measured, list) and [each.status for each in measured] == [Status.OK] * 3
    assert 0 < measured[0].seconds[0] - time.perf_counter() < 6, "a reading of this machine's clock"
    assert machine.ping().measured == 3 and machine.ping().queue == 0
    assert machine.race(2, 1, [REQUESTS[0].candidate], 2, 5.0) == Refusal("the machine was not free in time", late=True)


def test_a_call_that_runs_is_stopped_and_the_next_one_is_not() -> None:
    machine = machine_with(seconds=30.0)
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(machine.measure(7, 1, REQUESTS, 60.0)))
    begin = time.perf_counter()
    thread.start()
    while machine.ping().queue != 3:
        time.sleep(0.01)
    machine.stop(6)  # an earlier one
    machine.stop(7)
    thread.join()
    assert time.perf_counter() - begin < 20
    assert answers == [Refusal("the measurement was stopped by its caller")]
    machine._measurers[1].seconds = 0.0  # type: ignore[attr-defined]
    assert isinstance(machine.measure(8, 1, REQUESTS, 60.0), list)


def test_a_call_that_was_stopped_before_it_began_measures_nothing() -> None:
    machine = machine_with()
    machine.stop(3)
    assert machine.measure(3, 1, REQUESTS, 60.0) == Refusal("the measurement was stopped by its caller")
    assert machine.ping().measured == 0
    assert isinstance(machine.measure(4, 1, REQUESTS, 60.0), list)


def test_a_workload_that_does_not_load_is_one_line() -> None:
    machine = FleetMachine(Workshop(), "somebody")
    refusal = machine.open(1, b"nonsense")
    assert refusal is not None and not refusal.late
    assert refusal.error.startswith("the workload does not load there: UnpicklingError: ")


def test_everything_is_closed() -> None:
    workshop = Workshop()
    machine = FleetMachine(workshop, "somebody")
    for number in (1, 2):
        machine.open(number, cloudpickle.dumps(lambda workshop, stop: Waiting(stop, 0.0)))
    first, second = machine._measurers[1], machine._measurers[2]
    machine.shut(1)
    machine.shut(1)
    assert first.closed and not second.closed  # type: ignore[attr-defined]
    machine.close()
    assert second.closed and workshop.closed  # type: ignore[attr-defined]


@pytest.mark.compiles
def test_the_machine_itself_measures_as_a_local_measurer_does(workload: Workload, target: Cpu) -> None:
    sketches = sketches_for(workload, target)
    ((_, space), *_) = sketches
    machine = FleetMachine(LocalWorkshop(), "somebody")
    identity = machine.identify()
    assert not isinstance(identity, Refusal) and identity[0].target == Cpu.detect()
    try:
        assert machine.open(1, cloudpickle.dumps(KernelSetup(workload, target, sketches, seed=0))) is None
        candidate = Candidate(space.name, space.origin)
        measured = machine.measure(1, 1, [Request(candidate, 2)], 60.0)
        assert isinstance(measured, list) and len(measured[0].seconds) == 2
        raced = machine.race(2, 1, [candidate, candidate], 3, 60.0)
        assert isinstance(raced, list) and [len(each.seconds) for each in raced] == [3, 3]
    finally:
        machine.close()
