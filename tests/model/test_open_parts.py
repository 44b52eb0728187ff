"""Parts of a model one of whose results depends on data: the others are read by kernels."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from stormdrop import runtime
from stormdrop.errors import ArtifactError
from stormdrop.machine.cpu import Cpu
from stormdrop.model import load
from stormdrop.model.building.compile import build
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.untuned import compile_model

pytestmark = pytest.mark.compiles


def mixed() -> onnx.ModelProto:
    """Where x is positive, and x plus how many dimensions and places there are."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("NonZero", ["r"], ["places"]),
        helper.make_node("Shape", ["places"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["numbers"], ["total"], keepdims=0),
        helper.make_node("Add", ["x", "total"], ["moved"]),
        helper.make_node("Tanh", ["moved"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 5))]
    outputs = [
        helper.make_tensor_value_info("places", TensorProto.INT64, (2, "n")),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, (4, 5)),
    ]
    graph = helper.make_graph(nodes, "mixed", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_kernel_reads_a_result_beside_an_open_one(target: Cpu) -> None:
    pytest.importorskip("onnxruntime")
    model = build(load_graph(mixed()), {}, target)
    x = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32) - 2
    for _ in range(2):
        outputs = model.run({"x": x})
        places = np.array(np.nonzero(x > 0))
        np.testing.assert_array_equal(outputs["places"], places)
        np.testing.assert_allclose(outputs["y"], np.tanh(x + 2 + places.shape[1]), rtol=1e-5, atol=1e-6)
        x = x + 2


class Exporting:
    """What makes a copy of its elements for each who asks for them."""

    def __init__(self, value: np.ndarray) -> None:
        self.value = value

    def __dlpack__(self, **options: Any) -> Any:
        return self.value.copy().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.value.__dlpack_device__()


def test_what_exports_a_copy_is_read_while_it_is_there() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (2048, 2048)) for name in "xy"]
    graph = helper.make_graph(nodes, "relu", infos[:1], infos[1:])
    model = compile_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    x = np.random.default_rng(0).standard_normal((2048, 2048)).astype(np.float32)
    given: Any = Exporting(x)
    np.testing.assert_array_equal(model(given), np.maximum(x, 0))


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_native_model_whose_kernel_calls_tvm_says_so_where_there_is_none(tmp_path: Path) -> None:
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "places"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 32))
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, (4, 3)),
        helper.make_tensor_value_info("places", TensorProto.INT64, (4, 3)),
    ]
    three = onnx.numpy_helper.from_array(np.array([3]), "k")
    graph = helper.make_graph(nodes, "best", [x], outputs, [three])
    model = compile_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    model.save(tmp_path / "m.sd", native=True)
    given = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    np.testing.assert_array_equal(load(tmp_path / "m.sd")(given)[0], np.sort(given)[:, :-4:-1])
    with pytest.raises(ArtifactError, match="a kernel calls a function of TVM, as those of TopK"):
        runtime.load(tmp_path / "m.sd")
