"""Inputs whose values matter: fixed ones, samples that the user gives, NaN, and outputs that hold one value."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import stormdrop as sd
from stormdrop.errors import InputError, ModelError
from stormdrop.machine.cpu import Cpu
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.building.compile import build
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.inputs.given import split
from stormdrop.model.inputs.inputs import fix_values
from stormdrop.model.inputs.samples import Feeds
from stormdrop.model.onnx.index_ranges import index_ranges
from stormdrop.model.onnx.source import read_source
from stormdrop.model.verification import expected as expected_module
from stormdrop.model.verification import kernels
from stormdrop.model.verification.references import with_references
from stormdrop.model.verification.verify import Reference

Array = np.ndarray[Any, Any]
Inputs = dict[str, tuple[int, tuple[int, ...]]]


def model_of(
    nodes: list[onnx.NodeProto], inputs: Inputs, output: int = TensorProto.FLOAT, **constants: Array
) -> onnx.ModelProto:
    """A model of opset 18 with the output y, whose shape is open."""
    values = [helper.make_tensor_value_info(name, element, shape) for name, (element, shape) in inputs.items()]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "m", values, [helper.make_tensor_value_info("y", output, None)], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def sum_model() -> onnx.ModelProto:
    """y = sum of x along axes, which are an input."""
    inputs: Inputs = {"x": (TensorProto.FLOAT, (3, 2)), "axes": (TensorProto.INT64, (1,))}
    return model_of([helper.make_node("ReduceSum", ["x", "axes"], ["y"], "total", keepdims=0)], inputs)


def pitch_model() -> onnx.ModelProto:
    """log(x * x / (high - low)): NaN for whatever high is below low, which nothing says of them."""
    nodes = [
        helper.make_node("Sub", ["high", "low"], ["range"]),
        helper.make_node("Mul", ["x", "x"], ["power"]),
        helper.make_node("Div", ["power", "range"], ["density"]),
        helper.make_node("Log", ["density"], ["y"]),
    ]
    scalar = (TensorProto.FLOAT, ())
    return model_of(nodes, {"x": (TensorProto.FLOAT, (4, 5)), "low": scalar, "high": scalar})


def test_a_fixed_value_is_no_input() -> None:
    graph = load_graph(sum_model(), values={"axes": 1})
    assert [info.name for info in graph.inputs] == ["x"] and graph.outputs[0].shape == (3,)
    assert load_graph(sum_model(), values={"axes": [0]}).outputs[0].shape == (2,)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"axis": 1}, "has no input 'axis'; its inputs are 'x', 'axes'"),
        ({"axes": 0.5}, "the value of input 'axes' is not of its type, int64"),
        ({"axes": [0, 1]}, "the value of input 'axes' has the shape 2, not 1"),
        ({"axes": "one"}, "the value of input 'axes' is no array of numbers"),
        ({"axes": [None]}, "the value of input 'axes' is no array of numbers"),
        ({"axes": np.nan}, "the value of input 'axes' is not of its type, int64"),
        ({"axes": [[1], [1, 2]]}, "the value of input 'axes' is no array of numbers"),
    ],
)
def test_a_value_that_is_none_of_the_input(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint.replace("(", r"\(")):
        read_source(sum_model(), values=values)


@pytest.mark.parametrize("element", [TensorProto.STRING, TensorProto.UNDEFINED])
def test_an_input_without_numbers_has_no_value(element: int) -> None:
    model = sum_model()
    model.graph.input[1].type.tensor_type.elem_type = element
    with pytest.raises(ModelError, match="input 'axes' cannot be fixed: the input is no tensor of numbers"):
        fix_values(model, {"axes": 1}, "m")


@pytest.mark.parametrize("value", [0.7, 300.0, -1.0, np.nan])
def test_samples_that_are_none_of_a_type(value: float) -> None:
    with pytest.raises(InputError, match="the samples of 'x' are not of its type, uint8"):
        split({"x": ((1,), "uint8")}, {"x": np.array([value])})


def test_an_input_that_decides_a_shape_is_refused_by_name() -> None:
    with pytest.raises(
        ModelError, match=r"input 'axes' decides the shape of what ReduceSum \(node 'total'\) makes; fix"
    ):
        load_graph(sum_model())
    nodes = [
        helper.make_node("Concat", ["rows", "columns"], ["shape"], axis=0),
        helper.make_node("Expand", ["x", "shape"], ["y"]),
    ]
    inputs: Inputs = {"x": (TensorProto.FLOAT, (1,)), "rows": (TensorProto.INT64, (1,))}
    with pytest.raises(ModelError, match="as in --value rows=1"):
        load_graph(model_of(nodes, inputs, columns=np.array([3])))


@pytest.mark.compiles
def test_a_model_with_a_fixed_value_says_so(tmp_path: Path) -> None:
    onnx.save(sum_model(), tmp_path / "m.onnx")
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    made = sd.compile_model(tmp_path / "m.onnx", values={"axes": [1]}, samples={"x": x}, out=tmp_path / "m.sd")
    assert made.metadata.provenance["values"] == {"axes": [1]}
    loaded = sd.load(tmp_path / "m.sd")
    assert loaded.metadata.provenance["values"] == {"axes": [1]}
    assert np.array_equal(loaded.run({"x": x})["y"], [1, 5, 9])
    with pytest.raises(InputError):
        loaded.run({"x": x, "axes": np.array([1])})


def test_without_a_meaning_the_refusal_names_samples() -> None:
    graph = load_graph(pitch_model())
    feeds = {"low": np.float32(50), "high": np.float32(40)}
    with pytest.raises(ModelError, match=r"hold NaN .* give inputs that have a meaning for the model: --samples"):
        with_references(graph, 0, feeds)
    _, (reference,) = with_references(graph, 0, {"low": np.float32(50), "high": np.float32(400)})
    assert reference.feeds["high"] == 400 and len(reference.expected) == 3
    assert "and sample 0 of those given" in reference.expected[1].sample.name


def test_samples_of_all_inputs_are_taken_as_they_are() -> None:
    x = np.random.default_rng(0).standard_normal((20, 5), np.float32)
    data = {"x": x, "low": np.array([1, 2, 3, 4, 5.0]), "high": np.array(9.0)}
    _, (reference,) = with_references(load_graph(pitch_model()), 0, data)
    assert len(reference.expected) == 3 and len(reference.given) == 5
    second = reference.expected[1].sample
    assert np.array_equal(second.feeds["x"], x[4:8]) and second.feeds["low"] == 2 and second.feeds["high"] == 9


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"z": np.zeros(3)}, "the samples have z; the model's inputs are x, low, high"),
        ({"x": np.zeros((4, 6))}, "the samples of 'x' have the shape 4x6; it must be 4Nx5"),
        ({"x": np.zeros((5, 5))}, "the samples of 'x' have the shape 5x5; it must be 4Nx5"),
        ({"x": np.zeros((8, 5)), "low": np.zeros(3)}, "different numbers of samples: 2 of 'x', 3 of 'low'"),
        ({"low": np.array(["a"])}, "the samples of 'low' are no numbers"),
    ],
)
def test_samples_that_are_none_of_the_inputs(data: dict[str, Array], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        with_references(load_graph(pitch_model()), 0, data)


@pytest.mark.parametrize("operator", ["Acos", "Acosh", "Asin", "Atanh", "Log", "Sqrt"])
def test_inputs_are_drawn_where_a_function_is_defined(operator: str) -> None:
    model = model_of([helper.make_node(operator, ["x"], ["y"])], {"x": (TensorProto.FLOAT, (8, 8))})
    reference = Reference.compute(load_graph(model))
    assert len(reference.expected) == 3
    assert all(np.isfinite(one.tensors["output 'y'"]).all() for one in reference.expected)


def test_functions_that_are_defined_nowhere_together_bound_no_input() -> None:
    nodes = [helper.make_node("Acosh", ["x"], ["a"]), helper.make_node("Atanh", ["x"], ["y"])]
    assert index_ranges(model_of(nodes, {"x": (TensorProto.FLOAT, (8,))})) == {}


@pytest.mark.compiles
def test_nan_at_the_same_places_is_equal(target: Cpu) -> None:
    """Nothing says of x that its double has to be less than one: for a third of normal numbers there is a result."""
    nodes = [helper.make_node("Add", ["x", "x"], ["twice"]), helper.make_node("Acos", ["twice"], ["y"])]
    graph = load_graph(model_of(nodes, {"x": (TensorProto.FLOAT, (64, 8))}))
    reference = Reference.compute(graph)
    right = reference.expected[0].tensors["output 'y'"]
    assert 0.2 < np.mean(np.isnan(right)) < 0.9
    assert reference.check(build(graph, {}, target)).fault is None
    other = load_graph(model_of([nodes[0], helper.make_node("Asin", ["twice"], ["y"])], {"x": (1, (64, 8))}))
    assert reference.check(build(other, {}, target)).fault is not None


def compared(operator: str) -> onnx.ModelProto:
    """Whether a sum of 32 products is above or below a million, which it never reaches."""
    w = np.random.default_rng(0).standard_normal((32, 4)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node(operator, ["p", "bound"], ["y"])]
    inputs: Inputs = {"x": (TensorProto.FLOAT, (8, 32))}
    return model_of(nodes, inputs, TensorProto.BOOL, w=w, bound=np.float32(1e6))


@pytest.mark.compiles
def test_a_comparison_of_one_value_is_verified(target: Cpu, caplog: pytest.LogCaptureFixture) -> None:
    graph = load_graph(compared("Greater"))
    reference = Reference.compute(graph)
    assert not reference.varies and reference.kernels is not None
    assert "a wrong kernel may not show; give inputs" in caplog.text
    assert reference.check(build(graph, {}, target)).fault is None
    assert reference.check(build(load_graph(compared("Less")), {}, target)).fault is not None


@pytest.mark.compiles
def test_kernels_are_compared_on_samples_that_verify(target: Cpu) -> None:
    graph = load_graph(compared("Greater"))
    reference, seen = Reference.compute(graph), list[Feeds]()
    used = reference.expected[1:]  # as if the outputs of the first sample were NaN

    def errors(_: CompiledModel, feeds: Feeds) -> dict[str, float]:
        seen.append(feeds)
        return {"k": 1.0 if feeds is used[-1].sample.feeds else 0.0}

    model = build(graph, {}, target)
    fault = dataclasses.replace(reference, expected=used, kernels=errors).check(model).fault
    assert fault is not None and fault.sample is used[-1].sample
    assert [id(feeds) for feeds in seen] == [id(one.sample.feeds) for one in used]
    near = dataclasses.replace(reference, expected=used, kernels=errors, varies=True)
    assert near.check(model).fault is None and len(seen) == len(used)
    dataclasses.replace(near, always_kernels=True).check(model)
    assert seen[len(used) :] == [used[0].sample.feeds]


@pytest.mark.compiles
def test_one_value_and_a_kernel_that_nobody_compares_are_refused(target: Cpu, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load_graph(compared("Greater"))
    reference, model = Reference.compute(graph), build(graph, {}, target)
    monkeypatch.setattr(kernels, "_stages", lambda _: None)
    name = re.escape(graph.tasks[0].described)
    with pytest.raises(ModelError, match=rf"cannot be verified: .* cannot be: {name}; give") as caught:
        reference.check(model)
    assert "\n" not in str(caught.value)


def test_samples_are_drawn_until_the_place_of_a_maximum_varies() -> None:
    """The first of two numbers is the larger one for the first three samples."""
    model = model_of(
        [helper.make_node("ArgMax", ["x"], ["p"], axis=1, keepdims=0), helper.make_node("Identity", ["p"], ["y"])],
        {"x": (TensorProto.FLOAT, (1, 2))},
        TensorProto.INT64,
    )
    graph = load_graph(model)
    for seed in range(10):
        reference = Reference.compute(graph, seed)
        places = {int(one.tensors["output 'y'"][0]) for one in reference.expected}
        assert reference.varies == (len(places) == 2)
        if len(reference.expected) > 3:
            return
    raise AssertionError("all seeds showed both places at once")


def test_a_slow_model_has_one_sample_even_if_its_outputs_hold_one_value(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load_graph(compared("Greater"))
    assert len(Reference.compute(graph).expected) > 3
    monkeypatch.setattr(expected_module, "_SLOW", -1.0)
    assert len(Reference.compute(graph).expected) == 1
