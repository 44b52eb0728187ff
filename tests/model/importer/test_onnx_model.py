from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import pytest
from onnx import helper
from tiny_models import make_model, residual_model

from stormdrop.errors import ModelError
from stormdrop.model.importer import onnx_model
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.importer.onnx_model import load_onnx, unsupported_nodes
from stormdrop.model.random_weights import seed_weights


def relu_model(shape: tuple[int | str, ...] = (1, 4), operator: str = "Relu", **attributes: int) -> onnx.ModelProto:
    return make_model([helper.make_node(operator, ["x"], ["y"], "the_node", **attributes)], {}, {"x": shape}, {"y": ()})


def assert_fails(model: onnx.ModelProto | Path, *words: str, shapes: dict[str, tuple[int, ...]] | None = None) -> None:
    with pytest.raises(ModelError) as raised:
        load_onnx(model, shapes)
    message = str(raised.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_missing_file(tmp_path: Path) -> None:
    assert_fails(tmp_path / "none.onnx", "none.onnx", "no such file")


def test_folder(tmp_path: Path) -> None:
    assert_fails(tmp_path, "not a file")


@pytest.mark.parametrize("content", [b"hello, this is text", b"", b"\x00\x01\x02\x03"])
def test_not_onnx(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    assert_fails(tmp_path / "m.onnx", "not an ONNX model")


@pytest.mark.parametrize("name", ["net.pb", "NET.PT", "net.safetensors", "net.gguf"])
def test_an_onnx_model_may_have_the_name_of_another_kind(tmp_path: Path, name: str) -> None:
    onnx.save(residual_model(), tmp_path / name)
    assert load_onnx(tmp_path / name).inputs[0].shape == (1, 3, 8, 8)


@pytest.mark.parametrize(
    ("name", "kind"), [("net.pb", "TensorFlow"), ("NET.TFLITE", "LiteRT"), ("m.safetensors", "weights without")]
)
@pytest.mark.parametrize("content", [b"bytes", b"", b"\x0a\x03\x0a\x01x"])
def test_a_file_that_is_none_of_onnx_is_told_by_its_name(tmp_path: Path, name: str, kind: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert_fails(tmp_path / name, "not an ONNX model", f"another kind ({kind}", "export the model to ONNX")


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.99])
def test_truncated(tmp_path: Path, share: float) -> None:
    content = residual_model().SerializeToString()
    (tmp_path / "m.onnx").write_bytes(content[: int(len(content) * share)])
    assert_fails(tmp_path / "m.onnx", "m.onnx")


def test_external_data_missing(tmp_path: Path) -> None:
    onnx.save(residual_model(), tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    assert load_onnx(tmp_path / "m.onnx").inputs[0].shape == (1, 3, 8, 8)
    (tmp_path / "w.bin").unlink()
    assert_fails(tmp_path / "m.onnx", "w.bin")


def test_unsupported_operator_is_named_with_its_node() -> None:
    (reason,) = unsupported_nodes(relu_model(operator="StringNormalizer")).values()
    assert reason == "operator StringNormalizer (node 'the_node') is not supported"


def test_operator_of_another_domain() -> None:
    model = relu_model()
    model.graph.node[0].domain = "com.example"
    assert "com.example.Relu (node 'the_node')" in unsupported_nodes(model)[0]


def test_dynamic_shape_names_input_and_dimension() -> None:
    assert_fails(relu_model(("batch", 4)), "'x'", "dimension 0", "batch")
    assert load_onnx(relu_model(("batch", 4)), {"x": (2, 4)}).inputs[0].shape == (2, 4)


def test_wrong_shapes_given() -> None:
    assert_fails(relu_model(), "'z'", shapes={"z": (1, 4)})
    assert_fails(relu_model(), "2 dimensions", shapes={"x": (1, 4, 1)})
    assert_fails(relu_model(), "dimension 1", shapes={"x": (1, 5)})


def test_cleaning_leaves_only_what_is_needed() -> None:
    read = load_onnx(seed_weights(residual_model()))
    assert Counter(node.op_type for node in read.cleaned.graph.node) == Counter(
        {"Conv": 2, "Relu": 2, "Sum": 1, "MaxPool": 1, "GlobalAveragePool": 1, "Reshape": 1, "Gemm": 1}
    )
    assert [info.name for info in read.inputs] == ["x"]
    assert read.outputs == ("y",)


def test_batch_norm_before_relu_becomes_an_affine_of_full_rank() -> None:
    nodes = [
        helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["n"]),
        helper.make_node("Mul", ["factor", "n"], ["k"]),
        helper.make_node("Add", ["k", "offset"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    weights: dict[str, tuple[int, ...]] = dict.fromkeys("sbmv", (4,))
    weights |= {"factor": (4, 1, 1), "offset": (4, 1, 1)}
    model = make_model(nodes, weights, {"x": (1, 4, 5, 5)}, {"y": (1, 4, 5, 5)})
    (task,) = load_graph(seed_weights(model)).tasks
    assert task.name == "fused_multiply_add_relu"
    assert [tuple(task.function.params[position].shape) for position in task.constants] == [(1, 4, 1, 1)] * 2


def test_unused_inputs_are_dropped() -> None:
    model = relu_model()
    model.graph.input.append(helper.make_tensor_value_info("label", onnx.TensorProto.FLOAT, (1,)))
    read = load_onnx(model)
    assert [info.name for info in read.inputs] == ["x"]
    assert [value.name for value in read.source.graph.input] == ["x"], "the reference would ask for it"


def test_foreign_operator_that_is_never_reached_is_no_error() -> None:
    model = relu_model()
    model.graph.node.append(helper.make_node("StringNormalizer", ["x"], ["unused"], "dead"))
    assert [node.op_type for node in load_onnx(model).cleaned.graph.node] == ["Relu"]


def test_a_model_that_its_own_clean_up_breaks_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: onnx.ModelProto) -> onnx.ModelProto:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        copy.graph.node[0].input[0] = "nothing computes this"
        return copy

    monkeypatch.setattr(onnx_model, "clean", broken)
    read = load_onnx(relu_model())
    assert read.cleaned is read.source
    assert read.unclean is not None and "nothing computes this" in read.unclean


def test_nodes_are_put_in_order() -> None:
    """onnxruntime takes them in any order, and some tools write them so."""
    model = seed_weights(residual_model(), seed=0)
    mixed = onnx.ModelProto()
    mixed.CopyFrom(model)
    del mixed.graph.node[:]
    mixed.graph.node.extend(reversed(model.graph.node))
    source = load_onnx(mixed).source
    onnx.checker.check_model(source)
    assert Counter(node.op_type for node in source.graph.node) == Counter(node.op_type for node in model.graph.node)
    assert [value.name for value in source.graph.output] == [value.name for value in model.graph.output]
