"""The data of a model stands in the model, or in files inside its folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tiny_models import make_model

from stormdrop.errors import ModelError
from stormdrop.model.onnx.source import read_source

DATA = np.arange(4, dtype=np.float32).tobytes()


def external(location: str, *, twice: str | None = None) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for value in (location, *([twice] if twice is not None else [])):
        tensor.external_data.add(key="location", value=value)
    return tensor


def as_initializer(tensor: TensorProto) -> onnx.ModelProto:
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    return make_model(nodes, {}, {"x": (1, 4)}, {"y": (1, 4)}, extra=[tensor])


def as_attribute(tensor: TensorProto) -> onnx.ModelProto:
    nodes = [helper.make_node("Constant", [], ["w"], value=tensor), helper.make_node("Add", ["x", "w"], ["y"])]
    return make_model(nodes, {}, {"x": (1, 4)}, {"y": (1, 4)})


def in_branch_of_function(tensor: TensorProto) -> onnx.ModelProto:
    """Here onnx's own loading does not look."""
    result = helper.make_tensor_value_info("r", TensorProto.FLOAT, (1, 4))
    branch = helper.make_graph([helper.make_node("Add", ["a", "w"], ["r"])], "g", [], [result], [tensor])
    body = [
        helper.make_node("Constant", [], ["t"], value=numpy_helper.from_array(np.array(True))),
        helper.make_node("If", ["t"], ["b"], then_branch=branch, else_branch=branch),
    ]
    model = make_model([helper.make_node("F", ["x"], ["y"], domain="own")], {}, {"x": (1, 4)}, {"y": (1, 4)})
    model.functions.append(helper.make_function("own", "F", ["a"], ["b"], body, [helper.make_opsetid("", 13)]))
    model.opset_import.append(helper.make_opsetid("own", 1))
    return model


def in_sparse_initializer(tensor: TensorProto) -> onnx.ModelProto:
    model = as_initializer(numpy_helper.from_array(np.ones(4, np.float32), "w"))
    model.graph.sparse_initializer.append(onnx.SparseTensorProto(values=tensor, dims=[4]))
    return model


PLACES = (as_initializer, as_attribute, in_branch_of_function, in_sparse_initializer)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_bytes(DATA)
    folder = tmp_path / "model"
    (folder / "inside").mkdir(parents=True)
    (folder / "inside" / "w.bin").write_bytes(DATA)
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "linked").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    return folder


def refuse(model: onnx.ModelProto | Path) -> str:
    with pytest.raises(ModelError) as raised:
        read_source(model)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("location", ["SECRET", "../secret", "inside/../../secret", "link", "linked/secret", ""])
def test_data_outside_of_the_folder(
    place: Callable[[TensorProto], onnx.ModelProto], location: str, folder: Path
) -> None:
    tensor = external(location.replace("SECRET", str(folder.parent / "secret")))
    (folder / "m.onnx").write_bytes(place(tensor).SerializeToString())
    assert "'w'" in refuse(folder / "m.onnx")


@pytest.mark.parametrize("location", ["pipe", "inside", "\0", "x" * 5000])
def test_data_that_is_no_file(location: str, folder: Path) -> None:
    (folder / "m.onnx").write_bytes(as_initializer(external(location)).SerializeToString())
    refuse(folder / "m.onnx")


def test_a_second_location_is_not_taken(folder: Path) -> None:
    model = as_initializer(external("inside/w.bin", twice="../secret"))
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    refuse(folder / "m.onnx")


@pytest.mark.parametrize("place", [as_initializer, as_attribute])
def test_data_inside_of_the_folder(place: Callable[[TensorProto], onnx.ModelProto], folder: Path) -> None:
    (folder / "m.onnx").write_bytes(place(external("inside/w.bin")).SerializeToString())
    assert DATA in read_source(folder / "m.onnx").model.SerializeToString()


@pytest.mark.parametrize("place", PLACES)
def test_a_model_in_memory_has_no_folder(
    place: Callable[[TensorProto], onnx.ModelProto], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for location in ("inside/w.bin", str(folder.parent / "secret")):
        assert "onnx.load" in refuse(place(external(location)))


def test_many_tensors_of_one_file_are_not_read_if_one_is_outside(folder: Path) -> None:
    model = as_initializer(external("inside/w.bin"))
    model.graph.initializer.append(external("../secret"))
    model.graph.initializer[-1].name = "v"
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    assert "'v'" in refuse(folder / "m.onnx")
