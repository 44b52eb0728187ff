"""ONNX models that need onnxruntime for some of their nodes."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tiny_models import make_model

from stormdrop.model.random_weights import seed_weights

GELU = "com.microsoft"
IMAGE = (1, 3, 8, 8)


def gelu_inside(domain: str = GELU, operator: str = "ScaledSiLU") -> onnx.ModelProto:
    """A convolution, an operator of onnxruntime's own, and another convolution."""
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], "first", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node(operator, ["a"], ["b"], "inside", domain=domain),
        helper.make_node("Conv", ["b", "w1"], ["y"], "last", kernel_shape=[1, 1]),
    ]
    model = make_model(nodes, {"w0": (8, 3, 3, 3), "w1": (4, 8, 1, 1)}, {"x": IMAGE}, {"y": (1, 4, 8, 8)})
    model.opset_import.append(helper.make_opsetid(domain, 1))
    return seed_weights(model, 1)


def boxes_at_the_end() -> onnx.ModelProto:
    """A detector: boxes and scores from one matrix product each, and the boxes that remain."""
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["flat"]),
        helper.make_node("Reshape", ["flat", "boxes_shape"], ["boxes"]),
        helper.make_node("MatMul", ["x", "w1"], ["logits"]),
        helper.make_node("Sigmoid", ["logits"], ["likely"]),
        helper.make_node("Reshape", ["likely", "scores_shape"], ["scores"]),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "score"], ["y"], "nms"),
    ]
    extra = [
        numpy_helper.from_array(np.array(value, dtype), name)
        for name, value, dtype in (
            ("boxes_shape", [1, 12, 4], np.int64),
            ("scores_shape", [1, 2, 12], np.int64),
            ("most", 5, np.int64),
            ("overlap", 0.5, np.float32),
            ("score", 0.5, np.float32),
        )
    ]
    model = make_model(nodes, {"w0": (16, 48), "w1": (16, 24)}, {"x": (1, 16)}, {"y": ("n", 3)}, extra=extra)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    return seed_weights(model, 2)


def only_a_loop() -> onnx.ModelProto:
    """A model without kernels: a loop that doubles its state until its sum is large."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "v"], ["w"]),
            helper.make_node("ReduceSum", ["w"], ["total"], keepdims=0),
            helper.make_node("Less", ["total", "limit"], ["again"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, ()),
            helper.make_tensor_value_info("going", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, (4,)),
        ],
        [
            helper.make_tensor_value_info("again", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, (4,)),
        ],
    )
    constants = [
        numpy_helper.from_array(np.array(10), "trips"),
        numpy_helper.from_array(np.array(100, np.float32), "limit"),
        numpy_helper.from_array(np.array(True), "true"),
    ]
    loop = helper.make_node("Loop", ["trips", "true", "x"], ["y"], "loop", body=body)
    return make_model([loop], {}, {"x": (4,)}, {"y": (4,)}, 13, constants)


def two_segments() -> onnx.ModelProto:
    """ScaledSiLU -> Relu -> ScaledSiLU -> MatMul -> NonZero -> Transpose: data decide the first shape."""
    nodes = [
        helper.make_node("ScaledSiLU", ["x"], ["a"], domain=GELU),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("ScaledSiLU", ["b"], ["c"], domain=GELU),
        helper.make_node("MatMul", ["c", "w"], ["d"]),
        helper.make_node("NonZero", ["d"], ["e"]),
        helper.make_node("Transpose", ["e"], ["f"]),
        helper.make_node("Identity", ["d"], ["g"]),
    ]
    model = make_model(nodes, {"w": (8, 8)}, {"x": (2, 8)}, {"f": ("n", 2), "d": (2, 8)})
    model.graph.node.pop()
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    model.opset_import.append(helper.make_opsetid(GELU, 1))
    return seed_weights(model, 3)
