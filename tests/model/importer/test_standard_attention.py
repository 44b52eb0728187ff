"""Operators of decoders that the standard has since opset 23: all native, and the same as onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from one_node_cases import STANDARD, expect_same

pytestmark = pytest.mark.compiles


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", STANDARD)
def test_random_cases_are_what_onnxruntime_computes(kind: str, seed: int) -> None:
    expect_same(STANDARD[kind](np.random.default_rng(seed)))
