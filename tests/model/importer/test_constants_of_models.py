"""Constants that are stored in another way than kernels read them: sparse ones, codes of 4 bits, blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tiny_models import make_model

from stormdrop.errors import ModelError
from stormdrop.model.artifact.onnxruntime_parts import session_of, session_options
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.onnx.source import read_source
from stormdrop.model.verification.exact import ExactModel

SHAPE = (4, 6)
X = np.arange(8, dtype=np.float32).reshape(2, 4)


def sparse(values: Any, indices: Any, shape: tuple[int, ...] = SHAPE) -> onnx.SparseTensorProto:
    return helper.make_sparse_tensor(
        numpy_helper.from_array(np.asarray(values, np.float32), "w"),
        numpy_helper.from_array(np.asarray(indices, np.int64), "places"),
        shape,
    )


def product(*before: onnx.NodeProto, extra: list[onnx.TensorProto] | None = None, opset: int = 21) -> onnx.ModelProto:
    """x times a constant w."""
    nodes = [*before, helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = make_model(nodes, {}, {"x": X.shape}, {"y": (2, 6)}, opset, extra)
    model.ir_version = 10
    return model


def output(model: onnx.ModelProto) -> NDArray[Any]:
    graph = load_graph(model)
    assert not graph.foreign.reports
    outputs, _ = ExactModel(graph).run({"x": X})
    return outputs["y"]


@pytest.mark.parametrize("indices", [[1, 9, 23], [[0, 1], [1, 3], [3, 5]]])
@pytest.mark.parametrize("where", ["initializer", "constant"])
def test_a_sparse_constant(indices: Any, where: str) -> None:
    tensor = sparse([1, 2, 3], indices)
    if where == "initializer":
        model = product()
        model.graph.sparse_initializer.append(tensor)
    else:
        model = product(helper.make_node("Constant", [], ["w"], sparse_value=tensor))
    w = np.zeros(SHAPE, np.float32)
    w[0, 1], w[1, 3], w[3, 5] = 1, 2, 3
    assert np.array_equal(output(model), X @ w)
    assert len(model.graph.sparse_initializer) == (where == "initializer"), "the user's own model is not changed"


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (sparse([1], [24]), "index outside of its shape 4x6"),
        (sparse([1], [-1]), "index outside of its shape"),
        (sparse([1], [[0, 6]]), "index outside of its shape"),
        (sparse([1, 2], [3]), "has 2 values, and indices of the shape"),
        (sparse([1], [0], (2**40, 2**10)), "more elements than this machine"),
        (sparse([1], [0], (-4, 6)), r"has the shape \[-4, 6\]"),
    ],
)
def test_damaged_sparse_constants(tensor: onnx.SparseTensorProto, words: str) -> None:
    model = product()
    model.graph.sparse_initializer.append(tensor)
    with pytest.raises(ModelError, match=f"sparse constant 'w' .*{words}"):
        read_source(model)


CODES = np.arange(-8, 16, dtype=np.int8).reshape(SHAPE) % 16 - 8
SCALES = np.linspace(0.5, 2, 24, dtype=np.float32)


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4])
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((), {}),
        ((6,), {"axis": 1}),
        ((4,), {"axis": 0}),
        ((2, 6), {"axis": 0, "block_size": 2}),
        ((4, 2), {"axis": -1, "block_size": 3}),
        ((4, 2), {"axis": 1, "block_size": 4}),
    ],
)
@pytest.mark.parametrize("with_zero", [False, True])
def test_codes_of_4_bits(kind: int, shape: tuple[int, ...], attributes: dict[str, int], with_zero: bool) -> None:
    pytest.importorskip("onnxruntime")
    codes = CODES + (8 if kind == TensorProto.UINT4 else 0)
    count = int(np.prod(shape))
    scale = SCALES[:count].reshape(shape)
    extra = [helper.make_tensor("q", kind, SHAPE, codes.ravel()), numpy_helper.from_array(scale, "s")]
    if with_zero:
        extra.append(helper.make_tensor("z", kind, shape, np.arange(count) % 7))
    node = helper.make_node("DequantizeLinear", ["q", "s", *["z"] * with_zero], ["w"], **attributes)
    model = product(node, extra=extra)
    np.testing.assert_allclose(output(model), by_onnxruntime(model, {"x": X}), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("constant", [False, True])
def test_bytes_in_blocks(constant: bool) -> None:
    """Codes that are computed, and constant ones."""
    pytest.importorskip("onnxruntime")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s"], ["q"], axis=1, block_size=2, output_dtype=TensorProto.INT8),
        helper.make_node("DequantizeLinear", ["c" if constant else "q", "s"], ["d"], axis=1, block_size=2),
        helper.make_node("MatMul", ["d", "w"], ["y"]),
    ]
    extra = [
        numpy_helper.from_array(np.linspace(0.13, 0.41, 4, dtype=np.float32).reshape(2, 2), "s"),
        numpy_helper.from_array(np.arange(24, dtype=np.float32).reshape(SHAPE), "w"),
        numpy_helper.from_array(np.arange(8, dtype=np.int8).reshape(2, 4), "c"),
    ]
    outputs = {"y": (2, 6), "d": (2, 4)}
    model = make_model(nodes, {}, {"x": (2, 4)}, {"y": (2, 6)} if constant else outputs, 21, extra)
    model.ir_version = 10
    if constant:
        model.graph.node.append(helper.make_node("Add", ["x", "x"], ["twice"]))
        model.graph.output.append(helper.make_tensor_value_info("twice", TensorProto.FLOAT, (2, 4)))
    np.testing.assert_allclose(output(model), by_onnxruntime(model, {"x": X}), rtol=1e-5, atol=1e-5)


def by_onnxruntime(model: onnx.ModelProto, feeds: dict[str, NDArray[Any]]) -> NDArray[Any]:
    session = session_of(model.SerializeToString(), session_options(1))
    (value,) = session.run(["y"], feeds)
    return np.asarray(value)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("output", "2 outputs have the name 'y'"),
        ("input", "2 inputs have the name 'x'"),
        ("node", "2 results of nodes"),
    ],
)
def test_names_are_unique(kind: str, words: str) -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {}, {"x": (2, 4)}, {"y": (2, 4)})
    values = getattr(model.graph, kind)
    values.append(values[0])
    with pytest.raises(ModelError, match=words):
        read_source(model)
