"""A program is derived from a model; the memory that its callers get is never that of its kernels."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from tiny_models import make_model

from stand_ins.verifying import verify
from stormdrop.machine.cpu import Cpu
from stormdrop.model.building.compile import build
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.inputs.samples import random_feeds

pytestmark = pytest.mark.compiles

CONV = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}


def two_outputs() -> onnx.ModelProto:
    """The first convolution's result is an output of the model, and the input of the second convolution."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "first", **CONV),
        helper.make_node("Conv", ["a", "w2"], ["b"], "second", **CONV),
        helper.make_node("Conv", ["b", "w2"], ["c"], "third", **CONV),
    ]
    weights: dict[str, tuple[int, ...]] = {"w1": (8, 3, 3, 3), "w2": (8, 8, 3, 3)}
    return make_model(nodes, weights, {"x": (1, 3, 8, 8)}, {"a": (1, 8, 8, 8), "c": (1, 8, 8, 8)})


def test_returned_outputs_do_not_change(target: Cpu) -> None:
    graph = load_graph(two_outputs())
    model = build(graph, {}, target)
    assert verify(model, graph.source).max_error < 1e-5
    first = model.run(random_feeds(model.inputs, 1))
    kept = {name: value.copy() for name, value in first.items()}
    second = model.run(random_feeds(model.inputs, 2))
    for name, value in first.items():
        np.testing.assert_array_equal(value, kept[name])
        assert not np.array_equal(value, second[name])


@pytest.mark.parametrize("kind", ["Identity", "Relu"])
def test_a_model_without_memory_between_kernels(kind: str, target: Cpu) -> None:
    graph = load_graph(make_model([helper.make_node(kind, ["x"], ["y"])], {}, {"x": (4, 4)}, {"y": (4, 4)}))
    model = build(graph, {}, target)
    assert verify(model, graph.source).max_error == 0.0


def test_an_output_may_share_its_storage_with_a_tensor_between_kernels(target: Cpu) -> None:
    """Split makes a tuple, whose parts TVM plans where the first product was."""
    weights: dict[str, tuple[int, ...]] = {"w": (8, 8)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["c"]),
        helper.make_node("Split", ["c"], ["left", "right"], axis=1),
        helper.make_node("MatMul", ["right", "half"], ["y"]),
    ]
    weights["half"] = (4, 4)
    graph = load_graph(make_model(nodes, weights, {"x": (4, 8)}, {"left": (4, 4), "y": (4, 4)}))
    model = build(graph, {}, target)
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    first = model.run({"x": x})
    kept = {name: value.copy() for name, value in first.items()}
    model.run({"x": -x})
    assert all(np.array_equal(value, kept[name]) for name, value in first.items())
    sums = 64 * np.repeat(x.sum(axis=1, keepdims=True), 4, axis=1)
    assert np.array_equal(first["left"], sums) and np.array_equal(first["y"], 4 * sums)
