"""`tune_model`: a model with a task that cannot be measured, and a model that comes out wrong."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from even_model import Even, measure_with
from tiny_models import residual_model

from stormdrop.errors import MeasureError, ModelError
from stormdrop.machine.cpu import Target
from stormdrop.model import tune_model
from stormdrop.model.importer.graph import Graph
from stormdrop.model.random_weights import seed_weights
from stormdrop.model.verify import Reference, Verification
from stormdrop.records import open_store
from stormdrop.trial import Measurement, Request

pytestmark = pytest.mark.compiles


def test_a_task_that_cannot_be_measured_becomes_a_fallback(
    target: Target, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
    assert document["verified"]["max_error"] < 1e-4
    assert (tmp_path / "m.sd").exists()
    assert not document["converged"]


def test_a_wrong_model_is_not_saved(target: Target, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measure_with(monkeypatch, Even)
    monkeypatch.setattr(Reference, "check", lambda *_: Verification(float("nan"), "onnxruntime 1.0"))
    with open_store("sqlite://") as store, pytest.raises(ModelError, match=r"against onnxruntime 1\.0 is"):
        tune_model(
            seed_weights(residual_model(), seed=1), target=target, trials=1, store=store, out=tmp_path / "wrong.sd"
        )
    assert not (tmp_path / "wrong.sd").exists()


@pytest.mark.parametrize("error", [2e-3, float("inf"), float("nan")])
def test_a_model_with_this_error_is_wrong(residual: Graph, error: float) -> None:
    reference = SimpleNamespace(check=lambda model: Verification(error, "onnxruntime 1.0"))
    check: Any = importlib.import_module("stormdrop.model.tune")._verified
    with pytest.raises(ModelError, match=r"against onnxruntime 1\.0 is") as caught:
        check(residual, None, reference)
    assert "\n" not in str(caught.value)
