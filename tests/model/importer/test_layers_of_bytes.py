"""Quantised layers of ONNX models become kernels that read and write bytes, and compute what onnxruntime computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import stormdrop as sd
from stormdrop.ir.contractions.contraction import is_contraction
from stormdrop.ir.workload import Workload
from stormdrop.model.artifact.onnxruntime_parts import ask_for_exact_sums
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer.import_onnx import load_graph

RNG = np.random.default_rng(0)
SYMMETRIC = np.int8(0)
PADS = [1, 0, 1, 2]


def layer(
    kind: str, x: tuple[int, ...], w: Any, zero: int = 120, weight_zero: Any = SYMMETRIC, **attributes: Any
) -> onnx.ModelProto:
    """A model of one quantised layer, `y = kind(x, w)`. A convolution has a bias and a scale per channel."""
    channels = w.shape[0] if kind == "QLinearConv" else 1
    scales = RNG.uniform(0.001, 0.002, channels).astype("float32")
    constants = {
        "xs": np.float32(0.0213),
        "xz": np.uint8(zero),
        "w": w,
        "ws": scales if np.ndim(weight_zero) or kind == "QLinearConv" else scales[0],
        "wz": np.broadcast_to(weight_zero, channels).copy() if kind == "QLinearConv" else weight_zero,
        "ys": np.float32(0.1137),
        "yz": np.uint8(110),
    }
    if kind == "QLinearConv":
        constants["b"] = RNG.integers(-1000, 1000, channels).astype("int32")
    node = helper.make_node(kind, ["x", *constants], ["y"], **attributes)
    graph = helper.make_graph(
        [node],
        kind,
        [helper.make_tensor_value_info("x", TensorProto.UINT8, x)],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def weights(dtype: str, *shape: int) -> Any:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)


MODELS = {
    "matmul": layer("QLinearMatMul", (7, 33), weights("int8", 33, 20)),
    "batches": layer("QLinearMatMul", (2, 3, 7, 33), weights("int8", 33, 20)),
    "conv": layer("QLinearConv", (1, 5, 9, 8), weights("int8", 12, 5, 3, 3), pads=PADS),
    "no zero point": layer(
        "QLinearConv", (1, 5, 9, 8), weights("int8", 12, 5, 3, 3), zero=0, pads=PADS, strides=[2, 1]
    ),
    "unsigned weights": layer(
        "QLinearConv", (1, 8, 6, 6), weights("uint8", 16, 8, 1, 1), weight_zero=np.uint8(128), group=1
    ),
    "groups": layer("QLinearConv", (1, 8, 6, 6), weights("int8", 16, 4, 3, 3), group=2),
    "sequence": layer("QLinearConv", (1, 8, 30), weights("int8", 16, 8, 3), pads=[2, 1]),
}
FAR = {
    "weights far from zero": layer(
        "QLinearConv", (1, 8, 6, 6), weights("uint8", 16, 8, 3, 3), weight_zero=np.uint8(3), pads=PADS
    )
}
"""Weights that are no bytes without their zero point: moved by 128, they are. Sums of the data make up for the rest."""


def contractions(graph: Graph) -> list[Workload]:
    """The kernels of a model that multiply."""
    workloads = [Workload.create(task.name, task.function, task.constants) for task in graph.tasks]
    return [workload for workload in workloads if any(stage.combine == "sum" for stage in workload.graph.stages)]


@pytest.mark.parametrize("name", MODELS)
def test_one_kernel_reads_bytes_multiplies_them_and_writes_bytes(name: str) -> None:
    (workload,) = contractions(load_graph(MODELS[name]))
    contraction = workload.contraction
    operands = {str(contraction.operand.source.dtype), str(contraction.other.source.dtype)}
    assert operands == {"uint8", "int8"}
    assert contraction.constant is not None  # the weights are packed ahead of time
    assert [spec.dtype for spec in workload.outputs] == ["uint8"]


@pytest.mark.compiles
@pytest.mark.parametrize("name", [*MODELS, *FAR])
def test_the_results_are_those_of_onnxruntime(name: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = {**MODELS, **FAR}[name]
    options = onnxruntime.SessionOptions()
    ask_for_exact_sums(options)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    x = np.random.default_rng(1).integers(0, 256, session.get_inputs()[0].shape, "uint8")
    (expected,) = session.run(None, {"x": x})
    assert np.unique(expected).size > 10
    np.testing.assert_array_equal(sd.compile_model(model)(x), expected)


def test_weights_far_from_zero_are_multiplied_as_bytes() -> None:
    kernels = contractions(load_graph(FAR["weights far from zero"]))
    products = [kernel for kernel in kernels if any(map(is_contraction, kernel.graph.stages))]
    found = [kernel.contraction for kernel in products]
    assert {"uint8", "int8"} in [{str(each.operand.source.dtype), str(each.other.source.dtype)} for each in found]
    assert len(found) == 2, "the second one sums up the data of a window, all channels together"
