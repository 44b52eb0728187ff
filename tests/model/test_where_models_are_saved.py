"""`tune_model` and `out`: it is checked first, and an interrupted run keeps an older model."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from even_model import Even, measure_with
from tiny_models import residual_model

from stormdrop.cli import run
from stormdrop.errors import ArtifactError
from stormdrop.machine.cpu import Cpu
from stormdrop.model import ModelResult, load, tune_model
from stormdrop.model.graph.graph import Graph
from stormdrop.model.random_weights import seed_weights
from stormdrop.model.tuning import imported, latency
from stormdrop.records import open_store
from stormdrop.trial import Measurement, Request

tuning = importlib.import_module("stormdrop.model.tuning.tune")  # the package gives functions by names of modules


class Interrupting(Even):
    """Ctrl-C comes after 6 measurements."""

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for measurement in super().measure(requests):
            yield measurement
            if len(self.measured) == 6:
                raise KeyboardInterrupt


def tuned(target: Cpu, out: Path) -> ModelResult:
    with open_store("sqlite://") as store:
        return tune_model(seed_weights(residual_model(), seed=1), target=target, trials=12, store=store, out=out)


@pytest.mark.compiles
def test_an_interrupted_run_keeps_the_older_model(
    residual: Graph, target: Cpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "m.sd"
    monkeypatch.setattr(imported, "import_for_sizes", lambda *_: residual)  # once for both runs
    monkeypatch.setattr(latency, "_LATENCY_SECONDS", 0.1)
    measure_with(monkeypatch, Interrupting)
    first = tuned(target, out)
    assert first.interrupted and first.artifact == out and load(out).digest == first.digest
    before = (out / "metadata.json").read_bytes()
    second = tuned(target, out)
    assert second.interrupted and second.artifact == tmp_path / "m.interrupted.sd"
    assert (out / "metadata.json").read_bytes() == before
    document = second.to_json()
    assert document["artifact"] == str(second.artifact)
    assert document["digest"] == load(second.artifact).digest
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["m.interrupted.sd", "m.sd"]


def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    target: Cpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(imported, "import_for_sizes", lambda *_: pytest.fail("the work has begun"))
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match=r"file/m\.sd: cannot be written: Not a directory"):
        tuned(target, tmp_path / "file" / "m.sd")


def test_the_command_says_where_the_models_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.onnx").write_bytes(b"never read")
    document = {"artifact": str(tmp_path / "m.interrupted.sd"), "digest": "1" * 64, "interrupted": True}
    document |= {"tasks": [], "trials": 3, "failed": 0, "seconds": 1.0, "model": "m", "latency": {"seconds": None}}
    result = SimpleNamespace(to_json=lambda: document, interrupted=True)
    monkeypatch.setattr(tuning, "tune_model_with", lambda *_, **__: result)
    words = ["tune", tmp_path / "m.onnx", "--db", tmp_path / "records.db", "--out", tmp_path / "m.sd"]
    assert run([str(word) for word in words]) == 130
    *_, saved, digest, kept, _, headline = capsys.readouterr().out.splitlines()
    assert saved == f"saved: {tmp_path / 'm.interrupted.sd'}"
    assert digest == f"digest: {'1' * 64}"
    assert kept == f"the older model is kept: {tmp_path / 'm.sd'}"
    assert headline == "m: the latency is not known, because its timing was interrupted"
    assert run([*map(str, words), "--json"]) == 130
    assert json.loads(capsys.readouterr().out) == document
