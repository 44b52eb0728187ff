"""Models in bfloat16, from the file to the verified artifact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from faulty_kernels import coarse
from foreign_models import boxes_at_the_end
from onnx import helper
from sized_models import pooled_model
from tiny_models import attention_model, make_model, residual_model

import stormdrop as sd
from stormdrop.errors import InputError, ModelError
from stormdrop.machine.cpu import Cpu
from stormdrop.model.building.builder import TaskSchedules
from stormdrop.model.building.compile import build
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.precision.mixed import in_mixed_precision
from stormdrop.model.precision.reference import mixed_reference
from stormdrop.model.random_weights import seed_weights
from stormdrop.model.tuning.result import CompileResult
from stormdrop.model.untuned import compile_model_with
from stormdrop.model.verification.verify import Reference
from stormdrop.report.layer_label import layer_label
from stormdrop.sketches.contract import Variant
from stormdrop.tuning.options import TuneOptions

pytestmark = pytest.mark.compiles


def compiled(model: Any, **options: Any) -> CompileResult:
    return compile_model_with(model, Cpu.detect(), TuneOptions(fresh=True, **options))


@pytest.mark.parametrize("model", [residual_model(), attention_model()], ids=["residual", "attention"])
def test_a_model_in_bfloat16_is_verified_against_its_own_weights(model: Any) -> None:
    result = compiled(seed_weights(model, seed=1), precision="bf16")
    assert result.verified.fault is None and "weights in bfloat16" in result.verified.against
    assert result.precision is not None
    assert len(result.precision.layers) > len(result.precision.low) > 0
    assert 1e-5 < result.precision.accuracy.error < 2e-2
    assert not result.replaced
    entry = result.to_json()["precision"]
    assert entry["asked"] == "bf16" and entry["bfloat16"] == len(result.precision.low) < entry["layers"]
    low, kept = entry["in_bfloat16"], entry["in_float32"]
    assert sorted(each["name"] for each in low) == entry["tasks"] and kept
    assert all(each["layers"] for each in (*low, *kept))
    assert f"in float32: {layer_label(kept[0]['layers'], 48)}" in str(result.precision)


def test_the_caller_sees_float32_and_the_artifact_says_the_precision(tmp_path: Path) -> None:
    source = seed_weights(residual_model(), seed=1)
    model = sd.compile_model(source, precision="bf16", out=tmp_path / "m.sd")
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    found, exact = model(x), sd.compile_model(source)(x)
    assert found.dtype == np.float32
    error = np.abs(found - exact).max() / np.abs(exact).max()
    assert 1e-5 < error < 2e-2
    loaded = sd.load(tmp_path / "m.sd")
    np.testing.assert_array_equal(loaded(x), found)
    assert loaded.metadata.provenance["precision"] == "bf16"


def test_sums_in_bfloat16_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel cuts its sums to bfloat16 after each step; its replacement adds up in float32."""
    true_variant = TaskSchedules.variant
    chosen: list[str] = []

    def variant(self: TaskSchedules, choice: Any, where: Any = None, target: Any = None) -> Variant:
        made, name = true_variant(self, choice, where, target), self.task.task.name
        if not chosen and "matmul" in name:
            chosen.append(name)
        return coarse(made) if name in chosen else made

    monkeypatch.setattr(TaskSchedules, "variant", variant)
    result = compiled(seed_weights(attention_model(), seed=1), precision="bf16")
    assert [replaced.task for replaced in result.replaced] == chosen


def test_auto_lowers_as_many_layers_as_the_error_allows() -> None:
    source = seed_weights(residual_model(), seed=1)
    none = compiled(source, precision="auto", max_error=1e-7)
    assert none.precision is not None and none.precision.low == ()
    assert none.verified.max_error < 1e-4 and "weights in bfloat16" not in none.verified.against
    everything = compiled(source, precision="auto", max_error=0.5)
    in_full = compiled(source, precision="bf16")
    assert everything.precision is not None and in_full.precision is not None
    assert everything.precision.low == in_full.precision.low != ()


def test_auto_takes_some_of_the_layers_if_all_are_too_many() -> None:
    source = seed_weights(attention_model(), seed=1)
    in_full = compiled(source, precision="bf16").precision
    assert in_full is not None
    errors = []
    for share in (0.5, 0.7, 0.9):
        part = compiled(source, precision="auto", max_error=share * in_full.accuracy.error).precision
        assert part is not None and len(part.low) <= len(in_full.low)
        errors.append(len(part.low))
    assert errors == sorted(errors) and errors[0] < len(in_full.low)


def test_a_model_with_parts_of_onnxruntime_is_refused_by_name() -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(ModelError, match=r"onnxruntime runs .*: such a model cannot be verified in fewer bits"):
        compiled(boxes_at_the_end(), precision="bf16")


def test_an_unknown_precision_is_one_line() -> None:
    with pytest.raises(InputError, match="precision 'int4': must be float32, bf16, fp16, tf32 or auto"):
        sd.compile_model(residual_model(), precision="int4")


def test_a_machine_without_the_unit_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    target = replace(Cpu.detect(), features=())
    compile_model_with(pooled_model(), target, TuneOptions(fresh=True, precision="bf16"), shapes={"x": (1, 3, 8, 8)})
    assert "has no fast unit for bfloat16" in caplog.text


def test_all_sizes_are_verified() -> None:
    options = TuneOptions(fresh=True, precision="bf16")
    result = compile_model_with(pooled_model(), Cpu.detect(), options, shapes={"x": ((1, 4), 3, 8, 8)})
    assert len(result.sizes) == 2 and result.verified.fault is None
    assert result.precision is not None and result.precision.low


def dense(*after: onnx.NodeProto) -> onnx.ModelProto:
    """Three products, and what follows them, from "p" to "y"."""
    steps = [("x", "w0", "a"), ("a", "w1", "b"), ("b", "w2", "p")]
    nodes = [helper.make_node("MatMul", [value, weight], [made]) for value, weight, made in steps]
    weights = dict.fromkeys(("w0", "w1", "w2"), (32, 32))
    return seed_weights(make_model([*nodes, *after], weights, {"x": (16, 32)}, {"y": (16, 32)}), seed=1)


def references_of(model: onnx.ModelProto) -> tuple[Graph, Reference]:
    """The graph of a model in mixed precision, and what it should compute."""
    graph = load_graph(model)
    low = in_mixed_precision(graph)
    assert low.low
    return low.graph, mixed_reference(low.graph, Reference.compute(graph))


def test_each_kernel_of_bfloat16_is_judged_although_all_tensors_are_near(target: Cpu) -> None:
    graph, reference = references_of(dense(helper.make_node("Relu", ["p"], ["y"])))
    assert reference.kernels is not None
    model = build(graph, {}, target)
    generous = [replace(one, tensors={}) for one in reference.expected]  # no tensor tells a fault
    names = reference.kernels(model, reference.feeds).keys()
    assert names
    wrong = replace(reference, expected=generous, kernels=lambda *_: dict.fromkeys(names, 0.5)).check(model)
    assert wrong.fault is not None and wrong.fault.tensor.startswith("kernel ")


def test_a_lowered_model_may_jump(target: Cpu) -> None:
    graph, reference = references_of(dense(helper.make_node("Floor", ["p"], ["y"])))
    assert all(one.jumps for one in reference.expected)
    assert reference.check(build(graph, {}, target)).fault is None


def test_a_lowered_model_may_hold_nan_where_the_exact_one_does(target: Cpu) -> None:
    graph, reference = references_of(dense(helper.make_node("Log", ["p"], ["y"])))
    assert all(one.holds_nan for one in reference.expected)
    assert reference.check(build(graph, {}, target)).fault is None
