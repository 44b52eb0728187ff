"""What a model takes before it is tuned: it is built, timed and used only as far as that is worth it."""

from __future__ import annotations

import dataclasses
import time
from contextlib import closing

import pytest

from stormdrop.errors import ModelError
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.gpu import GPUS, Gpu
from stormdrop.machine.sharing.lock import MachineLock
from stormdrop.model.building.builder import ModelBuilder
from stormdrop.model.graph.graph import Graph
from stormdrop.model.graph.onnx_origin import origin_of
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.model.tuning import baseline as module
from stormdrop.model.tuning.baseline import measure_baseline
from stormdrop.model.tuning.scheduler import tasks_of
from stormdrop.model.tuning.tuning_run import TuningRun
from stormdrop.tuning.options import TuneOptions
from stormdrop.tuning.result import Progress


def builder_of(graph: Graph, target: Cpu) -> ModelBuilder:
    tasks = [task.untuned_task() for task in tasks_of(graph, target, TuneOptions())]
    return ModelBuilder(graph, tasks, target, TuneOptions(), {})


@pytest.mark.compiles
def test_the_untuned_model_each_of_its_kernels_and_onnxruntime_are_timed(
    residual: Graph, target: Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(module, "_LOCK_SECONDS", 600.0)  # other tests measure, too
    told: list[Progress] = []
    run = TuningRun(time.perf_counter(), None, told.append)
    builder, feeds = builder_of(residual, target), random_feeds(residual.inputs)
    found = measure_baseline(residual, builder, target, [feeds], run)
    assert found.model is not None and found.combination == builder.defaults
    assert found.model.run(feeds).keys() == {info.name for info in residual.outputs}
    assert found.seconds is not None and found.seconds > 0
    assert set(builder.defaults) <= set(found.by_task) and all(seconds > 0 for seconds in found.by_task.values())
    assert found.peer is not None and found.peer > 0
    assert [each.message for each in told] == [
        f"compiling {len(residual.tasks)} kernels with default schedules",
        "timing the untuned model",
        "timing onnxruntime",
    ]


@pytest.mark.compiles
def test_it_is_not_built_if_that_would_take_much_of_the_time_or_of_the_memory(
    residual: Graph, target: Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: object) -> None:
        raise AssertionError("it is built")

    monkeypatch.setattr(ModelBuilder, "build", build)
    feeds = random_feeds(residual.inputs)
    short = TuningRun(time.perf_counter(), 0.1, None)
    found = measure_baseline(residual, builder_of(residual, target), target, [feeds], short)
    assert (found.model, found.peer, found.missing) == (None, None, "no time was left")
    monkeypatch.setattr(module, "available_memory", lambda: 2 * residual.constant_bytes)
    long = TuningRun(time.perf_counter(), 600.0, None)
    found = measure_baseline(residual, builder_of(residual, target), target, [feeds], long)
    assert (found.model, found.peer, found.missing) == (None, None, "its weights take much of the memory")


@pytest.mark.compiles
def test_a_model_for_a_gpu_has_to_leave_room_in_the_memory_of_the_gpu(
    residual: Graph, target: Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder, run = builder_of(residual, target), TuningRun(time.perf_counter(), 600.0, None)

    def build(*_: object) -> None:
        raise ModelError("it is built")

    monkeypatch.setattr(ModelBuilder, "build", build)
    for free, missing in (
        (2.0, "its weights take much of the memory"),
        (9.0, "a default schedule cannot be compiled"),
    ):
        monkeypatch.setattr(Gpu, "free_memory", free * residual.constant_bytes)
        found = measure_baseline(residual, builder, GPUS["a100"], [random_feeds(residual.inputs)], run)
        assert found.missing == missing


@pytest.mark.compiles
def test_a_default_schedule_that_cannot_be_compiled_does_not_end_the_tuning(
    residual: Graph, target: Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: object) -> None:
        raise ModelError("residual: cannot be compiled: LLVM says no")

    monkeypatch.setattr(ModelBuilder, "build", build)
    run = TuningRun(time.perf_counter(), None, None)
    found = measure_baseline(residual, builder_of(residual, target), target, [random_feeds(residual.inputs)], run)
    assert (found.model, found.missing) == (None, "a default schedule cannot be compiled")


@pytest.mark.compiles
def test_nothing_is_timed_while_another_process_measures(
    residual: Graph, target: Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOCK_SECONDS", 0.05)
    feeds = random_feeds(residual.inputs)
    with closing(MachineLock()) as lock, lock.exclusive():
        run = TuningRun(time.perf_counter(), None, None)
        found = measure_baseline(residual, builder_of(residual, target), target, [feeds], run)
    assert found.model is not None and (found.seconds, found.by_task, found.peer) == (None, {}, None)


def test_a_model_that_onnxruntime_refuses_has_no_peer(residual: Graph) -> None:
    pytest.importorskip("onnxruntime")
    wrong = {name: value.reshape(-1) for name, value in random_feeds(residual.inputs).items()}
    with pytest.raises(ModelError, match="onnxruntime does not run the model"):
        origin_of(residual.source).seconds(wrong, 1, 0.0)
    origin = dataclasses.replace(origin_of(residual.source))  # type: ignore[type-var]
    assert (origin.seconds(random_feeds(residual.inputs), 1, 0.0) or 0.0) > 0
