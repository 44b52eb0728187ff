from __future__ import annotations

import os
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import onnx
import pytest
import tvm_ffi
from hostile_models import MODELS, deep_chain
from onnx import helper
from tiny_models import make_model, residual_model

from stormdrop.errors import ModelError
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer import isolated
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.importer.isolated import Importer, import_graph
from stormdrop.model.random_weights import seed_weights

HARMLESS = {"deep_branches", "nan_attribute"}
"""Models that are odd, and still have a meaning."""
SLOW = {"deep_chain", "doubling", "endless_loop"}


@pytest.fixture(scope="module")
def importer() -> Iterator[Importer]:
    with Importer(seconds=120) as importer:
        yield importer


def refused(importer: Importer, model: onnx.ModelProto | Path) -> str:
    with pytest.raises(ModelError) as raised:
        importer.load(model)
    message = str(raised.value)
    assert message.isprintable(), "one line, and nothing that steers a terminal"
    assert len(message) < 1000
    return message


def assert_same(ours: Graph, expected: Graph) -> None:
    assert tvm_ffi.structural_equal(ours.mod, expected.mod, map_free_vars=True)
    assert [(task.name, task.weight, task.constants) for task in ours.tasks] == [
        (task.name, task.weight, task.constants) for task in expected.tasks
    ]
    assert (ours.name, ours.inputs, ours.outputs) == (expected.name, expected.inputs, expected.outputs)
    assert ours.constant_bytes == expected.constant_bytes
    source: Any = ours.source
    expected_source: Any = expected.source
    assert source.SerializeToString(deterministic=True) == expected_source.SerializeToString(deterministic=True)


def test_the_child_imports_what_this_process_would(importer: Importer, residual: Graph, tmp_path: Path) -> None:
    model = seed_weights(residual_model(), seed=1)
    assert_same(importer.load(model), residual)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    assert_same(importer.load(tmp_path / "m.onnx"), load_graph(tmp_path / "m.onnx"))


def test_sizes_and_old_opsets(importer: Importer) -> None:
    open_size = make_model([helper.make_node("Relu", ["x"], ["y"])], {}, {"x": ("n", 4)}, {"y": ("n", 4)})
    assert importer.load(open_size, {"x": (3, 4)}).outputs[0].shape == (3, 4)
    nodes = [helper.make_node("Add", ["x", "w"], ["y"], axis=0, broadcast=1)]
    old = seed_weights(make_model(nodes, {"w": (2,)}, {"x": (2, 4)}, {"y": (2, 4)}, opset=6))
    graph = importer.load(old)
    source: Any = graph.source
    assert graph.converted and source.opset_import[0].version == 13
    assert_same(graph, load_graph(old))


@pytest.mark.parametrize("name", sorted(set(MODELS) - HARMLESS - SLOW))
def test_a_hostile_model_costs_one_line(name: str, importer: Importer, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(MODELS[name]().SerializeToString())
    message = refused(importer, tmp_path / "m.onnx")
    assert "crashed" not in message and "Error calling" not in message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("expand_constant", ["'big'", "1099511627776x4", "GB"]),
        ("negative_expand", ["'bad'", "negative"]),
        ("cycle", ["Add", "'b'"]),
        ("unknown_input", ["'sum'", "'nowhere'"]),
        ("initializer_without_data", ["'w'", "lacks data"]),
        ("input_of_no_type", ["99"]),
    ],
)
def test_the_line_names_the_place(name: str, words: list[str], importer: Importer) -> None:
    message = refused(importer, MODELS[name]())
    for word in words:
        assert word in message


def test_an_import_without_memory(tmp_path: Path) -> None:
    with Importer(memory=600 << 20) as importer:
        model = make_model([helper.make_node("Add", ["x", "w"], ["y"])], {"w": (1 << 25,)}, {"x": (1,)}, {"y": ()})
        assert "tiny" in refused(importer, model), "the weights do not fit beside the libraries, though mapped"


def test_an_import_that_takes_too_long() -> None:
    with Importer(seconds=4) as importer:
        assert "more than 4 s" in refused(importer, deep_chain(20_000))


def crash(connection: Connection, memory: int) -> None:
    connection.recv()
    print("the last words")
    os.abort()


def test_a_crash_is_one_line(monkeypatch: pytest.MonkeyPatch, residual: Graph) -> None:
    with Importer() as importer, monkeypatch.context() as patch:
        patch.setattr(isolated, "_SERVE", f"{__name__}:crash")
        message = refused(importer, residual_model())
        assert "crashed (SIGABRT)" in message and "the last words" in message
        patch.undo()
        assert_same(importer.load(seed_weights(residual_model(), seed=1)), residual)


def test_files_that_are_no_models(tmp_path: Path, importer: Importer) -> None:
    whole = residual_model().SerializeToString()
    files: dict[str, bytes] = {
        "nothing.onnx": b"",
        "text.onnx": b"hello",
        "cut.onnx": whole[: len(whole) // 2],
        "object.json": b"{",
        "list.json": b"[1]",
        "model.textproto": b"graph { node",
        "model.onnxtxt": b"<ir_version: 8>",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        assert Path(name).stem in refused(importer, tmp_path / name)
    assert "no such file" in refused(importer, tmp_path / "missing.onnx")


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    modes: list[int] = []
    read = isolated._graph

    def noting(imported: isolated._Imported, constants: Any) -> Graph:
        modes.append(Path(imported.folder).parent.stat().st_mode & 0o777)
        return read(imported, constants)

    monkeypatch.setattr(isolated, "_graph", noting)
    relu = make_model([helper.make_node("Relu", ["x"], ["y"])], {}, {"x": (4,)}, {"y": (4,)})
    assert import_graph(relu).tasks
    assert modes == [0o700], "others cannot read or replace what the child has written"
    assert list(tmp_path.iterdir()) == []


def test_a_constant_without_elements_is_imported(importer: Importer) -> None:
    nodes = [helper.make_node("LeakyRelu", ["w"], ["y"], alpha=2.0)]
    graph = importer.load(make_model(nodes, {"w": (1, 0)}, {"x": (1, 4)}, {"y": (1, 0)}))
    (output,) = graph.outputs
    assert output.shape == (1, 0)


def test_onnxruntime_reads_large_weights_that_stand_in_a_file(importer: Importer) -> None:
    """The session of a trial run reads them when it is made, and when it runs."""
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("ScaledSiLU", ["a"], ["b"], domain="com.microsoft"),
        helper.make_node("MatMul", ["b", "w1"], ["y"]),
    ]
    weights = dict.fromkeys(("w0", "w1"), (768, 768))
    model = seed_weights(make_model(nodes, weights, {"x": (1, 768)}, {"y": (1, 768)}), 1)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    graph = importer.load(model)
    assert [part.operators for part in graph.foreign.reports] == [{"com.microsoft.ScaledSiLU": 1}]
