"""What people see of a tuned model: its text is a few lines, and what the library does is in the log."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from even_model import Even, measure_with

from stormdrop.machine.cpu import Cpu
from stormdrop.model import ModelResult, load, tune_model
from stormdrop.model.graph.graph import Graph
from stormdrop.model.tuning import imported, latency
from stormdrop.records import open_store
from stormdrop.runtime.sizes import TensorInfo, described


@pytest.mark.compiles
def test_a_tuned_model(
    residual: Graph,
    target: Cpu,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    measure_with(monkeypatch, Even)
    monkeypatch.setattr(imported, "import_for_sizes", lambda *_: residual)
    monkeypatch.setattr(latency, "_LATENCY_SECONDS", 0.1)

    def tuned() -> ModelResult:
        with open_store("sqlite://") as store:
            return tune_model("m.onnx", target=target, trials=2, store=store, out=tmp_path / "m.sd")

    result = tuned()
    assert capfd.readouterr() == ("", ""), "a library is silent"
    lines = repr(result).splitlines()
    assert lines[0] == f"ModelResult of {result.name} on {target.machine}:"
    assert [line.split()[0] for line in lines[1:]] == ["latency", "verified", "search", "left", "saved"]
    assert "no trials were left for " in lines[4] and lines[1].split()[2] in ("ms,", "us,", "ms;", "us;")
    assert max(map(len, lines)) < 240
    name, inputs, outputs = repr(load(tmp_path / "m.sd")).splitlines()
    assert name == f"CompiledModel {residual.name}:"
    assert "float32[" in inputs and "float32[" in outputs

    caplog.set_level(logging.INFO, "stormdrop")
    result = tuned()
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("stormdrop.")]
    for phase in ("import", "verify", "compile", "latency"):
        assert any(message.startswith(f"{phase} took ") for message in messages)
    for task in result.tasks:
        assert task.reason is None or f"{task.task.described}: {task.reason}" in messages
        if task.result is not None and task.result.best is not None:
            assert any(message.startswith(task.task.name) and "best " in message for message in messages)
    assert any(task.reason for task in result.tasks), "two trials are not enough for all tasks"
    assert "verifying" in messages


def test_tensors_are_one_line() -> None:
    infos = [TensorInfo(f"x{position}", (1, -1), "float32") for position in range(9)]
    assert described(infos[:1]) == "x0 float32[1, -1]"
    assert described(infos) == "x0 float32[1, -1], x1 float32[1, -1], x2 float32[1, -1], x3 float32[1, -1] and 5 more"
