"""Ctrl-C after the tuning: what was found is compiled, verified and saved, whichever phase the signal meets."""

from __future__ import annotations

import hashlib
import importlib
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from even_model import Even, measure_with

from stormdrop.errors import ArtifactError
from stormdrop.machine.cpu import Cpu
from stormdrop.model import ModelResult, load, tune_model
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.building.builder import ModelBuilder
from stormdrop.model.building.compile import build
from stormdrop.model.graph.graph import Graph
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.model.tuning import choice, imported, latency
from stormdrop.model.verification.verify import Reference
from stormdrop.records import open_store

tuning = importlib.import_module("stormdrop.model.tuning.tune")  # the package gives functions by names of modules

pytestmark = pytest.mark.compiles


def interrupted_once(real: Callable[..., Any], when: int = 0) -> Callable[..., Any]:
    """A function that sends this process Ctrl-C at one of its calls."""
    calls: list[int] = []

    def interrupted(*arguments: Any, **named: Any) -> Any:
        calls.append(len(calls))
        if calls[-1] == when:
            os.kill(os.getpid(), signal.SIGINT)
        return real(*arguments, **named)

    return interrupted


@pytest.fixture(autouse=True)
def _quick(residual: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = Reference.compute(residual)
    measure_with(monkeypatch, Even)
    monkeypatch.setattr(imported, "import_for_sizes", lambda *_: residual)
    monkeypatch.setattr(Reference, "compute", lambda *_: reference)
    monkeypatch.setattr(latency, "_LATENCY_SECONDS", 0.1)


def tuned(target: Cpu, out: Path) -> ModelResult:
    with open_store("sqlite://") as store:
        return tune_model("m.onnx", target=target, trials=6, store=store, out=out)


@pytest.mark.parametrize(
    ("owner", "name", "when"),
    [
        (ModelBuilder, "build", 1),  # the first one is that of the untuned model
        (choice, "fastest_combination", 0),
        (Reference, "check", 0),
        (CompiledModel, "write_files", 0),
        (latency, "LoadWatch", 0),
    ],
    ids=["compile", "finalists", "verify", "save", "latency"],
)
def test_a_model_that_was_tuned_is_saved(
    owner: Any, name: str, when: int, target: Cpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, interrupted_once(real, when))
    result = tuned(target, tmp_path / "m.sd")
    assert result.interrupted
    assert result.verified.fault is None
    assert result.artifact == tmp_path / "m.sd" and load(result.artifact).digest == result.digest
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.sd"]
    assert math.isnan(result.latency.estimate) == (name == "LoadWatch")
    result.to_json()


def test_ctrl_c_in_an_execution_is_what_it_is(residual: Graph, target: Cpu) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    model = build(residual, {}, target)
    with pytest.raises(KeyboardInterrupt):
        model.observed(interrupted).run(random_feeds(residual.inputs))


def test_a_second_interruption_ends_the_saving(target: Cpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(CompiledModel, "write_files", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tuned(target, tmp_path / "m.sd")
    assert list(tmp_path.iterdir()) == []


def test_a_save_that_fails_names_the_users_folder(target: Cpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(self: CompiledModel, folder: Path, native: bool) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CompiledModel, "write_files", full)
    with pytest.raises(ArtifactError) as caught:
        tuned(target, tmp_path / "m.sd")
    assert str(caught.value) == f"{tmp_path / 'm.sd'}: cannot be written: No space left on device"


def test_the_file_may_change_while_its_model_is_tuned(
    target: Cpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(b"a model")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    real = tuning.tune_tasks

    def remove(*arguments: Any) -> Any:
        file.unlink()
        return real(*arguments)

    monkeypatch.setattr(tuning, "tune_tasks", remove)
    with open_store("sqlite://") as store:
        result = tune_model(file, target=target, trials=1, store=store)
    assert result.model.metadata.provenance["sha256"] == digest
