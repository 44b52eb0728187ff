"""A model from ONNX to a folder and back: `python examples/saved_model.py` (some seconds).

It makes a network of two layers, compiles it with default schedules, runs it, saves it and loads it again. In place of
the network take a file of your own. `sd.tune_model(path, time="3m").model` is the tuned model.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import stormdrop as sd


def network() -> onnx.ModelProto:
    """y = relu(x first) second, with random weights."""
    rng = np.random.default_rng(0)
    weights = {"first": (64, 128), "second": (128, 10)}
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["positive"]),
        helper.make_node("MatMul", ["positive", "second"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (16, 64))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (16, 10))],
        [numpy_helper.from_array(rng.normal(size=shape).astype("float32"), name) for name, shape in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main() -> None:
    x = np.random.default_rng(1).normal(size=(16, 64)).astype("float32")
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(network(), Path(folder) / "network.onnx")
        model = sd.compile_model(Path(folder) / "network.onnx")
        y = model(x)
        model.save(Path(folder) / "network.sd")
        loaded = sd.load(Path(folder) / "network.sd")
        np.testing.assert_array_equal(loaded(x), y)
    print(f"the loaded model computes what the saved one did, {y.shape[0]} rows of {y.shape[1]} numbers")


if __name__ == "__main__":
    main()
