"""Measuring on this machine: the order of measurements, phases, what is kept between batches, suspect runs."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray
from tvm import te, tirx

from stand_ins.faults import ChosenFaults, Plain
from stormdrop import operators
from stormdrop.errors import MeasureError
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.sharing.foreign_load import LoadThresholds
from stormdrop.measure.contract import KernelSetup, Measurer
from stormdrop.measure.local import Limits, LocalMeasurer
from stormdrop.measure.pool.jobs import Data
from stormdrop.measure.pool.pool import WorkerPool
from stormdrop.sketches.registry import sketches_for
from stormdrop.testing import MeasurerConformance
from stormdrop.testing.measurers import MeasurerCase
from stormdrop.trial import Candidate, Request, Status

pytestmark = pytest.mark.compiles

Make = Callable[..., Candidate]


class TestConformance(MeasurerConformance):
    """The contract of all measurers."""

    @pytest.fixture(autouse=True)
    def _take(self, measurer: LocalMeasurer, candidate: Make) -> None:
        self.case = MeasurerCase(measurer, (candidate(4), candidate(8)), (candidate(4, "raise"), candidate(8, "wrong")))

    def make(self) -> MeasurerCase:
        return self.case


def test_it_is_a_measurer(measurer: LocalMeasurer) -> None:
    assert isinstance(measurer, Measurer)


def test_samples_and_phases(measurer: LocalMeasurer, candidate: Make) -> None:
    """Every phase took time, and samples are shorter than the phase they were taken in."""
    (measurement,) = measurer.measure([Request(candidate(4), 5)])
    assert measurement.status is Status.OK
    assert len(measurement.seconds) == 5
    for phase in ("schedule", "build", "run", "check"):
        assert getattr(measurement.phases, phase) > 0
    assert sum(measurement.seconds) <= measurement.phases.run
    assert measurer.best is not None
    assert min(measurement.seconds) <= measurer.best <= max(measurement.seconds)
    account = measurer.account
    assert account.built == 1
    assert account.build >= measurement.phases.build
    assert account.run >= measurement.phases.run


def test_a_failure_is_handed_out_before_the_rest_is_built(measurer: LocalMeasurer, candidate: Make) -> None:
    """The others are still being built when the first failure is handed out."""
    requests = [Request(candidate(4, "raise"), 1), Request(candidate(4, "hang_build"), 1), Request(candidate(8), 1)]
    measurements = measurer.measure(requests)
    start = time.perf_counter()
    assert next(measurements).status is Status.INSTANTIATION
    assert next(measurements).status is Status.BUILD_TIMEOUT
    assert time.perf_counter() - start >= measurer.build_timeout
    assert next(measurements).ok
    assert next(measurements, None) is None


def test_nothing_is_done_before_it_is_asked_for(measurer: LocalMeasurer, candidate: Make) -> None:
    measurements = measurer.measure([Request(candidate(4), 1)])
    assert measurer.account.built == 0
    assert next(measurements).ok


# Without a cutoff: a candidate that a busy machine makes three times slower would have one sample only.
@pytest.mark.parametrize("measurer", [math.inf], indirect=True, ids=["no cutoff"])
def test_a_known_candidate_is_not_built_again(measurer: LocalMeasurer, candidate: Make) -> None:
    (first,) = measurer.measure([Request(candidate(4), 1)])
    again, other, twice = measurer.measure(
        [Request(candidate(4), 3), Request(candidate(8), 1), Request(candidate(8), 1)]
    )
    assert first.phases.build > 0
    assert again.phases.build == 0
    assert len(again.seconds) == 3
    assert other.phases.build > 0
    assert twice.phases.build == 0
    assert measurer.account.built == 2


def test_an_iterator_that_is_neither_finished_nor_closed_disturbs_nobody(
    measurer: LocalMeasurer, candidate: Make
) -> None:
    """Its answers, which nobody waits for any more, are not taken for those of later candidates."""
    left = measurer.measure([Request(candidate(4, "raise"), 1), Request(candidate(8, "raise"), 1)])
    assert not next(left).ok
    for tile in (16, 32):
        assert next(measurer.measure([Request(candidate(tile), 1)])).ok


def test_a_hopeless_candidate_gets_one_sample(measurer: LocalMeasurer, candidate: Make) -> None:
    measurer.best = 1e-9
    (measurement,) = measurer.measure([Request(candidate(4), 5)])
    assert measurement.ok
    assert len(measurement.seconds) == 1


def test_workloads_share_a_pool(pool: WorkerPool, target: Cpu, tmp_path: Path) -> None:
    """One workload after the other, and in turns: the outputs are right, and no process is started."""
    processes = [worker.pid for worker in pool.workers if worker.alive]
    measurers = []
    for columns in (16, 80):
        workload = operators.matmul(32, columns, 16)
        space = Plain().space(workload, target)
        assert space is not None
        measurers.append(
            LocalMeasurer(KernelSetup(workload, target, [(Plain(), space)]), lock_path=tmp_path / "lock", pool=pool)
        )
    request = Request(Candidate("plain", (2,)), 1)
    for measurer in (*measurers, *measurers):
        assert next(measurer.measure([request])).ok
    for measurer in measurers:
        measurer.close()
    assert processes == [worker.pid for worker in pool.workers if worker.pid in processes]


def test_transformed_constants(target: Cpu, pool: WorkerPool, tmp_path: Path) -> None:
    """A sketch that packs weights, which are prepared outside the timing, gives right outputs."""
    from stormdrop.sketches.registry import sketches_for

    workload = operators.conv2d(1, 8, 8, 16, 32, 3, 3, 1, 1, bias=1, act="relu")
    (sketch, space), *_ = sketches_for(workload, target)
    with LocalMeasurer(
        KernelSetup(workload, target, [(sketch, space)]), lock_path=tmp_path / "lock", pool=pool
    ) as measurer:
        origin = Candidate(space.name, space.origin)
        near = [Candidate(space.name, point) for point in space.neighbours(space.origin)[:3]]
        measurements = list(measurer.measure([Request(candidate, 1) for candidate in (origin, *near)]))
    assert [measurement.status for measurement in measurements] == [Status.OK] * len(measurements)


def test_a_tie_that_float32_decides_otherwise_is_no_wrong_answer(target: Cpu, pool: WorkerPool, tmp_path: Path) -> None:
    """25 * float32(0.1) is 2.5 in float32 and a little more in float64."""
    x, w, k = te.placeholder((8, 16), "int8"), te.placeholder((16, 24), "int8"), te.reduce_axis((0, 16))
    total = te.compute((8, 24), lambda i, j: te.sum(x[i, k].astype("int32") * w[k, j].astype("int32"), axis=k))
    level = te.compute((8, 24), lambda i, j: te.nearbyint(total[i, j].astype("float32") * tirx.const(0.1, "float32")))
    result = te.compute((8, 24), lambda i, j: level[i, j] * tirx.const(0.3, "float32"))
    workload = Workload.create("quantised", te.create_prim_func([x, w, result]))
    assert workload.reference_with_ties(workload.random_inputs(0))[1], "no value is near a tie"
    sketches = sketches_for(workload, target)
    spaces = [space for _, space in sketches]
    lock = tmp_path / "measure.lock"
    with LocalMeasurer(KernelSetup(workload, target, sketches), pool=pool, lock_path=lock) as measurer:
        (measurement,) = measurer.measure([Request(Candidate(spaces[0].name, spaces[0].origin), 1)])
    assert (measurement.status, measurement.error) == (Status.OK, "")


def test_a_suspect_run_is_repeated_once_and_marked(
    workload: Workload, target: Cpu, pool: WorkerPool, tmp_path: Path, candidate: Make
) -> None:
    """With thresholds that no run can keep. With thresholds that every run keeps, nothing is marked."""
    sketch = ChosenFaults(Plain())
    space = sketch.space(workload, target)
    assert space is not None
    strict = LoadThresholds(delay_fraction=-1.0, delay_floor=-1.0, switches=-1, switches_per_second=-1.0)
    lax = LoadThresholds(delay_fraction=9.0, switches=10**9, foreign_cores=99.0, stolen_fraction=9.0)
    for thresholds, suspect in ((strict, True), (lax, False)):
        with LocalMeasurer(
            KernelSetup(workload, target, [(sketch, space)]),
            lock_path=tmp_path / "l",
            pool=pool,
            limits=Limits(load=thresholds),
        ) as measurer:
            (measurement,) = measurer.measure([Request(candidate(4), 2)])
            assert measurement.suspect is suspect
            assert measurer.account.retried == int(suspect)
            assert [raced.suspect for raced in measurer.race([candidate(4), candidate(8)], 2)] == [suspect] * 2


def test_unknown_sketches_and_points(measurer: LocalMeasurer) -> None:
    (measurement,) = measurer.measure([Request(Candidate("chosen_faults", (77, 0)))])
    assert measurement.status is Status.INSTANTIATION
    with pytest.raises(MeasureError, match="no sketch is called 'nonesuch'"):
        list(measurer.measure([Request(Candidate("nonesuch", (0,)))]))


class Bomb:
    """Ends the process that unpickles it."""

    def __reduce__(self) -> tuple[Callable[[int], object], tuple[int]]:
        return os._exit, (3,)


def test_workers_that_die_of_the_expected_outputs(measurer: LocalMeasurer, candidate: Make) -> None:
    """Every worker is lost before it begins. The measurer must not try for ever."""
    outputs = measurer._dispatcher._outputs
    measurer._dispatcher._outputs = lambda: Data(outputs=(Bomb(),))  # type: ignore[arg-type]
    with pytest.raises(MeasureError, match="die before they run"):
        list(measurer.measure([Request(candidate(4), 1)]))
    measurer._dispatcher._outputs = outputs
    assert next(measurer.measure([Request(candidate(4), 1)])).ok


def test_the_reference_begins_with_the_first_measurement_and_ends_with_the_measurer(
    workload: Workload,
    target: Cpu,
    pool: WorkerPool,
    tmp_path: Path,
    candidate: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, ended = threading.Event(), threading.Event()
    reference = Workload.reference

    def slow_reference(self: Workload, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        begun.set()
        time.sleep(0.5)
        outputs = reference(self, inputs)
        ended.set()
        return outputs

    monkeypatch.setattr(Workload, "reference", slow_reference)
    sketch = ChosenFaults(Plain())
    space = sketch.space(workload, target)
    assert space is not None
    measurer = LocalMeasurer(KernelSetup(workload, target, [(sketch, space)]), lock_path=tmp_path / "lock", pool=pool)
    assert not begun.is_set()
    measurements = measurer.measure([Request(candidate(4, "raise"), 1), Request(candidate(8), 1)])
    assert next(measurements).status is Status.INSTANTIATION
    assert begun.wait(10.0), "it runs in a thread, which may start a little later than the candidate fails"
    measurements.close()  # type: ignore[attr-defined]
    measurer.close()
    assert ended.is_set()
