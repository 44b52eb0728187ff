from __future__ import annotations

import sys

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from stormdrop.ir.relative_error import relative_error
from stormdrop.model.graph import onnx_origin
from stormdrop.model.graph.graph import Graph
from stormdrop.model.graph.onnx_origin import OnnxOrigin, origin_of, rounding_of_peer
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.runtime.sizes import TensorInfo


def test_without_onnxruntime_onnx_itself_answers(residual: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    feeds = random_feeds(residual.inputs)
    origin = origin_of(residual.source)
    (first, again), _ = origin.outputs([feeds, feeds], ["y", "r1"])
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    (second,), against = origin.outputs([feeds, feeds], ["y", "r1"])
    assert against.startswith("onnx.reference")
    assert np.array_equal(first["y"], again["y"])
    assert all(relative_error(second[name], first[name]) < 1e-5 for name in ("y", "r1"))
    assert [output.name for output in residual.source.graph.output] == ["y"]  # type: ignore[union-attr]


@pytest.mark.parametrize("opset", [9, 13])
@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
def test_a_softmax_without_onnxruntime_is_that_of_its_opset(
    operator: str, opset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3, 1, 1]) for name in "xy")
    nodes = [helper.make_node("Neg", ["x"], ["n"]), helper.make_node(operator, ["n"], ["y"])]
    graph = helper.make_graph(nodes, "old", [x], [y])
    origin = OnnxOrigin(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8))
    assert origin.before_saturation() == {"y": "n"}
    feeds = random_feeds((TensorInfo("x", (2, 3, 1, 1), "float32"),), 0)
    (expected,), _ = origin.outputs([feeds], ["y"])
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    (outputs,), against = origin.outputs([feeds], ["y"])
    assert against.startswith("onnx.reference")
    assert relative_error(outputs["y"], expected["y"]) < 1e-6
    # Before opset 13 it is over all axes but the first, later along the last axis, which has one element.
    assert np.ptp(outputs["y"]) > 0 if opset < 13 else np.ptp(outputs["y"]) == 0


def test_onnxruntime_rounds_in_another_order_without_its_optimisations(residual: Graph) -> None:
    pytest.importorskip("onnxruntime", reason="it has optimisations")
    feeds = random_feeds(residual.inputs)
    assert rounding_of_peer(OnnxOrigin(residual.source), feeds, "y") < 1e-5
    assert rounding_of_peer(FromElsewhere(), feeds, "y") == 0.0  # type: ignore[arg-type]


def test_the_rounding_of_a_single_number_is_known() -> None:
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, []) for name in "xy")
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "scalar", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    assert 0 < rounding_of_peer(OnnxOrigin(model), {"x": np.array(7.3, "float32")}, "y") < 1e-5


def test_sums_that_would_saturate_are_not_taken_for_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    x = helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, [2, 64])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.INT32, [2, 3])
    weights = numpy_helper.from_array(np.full((64, 3), -128, "int8"), "w")
    graph = helper.make_graph([helper.make_node("MatMulInteger", ["x", "w"], ["y"])], "bytes", [x], [y], [weights])
    origin = OnnxOrigin(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8))
    feeds = {"x": np.full((2, 64), 255, "uint8")}
    (outputs,), _ = origin.outputs([feeds], ["y"])
    assert np.all(outputs["y"] == 64 * 255 * -128)
    monkeypatch.setattr(onnx_origin, "sums_saturate", lambda: True)
    assert rounding_of_peer(origin, feeds, "y") == 0.0


class FromElsewhere:
    """An origin that is no ONNX model: nothing of it is called."""
