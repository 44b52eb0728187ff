"""A network of three kernels, in the place of the model of whoever reads the examples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def save_small_network(path: Path, image: str = "x", batch: int | str = 1) -> None:
    """Writes the network as an ONNX file: images in, under this name, and ten numbers `y` for each out."""
    rng = np.random.default_rng(0)
    weights = {"w": (8, 3, 4, 4), "v": (10, 8), "b": (10,)}
    nodes = [
        helper.make_node("Conv", [image, "w"], ["c"], kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "v", "b"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(image, TensorProto.FLOAT, (batch, 3, 224, 224))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (batch, 10))],
        [numpy_helper.from_array(rng.normal(size=shape).astype("float32"), name) for name, shape in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def save_small_product(path: Path) -> None:
    """Writes a product of matrices with constant weights as an ONNX file."""
    weights = np.random.default_rng(0).normal(size=(64, 32)).astype("float32")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 64))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 32))],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def save_small_words(path: Path) -> None:
    """Writes a table of words as an ONNX file: `ids` and a `mask` of open length in, and `y`, a row for each word."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["words"]),
        helper.make_node("Cast", ["mask"], ["kept"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["kept", "last"], ["weights"]),
        helper.make_node("Mul", ["words", "weights"], ["y"]),
    ]
    table = np.random.default_rng(0).normal(size=(50, 8)).astype("float32")
    graph = helper.make_graph(
        nodes,
        "words",
        [helper.make_tensor_value_info(name, TensorProto.INT64, (1, "length")) for name in ("ids", "mask")],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, "length", 8))],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.array([2]), "last")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
