"""`compile_model`: nothing is measured; recorded schedules are taken unless the user says otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from even_model import Even, measure_with
from faulty_kernels import coarse
from tiny_models import residual_model

import stormdrop as sd
from stormdrop.errors import ArtifactError, ModelError, TargetError
from stormdrop.machine.cpu import Cpu
from stormdrop.measure.pool.pool import WorkerPool
from stormdrop.model import tune_model
from stormdrop.model.building.builder import TaskSchedules
from stormdrop.model.random_weights import seed_weights
from stormdrop.model.untuned import compile_model_with
from stormdrop.records import open_store
from stormdrop.sketches.contract import Variant
from stormdrop.tuning.options import TuneOptions

pytestmark = pytest.mark.compiles


def test_it_measures_nothing_and_is_verified_as_saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        pytest.fail("a worker is started")

    monkeypatch.setattr(WorkerPool, "__init__", refuse)
    with open_store("sqlite://") as store:
        model = sd.compile_model(seed_weights(residual_model(), seed=1), store=store, out=tmp_path / "m.sd")
    assert model.metadata.provenance["verified"]["max_error"] < 1e-4
    assert model.metadata.provenance["trials"] == 0 and model.metadata.provenance["search"] is None
    loaded = sd.load(tmp_path / "m.sd", digest=model.digest)
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    np.testing.assert_array_equal(loaded(x), model(x))


def test_schedules_of_an_earlier_tuning_are_taken_unless_fresh(target: Cpu, monkeypatch: pytest.MonkeyPatch) -> None:
    measure_with(monkeypatch, Even)
    source = seed_weights(residual_model(), seed=1)
    with open_store("sqlite://") as store:
        tuned = tune_model(source, target=target, trials=12, store=store)
        again = compile_model_with(source, target, TuneOptions(), store=store)
        fresh = compile_model_with(source, target, TuneOptions(fresh=True), store=store)
    document = again.to_json()
    measured = {task.task.name for task in tuned.tasks if task.result is not None and task.result.best is not None}
    assert measured and set(document["recorded"]) == measured
    assert fresh.to_json()["recorded"] == []
    assert document["kernels"] == len(tuned.tasks)


def test_a_model_that_is_wrong_is_repaired(target: Cpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default schedule of one kernel computes coarse sums: a plain one takes its place."""
    true_variant = TaskSchedules.variant

    def variant(self: TaskSchedules, choice: object, where: object = None, target: object = None) -> Variant:
        made = true_variant(self, choice, where, target)  # type: ignore[arg-type]
        return coarse(made) if "matmul" in self.task.task.name else made

    monkeypatch.setattr(TaskSchedules, "variant", variant)
    result = compile_model_with(seed_weights(residual_model(), seed=1), target, TuneOptions(fresh=True))
    (replaced,) = result.replaced
    assert "matmul" in replaced.task and replaced.after == "plain"
    assert result.verified.max_error < 1e-4


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (3, {}, "builtins.int is no model: give the path of an ONNX file"),
        ("missing.onnx", {}, "no such file"),
        (residual_model(), {"example_inputs": ()}, "only a torch module takes them"),
    ],
    ids=["number", "missing", "inputs"],
)
def test_what_is_no_model_is_one_line(model: object, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        sd.compile_model(model, **settings)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_place_that_cannot_be_written_is_found_before_the_import(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(ArtifactError):
        sd.compile_model("missing.onnx", out=tmp_path / "mine")


def test_another_cpu_is_refused_in_one_line() -> None:
    with pytest.raises(TargetError, match="cpu/neoverse-n1 is another machine: its kernels are compiled here") as error:
        sd.compile_model(seed_weights(residual_model(), seed=0), target=sd.parse_machine("cpu/neoverse-n1"))
    assert "\n" not in str(error.value)
