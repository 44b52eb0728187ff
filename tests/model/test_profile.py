from __future__ import annotations

import json
import statistics
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from tiny_models import make_model, residual_model

from stormdrop.model import load, tune_model
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.call_record import CallRecorder
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.model.profile import CallTimer, profile
from stormdrop.model.random_weights import seed_weights
from stormdrop.model.untuned import compile_model
from stormdrop.records import open_store
from stormdrop.report.layer_label import layer_label
from stormdrop.report.traces.profile_trace import write_profile_trace

pytestmark = pytest.mark.compiles


@pytest.fixture(scope="module")
def model() -> CompiledModel:
    with open_store("sqlite://") as store:
        return tune_model(seed_weights(residual_model(), seed=1), trials=1, store=store).model


def test_kernels_and_the_rest_add_up(model: CompiledModel) -> None:
    feeds = random_feeds(model.inputs)
    result = profile(model, feeds, rounds=5)
    names = [kernel.name for kernel in result.kernels]
    assert set(names) == set(model.symbols)
    seconds = [kernel.seconds for kernel in result.kernels]
    assert seconds == sorted(seconds, reverse=True)
    assert all(kernel.calls >= 1 and len(kernel.rounds) == 5 and kernel.seconds > 0 for kernel in result.kernels)
    document = result.to_json()
    assert document["outside"] == pytest.approx(max(0, result.seconds - sum(k["seconds"] for k in document["kernels"])))


def test_kernels_that_only_move_are_added_up() -> None:
    nodes = [helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0]), helper.make_node("Exp", ["x"], ["z"])]
    shapes: dict[str, tuple[int | str, ...]] = {"y": (40, 30), "z": (30, 40)}
    made = compile_model(make_model(nodes, {}, {"x": (30, 40)}, shapes))
    document = profile(made, random_feeds(made.inputs), rounds=5).to_json()
    moving = [kernel["seconds"] for kernel in document["kernels"] if kernel["flops"] == 0]
    assert len(moving) == 1 < len(document["kernels"]) and document["moving"] == pytest.approx(moving[0])


def test_layers_and_kernels_take_the_same_time(model: CompiledModel, tmp_path: Path) -> None:
    model.save(tmp_path / "model.sd")
    loaded = load(tmp_path / "model.sd")
    result = profile(loaded, random_feeds(loaded.inputs), rounds=5)
    assert {each.layers for each in result.layers} == {
        ("conv1", "norm1", "relu1"),
        ("conv2", "norm2", "sum", "relu2"),
        ("pool",),
        ("global",),
        ("gemm",),
    }
    for position in range(5):
        by_kernel = sum(kernel.rounds[position] for kernel in result.kernels)
        assert sum(each.rounds[position] for each in result.layers) == pytest.approx(by_kernel)
    assert {kernel.layers for kernel in result.kernels} == {each.layers for each in result.layers}


def test_calls_of_one_kernel_count_for_their_own_layers() -> None:
    names = ["first", "second", "third"]
    nodes = [helper.make_node("MatMul", [f"x{at}", "w"], [f"x{at + 1}"], name) for at, name in enumerate(names)]
    made = compile_model(make_model(nodes, {"w": (8, 8)}, {"x0": (4, 8)}, {"x3": (4, 8)}))
    result = profile(made, random_feeds(made.inputs), rounds=3)
    # The first one reads an input of the model, which may be unaligned, so it is a kernel of its own.
    assert sorted(kernel.layers for kernel in result.kernels) == [("first",), ("second", "third")]
    assert sorted(each.layers for each in result.layers) == [("first",), ("second",), ("third",)]
    assert len({each.kernels for each in result.layers}) == 2


def test_a_model_of_an_earlier_version_has_no_layers(model: CompiledModel) -> None:
    timer = CallTimer()
    model.observed(timer).run(random_feeds(model.inputs))
    timer.end_execution(keep=True)
    assert timer.layers(model.metadata) and timer.layers(replace(model.metadata, layers=(), calls=())) == []


def test_work_is_kept_with_the_model(model: CompiledModel, tmp_path: Path) -> None:
    model.save(tmp_path / "model.sd")
    loaded = load(tmp_path / "model.sd")
    assert set(loaded.metadata.kernels) == set(model.symbols)
    for kernel in profile(loaded, random_feeds(loaded.inputs), rounds=3).kernels:
        work = model.metadata.kernels[kernel.name]
        assert kernel.work == work and work.bytes > 0


def test_an_observer_changes_nothing(model: CompiledModel) -> None:
    feeds = random_feeds(model.inputs)
    seen: list[str] = []

    outputs = model.observed(lambda step, *_: seen.append(step.symbol)).run(feeds)
    assert set(model.symbols) <= set(seen)
    count = len(seen)
    for name, value in model.run(feeds).items():
        np.testing.assert_array_equal(outputs[name], value)
    assert len(seen) == count


def test_the_trace_adds_up_to_the_profile(model: CompiledModel, tmp_path: Path) -> None:
    recorder = CallRecorder()
    result = profile(model, random_feeds(model.inputs), rounds=5, timer=recorder)
    path = tmp_path / "trace.json"
    write_profile_trace(path, "a model", result.to_json(), recorder.to_json(model.metadata), pytest.fail)
    events = json.loads(path.read_text())
    lanes = {event["tid"]: event["args"]["name"] for event in events if event.get("name") == "thread_name"}
    slices = [event for event in events if event["ph"] == "X"]
    executions = [event for event in slices if lanes[event["tid"]] == "executions"]
    assert len(executions) == 5
    totals: defaultdict[str, list[float]] = defaultdict(list)
    for execution in executions:
        spent: defaultdict[str, float] = defaultdict(float)
        for event in slices:
            inside = execution["ts"] <= event["ts"] < execution["ts"] + execution["dur"]
            if inside and lanes[event["tid"]] == "kernels":
                spent[event["name"]] += event["dur"] / 1e6
        for name, seconds in spent.items():
            totals[name].append(seconds)
    assert totals.keys() == {kernel.name for kernel in result.kernels}
    for kernel in result.kernels:
        assert statistics.median(totals[kernel.name]) == pytest.approx(kernel.seconds, rel=0.02)
    named = {(event["name"], event["args"]["layers"]) for event in slices if lanes[event["tid"]] == "kernels"}
    assert named == {(kernel.name, layer_label(kernel.layers)) for kernel in result.kernels}
    threads = {lanes[event["tid"]] for event in slices} - {"executions", "kernels", "copies"}
    assert "thread that calls" in threads


def test_a_recorder_keeps_what_fits(model: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stormdrop.model.call_record._MOST_CALLS", 1)
    recorder = CallRecorder()
    assert len(profile(model, random_feeds(model.inputs), rounds=2, timer=recorder).kernels) > 1
    assert recorder.executions == []
