"""Operators of decoders that the standard has since opset 23: all native, and the same as onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from one_node_cases import STANDARD, Case, expect_same, normal

from stormdrop.model.importer.import_onnx import load_graph


@pytest.mark.compiles
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", STANDARD)
def test_random_cases_are_what_onnxruntime_computes(kind: str, seed: int) -> None:
    expect_same(STANDARD[kind](np.random.default_rng(seed)))


def test_heads_that_share_keys_read_them_as_they_lie() -> None:
    """Nothing but the concatenation with the past writes as much as the cache has."""
    rng = np.random.default_rng(0)
    given = [normal(rng, 1, heads, 1, 16) for heads in (4, 2, 2)]
    past = [normal(rng, 1, 2, 30, 16) for _ in range(2)]
    outputs = ["y", "present_key", "present_value"]
    graph = load_graph(Case("Attention", [*given, None, *past], outputs=outputs, domain="", opset=23).model())
    large = [
        task.name for task in graph.tasks if np.prod([int(e) for e in task.function.params[-1].shape]) >= 2 * 31 * 16
    ]
    assert large == ["concatenate"]
