"""Small networks of images and of sequences, quantised by onnxruntime in the QDQ form."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


class Builder:
    """Collects the nodes and constants of a network whose input is `x`."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(0)

    def constant(self, value: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def weights(self, *shape: int, deviation: float = 0.1) -> str:
        return self.constant(self.rng.normal(0, deviation, shape).astype("float32"))

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], f"{operator}_{name}", **attributes))
        return name

    def conv(self, x: str, inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> str:
        deviation = (2 / (inputs // groups * size * size)) ** 0.5
        w = self.weights(outputs, inputs // groups, size, size, deviation=deviation)
        return self.add("Conv", x, w, self.weights(outputs), strides=[stride] * 2, pads=[size // 2] * 4, group=groups)

    def model(self, *shape: int) -> onnx.ModelProto:
        """The network; what its last node computes is its output `y`."""
        self.nodes[-1].output[0] = "y"
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "net", [x], [y], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def residual() -> onnx.ModelProto:
    """As ResNet: a stem of three channels, a pool, two residual blocks, one with a projection, and a classifier."""
    net = Builder()
    x = net.add("Relu", net.conv("x", 3, 16, 7, 2))
    x = net.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for inputs, outputs, stride in ((16, 16, 1), (16, 24, 2)):
        y = net.conv(net.add("Relu", net.conv(x, inputs, outputs, 3, stride)), outputs, outputs, 3)
        x = net.add("Relu", net.add("Add", y, x if stride == 1 else net.conv(x, inputs, outputs, 1, stride)))
    x = net.add("Concat", x, net.conv(x, 24, 8, 1), axis=1)
    x = net.add("Flatten", net.add("GlobalAveragePool", x))
    net.add("Gemm", x, net.weights(10, 32), net.weights(10), transB=1)
    return net.model(1, 3, 32, 32)


def inverted() -> onnx.ModelProto:
    """As MobileNetV2: depthwise convolutions between 1x1 ones, with ReLU6."""
    net = Builder()

    def bounded(x: str) -> str:
        return net.add("Clip", x, net.constant(np.float32(0)), net.constant(np.float32(6)))

    x = bounded(net.conv("x", 3, 8, 3, 2))
    for inputs, outputs, stride in ((8, 16, 2), (16, 16, 1)):
        y = bounded(net.conv(x, inputs, 4 * inputs, 1))
        y = bounded(net.conv(y, 4 * inputs, 4 * inputs, 3, stride, groups=4 * inputs))
        y = net.conv(y, 4 * inputs, outputs, 1)
        x = net.add("Add", x, y) if inputs == outputs else y
    x = net.add("Flatten", net.add("GlobalAveragePool", x))
    net.add("Gemm", x, net.weights(10, 16), net.weights(10), transB=1)
    return net.model(1, 3, 24, 24)


def attention() -> onnx.ModelProto:
    """As a block of BERT: products of activations with weights and with each other."""
    net, (rows, width, heads) = Builder(), (9, 16, 2)

    def linear(x: str) -> str:
        return net.add("Add", net.add("MatMul", x, net.weights(width, width, deviation=0.25)), net.weights(width))

    def split(x: str, perm: list[int]) -> str:
        shape = net.constant(np.array([1, rows, heads, width // heads]))
        return net.add("Transpose", net.add("Reshape", x, shape), perm=perm)

    scores = net.add("MatMul", split(linear("x"), [0, 2, 1, 3]), split(linear("x"), [0, 2, 3, 1]))
    mixed = net.add("MatMul", net.add("Softmax", scores, axis=-1), split(linear("x"), [0, 2, 1, 3]))
    joined = net.add(
        "Reshape", net.add("Transpose", mixed, perm=[0, 2, 1, 3]), net.constant(np.array([1, rows, width]))
    )
    net.add("Add", "x", linear(joined))
    return net.model(1, rows, width)


NETWORKS = {"residual": residual, "inverted": inverted, "attention": attention}


def quantised(name: str, activations: str = "uint8", per_channel: bool = False) -> onnx.ModelProto:
    """One of the networks, quantised with random data for its calibration. Skips the test without onnxruntime."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    model = NETWORKS[name]()
    shape = [size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim]
    samples = iter([{"x": np.random.default_rng(seed).normal(0, 1, shape).astype("float32")} for seed in range(4)])

    class Samples(quantization.CalibrationDataReader):  # type: ignore[name-defined]
        def get_next(self) -> Any:
            return next(samples, None)

    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "quantised.onnx"
            quantization.quantize_static(
                model,
                out,
                Samples(),
                quant_format=quantization.QuantFormat.QDQ,
                per_channel=per_channel,
                activation_type=quantization.QuantType.QInt8
                if activations == "int8"
                else quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
                extra_options={"ActivationSymmetric": activations == "int8"},
            )
            return onnx.load(out)
    finally:
        root.setLevel(before)
