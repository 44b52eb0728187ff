"""What a GPU does to a worker, shown by a CPU in its place: a kernel poisons it, heat slows it, clocks are noted."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import psutil
import pytest

from stand_ins.faults import Plain
from stormdrop.codegen.compile import Kernel, load_kernel
from stormdrop.errors import InputError
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.gpu import GPUS
from stormdrop.measure.contract import KernelSetup
from stormdrop.measure.local import LocalMeasurer
from stormdrop.measure.pool.pool import WorkerPool
from stormdrop.measure.sites import site_of_model
from stormdrop.measure.worker.devices import CpuDevice
from stormdrop.sketches.contract import Variant
from stormdrop.space import Categorical, Space
from stormdrop.trial import Candidate, Request, Status
from stormdrop.tuning.tune import tune

pytestmark = pytest.mark.compiles

CLOCK = 1755


class PretendedGpu(CpuDevice):
    """Like `GpuDevice`: after an illegal access no kernel of this process runs any more."""

    in_process = False
    on_cores = False
    built = "cool"
    poisoned = False
    running = "cool"

    def load(self, module: Any) -> Kernel:
        kernel, kind = load_kernel(module), type(self).built

        def call(*arguments: Any) -> object:
            PretendedGpu.running = kind
            PretendedGpu.poisoned |= kind == "poisons"
            if PretendedGpu.poisoned:
                raise RuntimeError("CUDA: an illegal memory access was encountered")
            return kernel.call(*arguments)

        return Kernel(call, kernel.module)

    def slowed(self) -> bool:
        return PretendedGpu.running == "hot"

    def clock(self) -> int:
        return CLOCK


@dataclass(frozen=True)
class OnDevice:
    """`Plain` with one more knob: what the candidate does to the device."""

    name: str = "on_device"
    max_error: float = 0.0

    def space(self, workload: Workload, target: Cpu) -> Space | None:
        plain = Plain().space(workload, target)
        assert plain is not None
        return Space(self.name, [*plain.knobs, Categorical("device", ("cool", "hot", "poisons"))])

    def apply(self, workload: Workload, target: Cpu, config: Mapping[str, Any]) -> Variant:
        PretendedGpu.built = config["device"]
        return Plain().apply(workload, target, {"tile": config["tile"]})

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_a_worker, ()


def _in_a_worker() -> OnDevice:
    """Is unpickled just before the workbench looks for the device of its target."""
    from stormdrop.measure.worker import workbench

    workbench.device_of = lambda _: PretendedGpu()  # type: ignore[assignment, attr-defined]
    return OnDevice()


def test_a_poisoned_device_costs_one_candidate_and_heat_is_noted(
    workload: Workload, target: Cpu, tmp_path: Path
) -> None:
    sketch = OnDevice()
    space = sketch.space(workload, target)
    assert space is not None
    kinds = ["cool", "poisons", "cool", "hot", "cool"]
    batch = [
        Request(Candidate(sketch.name, space.point({"tile": tile, "device": kind})), 3)
        for tile, kind in zip(itertools.cycle((4, 8, 16)), kinds, strict=False)
    ]
    with LocalMeasurer(
        KernelSetup(workload, target, [(sketch, space)]), workers=1, lock_path=tmp_path / "lock"
    ) as measurer:
        measurements = list(measurer.measure(batch))
        account = measurer.account
    assert [measurement.status for measurement in measurements] == [
        Status.OK if kind != "poisons" else Status.RUNTIME for kind in kinds
    ]
    assert measurements[1].error.endswith("an illegal memory access was encountered")
    assert [measurement.suspect for measurement in measurements] == [kind == "hot" for kind in kinds]
    # Kernels that the poisoned process had built are built again. The hot run is repeated.
    assert (account.restarts, account.retried) == (1, 1)
    assert account.built > len(batch)
    assert account.clocks == [CLOCK] * (len(batch) - 1 + account.retried)


@dataclass(frozen=True)
class WithGpus(Cpu):
    """A CPU that stands for GPUs, whose kernels it runs."""

    numbers: tuple[int, ...] = ()

    @property
    def gpus(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.numbers


class NumberedGpu(CpuDevice):
    """Reports the number of the only GPU that its process sees as its clock."""

    on_cores = False

    def clock(self) -> int:
        return int(os.environ["CUDA_VISIBLE_DEVICES"])


@dataclass(frozen=True)
class OnNumbered(Plain):
    """`Plain` for such GPUs."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_a_worker_of_a_gpu, ()


def _in_a_worker_of_a_gpu() -> OnNumbered:
    from stormdrop.measure.worker import workbench

    workbench.device_of = lambda _: NumberedGpu()  # type: ignore[assignment, attr-defined]
    return OnNumbered()


@pytest.mark.parametrize("numbers", [(3,), (3, 5)])
def test_all_gpus_measure_the_kernels_of_a_model_each_with_workers_that_stay(
    workload: Workload, target: Cpu, numbers: tuple[int, ...]
) -> None:
    own = {each.name: getattr(target, each.name) for each in fields(target)}
    gpus, sketch = WithGpus(**own, numbers=numbers), OnNumbered()
    space = sketch.space(workload, target)
    assert space is not None
    requests = [Request(Candidate(sketch.name, space.point({"tile": tile})), 1) for tile in (4, 8, 16, 1, 2, 32)]
    processes = []
    with site_of_model(gpus) as site:
        for _ in range(2):  # kernels
            with site.measurer(KernelSetup(workload, gpus, [(sketch, space)])) as measurer:
                assert all(measurement.ok for measurement in measurer.measure(requests))
                assert {clock for clocks in measurer.conditions()["clocks"] for clock in clocks} == {*numbers}
            processes.append({child.pid for child in psutil.Process().children()})
    assert processes[0] == processes[1] > {child.pid for child in psutil.Process().children()}


def test_a_gpu_takes_no_pool(workload: Workload, pool: WorkerPool) -> None:
    with pytest.raises(InputError, match="target a100 is a GPU: each has workers of its own, pool cannot be given"):
        tune(workload, target=GPUS["a100"], pool=pool, trials=1)
