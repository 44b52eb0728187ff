"""Tiny ONNX models with every structure that the import has to simplify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper


def make_model(
    nodes: list[onnx.NodeProto],
    weights: Mapping[str, Sequence[int]],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Mapping[str, Sequence[int | str]],
    opset: int = 13,
    extra: list[onnx.TensorProto] | None = None,
) -> onnx.ModelProto:
    """A model whose float weights are all ones, as in the graphs that come without weights."""
    tensors = [onnx.numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in weights.items()]

    def values(shapes: Mapping[str, Sequence[int | str]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]

    graph = helper.make_graph(nodes, "tiny", values(inputs), values(outputs), tensors + (extra or []))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def residual_model() -> onnx.ModelProto:
    """conv, batch norm, relu, conv, batch norm, sum, relu, pool, dropout, global pool, flatten, gemm."""
    norm = ["scale", "bias", "mean", "var"]
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], "conv1", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c1", *(f"{n}1" for n in norm)], ["n1"], "norm1"),
        helper.make_node("Relu", ["n1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "conv2", kernel_shape=[1, 1]),
        helper.make_node("BatchNormalization", ["c2", *(f"{n}2" for n in norm)], ["n2"], "norm2"),
        helper.make_node("Sum", ["n2", "r1"], ["s"], "sum"),
        helper.make_node("Relu", ["s"], ["r2"], "relu2"),
        helper.make_node("MaxPool", ["r2"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Dropout", ["p"], ["d"], "dropout"),
        helper.make_node("GlobalAveragePool", ["d"], ["g"], "global"),
        helper.make_node("Flatten", ["g"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], "gemm", transB=1),
    ]
    weights: dict[str, tuple[int, ...]] = {"w1": (16, 3, 3, 3), "w2": (16, 16, 1, 1), "w3": (10, 16), "b3": (10,)}
    weights |= {f"{name}{index}": (16,) for name in norm for index in (1, 2)}
    return make_model(nodes, weights, {"x": (1, 3, 8, 8)}, {"y": (1, 10)})


def attention_model() -> onnx.ModelProto:
    """Scores, softmax, values, a projection with a residual, and a layer norm."""
    nodes = [
        *(helper.make_node("MatMul", ["x", f"w{part}"], [part]) for part in "qkv"),
        helper.make_node("Transpose", ["k"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "t"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["a"]),
        helper.make_node("MatMul", ["a", "wo"], ["o"]),
        helper.make_node("Add", ["o", "x"], ["r"]),
        helper.make_node("LayerNormalization", ["r", "g"], ["n"], axis=-1),
        helper.make_node("MatMul", ["n", "wh"], ["y"]),
    ]
    weights: dict[str, tuple[int, ...]] = {f"w{part}": (32, 32) for part in "qkvo"}
    weights |= {"wh": (32, 10), "g": (32,)}
    return make_model(nodes, weights, {"x": (1, 12, 32)}, {"y": (1, 12, 10)}, opset=17)


def heads_model(
    outputs: Sequence[str] = ("y",),
    rows: int | str = 24,
    mask: bool = False,
    exported: bool = False,
    head: int = 8,
    projected: bool = False,
) -> onnx.ModelProto:
    """Self-attention with 2 heads of 8 values, which are a dimension of their own between two transposes.

    If it is `exported`, it is as torch exports it: queries and keys are scaled, and weights that are no numbers are 0.
    If it is `projected`, a product with weights follows.
    """
    width = 2 * head
    split = onnx.numpy_helper.from_array(np.array([1, -1, 2, head], np.int64), "split")
    joined = onnx.numpy_helper.from_array(np.array([1, -1, width], np.int64), "joined")
    numbers = [
        onnx.numpy_helper.from_array(np.array(value, np.float32), name)
        for name, value in (("scale", 8**-0.25), ("zero", 0.0))
        if exported
    ]
    nodes = [
        *(helper.make_node("MatMul", ["x", f"w{part}"], [f"{part}1"]) for part in "qkv"),
        *(helper.make_node("Reshape", [f"{part}1", "split"], [f"{part}2"]) for part in "qkv"),
        helper.make_node("Transpose", ["q2"], ["q"], perm=[0, 2, 1, 3]),
        helper.make_node("Transpose", ["k2"], ["k"], perm=[0, 2, 3, 1]),
        helper.make_node("Transpose", ["v2"], ["v"], perm=[0, 2, 1, 3]),
        *(helper.make_node("Mul", [part, "scale"], [f"{part}s"]) for part in "qk" if exported),
        helper.make_node("MatMul", ["qs", "ks"] if exported else ["q", "k"], ["s0" if mask else "s"]),
        *([helper.make_node("Add", ["s0", "mask"], ["s"])] if mask else []),
        helper.make_node("Softmax", ["s"], ["p0" if exported else "p"], axis=-1),
        *([helper.make_node("IsNaN", ["p0"], ["none"])] if exported else []),
        *([helper.make_node("Where", ["none", "zero", "p0"], ["p"])] if exported else []),
        helper.make_node("MatMul", ["p", "v"], ["a"]),
        helper.make_node("Transpose", ["a"], ["t"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["t", "joined"], ["y0" if projected else "y"]),
        *([helper.make_node("MatMul", ["y0", "wo"], ["y"])] if projected else []),
    ]
    shapes: dict[str, tuple[int | str, ...]] = {"y": (1, rows, width), "p": (1, 2, rows, rows), "s": (1, 2, rows, rows)}
    inputs: dict[str, tuple[int | str, ...]] = {"x": (1, rows, 16)}
    if mask:
        inputs["mask"] = (1, 1, rows, rows)
    made = {name: shapes[name] for name in outputs}
    weights = {f"w{part}": (16, width) for part in "qkv"} | ({"wo": (width, width)} if projected else {})
    model = make_model(nodes, weights, inputs, made, 17, [split, joined, *numbers])
    rng = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        if tensor.name.startswith("w"):
            array = rng.standard_normal(tuple(tensor.dims)).astype(np.float32) / 4
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return model


def zoo_model(name: str) -> onnx.ModelProto:
    """A graph of the ONNX model zoo, as shipped inside the onnx package."""
    return onnx.load(Path(onnx.__file__).parent / f"backend/test/data/light/light_{name}.onnx")
