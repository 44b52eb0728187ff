from __future__ import annotations

import sys

import numpy as np
import onnx
import pytest
import tvm
from foreign_models import GELU, gelu_inside, two_segments
from hostile_models import endless_loop
from onnx import TensorProto, helper, numpy_helper
from tiny_models import make_model, residual_model

from stormdrop.errors import ModelError
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer import frontend, import_onnx
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.importer.isolated import import_graph
from stormdrop.model.importer.whole_part import run_by_onnxruntime
from stormdrop.model.onnx import trial_run
from stormdrop.model.random_weights import seed_weights


def parts(graph: Graph) -> list[dict[str, int]]:
    return [dict(part.operators) for part in graph.foreign.reports]


@pytest.fixture
def no_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)


@pytest.mark.usefixtures("no_onnxruntime")
def test_a_native_model_does_not_need_onnxruntime() -> None:
    assert len(load_graph(seed_weights(residual_model())).foreign) == 0


@pytest.mark.usefixtures("no_onnxruntime")
def test_without_onnxruntime_the_line_names_the_operator_and_what_to_install() -> None:
    with pytest.raises(ModelError, match=r"ScaledSiLU \(node 'inside'\).*pip install 'stormdrop\[onnxruntime\]'"):
        load_graph(gelu_inside())


def test_what_onnxruntime_does_not_know_either_is_refused_by_name() -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(
        ModelError, match=r"com.example.Unheard \(node 'inside'\).*onnxruntime does not run it"
    ) as raised:
        load_graph(gelu_inside("com.example", "Unheard"))
    assert "\n" not in str(raised.value)


def test_the_child_brings_the_parts_back() -> None:
    pytest.importorskip("onnxruntime")
    ours, expected = import_graph(two_segments()), load_graph(two_segments())
    assert parts(ours) == parts(expected) and ours.outputs == expected.outputs
    assert [onnx.load_from_string(model).graph.node[0].op_type for model in ours.foreign.models] == [
        "ScaledSiLU",
        "NonZero",
    ]


def refuses_cosines(mod: tvm.IRModule) -> tvm.IRModule:
    """A pass that fails."""
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            if getattr(getattr(binding.value, "op", None), "name", "") == "relax.cos":
                raise ValueError("no cosines")
    return mod


def cosines() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Cos", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["c"]),
        helper.make_node("Cos", ["c"], ["y"]),
    ]
    return seed_weights(make_model(nodes, {"w": (4, 4)}, {"x": (1, 4)}, {"y": (1, 4)}))


def test_operators_that_a_pass_does_not_take_are_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(import_onnx, "clip_indices", refuses_cosines)
    imported = load_graph(cosines())
    assert parts(imported) == [{"Cos": 1}, {"Cos": 1}]
    assert "operator cos of" in imported.foreign.reports[0].reason
    assert sum("matmul" in task.name for task in imported.tasks) == 1


@pytest.mark.usefixtures("no_onnxruntime")
def test_an_operator_that_a_pass_does_not_take_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_onnx, "clip_indices", refuses_cosines)
    with pytest.raises(
        ModelError,
        match=r"operator cos of .* is not supported: ValueError: no cosines; running it anyway needs onnxruntime",
    ):
        load_graph(cosines())


def test_if_everything_fails_the_whole_model_is_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    attempts: list[int] = []

    def refuses_the_first(mod: tvm.IRModule) -> tvm.IRModule:
        attempts.append(len(mod["main"].body.blocks[0].bindings))
        if attempts[-1] > 2:  # the call, and the output
            raise ValueError("too many operators")
        return mod

    monkeypatch.setattr(import_onnx, "clip_indices", refuses_the_first)
    imported = load_graph(cosines())
    assert parts(imported) == [{"Relu": 1, "Cos": 2, "MatMul": 1}] and not imported.tasks


def test_a_model_that_runs_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(trial_run, "RUN_SECONDS", 0.5)
    with pytest.raises(ModelError, match=r"Loop \(node 'endless'\).*more than 0.5 s"):
        load_graph(endless_loop())


def test_outputs_that_are_no_tensors_are_refused() -> None:
    pytest.importorskip("onnxruntime")
    model = make_model([helper.make_node("SplitToSequence", ["x"], ["y"], "split")], {}, {"x": (2, 2)}, {})
    model.graph.output.append(helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None))
    with pytest.raises(ModelError, match="'y'"):
        load_graph(model)


def test_an_output_of_another_type_than_the_model_says_is_onnxruntimes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    nodes = [helper.make_node("Cos", ["x"], ["a"]), helper.make_node("ReduceSum", ["a"], ["y"], "sum")]
    model = make_model(nodes, {}, {"x": (2, 4)}, {"y": (1, 1)})
    converters = {"ReduceSum": lambda node: tvm.relax.op.astype(tvm.relax.op.sum(node[0], keepdims=True), "float64")}
    monkeypatch.setattr(frontend, "CONVERTERS", {**frontend.CONVERTERS, **converters})  # type: ignore[attr-defined]
    imported = load_graph(model)
    assert parts(imported) == [{"ReduceSum": 1}] and imported.outputs[0].dtype == "float32"
    assert "output 'y' is imported as float64, not float32" in imported.foreign.reports[0].reason


def all_of_it() -> onnx.ModelProto:
    """Nothing of it can be native; an output is an input, and another one a constant."""
    model = make_model(
        [helper.make_node("ScaledSiLU", ["x"], ["y"], domain=GELU)], {}, {"x": (2, 4), "z": (3,)}, {"y": (2, 4)}
    )
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, (3,)))
    model.graph.output.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, (2,)))
    model.graph.initializer.append(numpy_helper.from_array(np.arange(2, dtype=np.float32), "c"))
    model.opset_import.append(helper.make_opsetid(GELU, 1))
    return model


def test_a_model_without_native_nodes_is_one_part_as_it_was_read() -> None:
    pytest.importorskip("onnxruntime")
    imported = load_graph(all_of_it())
    (part,), (model,) = imported.foreign.reports, imported.foreign.models
    assert part.whole and part.operators == {"com.microsoft.ScaledSiLU": 1} and "ScaledSiLU" in part.reason
    assert onnx.load_from_string(model) == imported.source
    assert [info.shape for info in imported.outputs] == [(2, 4), (3,), (2,)] and not imported.tasks


def test_a_model_of_which_no_node_is_left_is_one_part_if_it_is_not_taken() -> None:
    """The shape of nothing: what is left is a constant without elements."""
    x, y = (helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in (("x", 1, [3, 4]), ("y", 7, [0])))
    graph = helper.make_graph([helper.make_node("Shape", ["x"], ["y"], start=2, end=1)], "nothing", [x], [y])
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (part,) = load_graph(source).foreign.reports
    assert part.whole and part.operators == {"Shape": 1}


def test_both_ways_to_a_whole_model_are_one() -> None:
    pytest.importorskip("onnxruntime")
    imported = load_graph(all_of_it())
    chosen = run_by_onnxruntime(imported, imported.foreign.reports[0].reason)
    assert chosen is not None
    assert chosen.foreign.reports == imported.foreign.reports and chosen.foreign.models == imported.foreign.models
    tvm.ir.assert_structural_equal(chosen.mod, imported.mod)


def test_a_whole_model_that_no_message_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(onnx.checker, "MAXIMUM_PROTOBUF", 10)
    with pytest.raises(ModelError, match=r"ScaledSiLU .*; onnxruntime has to run all of it, and takes less than 2 GB"):
        load_graph(all_of_it())
