"""Layers whose weights are codes of 4 or 8 bits: MatMulNBits, and products with what is dequantised by groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, defs, helper, numpy_helper

import stormdrop as sd
from stormdrop.ir.workload import Workload
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.importer.onnx_model import load_onnx
from stormdrop.model.onnx.contributed import DOMAIN
from stormdrop.model.onnx.contributed import MATMUL_N_BITS as OPERATOR
from stormdrop.model.onnx.rewrites.code_layers import with_code_layers

K, N, BLOCK = 96, 40, 32
RNG = np.random.default_rng(3)
TYPES = {"int4": TensorProto.INT4, "uint4": TensorProto.UINT4, "int8": TensorProto.INT8, "uint8": TensorProto.UINT8}


def model_of(nodes: list[onnx.NodeProto], constants: dict[str, Any], rows: int, k: int = K, n: int = N) -> Any:
    tensors = [
        value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(value, name)
        for name, value in constants.items()
    ]
    graph = helper.make_graph(
        nodes,
        "codes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, rows, k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, rows, n])],
        tensors,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def halves(values: np.ndarray) -> np.ndarray:
    return np.stack([values & 15, values >> 4], axis=-1).reshape(*values.shape[:-1], -1)


def n_bits(rows: int, k: int, bits: int, block: int, zeros: bool, bias: bool = False) -> tuple[Any, Any]:
    """A model of one MatMulNBits and a Relu, and its weights in float64."""
    groups = -(-k // block)
    codes = RNG.integers(0, 256, (N, groups, block * bits // 8), "uint8")
    constants: dict[str, Any] = {"codes": codes, "scales": RNG.uniform(0.01, 0.02, N * groups).astype("float32")}
    middle = np.full((N, groups), 2.0 ** (bits - 1))
    inputs = ["x", "codes", "scales", "", "", ""]
    if zeros:
        stored = RNG.integers(0, 256, (N, -(-groups * bits // 8)), "uint8")
        constants["zeros"], inputs[3] = stored.reshape(-1), "zeros"
        middle = (halves(stored) if bits == 4 else stored)[:, :groups].astype("float64")
    if bias:
        constants["bias"], inputs[5] = RNG.normal(size=N).astype("float32"), "bias"
    nodes = [
        helper.make_node(OPERATOR, inputs, ["sums"], domain=DOMAIN, K=k, N=N, bits=bits, block_size=block),
        helper.make_node("Relu", ["sums"], ["y"]),
    ]
    each = (halves(codes) if bits == 4 else codes).astype("float64")
    scales = constants["scales"].astype("float64").reshape(N, groups, 1)
    weights = ((each - middle[..., None]) * scales).reshape(N, -1)[:, :k]
    return model_of(nodes, constants, rows, k), (weights, constants.get("bias", 0.0))


def kernels_with_codes(model: onnx.ModelProto) -> int:
    """How many kernels read constant bytes."""
    graph = load_graph(model)
    assert not graph.foreign, "nothing runs elsewhere"
    workloads = [Workload.create(task.name, task.function, task.constants) for task in graph.tasks]
    return sum(any(each.inputs[i].dtype == "uint8" for i in each.constants) for each in workloads)


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("rows", "k", "bits", "block", "zeros", "bias"),
    [
        (1, 96, 4, 32, False, False),
        (1, 96, 4, 32, True, True),
        (5, 100, 4, 32, True, False),
        (4, 128, 8, 64, True, True),
        (17, 100, 4, 32, True, True),
        (33, 128, 8, 64, False, False),
    ],
)
def test_matmul_n_bits_is_the_product_with_the_decoded_weights(
    rows: int, k: int, bits: int, block: int, zeros: bool, bias: bool
) -> None:
    model, (weights, added) = n_bits(rows, k, bits, block, zeros, bias)
    x = RNG.normal(size=(1, rows, k)).astype("float32")
    y = sd.compile_model(model).run({"x": x})["y"]
    expected = np.maximum(x.astype("float64") @ weights.T + added, 0)
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
    assert kernels_with_codes(model) == 1


@pytest.mark.parametrize("bits", [4, 8])
def test_onnxruntime_computes_the_same(bits: int) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    model, (weights, added) = n_bits(3, 96, bits, 32, zeros=True, bias=True)
    x = RNG.normal(size=(1, 3, 96)).astype("float32")
    (theirs,) = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, {"x": x}
    )
    expected = np.maximum(x.astype("float64") @ weights.T + added, 0)
    np.testing.assert_allclose(theirs, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def blocked(kind: str, layer: str, zeros: bool, block: int = BLOCK) -> tuple[Any, np.ndarray]:
    """A model of a product with weights that are dequantised, and the weights as [k, n] in float64.

    Args:
        kind: The type of the codes.
        layer: "matmul", "transpose" or "gemm".
        zeros: Whether there are zero points.
        block: The weights of a group; 0 for one scale for each column.
    """
    limits = {"int4": (-8, 8), "uint4": (0, 16), "int8": (-128, 128), "uint8": (0, 256)}[kind]
    codes = RNG.integers(*limits, (K, N))
    groups = K // block if block else 1
    scale = RNG.uniform(0.01, 0.02, (groups, N)).astype("float32")
    zero = RNG.integers(*limits, (groups, N)) if zeros else np.zeros((groups, N), np.int64)
    weights = (codes - np.repeat(zero, K // groups, 0)) * np.repeat(scale.astype("float64"), K // groups, 0)
    flipped = layer != "matmul"

    def stored(name: str, values: np.ndarray) -> onnx.TensorProto:
        values = values.T if flipped else values
        return helper.make_tensor(name, TYPES[kind], values.shape, values.ravel())

    parameters = (scale.T if flipped else scale), zero
    constants: dict[str, Any] = {"w": stored("w", codes), "s": parameters[0], "z": stored("z", zero)}
    settings = {"axis": 1 if flipped else 0, "block_size": block}
    if not block:
        constants["s"], settings = scale[0], {"axis": 0 if flipped else 1, "block_size": 0}
        constants["z"] = helper.make_tensor("z", TYPES[kind], [N], zero[0])
    inputs = ["w", "s", "z"] if zeros else ["w", "s"]
    if not zeros:
        del constants["z"]
    nodes = [helper.make_node("DequantizeLinear", inputs, ["wf"], **settings)]
    if layer == "gemm":
        constants |= {
            "b": RNG.normal(size=N).astype("float32"),
            "flat": np.array([-1, K]),
            "deep": np.array([1, -1, N]),
        }
        nodes += [
            helper.make_node("Reshape", ["x", "flat"], ["rows"]),
            helper.make_node("Gemm", ["rows", "wf", "b"], ["sums"], transB=1),
            helper.make_node("Reshape", ["sums", "deep"], ["y"]),
        ]
        return model_of(nodes, constants, 2), weights
    if layer == "transpose":
        nodes.append(helper.make_node("Transpose", ["wf"], ["wt"], perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", ["x", "wt" if layer == "transpose" else "wf"], ["y"]))
    return model_of(nodes, constants, 2), weights


def test_a_gemm_without_its_bias_and_codes_for_other_types() -> None:
    model, _ = blocked("int4", "gemm", zeros=False)
    (gemm,) = (node for node in model.graph.node if node.op_type == "Gemm")
    gemm.input[2] = ""
    (coded,) = (node for node in with_code_layers(model).graph.node if node.op_type == OPERATOR)
    assert list(coded.output) == list(gemm.output) and len(coded.input) == 4
    model.graph.node[0].attribute.append(helper.make_attribute("output_dtype", TensorProto.FLOAT16))
    assert with_code_layers(model) is model


@pytest.mark.compiles
@pytest.mark.parametrize("layer", ["matmul", "transpose", "gemm"])
@pytest.mark.parametrize(
    ("kind", "zeros", "block"), [("int4", False, 32), ("uint4", True, 16), ("int8", True, 32), ("uint8", False, 0)]
)
def test_products_with_dequantised_weights_read_codes(layer: str, kind: str, zeros: bool, block: int) -> None:
    model, weights = blocked(kind, layer, zeros, block)
    assert kernels_with_codes(model) == 1
    x = RNG.normal(size=(1, 2, K)).astype("float32")
    y = sd.compile_model(model).run({"x": x})["y"]
    bias = [numpy_helper.to_array(tensor) for tensor in model.graph.initializer if tensor.name == "b"]
    expected = x.astype("float64") @ weights + sum(bias)
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def test_groups_along_the_columns_stay_as_they_are() -> None:
    model, _ = blocked("int8", "matmul", zeros=False)
    (dequantize, *_) = model.graph.node
    del dequantize.attribute[:]
    dequantize.attribute.extend([helper.make_attribute("axis", 1), helper.make_attribute("block_size", 20)])
    (scale,) = (tensor for tensor in model.graph.initializer if tensor.name == "s")
    scale.CopyFrom(numpy_helper.from_array(np.ones((K, N // 20), "float32"), "s"))
    assert with_code_layers(model) is model


def test_onnx_knows_the_operator_only_while_a_model_is_read() -> None:
    model, _ = n_bits(1, 96, 4, 32, zeros=False)
    read = load_onnx(model)
    assert "sums" in {value.name for value in read.cleaned.graph.value_info}, "its shape was inferred"
    assert not defs.has(OPERATOR, DOMAIN)


def test_weights_in_another_order_run_elsewhere() -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    model, _ = n_bits(1, 96, 4, 32, zeros=False)
    model.graph.initializer.append(numpy_helper.from_array(np.repeat(np.arange(3, dtype="int32"), 32), "order"))
    model.graph.node[0].input[4] = "order"
    (part,) = load_graph(model).foreign.reports
    assert "MatMulNBits" in str(part)
