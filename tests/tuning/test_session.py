"""A kernel's tuning that goes on for a while at a time, as a model's tuning lets it."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from replayed_tuning import TARGET, WORKLOAD

from simulated_clock import SimulatedClock, simulated
from stormdrop.errors import MeasureError
from stormdrop.measure import places
from stormdrop.measure.contract import KernelSetup, Site
from stormdrop.measure.places import Place, PlacesMeasurer
from stormdrop.measure.replay import ReplayMeasurer
from stormdrop.measure.sites import Given
from stormdrop.records import State, Store, open_store
from stormdrop.sketches.registry import sketches_for
from stormdrop.trial import Candidate, Measurement, Request, Status
from stormdrop.tuning.kernel import KernelTask
from stormdrop.tuning.options import TuneOptions
from stormdrop.tuning.session import Session
from stormdrop.tuning.tune import tune, tune_with


def recorded() -> dict[Candidate, list[float]]:
    (_, space), rng = sketches_for(WORKLOAD, TARGET)[0], np.random.default_rng(0)
    points = np.array(list(space.points()))
    steps = ((points - points[len(points) // 3]) ** 2).sum(axis=1)
    return {
        Candidate(space.name, tuple(map(int, point))): list(1e-3 * (1 + 0.05 * away) * rng.lognormal(0, 0.01, 20))
        for point, away in zip(points, steps, strict=True)
    }


RECORDED = recorded()


class RecordedKernel(ReplayMeasurer):
    """Remembers what it was asked; takes its time, by a clock; interrupts after so many."""

    def __init__(self, clock: SimulatedClock | None = None, left: int | None = None) -> None:
        super().__init__(RECORDED, np.random.default_rng(7))
        self.clock, self.left = clock or SimulatedClock(), left
        self.asked: list[Candidate] = []
        self.races = 0

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for request, measurement in zip(requests, super().measure(requests), strict=True):
            if self.left == len(self.asked):
                raise KeyboardInterrupt
            self.clock.sleep(0.02)
            self.asked.append(request.candidate)
            yield measurement

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        self.races += 1
        return super().race(candidates, rounds)


class Machine(ReplayMeasurer):
    """A machine of a fleet, which takes its time."""

    def __init__(self, fleet: Machines) -> None:
        super().__init__(RECORDED, exact=True)
        self.fleet = fleet

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for measurement in super().measure(requests):
            self.fleet.asked += 1
            if self.fleet.asked > 1.5 * self.fleet.width:
                self.fleet.has_gone_on.set()
            if self.fleet.slow:
                self.fleet.went_on = self.fleet.has_gone_on.wait(self.fleet.slow.pop())
            yield measurement


class Machines(Site):
    """A fleet of twelve machines, as much of it as a task needs.

    The first candidates may take longer: until more have been asked for than a batch has, or so many seconds at most.
    """

    width = 12

    def __init__(self, *slow: float) -> None:
        self.slow = list(slow)
        self.asked, self.has_gone_on, self.went_on = 0, threading.Event(), False

    def measurer(self, setup: KernelSetup) -> PlacesMeasurer:
        places = [Place(str(number), Machine(self)) for number in range(self.width)]
        return PlacesMeasurer("here", places, threading.Event())


def kernel(measurer: RecordedKernel | None = None, search: str = "storm", resume: bool = False) -> KernelTask:
    options = TuneOptions(search=search, seed=3, resume=resume, fresh=not resume)
    return KernelTask.create(WORKLOAD, TARGET, options, site=None if measurer is None else Given(measurer))


def begun(store: Store, measurer: RecordedKernel, search: str = "storm", resume: bool = False) -> Session:
    return kernel(measurer, search, resume).session(store)


@pytest.mark.parametrize("search", ["storm", "droplet", "random"])
def test_slices_are_the_search_in_one_piece(search: str) -> None:
    whole, pieces = RecordedKernel(), RecordedKernel()
    with open_store("sqlite://") as store:
        tune(WORKLOAD, target=TARGET, store=store, measurer=whole, search=search, seed=3, trials=30, fresh=True)
    with open_store("sqlite://") as store, begun(store, pieces, search) as task:
        while task.trials < 30 and not task.ended:
            before = task.trials
            task.search(np.inf, min(3, 30 - before))
            assert task.ended or before < task.trials <= before + 3
        result = task.finish(race_seconds=1.0)
        assert store.sessions()[0].state is State.FINISHED
    assert pieces.asked == whole.asked
    assert result.best is not None and result.trials == task.trials


def test_time_ends_a_slice_between_batches_and_the_limit_within_one(monkeypatch: pytest.MonkeyPatch) -> None:
    device = RecordedKernel(simulated(monkeypatch))
    with open_store("sqlite://") as store, begun(store, device, "random") as task:
        task.search(0.001)
        assert len(device.asked) == 8
        task.search(10.0, limit=0.05)
        assert len(device.asked) == 11
        task.search(10.0, 16 - 11)
        assert len(device.asked) == 16  # the rest of the batch
    whole = RecordedKernel()
    with open_store("sqlite://") as store, begun(store, whole, "random") as task:
        task.search(np.inf, 16)
    assert device.asked == whole.asked


def test_the_clock_stands_between_slices() -> None:
    with open_store("sqlite://") as store, begun(store, RecordedKernel()) as task:
        task.search(np.inf, 8)
        effort = task.effort
        time.sleep(0.2)
        assert task.effort == effort
        task.search(np.inf, 8)
        assert effort < task.effort


def test_without_time_there_is_no_race() -> None:
    device = RecordedKernel()
    with open_store("sqlite://") as store, begun(store, device) as task:
        task.search(np.inf, 16)
        result = task.finish(race_seconds=0.0)
        assert store.sessions()[0].state is State.FINISHED
    assert device.races == 0
    assert result.best is not None and result.best.seconds == pytest.approx(task.seconds, rel=0.02)
    assert result.finalists[0].config == result.best.config


def test_what_cannot_go_on_keeps_what_it_has() -> None:
    device = RecordedKernel()
    with open_store("sqlite://") as store, begun(store, device) as task:
        task.search(np.inf, 16)
        result = task.abandon()
        assert result.interrupted and result.best is not None
        assert result.best.seconds == pytest.approx(task.seconds, rel=0.02)
        assert store.sessions()[0].state is State.INTERRUPTED
        again = RecordedKernel()
        with begun(store, again, resume=True) as other:
            assert other.trials == 16 and other.effort > 0
            other.search(np.inf, 4)
        assert not set(again.asked) & set(device.asked)


def test_an_interrupt_before_anything_leaves_no_session() -> None:
    with open_store("sqlite://") as store, begun(store, RecordedKernel()) as task:
        result = task.finish(interrupted=True, race_seconds=1.0)
        assert result.best is None and not store.sessions()


def test_an_interrupted_slice_can_be_finished() -> None:
    with open_store("sqlite://") as store, begun(store, RecordedKernel(left=5)) as task:
        with pytest.raises(KeyboardInterrupt):
            task.search(np.inf)
        result = task.finish(interrupted=True, race_seconds=1.0)
        assert result.trials == 5 and result.best is not None
        assert store.sessions()[0].state is State.INTERRUPTED


def test_a_model_s_later_request_for_no_more_than_was_granted_is_answered() -> None:
    with open_store("sqlite://") as store:
        with begun(store, RecordedKernel(), "random") as task:
            task.search(np.inf, 10)
            task.finish(race_seconds=1.0, granted=50)
        device = RecordedKernel()
        settings: dict[str, Any] = {"store": store, "measurer": device, "search": "random", "seed": 3}
        own = dataclasses.replace(kernel(search="random"), options=TuneOptions(search="random", seed=3))
        known = own.answered(store, trials=50, seconds=None)
        assert known is not None and known.reused == 10
        assert own.answered(store, trials=51, seconds=None) is None
        # Who asks for this kernel alone wants all of its trials.
        assert tune(WORKLOAD, target=TARGET, trials=10, **settings).reused == 10
        assert not device.asked
        assert tune(WORKLOAD, target=TARGET, trials=50, **settings).reused == 0
        assert device.asked


class Broken(RecordedKernel):
    """Nothing can be built, always for the same reason."""

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for request in requests:
            self.asked.append(request.candidate)
            yield Measurement(Status.COMPILE_HOST, (), f"no space left on device: {len(self.asked)} files")


@pytest.mark.parametrize("search", ["storm", "droplet", "random"])
def test_failures_that_are_all_alike_end_the_search_with_their_reason(search: str) -> None:
    device = Broken()
    with open_store("sqlite://") as store:
        settings: dict[str, Any] = {"store": store, "measurer": device, "search": search, "trials": 1000}
        with pytest.raises(MeasureError, match=r"failed in the same way \(compile_host\): no space left on device"):
            tune(WORKLOAD, target=TARGET, **settings)
        assert 32 <= len(device.asked) <= 272
        assert store.sessions()[0].state is State.INTERRUPTED  # and can be resumed


@pytest.mark.parametrize(("search", "ahead"), [("storm", True), ("random", True), ("droplet", False)])
def test_a_fleet_does_not_wait_for_the_slowest_and_finds_what_it_would(
    search: str, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_LEAST_LATE_SECONDS", math.inf)  # nobody else takes what is late
    found = []
    for fleet in (Machines(), Machines(100.0 if ahead else 0.5)):
        options = TuneOptions(search=search, seed=3, trials=60, fresh=True)
        with open_store("sqlite://") as store:
            result = tune_with(WORKLOAD, TARGET, options, store=store, site=fleet)
            records = store.records(store.session(store.sessions()[0].id))
        assert result.trials == 60 or result.converged
        found.append([(record.config, record.batch, record.measurement.seconds) for record in records])
    assert found[0] == found[1], "what arrives first makes no difference"
    assert fleet.went_on is ahead, "the others go on with the next batch while one takes long"
