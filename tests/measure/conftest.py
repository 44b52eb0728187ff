"""One small workload and one pool of workers for all tests that measure, because starting a worker takes a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stand_ins.faults import ChosenFaults, Plain
from stormdrop import operators
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.measure.contract import KernelSetup
from stormdrop.measure.local import Limits, LocalMeasurer
from stormdrop.measure.pool.pool import WorkerPool
from stormdrop.sketches.contract import AnySketch
from stormdrop.trial import Candidate

SKETCH: AnySketch = ChosenFaults(Plain())


@pytest.fixture(scope="session")
def target() -> Cpu:
    return Cpu.detect()


@pytest.fixture(scope="session")
def workload() -> Workload:
    return operators.matmul(64, 48, 32)


@pytest.fixture(scope="session")
def pool(target: Cpu) -> Iterator[WorkerPool]:
    with WorkerPool(target.cores, workers=2) as pool:
        yield pool


@pytest.fixture
def measurer(
    workload: Workload, target: Cpu, pool: WorkerPool, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[LocalMeasurer]:
    """A measurer with a lock of its own, so that tests need not wait for the machine. Its parameter is the cutoff."""
    space = SKETCH.space(workload, target)
    assert space is not None
    with LocalMeasurer(
        KernelSetup(workload, target, [(SKETCH, space)]),
        lock_path=tmp_path / "lock",
        pool=pool,
        limits=Limits(build_seconds=2.0, run_seconds=2.0, cutoff=getattr(request, "param", 3.0)),
    ) as measurer:
        yield measurer


@pytest.fixture(scope="session")
def candidate(workload: Workload, target: Cpu) -> Callable[..., Candidate]:
    """Makes the candidate with this tile and fault."""
    space = SKETCH.space(workload, target)
    assert space is not None

    def make(tile: int = 4, fault: str = "none") -> Candidate:
        return Candidate(SKETCH.name, space.point({"tile": tile, "fault": fault}))

    return make
