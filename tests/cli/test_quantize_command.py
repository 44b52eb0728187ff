"""`stormdrop quantize`: the model that it writes, and one line for bad input."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command_line import complaint, document, output_of, sections_of_guide
from onnx import TensorProto, helper, numpy_helper

import stormdrop as sd
from stormdrop.errors import InputError
from stormdrop.model.quantize import quantize_model

pytest.importorskip("onnxruntime")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """conv, batch norm, ReLU, reshape by a constant, in an opset without scales for each channel."""
    rng = np.random.default_rng(0)
    constants = {"w": rng.normal(0, 0.2, (8, 3, 3, 3)), "s": np.full(8, 2.0), "b": rng.normal(0, 1, 8)}
    constants |= {"m": np.zeros(8), "v": np.ones(8)}
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1] * 4),
            helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"], "norm"),
            helper.make_node("Relu", ["n"], ["r"], "relu"),
            helper.make_node("Reshape", ["r", "size"], ["y"], "reshape"),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 8, 8])],
        [
            *(numpy_helper.from_array(value.astype("float32"), name) for name, value in constants.items()),
            numpy_helper.from_array(np.array([1, 8, 8, 8]), "size"),
        ],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=7), path)
    return path


def saved(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "data.npz", **arrays)
    return folder / "data.npz"


def images(*shape: int) -> Any:
    return np.random.default_rng(1).normal(0, 1, shape).astype("float32")


@pytest.mark.parametrize(
    ("flags", "scales", "kind"), [(["--per-channel"], 8, "uint8"), (["--activations", "int8"], 1, "int8")]
)
def test_the_model_has_its_layer_in_bytes(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], flags: list[str], scales: int, kind: str
) -> None:
    out, data = tmp_path / "q.onnx", saved(tmp_path, x=images(5, 3, 8, 8))
    made = document(capfd, "quantize", model, "--data", data, "--out", out, *flags)
    error, agreement = made.pop("error"), made.pop("agreement")
    assert made == {"model": str(out), "samples": 5, "layers": 1, "quantized": 1}
    assert 1e-4 < error < 0.05, "bytes are coarse, and near"
    assert 0.8 < agreement < 1, "some of 320 rows of 8 numbers have two that are nearly the largest"
    assert all(f"`{key}`" in sections_of_guide()["quantize"] for key in (*made, "error", "agreement"))
    graph = onnx.load(out).graph
    producers = {node.output[0]: node for node in graph.node}
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    assert not any(node.op_type == "BatchNormalization" for node in graph.node), "it is folded into the weights"
    (conv,) = (node for node in graph.node if node.op_type == "Conv")
    dequantized, weights = producers[conv.input[0]], producers[conv.input[1]]
    assert constants[dequantized.input[2]].dtype == kind
    assert constants[weights.input[0]].dtype == "int8" and constants[weights.input[1]].size == scales
    assert {path.name for path in tmp_path.iterdir()} == {"net.onnx", "data.npz", "q.onnx"}


def test_the_default_name(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = output_of(capfd, "quantize", model, "--data", saved(tmp_path, x=images(2, 3, 8, 8)))
    assert "1 of 1 layers read bytes; ranges of 2 samples" in text
    assert re.search(r"on these samples: error \d\.\de-\d\d against float32; the largest output is the same in", text)
    assert (tmp_path / "net.int8.onnx").is_file()


def test_bad_input_is_one_line(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def line(*words: object, **arrays: Any) -> str:
        out = tmp_path / "q.onnx"
        text = complaint(capfd, "quantize", model, "--data", saved(tmp_path, **arrays), "--out", out, *words)
        assert not out.exists()
        return text

    good = images(2, 3, 8, 8)
    assert "the samples of 'x' have the shape 2x3x9x9; it must be Nx3x8x8" in line(x=images(2, 3, 9, 9))
    assert "the samples have z; the model's inputs are x" in line(z=good)
    assert "must be uint8 or int8" in line("--activations", "int4", x=good)
    assert "is the model itself" in line("--out", model, x=good)
    assert "nowhere.npz: no such file" in complaint(capfd, "quantize", model, "--data", tmp_path / "nowhere.npz")
    assert "is a folder; give the path of an ONNX file" in complaint(capfd, "quantize", tmp_path, "--data", model)
    assert "nowhere.onnx: no such file" in complaint(capfd, "quantize", "nowhere.onnx", "--data", model)
    assert "no .npz file that can be read" in complaint(capfd, "quantize", model, "--data", model)


@pytest.fixture
def product(tmp_path: Path) -> Path:
    """A product of matrices with constant weights, and an addition."""
    rng = np.random.default_rng(0)
    constants = {"w": rng.normal(0, 0.2, (128, 48)), "b": rng.normal(0, 1, 48)}
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["p"], "product"), helper.make_node("Add", ["p", "b"], ["y"], "add")],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 128])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 48])],
        [numpy_helper.from_array(value.astype("float32"), name) for name, value in constants.items()],
    )
    path = tmp_path / "product.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.compiles
@pytest.mark.parametrize(("bits", "worst"), [(4, 0.2), (8, 0.02)])
def test_weights_alone_become_codes_that_compile_reads(
    product: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], bits: int, worst: float
) -> None:
    out = tmp_path / "q.onnx"
    made = document(capfd, "quantize", product, "--weights-only", bits, "--group", 64, "--out", out)
    unknown = {"error": None, "agreement": None}
    assert made == {"model": str(out), "samples": 0, "layers": 1, "quantized": 1, **unknown}
    (layer, _) = onnx.load(out).graph.node
    settings = {entry.name: entry.i for entry in layer.attribute}
    assert (layer.op_type, settings["bits"], settings["block_size"]) == ("MatMulNBits", bits, 64)
    x = np.random.default_rng(2).normal(0, 1, (1, 128)).astype("float32")
    ours, exact = (sd.compile_model(path).run({"x": x})["y"] for path in (out, product))
    error = np.abs(ours - exact).max() / np.abs(exact).max()
    assert 0 < error < worst, "it is the quantised product, and near the exact one"


def test_bad_weights_only_is_one_line(
    product: Path, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = saved(tmp_path, x=images(1, 128))
    for flags, expected in (
        ([], "quantize needs either --data DATA.npz, or --weights-only 4|8"),
        (["--data", data, "--weights-only", 4], "quantize needs either --data DATA.npz, or --weights-only 4|8"),
        (["--data", data, "--group", 32], "--group is for --weights-only"),
        (["--weights-only", 4, "--per-channel"], "--per-channel and --activations are for --data"),
        (["--weights-only", 3], "--weights-only 3: must be 4 or 8"),
        (["--weights-only", 0], "--weights-only 0: must be 4 or 8"),
        (["--weights-only", 4, "--group", 33], "group 33: must be one of 16, 32, 64, 128, 256"),
    ):
        assert expected in complaint(capfd, "quantize", product, *flags)
    kept = tmp_path / "kept.onnx"
    kept.write_bytes(b"older")
    document(capfd, "quantize", product, "--weights-only", 4, "--out", "coded.onnx")
    for which in (model, "coded.onnx"):
        text = complaint(capfd, "quantize", which, "--weights-only", 4, "--out", kept)
        assert "has no MatMul with constant weights in floats" in text
    assert kept.read_bytes() == b"older"
    assert not list(tmp_path.glob("*.int4.onnx"))


def test_a_model_with_a_sequence_is_refused_in_one_line(tmp_path: Path) -> None:
    """A sequence has no type of numbers."""
    nodes = [helper.make_node("ConcatFromSequence", ["x"], ["y"], axis=0)]
    x = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "m", [x], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    with pytest.raises(InputError, match=r"^input 'x' is no tensor of numbers: .*$"):
        quantize_model(path, {"x": np.zeros((1, 3), np.float32)}, tmp_path / "q.onnx")
