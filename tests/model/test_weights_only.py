"""A small language model whose weights alone are quantised gives the tokens that onnxruntime gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import stormdrop as sd
from stormdrop.model.quantize import quantize_weights

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

VOCABULARY, HIDDEN, WIDE, STEPS = 211, 96, 160, 24


def language_model(folder: Path, rows: int) -> Path:
    """An embedding, two products with a residual connection, and the last product over the vocabulary."""
    rng = np.random.default_rng(7)
    shapes = {
        "embedding": (VOCABULARY, HIDDEN),
        "up": (HIDDEN, WIDE),
        "down": (WIDE, HIDDEN),
        "head": (HIDDEN, VOCABULARY),
    }
    constants = {name: rng.normal(0, shape[0] ** -0.5, shape).astype("float32") for name, shape in shapes.items()}
    constants["embedding"] *= 10
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["embedding", "ids"], ["x"]),
            helper.make_node("MatMul", ["x", "up"], ["wide"]),
            helper.make_node("Relu", ["wide"], ["active"]),
            helper.make_node("MatMul", ["active", "down"], ["narrow"]),
            helper.make_node("Add", ["narrow", "x"], ["sum"]),
            helper.make_node("MatMul", ["sum", "head"], ["logits"]),
        ],
        "words",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, rows])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, rows, VOCABULARY])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    path = folder / f"words{rows}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.compiles
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("rows", [1, 5, STEPS])
def test_tokens_are_those_of_onnxruntime(tmp_path: Path, bits: int, group: int, rows: int) -> None:
    path = tmp_path / "q.onnx"
    made = quantize_weights(language_model(tmp_path, rows), path, bits=bits, group=group)
    assert made.quantized == 3
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    model = sd.compile_model(path)
    ids: Any = np.arange(rows, dtype=np.int64)[None]
    for _ in range(STEPS // rows):
        (expected,) = session.run(None, {"ids": ids})
        logits = model.run({"ids": ids})["logits"]
        assert np.abs(logits - expected).max() < 2e-6 * np.abs(expected).max()
        assert (logits.argmax(axis=-1) == expected.argmax(axis=-1)).all()
        ids = logits.argmax(axis=-1)


def with_accuracy_level(path: Path, level: int) -> Path:
    """The same model, whose products ask for coarser sums."""
    model = onnx.load(path)
    for node in model.graph.node:
        if node.op_type == "MatMulNBits":
            kept = [entry for entry in node.attribute if entry.name != "accuracy_level"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("accuracy_level", level)])
    onnx.save(model, path)
    return path


@pytest.mark.compiles
@pytest.mark.parametrize("level", [1, 4])
def test_no_accuracy_level_makes_it_coarser(tmp_path: Path, level: int) -> None:
    """Level 4 lets onnxruntime round data to bytes. Here they stay in float32."""
    path = tmp_path / "q.onnx"
    quantize_weights(language_model(tmp_path, 3), path, bits=4, group=32)
    ids = np.array([[5, 77, 140]])
    (exact,) = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"ids": ids})
    logits = sd.compile_model(with_accuracy_level(path, level)).run({"ids": ids})["logits"]
    assert np.abs(logits - exact).max() < 2e-6 * np.abs(exact).max()
