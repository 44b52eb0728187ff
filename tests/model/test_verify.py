from __future__ import annotations

import sys

import numpy as np
import pytest

from stormdrop.model.graph import Graph
from stormdrop.model.metadata import TensorInfo
from stormdrop.model.verify import random_feeds, reference_outputs, relative_error


def test_relative_error() -> None:
    reference = np.array([1.0, -4.0])
    assert relative_error(reference, reference) == 0.0
    assert relative_error(np.array([1.0, -3.0]), reference) == 0.25
    assert relative_error(np.array([1.0, np.nan]), reference) == np.inf
    assert relative_error(np.array([1.0]), reference) == np.inf
    assert relative_error(np.array([1.0]), np.array([0.0])) == np.inf
    assert relative_error(np.array([np.inf, 2.0]), np.array([np.inf, 2.0])) == 0.0
    assert relative_error(np.array([-np.inf, 2.0]), np.array([np.inf, 2.0])) == np.inf


def test_feeds_follow_the_seed_and_the_type() -> None:
    inputs = (TensorInfo("x", (2, 3), "float32"), TensorInfo("mask", (4,), "int64"))
    feeds, again, other = random_feeds(inputs, 1), random_feeds(inputs, 1), random_feeds(inputs, 2)
    assert feeds["x"].dtype == np.float32 and feeds["mask"].dtype == np.int64
    assert np.array_equal(feeds["x"], again["x"]) and not np.array_equal(feeds["x"], other["x"])


def test_without_onnxruntime_onnx_itself_answers(residual: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    feeds = random_feeds(residual.inputs)
    first, _ = reference_outputs(residual.source, feeds, ["y"])
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    second, against = reference_outputs(residual.source, feeds, ["y"])
    assert against.startswith("onnx.reference")
    assert relative_error(second["y"], first["y"]) < 1e-5
