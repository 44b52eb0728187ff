"""Peers of whole models."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from onnx import TensorProto, helper

from stormdrop.bench.peers import MODEL_PEERS

NEEDS = {"torch": "onnx2torch", "torch-compiled": "onnx2torch"}


@pytest.mark.parametrize("peer", MODEL_PEERS)
def test_model_peers_compute_the_model(peer: str) -> None:
    if importlib.util.find_spec(needed := NEEDS.get(peer, peer)) is None:
        pytest.skip(f"{needed} is not installed")
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("x", "z", "y")]
    graph = helper.make_graph([helper.make_node("Sub", ["x", "z"], ["y"])], "g", tensors[:2], tensors[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    x, z = np.arange(6, dtype="float32").reshape(2, 3), np.ones((2, 3), "float32")
    module, _, name = MODEL_PEERS[peer].partition(":")
    make = getattr(importlib.import_module(module), name)
    contender = make(model=model.SerializeToString(), inputs={"z": z, "x": x}, threads=1)
    (output,) = contender.outputs()
    np.testing.assert_array_equal(output, x - z)
    assert contender.settings["threads"] == 1
