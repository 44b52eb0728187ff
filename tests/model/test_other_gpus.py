"""Kernels of a GPU on which nothing was tuned have what other GPUs have found, as far as it fits."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stormdrop import operators
from stormdrop.codegen.cuda import Resources
from stormdrop.errors import MeasureError
from stormdrop.machine import gpu as gpus
from stormdrop.machine.gpu import GPUS
from stormdrop.model.building.builder import ModelBuilder
from stormdrop.model.building.tuned_task import Borrowed
from stormdrop.model.graph.graph import Graph
from stormdrop.model.tuning import other_gpus
from stormdrop.model.tuning.other_gpus import borrowed_schedules
from stormdrop.model.tuning.scheduler import recorded_tasks
from stormdrop.records import Outcome, Problem, Setting, Store, export_file, import_file, open_store
from stormdrop.sketches.gpu.contraction import GpuContraction
from stormdrop.tuning.kernel import KernelTask
from stormdrop.tuning.options import TuneOptions

RTX3090, A6000 = ("cuda sm_86", "NVIDIA GeForce RTX 3090"), ("cuda sm_86", "NVIDIA RTX A6000")
A10G, A100 = ("cuda sm_86", "NVIDIA A10G"), ("cuda sm_80", "NVIDIA A100-SXM4-80GB")
POCL = ("opencl", "pthread, Portable Computing Language")
TARGET = GPUS["rtxa6000"]
KERNEL = KernelTask.create(operators.matmul(256, 256, 256), TARGET, TuneOptions())
SKETCH, SPACE = KERNEL.sketches[0]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """An empty database, on a machine without GPUs and without a compiler for them."""
    monkeypatch.setattr(gpus, "visible_gpus", lambda: ())
    compiler(monkeypatch, None)
    with open_store("sqlite://") as opened:
        yield opened


def compiler(monkeypatch: pytest.MonkeyPatch, nvcc: str | None) -> None:
    """Says where `nvcc` is."""
    monkeypatch.setattr(other_gpus, "shutil", SimpleNamespace(which=lambda _: nvcc))


def found_on(
    store: Store,
    gpu: tuple[str, str],
    config: Mapping[str, Any],
    kernel: KernelTask = KERNEL,
    sketch: str = "",
    **outcome: Any,
) -> None:
    """Records that a tuning on a GPU has found this configuration, of a sketch; by default of the first one."""
    workload = kernel.workload
    setting = Setting("storm", 0, {sketch: ""} if sketch else {space.name: "" for _, space in kernel.sketches})
    session = store.open(Problem(workload.key, workload.text, workload.name, *gpu), setting)
    store.finish(session, Outcome(sketch or kernel.sketches[0][1].name, config, 1e-4, (1e-4, 1e-4), **outcome))


def promising(count: int) -> list[dict[str, Any]]:
    """Random configurations that the model of time expects to be nearly as fast as the default."""
    return [config for config, ratio in expectations() if ratio < 2][:count]


def expectations() -> Iterator[tuple[dict[str, Any], float]]:
    """Different random configurations, and what the model of time expects of them in times of the default."""
    assert isinstance(SKETCH, GpuContraction)
    rng = np.random.default_rng(0)
    points = [SPACE.origin, *dict.fromkeys(SPACE.sample(rng) for _ in range(2000))]
    default, *others = SKETCH.estimate(KERNEL.workload, TARGET, SPACE.columns(points))
    for point, seconds in zip(points[1:], others, strict=True):
        yield SPACE.config(point), seconds / default


def borrowed(store: Store) -> Borrowed | None:
    return borrowed_schedules({7: KERNEL}, TARGET, store).get(7)


def test_the_nearest_gpu_comes_first_and_of_one_gpu_the_newest(store: Store) -> None:
    older, newer, near, opencl = promising(4)
    found_on(store, POCL, opencl)
    assert borrowed(store) is None
    for gpu, config in ((A100, older), (A100, newer)):
        found_on(store, gpu, config)
    assert borrowed(store) == Borrowed((SPACE.name, newer), A100[1])
    found_on(store, RTX3090, near)
    found_on(store, A10G, older)
    assert borrowed(store) == Borrowed((SPACE.name, near), RTX3090[1]), "its clock and bandwidth are nearer"


def test_what_does_not_fit_is_left_out(store: Store) -> None:
    (fits,) = promising(1)
    extent = {**fits, "space0": (512, 1, 1, 1, 1)}
    threads = {**fits, "space0": (1, 1, 256, 1, 1), "space1": (1, 1, 256, 1, 1)}
    for config in (extent, threads):
        found_on(store, RTX3090, config)
    found_on(store, RTX3090, {"threads": 64}, sketch="gpu_of_a_plugin")
    assert borrowed(store) is None
    found_on(store, A100, fits)
    assert borrowed(store) == Borrowed((SPACE.name, fits), A100[1])


def test_a_gpu_without_tensor_cores_says_nothing_about_them(store: Store) -> None:
    kernel = KernelTask.create(operators.matmul(256, 256, 256, dtype="float16"), TARGET, TuneOptions())
    (_, on_tensor_cores), (_, plain) = kernel.sketches
    config = plain.config(plain.origin)
    found_on(store, ("cuda sm_61", "NVIDIA GeForce GTX 1080 Ti"), config, kernel, plain.name)
    assert borrowed_schedules({0: kernel}, TARGET, store) == {}
    found_on(store, A100, on_tensor_cores.config(on_tensor_cores.origin), kernel)
    assert borrowed_schedules({0: kernel}, TARGET, store)[0].choice[0] == on_tensor_cores.name


def test_what_the_model_of_time_expects_to_be_far_slower_is_taken_from_this_very_gpu_only(store: Store) -> None:
    hopeless = next(config for config, ratio in expectations() if ratio > 4)
    found_on(store, RTX3090, hopeless)
    assert borrowed(store) is None
    found_on(store, A6000, hopeless)
    assert borrowed(store) == Borrowed((SPACE.name, hopeless), A6000[1])


@pytest.mark.compiles
def test_what_spills_or_does_not_compile_gives_way_to_the_next(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = promising(3)
    for gpu, config in zip((RTX3090, A10G, A100), configs, strict=True):
        found_on(store, gpu, config)
    outcomes: list[int | None] = []  # spilled bytes of what is compiled next; None if it does not compile

    def resources_of(sources: Sequence[str], _: object) -> list[list[Resources]]:
        assert len(sources) == 1 and "__global__" in sources[0]
        spilled = outcomes.pop(0)
        if spilled is None:
            raise MeasureError("nvcc: error")
        return [[Resources("main_kernel", 64, 0, spilled)]]

    compiler(monkeypatch, "nvcc")
    monkeypatch.setattr(other_gpus, "resources_of", resources_of)
    for results, stands in (([0], 0), ([8, 0], 1), ([None, 8, 0], 2), ([8, 8, 8], None)):
        outcomes[:] = results
        assert borrowed(store) == (
            None if stands is None else Borrowed((SPACE.name, configs[stands]), (RTX3090, A10G, A100)[stands][1])
        )
        assert outcomes == []


@pytest.mark.compiles
def test_one_schedule_that_does_not_compile_takes_no_other_with_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = KernelTask.create(operators.matmul(128, 256, 256), TARGET, TuneOptions())
    (bad,), good = promising(1), other.sketches[0][1].config(other.sketches[0][1].origin)
    found_on(store, RTX3090, bad)
    found_on(store, RTX3090, good, other)

    def resources_of(sources: Sequence[str], _: object) -> list[list[Resources]]:
        if sources[0] == failing:
            raise MeasureError("nvcc: error")
        return [[] for _ in sources]

    failing = other_gpus._source(KERNEL, (SPACE.name, bad), TARGET)
    compiler(monkeypatch, "nvcc")
    monkeypatch.setattr(other_gpus, "resources_of", resources_of)
    assert borrowed_schedules({0: KERNEL, 1: other}, TARGET, store).keys() == {1}


def test_records_that_were_imported_count(store: Store, tmp_path: Path) -> None:
    (config,) = promising(1)
    with open_store("sqlite://") as elsewhere:
        found_on(elsewhere, RTX3090, config)
        export_file(elsewhere, tmp_path / "r.jsonl")
    import_file(store, tmp_path / "r.jsonl")
    assert borrowed(store) == Borrowed((SPACE.name, config), RTX3090[1])


def test_a_model_is_built_with_it(residual: Graph, store: Store) -> None:
    options = TuneOptions()
    plain = recorded_tasks(residual, TARGET, options, store).tasks
    defaults = ModelBuilder(residual, plain, TARGET, options, {}).winners
    chosen = next(task for task in plain if task.kernel and task.kernel.sketches[0][1].bound > 8)
    kernel, index = chosen.kernel, chosen.task.index
    assert kernel is not None and all(task.borrowed is None for task in plain)
    (_, space), rng = kernel.sketches[0], np.random.default_rng(1)
    points = (space.sample(rng) for _ in range(1000))
    config = next(config for point in points if (config := space.config(point)) != defaults[index][1])
    found_on(store, A6000, config, kernel)
    tasks = recorded_tasks(residual, TARGET, options, store).tasks
    builder = ModelBuilder(residual, tasks, TARGET, options, {})
    assert builder.winners == {**defaults, index: (space.name, config)} and builder.defaults == defaults
    assert {task.reason for task in tasks if task.borrowed} == {f"schedule of a tuning on {A6000[1]}"}
    assert not any(task.borrowed for task in recorded_tasks(residual, TARGET, options, None).tasks)


@pytest.mark.compiles
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc on the PATH")
def test_nvcc_says_what_spills() -> None:
    """The 64 outputs of a thread and their operands do not fit the 64 registers that 1,024 threads leave it."""
    tight = dict.fromkeys(("space0", "space1"), (1, 1, 32, 1, 8)) | {"reduce0": (8, 1, 32)}
    loose = SPACE.config(SPACE.origin)
    rest = {name: value for name, value in loose.items() if name not in tight}
    assert other_gpus._work([(KERNEL, (SPACE.name, each)) for each in (loose, {**rest, **tight})], TARGET) == [
        True,
        False,
    ]


@pytest.mark.parametrize(("baseline", "taken"), [(None, False), (2e-4, True)])
def test_what_was_found_beside_other_load_has_to_have_raced(store: Store, baseline: float | None, taken: bool) -> None:
    (config,) = promising(1)
    found_on(store, A6000, config, extra={"disturbed": True}, baseline_seconds=baseline)
    assert (borrowed(store) is not None) is taken
