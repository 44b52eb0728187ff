"""A kernel that needs a unit which is not there costs one candidate and says why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tile_sketches import WithTiles

from stormdrop import operators
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.detect import cpu_family
from stormdrop.measure.contract import KernelSetup
from stormdrop.measure.local import LocalMeasurer
from stormdrop.trial import Candidate, Measurement, Request, Status

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(cpu_family() != "x86" or "amx-tile" in Cpu.detect().features, reason="needs an x86 without AMX"),
]

WORKLOAD = operators.matmul(16, 16, 16)
LACKING = Cpu.detect()
CLAIMING = replace(LACKING, features=(*LACKING.features, "amx-tile"))


@pytest.fixture(params=[LACKING, CLAIMING], ids=["the target lacks it", "the target claims it"])
def machine(request: pytest.FixtureRequest) -> Cpu:
    """A target that knows that there are no tiles, and one that claims that there are."""
    assert isinstance(request.param, Cpu)
    return request.param


@pytest.fixture
def measurer(machine: Cpu, tmp_path: Path) -> Iterator[LocalMeasurer]:
    """A measurer with one worker."""
    sketch = WithTiles()
    space = sketch.space(WORKLOAD, machine)
    assert space is not None
    with LocalMeasurer(
        KernelSetup(WORKLOAD, machine, [(sketch, space)]), workers=1, lock_path=tmp_path / "lock"
    ) as measurer:
        yield measurer


def measured(measurer: LocalMeasurer, *kinds: str) -> list[Measurement]:
    """What comes out for candidates of these kinds, in one batch."""
    space = WithTiles().space(WORKLOAD, LACKING)
    assert space is not None
    batch = [
        Candidate("with_tiles", space.point({"tile": 1 << number, "tiles": kind})) for number, kind in enumerate(kinds)
    ]
    return list(measurer.measure([Request(candidate, 1) for candidate in batch]))


def test_a_kernel_that_names_its_unit_is_refused_before_it_is_compiled(measurer: LocalMeasurer) -> None:
    before, refused, after = measured(measurer, "none", "named", "none")
    assert (before.status, after.status) == (Status.OK, Status.OK)
    assert refused.status is Status.COMPILE_HOST
    assert "the kernel needs amx-tile, which this CPU lacks" in (refused.error or "")
    assert measurer.account.restarts == 0


def test_a_kernel_that_does_not_name_it_costs_a_worker(measurer: LocalMeasurer, machine: Cpu) -> None:
    before, failed, after = measured(measurer, "none", "unnamed", "none")
    assert (before.status, after.status) == (Status.OK, Status.OK)
    # Without the extension LLVM ends the process while it compiles; with it the CPU does when the kernel runs.
    ended = "SIGABRT while" if machine == LACKING else "SIGILL while running"
    assert not failed.ok
    assert ended in (failed.error or "")
    assert measurer.account.restarts == 1
