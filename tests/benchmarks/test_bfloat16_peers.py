"""The contenders for layers in bfloat16 compute the same layer as ours."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stormdrop import operators
from stormdrop.ir.relative_error import relative_error

FOLDER = Path(__file__).parents[2] / "benchmarks" / "kernels"
WORKLOADS = [
    operators.matmul(12, 32, 48, dtype="bfloat16"),
    operators.dense(12, 32, 48, bias=1, act="relu", dtype="bfloat16"),
    operators.batch_matmul(2, 12, 32, 48, transpose_b=1, dtype="bfloat16"),
    operators.conv2d(1, 9, 9, 16, 32, 3, 3, stride=2, pad=1, bias=1, act="relu", dtype="bfloat16"),
]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
@pytest.mark.parametrize("peer", ["EagerBfloat16", "PackedBfloat16", "OpenvinoBfloat16"])
def test_a_peer_computes_our_layer(peer: str, workload: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("openvino" if peer.startswith("Openvino") else "torch")
    monkeypatch.syspath_prepend(str(FOLDER))
    operator = workload.name.split()[0]
    if peer == "PackedBfloat16" and operator in ("matmul", "batch_matmul"):
        pytest.skip("nothing to pack")
    rng = np.random.default_rng(0)
    inputs = [rng.normal(0, 0.5, spec.shape).astype(spec.dtype) for spec in workload.inputs]
    (expected,) = workload.reference(inputs)
    try:
        contender = getattr(importlib.import_module("_bfloat16_peers"), peer)(operator, workload.arguments, inputs, 2)
        (actual,) = contender.outputs()
    finally:
        if hasattr(torch, "set_default_dtype"):
            torch.set_default_dtype(torch.float32)
    assert relative_error(actual, expected) < 2**-6
