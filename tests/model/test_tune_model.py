"""`tune_model`: a model with a task that cannot be measured, and a model that comes out wrong."""

from __future__ import annotations

import itertools
import json
import time as clock
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from even_model import Even, measure_with
from faulty_kernels import coarse
from tiny_models import residual_model

from stormdrop.errors import MeasureError, ModelError
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.sharing.foreign_load import Counters
from stormdrop.measure.timing import FEWEST_ROUNDS
from stormdrop.model import tune_model
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.artifact.artifact_files import METADATA
from stormdrop.model.building.builder import ModelBuilder
from stormdrop.model.building.compile import build
from stormdrop.model.building.fallback import schedule_fallback
from stormdrop.model.graph.graph import Graph
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.model.random_weights import seed_weights
from stormdrop.model.tuning import baseline, latency
from stormdrop.model.tuning.tuning_run import TuningRun
from stormdrop.records import open_store
from stormdrop.report.formatting import json_value
from stormdrop.report.headline import headline
from stormdrop.sketches.contract import Variant
from stormdrop.trial import Measurement, Request
from stormdrop.tuning.result import Progress

pytestmark = pytest.mark.compiles


def test_a_task_that_cannot_be_measured_becomes_a_fallback(
    target: Cpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failed: list[str] = []

    class FailingOnce(Even):
        def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
            if not failed:
                failed.append(self.workload)
                raise MeasureError("the expected output cannot be computed: no")
            yield from super().measure(requests)

    measure_with(monkeypatch, FailingOnce)
    with open_store("sqlite://") as store:
        result = tune_model(
            seed_weights(residual_model(), seed=1), target=target, trials=6, store=store, out=tmp_path / "m.sd"
        )
    document = json.loads(json.dumps(result.to_json()))
    (entry,) = [task for task in document["tasks"] if task["reason"] and "expected output" in task["reason"]]
    assert "cannot be measured: the expected output cannot be computed" in entry["reason"]
    assert entry["name"] in document["fallbacks"]
    assert {layer["name"]: layer["kernels"] for layer in document["layers"] if entry["name"] in layer["kernels"]} == {
        name: [entry["name"]] for name in entry["layers"]
    }
    assert [layer["name"] for layer in document["layers"] if not layer["kernels"]] == ["dropout", "flatten"]
    assert document["verified"]["max_error"] < 1e-4 and document["replaced"] == []
    assert isinstance(document["latency"]["disturbed"], bool)
    assert (tmp_path / "m.sd").exists()
    assert not document["converged"]


def test_what_is_verified_is_what_was_saved_and_loaded_again(
    residual: Graph, target: Cpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The model in memory is right. What the folder holds is not, so it never takes its name."""
    measure_with(monkeypatch, Even)
    (task,) = [task for task in residual.tasks if "matmul" in task.name]
    wrong = build(residual, {task.index: coarse(Variant(schedule_fallback(task.function, 16).function))}, target)
    loaded: list[Path] = []

    def load(folder: Path, *, threads: int | None) -> CompiledModel:
        loaded.append(folder)
        assert (folder / METADATA).exists() and not (tmp_path / "wrong.sd").exists()
        return wrong

    monkeypatch.setattr(CompiledModel, "load", load)
    source = seed_weights(residual_model(), seed=1)
    with open_store("sqlite://") as store, pytest.raises(ModelError, match="is wrong and was not saved: the error of"):
        tune_model(source, target=target, trials=1, store=store, out=tmp_path / "wrong.sd")
    assert loaded and list(tmp_path.iterdir()) == []


def test_a_short_tuning_compares_with_the_untuned_model_all_the_same(
    target: Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The untuned one is built before the tuning, and only once."""
    measure_with(monkeypatch, Even)
    monkeypatch.setattr(baseline, "_LOCK_SECONDS", 600.0)  # other tests measure, too
    built: list[dict[int, object]] = []
    real = ModelBuilder.build

    def build_counted(self: ModelBuilder, combination: dict[int, object]) -> CompiledModel:
        built.append(combination)
        return real(self, combination)  # type: ignore[arg-type]

    monkeypatch.setattr(ModelBuilder, "build", build_counted)
    told: list[Progress] = []
    with open_store("sqlite://") as store:
        result = tune_model(
            seed_weights(residual_model(), seed=1),
            target=target,
            search="random",
            trials=12,
            store=store,
            on_progress=told.append,
        )
    assert result.untuned is not None and result.speedup is not None and result.speedup.low > 0
    document = result.to_json()
    assert headline(json_value(document)) in repr(result)
    assert sum(combination == built[0] for combination in built) == 1 + (built[1] == built[0])
    assert document["phases"]["baseline"] > 0 and all(task["untuned"] for task in document["tasks"])
    first = next(progress for progress in told if progress.kernels)
    assert first.untuned_seconds and first.best_seconds  # before anything was measured
    assert first.trials == 0
    assert all(each.untuned_seconds and each.best_seconds is None for each in first.kernels)


@pytest.mark.parametrize(("seconds", "interrupted", "rounds"), [(5.0, False, 12), (None, True, FEWEST_ROUNDS)])
def test_the_last_timing_ends_with_the_time_or_ctrl_c(
    seconds: float | None, interrupted: bool, rounds: int, residual: Graph, target: Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(residual, {}, target)
    executions: list[CompiledModel] = []

    def execution(of: CompiledModel, _: object) -> float:
        executions.append(of)
        return 1e-2

    monkeypatch.setattr(latency, "execution_seconds", execution)
    calls = [(model, random_feeds(residual.inputs))]
    run = TuningRun(clock.perf_counter() - 10.0, seconds, None)
    run.interrupted = interrupted
    latency.latencies(calls, 2, run)
    assert len(executions) == 1 + rounds
    executions.clear()
    latency.latencies(calls, 2, TuningRun(clock.perf_counter(), None, None))
    assert len(executions) > 1 + rounds


@pytest.mark.parametrize(("slow_rounds", "disturbed"), [(0, False), (5, False), (1000, True)])
def test_a_round_by_a_slow_clock_of_the_gpu_is_taken_again(
    slow_rounds: int, disturbed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[str] = []

    def spent(_: Counters, device: str, gpu: int) -> Counters:
        rounds.append(f"{device}:{gpu}")
        return Counters(1e-2, slowed=len(rounds) <= slow_rounds)

    seconds = (1e-2 if len(rounds) >= slow_rounds else 3e-2 for _ in itertools.count())
    monkeypatch.setattr(latency, "spent_since", spent)
    monkeypatch.setattr(latency, "execution_seconds", lambda *_: next(seconds))
    monkeypatch.setattr(latency, "_SHORT_SECONDS", 0.0)
    model: Any = SimpleNamespace(device="cuda", gpu=1)
    (found,), _, marked = latency.latencies([(model, {})], 2, TuningRun(0.0, None, None))
    assert marked is disturbed and set(rounds) == {"cuda:1"}
    assert found.high == (3e-2 if disturbed else 1e-2)


def test_a_latency_beside_foreign_load_is_marked(residual: Graph, target: Cpu, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(residual, {}, target)
    feeds = random_feeds(residual.inputs)
    verdicts: list[bool] = []

    class Watch:
        def __init__(self, _: int) -> None: ...

        def suspect(self, _: object) -> bool:
            return verdicts.pop(0)

    monkeypatch.setattr(latency, "LoadWatch", Watch)
    monkeypatch.setattr(latency, "_SHORT_SECONDS", 0.0)  # 15 rounds, however short they are
    verdicts[:] = [True, False] * 15
    (found,), _, disturbed = latency.latencies([(model, feeds)], 2, TuningRun(0.0, None, None))
    assert not disturbed and found.estimate > 0
    verdicts[:] = [True] * 30
    (found,), _, disturbed = latency.latencies([(model, feeds)], 2, TuningRun(0.0, None, None))
    assert disturbed and found.estimate > 0
