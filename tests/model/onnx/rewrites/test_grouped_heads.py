"""Products with keys and values that several heads share: the same numbers, without copies for each head."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from stormdrop.model.onnx.rewrites.grouped_heads import with_grouped_heads

BATCH, HEADS, SHARED, ROWS, LENGTH, WIDTH = 2, 6, 2, 3, 5, 4


def product(
    turned: bool,
    *,
    axis: int = 2,
    perm: tuple[int, ...] = (0, 1, 3, 2),
    left: tuple[int, ...] | None = None,
    copied: tuple[int, ...] = (BATCH, SHARED, HEADS // SHARED, LENGTH, WIDTH),
) -> onnx.ModelProto:
    """Scores of queries and keys, or the sums of values, for heads that share them."""
    left = left or ((BATCH, HEADS, ROWS, WIDTH) if turned else (BATCH, HEADS, ROWS, LENGTH))
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axis"], ["one"]),
        helper.make_node("Expand", ["one", "copied"], ["several"]),
        helper.make_node("Reshape", ["several", "flat"], ["heads"]),
        *([helper.make_node("Transpose", ["heads"], ["turned"], perm=perm)] if turned else []),
        helper.make_node("MatMul", ["a", "turned" if turned else "heads"], ["y"], "product"),
    ]
    constants = {"axis": [axis], "copied": copied, "flat": (BATCH, HEADS, LENGTH, WIDTH)}
    tensors = [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]
    shapes = {"a": left, "x": (BATCH, SHARED, LENGTH, WIDTH)}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "product", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def result(model: onnx.ModelProto) -> Any:
    rng = np.random.default_rng(0)
    shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in model.graph.input}
    feeds = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    return ReferenceEvaluator(model).run(None, feeds)[0]


@pytest.mark.parametrize("turned", [False, True])
def test_the_product_is_the_same_without_copies(turned: bool) -> None:
    model = product(turned)
    rewritten = with_grouped_heads(model)
    operators = [node.op_type for node in rewritten.graph.node]
    assert operators == [*(["Transpose"] if turned else []), "Reshape", "MatMul", "Reshape"]
    assert [node.name for node in rewritten.graph.node if node.op_type == "MatMul"] == ["product"]
    np.testing.assert_allclose(result(rewritten), result(model), rtol=1e-5, atol=1e-6)


def test_other_products_stay() -> None:
    others = [
        product(False, axis=1, copied=(BATCH, HEADS // SHARED, SHARED, LENGTH, WIDTH)),  # head 0, 1, 0, 1, ...
        product(True, perm=(1, 0, 3, 2), left=(HEADS, BATCH, ROWS, WIDTH)),
        product(False, left=(BATCH, 1, ROWS, LENGTH)),  # all heads have the same weights
    ]
    for model in others:
        assert with_grouped_heads(model) is model


def test_unknown_shapes_stay() -> None:
    model = product(True)
    del model.graph.value_info[:]
    assert with_grouped_heads(model) is model
