"""Small models for tests of models on GPUs, and what they should compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper
from tiny_models import make_model

Array = NDArray[Any]


def seeded(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with weights that differ, so that a permutation is seen."""
    rng = np.random.default_rng(5)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = rng.uniform(0.1, 0.4, tuple(tensor.dims)).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    return model


def concatenated() -> onnx.ModelProto:
    """Two convolutions whose results are one tensor, which a third one reads."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], kernel_shape=[1, 1]),
        helper.make_node("Conv", ["x", "w2"], ["b"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Concat", ["a", "b"], ["c"], axis=1),
        helper.make_node("Conv", ["c", "w3"], ["y"], kernel_shape=[1, 1]),
    ]
    weights = {"w1": (8, 4, 1, 1), "w2": (24, 4, 3, 3), "w3": (16, 32, 1, 1)}
    return make_model(nodes, weights, {"x": (1, 4, 7, 7)}, {"y": (1, 16, 7, 7)})


def with_few_outputs() -> onnx.ModelProto:
    """A layer with so few outputs that blocks of their own sum up parts of its terms."""
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["g"]), helper.make_node("Relu", ["g"], ["y"])]
    return make_model(nodes, {"w": (2048, 24), "b": (24,)}, {"x": (3, 2048)}, {"y": (3, 24)})


def with_a_part() -> onnx.ModelProto:
    """A kernel, NonZero, which onnxruntime runs, and another kernel."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("NonZero", ["r"], ["i"]),
        helper.make_node("Softmax", ["a"], ["y"]),
    ]
    model = make_model(nodes, {"w": (8, 8)}, {"x": (4, 8)}, {"y": (4, 8)})
    model.graph.output.append(helper.make_tensor_value_info("i", onnx.TensorProto.INT64, [2, None]))
    return model


def expected(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def drawn(model: Any, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {info.name: rng.uniform(-1, 1, info.shape).astype(info.dtype) for info in model.inputs}
