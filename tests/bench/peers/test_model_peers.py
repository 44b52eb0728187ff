"""Peers of whole models."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, parser

from stormdrop.bench.peers import MODEL_PEERS, torch_models

NEEDS = {"torch": "onnx2torch", "torch-compiled": "onnx2torch", "litert": "litert_torch"}
IN_TORCH = ("torch", "torch-compiled", "litert")


def made(peer: str, model: ModelProto, **inputs: np.ndarray) -> Any:
    """The contender of a peer; skips the test if the peer is not installed."""
    if importlib.util.find_spec(needed := NEEDS.get(peer, peer)) is None:
        pytest.skip(f"{needed} is not installed")
    module, _, name = MODEL_PEERS[peer].partition(":")
    make = getattr(importlib.import_module(module), name)
    return make(model=model.SerializeToString(), inputs=inputs, threads=1)


@pytest.mark.parametrize("peer", MODEL_PEERS)
def test_model_peers_compute_the_model(peer: str) -> None:
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("x", "z", "y")]
    graph = helper.make_graph([helper.make_node("Sub", ["x", "z"], ["y"])], "g", tensors[:2], tensors[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    x, z = np.arange(6, dtype="float32").reshape(2, 3), np.ones((2, 3), "float32")
    contender = made(peer, model, z=z, x=x)
    (output,) = contender.outputs()
    np.testing.assert_array_equal(output, x - z)
    assert contender.settings["threads"] == 1


@pytest.mark.parametrize("peer", IN_TORCH)
def test_shapes_that_onnx2torch_reads_from_tensors_are_known(peer: str) -> None:
    """Reshapes, squeezes and slices, of an image and in whatever order; a second output tells the outputs apart."""
    graph = parser.parse_graph(
        """g (float[1, 4, 6, 6] x) => (float[4, 1, 9] y, float[1, 4, 3, 3] part)
        <int64[2] starts = {1, 1}, int64[2] ends = {6, 9223372036854775807}, int64[2] axes = {2, -1},
         int64[2] steps = {2, 2}, int64[3] shape = {1, 4, 9}, int64[1] first = {0}, int64[1] second = {1}>
        {
            part = Slice(x, starts, ends, axes, steps)
            rows = Reshape(part, shape)
            matrix = Squeeze(rows, first)
            y = Unsqueeze(matrix, second)
        }"""
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    x = np.random.default_rng(0).standard_normal((1, 4, 6, 6)).astype("float32")
    contender = made(peer, model, x=x)
    y, part = contender.outputs()
    np.testing.assert_array_equal(part, x[:, :, 1:6:2, 1::2])
    np.testing.assert_array_equal(y, part.reshape(4, 1, 9))
    if peer == "torch":
        module = contender._module
        called = [module.get_submodule(node.target) for node in module.graph.nodes if node.op == "call_module"]
        assert not {type(each).__name__ for each in called} & {*torch_models._RESHAPING, "OnnxSlice"}


@pytest.mark.parametrize("peer", ["torch", "torch-compiled"])
def test_nodes_with_several_outputs_and_slices_that_go_backwards(peer: str) -> None:
    graph = parser.parse_graph(
        """g (float[4, 6] x) => (float[4, 3] y)
        <int64[2] halves = {3, 3},
         int64[1] start = {-1}, int64[1] end = {-9}, int64[1] axis = {1}, int64[1] step = {-1}>
        {
            left, right = Split <axis = 1> (x, halves)
            turned = Slice(right, start, end, axis, step)
            y = Sub(left, turned)
        }"""
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    x = np.random.default_rng(0).standard_normal((4, 6)).astype("float32")
    (y,) = made(peer, model, x=x).outputs()
    np.testing.assert_array_equal(y, x[:, :3] - x[:, :2:-1])


def test_indices_of_slices() -> None:
    assert torch_models._slices(3, [1], [4]) == (slice(1, 4, 1), slice(None), slice(None))
    assert torch_models._slices(3, [0, 2], [9, -1], [-1, 0]) == (slice(2, -1, 1), slice(None), slice(0, 9, 1))
    assert torch_models._slices(2, [0], [9], [1], [3]) == (slice(None), slice(0, 9, 3))
    assert torch_models._slices(2, [5], [0], [1], [-1]) is None
