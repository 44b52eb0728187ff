"""Tiny models with an open first dimension, whose rows do or do not depend on each other."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper
from tiny_models import make_model

from stormdrop.model.random_weights import seed_weights


def pooled_model() -> onnx.ModelProto:
    """Convolution, pooling and a dense layer: each row of the output is that of the same row of the input."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "v"], ["y"], transB=1),
    ]
    weights: dict[str, tuple[int, ...]] = {"w": (16, 3, 3, 3), "v": (10, 16)}
    return seed_weights(make_model(nodes, weights, {"x": ("N", 3, 8, 8)}, {"y": ("N", 10)}), seed=1)


def centred_model() -> onnx.ModelProto:
    """Subtracts the mean over all rows: each row of the output depends on all rows of the input."""
    nodes = [helper.make_node("ReduceMean", ["x"], ["m"], axes=[0]), helper.make_node("Sub", ["x", "m"], ["y"])]
    return make_model(nodes, {}, {"x": ("N", 16)}, {"y": ("N", 16)})


def counting_model() -> onnx.ModelProto:
    """Divides by the number of rows."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Cast", ["n"], ["f"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Div", ["x", "f"], ["y"]),
    ]
    zero = numpy_helper.from_array(np.array(0), "zero")
    return make_model(nodes, {}, {"x": ("N", 16)}, {"y": ("N", 16)}, extra=[zero])


def summed_model() -> onnx.ModelProto:
    """Sums up all rows: the output has no rows."""
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("ReduceSum", ["r", "axes"], ["y"], keepdims=0)]
    axes = numpy_helper.from_array(np.array([0]), "axes")
    return make_model(nodes, {}, {"x": ("N", 16)}, {"y": (16,)}, extra=[axes])


def scaled_model() -> onnx.ModelProto:
    """Divides by the largest element of all rows, as a quantisation does. Rows of small numbers rarely show that."""
    nodes = [helper.make_node("ReduceMax", ["x"], ["m"], keepdims=1), helper.make_node("Div", ["x", "m"], ["y"])]
    return make_model(nodes, {}, {"x": ("N", 16)}, {"y": ("N", 16)})
