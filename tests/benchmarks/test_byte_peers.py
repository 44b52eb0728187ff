"""The contenders for layers of bytes compute the same layer as ours, to one step of the result."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stormdrop import operators

FOLDER = Path(__file__).parents[2] / "benchmarks" / "kernels"
LAYER: dict[str, Any] = {"bias": 1, "act": "relu", "requantize": 1, "dtype": "uint8"}
WORKLOADS = [
    operators.dense(12, 32, 48, **LAYER),
    operators.conv2d(1, 9, 9, 16, 32, 3, 3, stride=2, pad=1, **LAYER),
]


def layer_inputs(workload: Any) -> list[Any]:
    """Bytes, and scales that leave most results between the bounds."""
    rng = np.random.default_rng(0)
    x, weights, bias, scale = workload.inputs
    return [
        rng.integers(0, 256, x.shape, "uint8"),
        rng.integers(-127, 128, weights.shape, "int8"),
        rng.integers(-1000, 1000, bias.shape).astype("int32"),
        rng.uniform(0.0005, 0.001, scale.shape).astype("float32"),
    ]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
@pytest.mark.parametrize("library", ["onnxruntime", "openvino", "torch"])
def test_a_peer_computes_our_layer(library: str, workload: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(library)
    monkeypatch.syspath_prepend(str(FOLDER))
    maker = getattr(importlib.import_module("_byte_peers"), f"{library.capitalize()}Bytes")
    inputs = layer_inputs(workload)
    (expected,) = workload.reference(inputs)
    assert expected.max() > 100
    assert np.mean((expected > 0) & (expected < 255)) > 0.3
    contender = maker(workload.name.split()[0], workload.arguments, inputs, 2)
    (actual,) = contender.outputs()
    assert actual.dtype == np.uint8
    assert np.abs(actual.astype("int32") - expected).max() <= 1
