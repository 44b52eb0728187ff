"""Native models of which onnxruntime runs a part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import native_models
from native_models import chain, kernels_object, write_model
from stormdrop.errors import ArtifactError
from stormdrop.runtime import load
from stormdrop.runtime.program import Program, SizeProgram, Step, View
from stormdrop.runtime.sizes import OPEN, TensorInfo

pytest.importorskip("onnxruntime")
pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(native_models.compiler() is None, reason="there is no C compiler"),
]

X = np.arange(16, dtype=np.float32).reshape(1, 16) - 8


def part(operator: str, output: int, shape: list[int | str]) -> bytes:
    """A model of one node."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16])
    y = helper.make_tensor_value_info("y", output, shape)
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], "part", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(onnx.ModelProto.SerializeToString(model))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kernels_object(tmp_path_factory.mktemp("kernels"))


def test_a_part_reads_and_writes_the_memory_of_the_model(tmp_path: Path, kernels: Path) -> None:
    relu = part("Relu", TensorProto.FLOAT, [1, 16])
    model = load(write_model(tmp_path / "m", chain(["twice", "part", "twice"]), [kernels], parts=[relu]))
    np.testing.assert_array_equal(model(X), 4 * np.maximum(X, 0))
    assert [name for name, _ in model.profile({"x": X})] == ["twice", "stormdrop.onnxruntime.0", "twice"]


def test_an_output_whose_shape_depends_on_data_is_made_by_the_part(tmp_path: Path, kernels: Path) -> None:
    views = (
        View("input", 0, 0, (1, 16), "float32", 0),
        View("output", 0, 0, (1, 16), "float32", 1),
        View("output", 1, 0, (2, OPEN), "int64", 2),
    )
    infos = (TensorInfo("x", (1, 16), "float32"),)
    outputs = (TensorInfo("y", (1, 16), "float32"), TensorInfo("where", (2, OPEN), "int64"))
    steps = (Step("kernel", "twice", (0,), (1,)), Step("part", "0", (1,), (2,)))
    program = Program((), (SizeProgram(infos, outputs, (), views, steps),))
    nonzero = part("NonZero", TensorProto.INT64, [2, "n"])
    model = load(write_model(tmp_path / "m", program, [kernels], parts=[nonzero]))
    for x in (X, np.zeros_like(X), np.eye(1, 16, 3, dtype=np.float32)):
        y, where = model(x)
        np.testing.assert_array_equal(y, 2 * x)
        np.testing.assert_array_equal(where, np.stack(np.nonzero(x)))


def test_a_part_that_fails_is_an_error_in_one_line(tmp_path: Path, kernels: Path) -> None:
    other = part("Relu", TensorProto.FLOAT, [1, 16]).replace(b"Relu", b"Selu")
    model = load(write_model(tmp_path / "m", chain(["part"], width=17), [kernels], parts=[other]))
    with pytest.raises(ArtifactError, match=r"^by hand: onnxruntime's part fails: ") as caught:
        model(np.zeros((1, 17), np.float32))
    assert "\n" not in str(caught.value)


def test_a_damaged_part_is_refused(tmp_path: Path, kernels: Path) -> None:
    relu = part("Relu", TensorProto.FLOAT, [1, 16])
    folder = write_model(tmp_path / "m", chain(["part"]), [kernels], parts=[relu])
    (folder / "foreign_0.onnx").write_bytes(relu[:-1])
    with pytest.raises(ArtifactError, match=r"foreign_0.onnx is damaged: its checksum differs"):
        load(folder)
