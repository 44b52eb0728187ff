"""Loops with a known number of steps become their steps."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from stormdrop.model.onnx.rewrites.loops import unroll_loops


def branching_loop() -> onnx.ModelProto:
    """h = h * w, or h + w from the third step on: only the branches of the body's If read the weight outside."""

    def branch(operator: str) -> onnx.GraphProto:
        value = helper.make_tensor_value_info("chosen", TensorProto.FLOAT, [4])
        return helper.make_graph([helper.make_node(operator, ["h", "w"], ["chosen"])], operator, [], [value])

    body = helper.make_graph(
        [
            helper.make_node("Greater", ["step", "two"], ["late"]),
            helper.make_node("If", ["late"], ["next"], then_branch=branch("Add"), else_branch=branch("Mul")),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h", TensorProto.FLOAT, [4]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [4]),
        ],
        [numpy_helper.from_array(np.array(1, np.int64), "two")],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["count", "always", "x"], ["y"], body=body)],
        "loop",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
        [
            numpy_helper.from_array(np.array(4, np.int64), "count"),
            numpy_helper.from_array(np.array(True), "always"),
            numpy_helper.from_array(np.array([1, 2, 3, 4], np.float32), "w"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_branches_of_a_body_read_what_is_around_the_loop() -> None:
    model = branching_loop()
    unrolled = unroll_loops(model)
    assert not any(node.op_type == "Loop" for node in unrolled.graph.node)
    onnx.checker.check_model(unrolled)
    x = np.array([1, -1, 0.5, 2], np.float32)
    (right,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_array_equal(ReferenceEvaluator(unrolled).run(None, {"x": x})[0], right)
