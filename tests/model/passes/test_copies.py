"""Kernels that would only copy are reshapes, which cost nothing; those that move elements stay."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tiny_models import make_model

from stormdrop.model.graph.tasks import kernel_calls
from stormdrop.model.importer.import_onnx import load_graph


def kernels(nodes: list[onnx.NodeProto], shape: tuple[int, ...], output: tuple[int, ...]) -> list[str]:
    """The names of the kernels of a model between two softmaxes, which are fused with nothing."""
    first, last = helper.make_node("Softmax", ["x"], ["a"], axis=1), helper.make_node("Softmax", ["b"], ["y"])
    axes = [numpy_helper.from_array(np.array([axis], np.int64), f"axis{axis}") for axis in range(4)]
    model = make_model([first, *nodes, last], {}, {"x": shape}, {"y": output}, extra=axes)
    return [call.args[0].name_hint for call in kernel_calls(load_graph(model).mod)]


def test_a_chain_of_reshapes_is_no_kernel() -> None:
    nodes = [
        helper.make_node("Squeeze", ["a", "axis2"], ["s"]),
        helper.make_node("Unsqueeze", ["s", "axis1"], ["u"]),
        helper.make_node("Squeeze", ["u", "axis1"], ["b"]),
    ]
    assert kernels(nodes, (1, 128, 1), (1, 128)) == ["softmax", "softmax1"]


@pytest.mark.parametrize(("shape", "moves"), [((1, 16, 4), True), ((1, 16, 1), False)], ids=["moves", "renames"])
def test_a_transpose_stays_if_it_moves_something(shape: tuple[int, int, int], moves: bool) -> None:
    nodes = [
        helper.make_node("Transpose", ["a"], ["t"], perm=[0, 2, 1]),
        helper.make_node("Squeeze", ["t", "axis0"], ["s"]),
        helper.make_node("Unsqueeze", ["s", "axis2"], ["b"]),
    ]
    names = kernels(nodes, shape, (shape[2], shape[1], 1))
    assert any("transpose" in name for name in names) is moves
    assert moves or names == ["softmax", "softmax1"]


def test_a_mean_of_one_element_is_no_kernel() -> None:
    node = helper.make_node("ReduceMean", ["a"], ["b"], axes=[1], keepdims=0)
    assert kernels([node], (8, 1), (8,)) == ["softmax", "softmax1"]
