"""A model that fails its verification: schedules at fault give way to exact ones, and the rest is kept."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from even_model import Even, measure_with
from faulty_kernels import coarse
from tiny_models import residual_model

from stormdrop.errors import ModelError
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.model import load, tune_model
from stormdrop.model.building import compile as compile_module
from stormdrop.model.building import repair
from stormdrop.model.building.builder import PLAIN, ModelBuilder, TaskSchedules
from stormdrop.model.building.repair import verified_or_repaired
from stormdrop.model.building.tuned_task import Choice, TunedTask
from stormdrop.model.graph.graph import Graph
from stormdrop.model.inputs.samples import Sample
from stormdrop.model.random_weights import seed_weights
from stormdrop.model.verification.expected import Fault
from stormdrop.records import open_store
from stormdrop.sketches.contract import Variant
from stormdrop.tuning.kernel import KernelTask
from stormdrop.tuning.options import TuneOptions
from stormdrop.tuning.result import Best

FAULT = Fault("output 'y'", Sample("standard normal", {}), 1e-2, 1e-4)


def coarse_schedules(monkeypatch: pytest.MonkeyPatch, part: str, always: bool = False) -> None:
    """Makes the winner of the first task whose name has this part compute coarsely, or all its schedules."""
    right = TaskSchedules.variant

    def variant(self: TaskSchedules, choice: Choice, where: Any = None, target: Any = None) -> Variant:
        made = right(self, choice, where, target)
        return coarse(made) if part in self.task.task.name and (always or choice == self.winner) else made

    monkeypatch.setattr(TaskSchedules, "variant", variant)
    if always:

        def fallback(function: Any, lanes: int, made: Any = compile_module.schedule_fallback) -> Any:  # type: ignore[attr-defined]
            plain = made(function, lanes)
            return dataclasses.replace(plain, function=coarse(Variant(plain.function)).main)

        monkeypatch.setattr(compile_module, "schedule_fallback", fallback)


@pytest.mark.compiles
def test_a_coarse_kernel_is_replaced_and_the_model_saved(
    target: Cpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measure_with(monkeypatch, Even)
    coarse_schedules(monkeypatch, "matmul")
    # A coarse kernel is slower, so that another finalist would take its place inside the model.
    monkeypatch.setattr("stormdrop.model.tuning.choice.combinations_to_compare", lambda _, winners, __: [winners])
    with open_store("sqlite://") as store:
        result = tune_model(
            seed_weights(residual_model(), seed=1), target=target, trials=12, store=store, out=tmp_path / "m.sd"
        )
    (replaced,) = result.to_json()["replaced"]
    assert "matmul" in replaced["task"] and replaced["error"] > 1e-3
    assert replaced["before"] != "" and replaced["after"] != ""
    assert result.verified.max_error < 1e-4
    saved = load(tmp_path / "m.sd").metadata.provenance
    assert saved["verified"]["max_error"] == result.verified.max_error
    (schedule,) = [entry for entry in saved["schedules"] if entry["task"] == replaced["task"]]
    assert schedule["sketch"] == replaced["after"]


@pytest.mark.compiles
def test_a_layer_that_no_schedule_computes_right_is_named(
    target: Cpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measure_with(monkeypatch, Even)
    coarse_schedules(monkeypatch, "matmul", always=True)
    with open_store("sqlite://") as store, pytest.raises(ModelError) as caught:
        tune_model(seed_weights(residual_model(), seed=1), target=target, trials=6, store=store, out=tmp_path / "m.sd")
    assert re.search(r"no other schedule of \S*matmul\S* \(gemm\) is right", str(caught.value))
    assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == []


def winograd_builder(residual: Graph, target: Cpu) -> tuple[ModelBuilder, int]:
    """A builder in which the first convolution was fastest by Winograd's sketch."""
    tasks = []
    for task in residual.tasks:
        workload = Workload.create(task.name, task.function, task.constants)
        kernel = KernelTask.create(workload, target, TuneOptions())
        spaces = {sketch.name: space for sketch, space in kernel.sketches}

        def best(name: str, seconds: float, spaces: Any = spaces) -> Best:
            space = spaces[name]
            return Best(name, space.config(space.origin), seconds, (seconds, seconds), None)

        result: Any = None
        if "winograd_4" in spaces:
            names = ["winograd_4", "winograd_2", kernel.sketches[0][1].name]
            ranked = [best(name, 1.0 + number) for number, name in enumerate(names)]
            result = SimpleNamespace(best=ranked[0], finalists=ranked[:2], by_sketch=ranked, default_failed=False)
        tasks.append(TunedTask(task, kernel, result))
    (index,) = [task.task.index for task in tasks if task.result is not None]
    return ModelBuilder(residual, tasks, target, TuneOptions(), {}), index


def test_winograd_gives_way_to_a_schedule_that_only_reorders(
    residual: Graph, target: Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder, index = winograd_builder(residual, target)
    assert builder.winners[index][0] == "winograd_4" and not builder.is_exact(index, builder.winners[index])
    others = builder.exact_alternatives(index, builder.winners[index])
    assert [name for name, _ in others] == ["register_blocked", "plain"] and others[-1] == PLAIN
    built: list[Mapping[int, Choice]] = []
    monkeypatch.setattr(builder, "build", built.append)
    # No kernel is wrong by itself, and the model still is.
    monkeypatch.setattr(repair, "kernel_errors", lambda *_: dict.fromkeys(builder.winners, 2e-5))
    verdicts = [FAULT, None]
    right = verified_or_repaired(
        residual,
        builder,
        None,  # type: ignore[arg-type]
        builder.winners,
        lambda *_: verdicts.pop(0),
        lambda _: None,
    )
    assert [(entry.before, entry.after) for entry in right.replaced] == [("winograd_4", "register_blocked")]
    assert built == [{**builder.winners, index: others[0]}] == [right.combination]


def test_if_all_schedules_are_exact_the_model_is_refused(
    residual: Graph, target: Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder, index = winograd_builder(residual, target)
    monkeypatch.setattr(builder, "build", lambda _: None)
    monkeypatch.setattr(builder, "build_keeping_denormals", lambda _: None)
    monkeypatch.setattr(repair, "kernel_errors", lambda *_: {index: 2e-5})
    with pytest.raises(ModelError, match="all its schedules are exact; the kernel with the largest error"):
        verified_or_repaired(
            residual,
            builder,
            None,  # type: ignore[arg-type]
            builder.winners,
            lambda *_: FAULT,
            lambda _: None,
        )
