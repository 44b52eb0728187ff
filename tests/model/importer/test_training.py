"""Nodes for training: those that draw random numbers are refused, a norm that takes its batch is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tiny_models import make_model

from stormdrop.errors import ModelError
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.importer.onnx_model import load_onnx
from stormdrop.model.verification.exact import ExactModel

TRUE, FALSE = (numpy_helper.from_array(np.array(value), str(value)) for value in (True, False))
RATIO = numpy_helper.from_array(np.float32(0.5), "ratio")
NONE = numpy_helper.from_array(np.float32(0), "none")


def dropout(*inputs: str, opset: int = 13, outputs: int = 1, **attributes: Any) -> onnx.ModelProto:
    """Relu, Dropout, and what makes its training_mode of other values."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True))),
        helper.make_node("Not", ["yes"], ["no"]),
        helper.make_node("Dropout", ["a", *inputs], ["y", "mask"][:outputs], "drop", **attributes),
    ]
    model = make_model(nodes, {}, {"x": (2, 8)}, {"y": (2, 8)}, opset, [TRUE, FALSE, RATIO, NONE])
    if "given" in inputs:
        model.graph.input.append(helper.make_tensor_value_info("given", TensorProto.BOOL, ()))
    if outputs > 1:
        model.graph.output.append(helper.make_tensor_value_info("mask", TensorProto.BOOL, (2, 8)))
    return model


def refused(model: onnx.ModelProto, words: str) -> None:
    with pytest.raises(ModelError, match=words) as raised:
        load_onnx(model)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("mode", ["True", "yes", "given"])
@pytest.mark.parametrize("ratio", ["ratio", ""])
def test_a_dropout_that_trains_is_refused(mode: str, ratio: str) -> None:
    refused(
        dropout(ratio, mode), r"Dropout \(node 'drop'\) draws random numbers.*its training_mode must be a constant, f"
    )


def test_an_initializer_that_is_an_input_too_is_a_constant() -> None:
    model = dropout("ratio", "True")
    model.graph.input.append(helper.make_tensor_value_info("True", TensorProto.BOOL, ()))
    refused(model, "draws random numbers")


@pytest.mark.parametrize(
    ("inputs", "opset", "attributes"),
    [
        ((), 7, {"ratio": 0.5}),
        ((), 6, {"ratio": 0.5, "is_test": 1}),
        (("ratio",), 12, {}),
        (("ratio", "False"), 13, {}),
        (("", "no"), 22, {}),
        (("none", "True"), 13, {}),
    ],
)
def test_a_dropout_for_inference_is_an_identity(
    inputs: tuple[str, ...], opset: int, attributes: dict[str, Any]
) -> None:
    read = load_onnx(dropout(*inputs, opset=opset, **attributes))
    assert [node.op_type for node in read.cleaned.graph.node if node.op_type != "Identity"] == ["Relu"]


def test_the_mask_of_a_dropout_for_inference() -> None:
    graph = load_graph(dropout("ratio", "False", outputs=2))
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    outputs, _ = ExactModel(graph).run({"x": x})
    assert np.array_equal(outputs["y"], np.maximum(x, 0)) and outputs["mask"].all() and outputs["mask"].dtype == bool


@pytest.mark.parametrize("attributes", [{}, {"is_test": 0}])
def test_a_dropout_of_old_trains_unless_it_says_so(attributes: dict[str, int]) -> None:
    refused(dropout(opset=6, **attributes), "draws random numbers.*its is_test must be 1")


@pytest.mark.parametrize("operator", ["RandomNormalLike", "RandomUniformLike", "Bernoulli"])
def test_other_random_operators_are_refused(operator: str) -> None:
    nodes = [helper.make_node(operator, ["x"], ["r"], "random"), helper.make_node("Add", ["x", "r"], ["y"])]
    refused(make_model(nodes, {}, {"x": (2, 8)}, {"y": (2, 8)}, 15), rf"{operator} \(node 'random'\) draws random")


def test_a_branch_that_draws_is_refused() -> None:
    branch = helper.make_graph(
        [helper.make_node("RandomNormal", [], ["b"], "random", shape=[2, 8])],
        "branch",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, (2, 8))],
    )
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
        helper.make_node("Greater", ["top", "none"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], then_branch=branch, else_branch=branch),
    ]
    refused(make_model(nodes, {}, {"x": (2, 8)}, {"y": (2, 8)}, 13, [NONE]), "RandomNormal .* draws random")


@pytest.mark.parametrize("behind", ["", "Conv", "Mul"])
def test_a_norm_that_trains_has_the_statistics_of_the_batch(behind: str) -> None:
    """No rule may take it for one with constant statistics: neither folded into a Conv, nor with a Mul behind it."""
    norm = helper.make_node("BatchNormalization", ["a", *"sbmv"], ["n", "mean", "var"], training_mode=1)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]) if behind == "Conv" else helper.make_node("Identity", ["x"], ["a"]),
        norm,
        helper.make_node("Mul", ["n", "f"], ["y"]) if behind == "Mul" else helper.make_node("Identity", ["n"], ["y"]),
    ]
    weights: dict[str, tuple[int, ...]] = {**dict.fromkeys("sbmv", (4,)), "w": (4, 4, 1, 1), "f": (4, 1, 1)}
    model = make_model(nodes, weights, {"x": (2, 4, 3, 3)}, {"y": (2, 4, 3, 3)}, 15)
    x = np.random.default_rng(0).standard_normal((2, 4, 3, 3)).astype(np.float32)
    outputs, _ = ExactModel(load_graph(model)).run({"x": x})
    a = np.broadcast_to(x.sum(axis=1, keepdims=True), x.shape) if behind == "Conv" else x
    np.testing.assert_allclose(outputs["y"], normalized(a), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("opset", [6, 9, 13])
def test_a_norm_of_old_that_trains_is_refused(opset: int) -> None:
    """It trains because it has five outputs, whether something reads them or not."""
    outputs = ["y", "mean", "var", "saved_mean", "saved_var"]
    node = helper.make_node("BatchNormalization", ["x", *"sbmv"], outputs, "norm")
    model = make_model([node], dict.fromkeys("sbmv", (4,)), {"x": (2, 4, 3, 3)}, {"y": (2, 4, 3, 3)}, opset)
    refused(model, r"BatchNormalization \(node 'norm'\) trains, .* before opset 14; it must have one output")


def normalized(x: NDArray[np.float32]) -> NDArray[np.float32]:
    mean, variance = (statistic(x, axis=(0, 2, 3), keepdims=True) for statistic in (np.mean, np.var))
    return np.asarray((x - mean) / np.sqrt(variance + 1e-5) + 1)
