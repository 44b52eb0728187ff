from __future__ import annotations

import sys

import numpy as np
import onnx
import pytest
from onnx import helper

from stormdrop.ir.relative_error import relative_error
from stormdrop.model.importer.graph import Graph
from stormdrop.model.metadata import TensorInfo
from stormdrop.model.verify import random_feeds, reference_outputs


def test_feeds_follow_the_seed_and_the_type() -> None:
    inputs = (TensorInfo("x", (2, 3), "float32"), TensorInfo("mask", (4,), "int64"))
    feeds, again, other = random_feeds(inputs, 1), random_feeds(inputs, 1), random_feeds(inputs, 2)
    assert feeds["x"].dtype == np.float32 and feeds["mask"].dtype == np.int64
    assert np.array_equal(feeds["x"], again["x"]) and not np.array_equal(feeds["x"], other["x"])


def test_without_onnxruntime_onnx_itself_answers(residual: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    feeds = random_feeds(residual.inputs)
    first, _ = reference_outputs(residual.source, feeds, ["y"])
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    second, against = reference_outputs(residual.source, feeds, ["y"])
    assert against.startswith("onnx.reference")
    assert relative_error(second["y"], first["y"]) < 1e-5


@pytest.mark.parametrize("opset", [9, 13])
@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
def test_a_softmax_without_onnxruntime_is_that_of_its_opset(
    operator: str, opset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3, 1, 1]) for name in "xy")
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], "old", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    feeds = random_feeds((TensorInfo("x", (2, 3, 1, 1), "float32"),), 0)
    expected, _ = reference_outputs(model, feeds, ["y"])
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    outputs, against = reference_outputs(model, feeds, ["y"])
    assert against.startswith("onnx.reference")
    assert relative_error(outputs["y"], expected["y"]) < 1e-6
    # Before opset 13 it is over all axes but the first, later along the last axis, which has one element.
    assert np.ptp(outputs["y"]) > 0 if opset < 13 else np.ptp(outputs["y"]) == 0
