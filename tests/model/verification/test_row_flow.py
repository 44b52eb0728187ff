"""Whether rows are independent is proven from the code, and what mixes rows is never taken for independent."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from sized_models import centred_model, pooled_model, summed_model
from tiny_models import make_model

from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.verification.row_flow import NotProven, prove_rows

ROWS = 4


def node(*words: Any, **attributes: Any) -> onnx.NodeProto:
    kind, inputs, outputs = words
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def model(nodes: list[onnx.NodeProto], weights: dict[str, tuple[int, ...]], **constants: Any) -> onnx.ModelProto:
    extra = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    made = make_model(nodes, weights, {"x": ("N", 6, 8)}, {"y": ("a", "b", "c")}, extra=extra)
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made


KEEP: dict[str, tuple[Any, Any, Any]] = {
    "a dense layer": ([node("MatMul", "x w", "y")], {"w": (8, 5)}, {}),
    "rows that are merged and split again": (
        [
            node("Reshape", "x flat", "f"),
            node("MatMul", "f w", "p"),
            node("Relu", "p", "r"),
            node("Reshape", "r whole", "y"),
        ],
        {"w": (8, 5)},
        {"flat": [-1, 8], "whole": [ROWS, 6, 5]},
    ),
    "attention between the words of a row": (
        [
            node("Transpose", "x", "t", perm=[0, 2, 1]),
            node("MatMul", "x t", "s"),
            node("Softmax", "s", "p", axis=-1),
            node("MatMul", "p x", "y"),
        ],
        {},
        {},
    ),
    "the batch as the second axis in between": (
        [
            node("Transpose", "x", "t", perm=[1, 0, 2]),
            node("MatMul", "t w", "p"),
            node("Transpose", "p", "y", perm=[1, 0, 2]),
        ],
        {"w": (8, 5)},
        {},
    ),
    "a normalisation of each row": (
        [node("ReduceMean", "x", "m", axes=[1, 2]), node("Sub", "x m", "y")],
        {},
        {},
    ),
    "words that constants choose in all rows": (
        [node("Reshape", "x flat", "f"), node("Gather", "f chosen", "y", axis=0)],
        {},
        {"flat": [-1, 8], "chosen": [[0, 2], [6, 8], [12, 14], [18, 20]]},
    ),
    "a concatenation along another axis": ([node("Concat", "x x", "y", axis=2)], {}, {}),
    "an activation that onnxruntime runs": (
        [node("MatMul", "x w", "p"), node("ScaledSiLU", "p", "y", domain="com.microsoft")],
        {"w": (8, 5)},
        {},
    ),
    "an activation that onnxruntime runs with the batch as the second axis": (
        [
            node("Transpose", "x", "t", perm=[1, 0, 2]),
            node("ScaledSiLU", "t", "p", domain="com.microsoft"),
            node("Transpose", "p", "y", perm=[1, 0, 2]),
        ],
        {},
        {},
    ),
}

MIX: dict[str, tuple[Any, Any, Any]] = {
    "a mean over the batch": ([node("ReduceMean", "x", "m", axes=[0]), node("Sub", "x m", "y")], {}, {}),
    "a largest value of all": ([node("ReduceMax", "x", "m", keepdims=1), node("Div", "x m", "y")], {}, {}),
    "a softmax over the batch": ([node("Softmax", "x", "y", axis=0)], {}, {}),
    "rows in reverse": (
        [node("Slice", "x begin end axes steps", "y")],
        {},
        {"begin": [-1], "end": [-(2**31)], "axes": [0], "steps": [-1]},
    ),
    "the row before": (
        [
            node("Slice", "x zero three axes", "a"),
            node("Slice", "x one four axes", "b"),
            node("Concat", "b a", "c", axis=0),
            node("Slice", "c zero four axes", "y"),
        ],
        {},
        {"zero": [0], "one": [1], "three": [3], "four": [4], "axes": [0]},
    ),
    "words that constants choose in another row": (
        [node("Reshape", "x flat", "f"), node("Gather", "f chosen", "y", axis=0)],
        {},
        {"flat": [-1, 8], "chosen": [[0, 2], [6, 8], [12, 14], [0, 20]]},
    ),
    "words that the input chooses": (
        [
            node("ArgMax", "x", "a", axis=2, keepdims=0),
            node("Reshape", "x flat", "f"),
            node("Gather", "f a", "y", axis=0),
        ],
        {},
        {"flat": [-1, 8]},
    ),
    "all rows twice": ([node("Tile", "x twice", "y")], {}, {"twice": [2, 1, 1]}),
    "words of a row that become rows": ([node("Reshape", "x shape", "y")], {}, {"shape": [6, ROWS, 8]}),
    "distances between all rows, which onnxruntime computes": (
        [
            node("Reshape", "x flat", "f"),
            node("CDist", "f f", "d", domain="com.microsoft", metric="sqeuclidean"),
            node("Reshape", "d shape", "y"),
        ],
        {},
        {"flat": [ROWS, -1], "shape": [ROWS, 2, 2]},
    ),
    "an activation that onnxruntime runs on words that became rows": (
        [node("Transpose", "x", "t", perm=[1, 0, 2]), node("Gelu", "t", "y", domain="com.microsoft")],
        {},
        {},
    ),
    "rows along another axis at the end": ([node("Transpose", "x", "y", perm=[1, 0, 2])], {}, {}),
}


def prove(nodes: Any, weights: Any, constants: Any) -> None:
    if any(each.domain for each in nodes):
        pytest.importorskip("onnxruntime", reason="it runs a part of the model")
    source = model(nodes, weights, **{name: np.array(value) for name, value in constants.items()})
    graph = load_graph(source, {"x": (ROWS, 6, 8)})
    prove_rows(graph, ["x"], ROWS)


@pytest.mark.parametrize("case", KEEP)
def test_rows_that_are_kept_apart(case: str) -> None:
    prove(*KEEP[case])


@pytest.mark.parametrize("case", MIX)
def test_rows_that_are_mixed(case: str) -> None:
    with pytest.raises(NotProven):
        prove(*MIX[case])


def test_networks() -> None:
    prove_rows(load_graph(pooled_model(), {"x": (4, 3, 8, 8)}), ["x"], 4)
    for source in (centred_model(), summed_model()):
        with pytest.raises(NotProven):
            prove_rows(load_graph(source, {"x": (4, 16)}), ["x"], 4)
