"""A database with one tuning and a tuned model, shared by the tests of all commands."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from command_line import SMALL, document_of_process


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with one tuning in it, finished within 12 trials."""
    path = tmp_path_factory.mktemp("cli") / "records.db"
    tuned = document_of_process("tune-op", *SMALL, "--trials", 12, "--db", path, "--show", "schedule", "--show", "tir")
    keys = {"op", "target", "search", "seed", "trials", "failed", "reused", "seconds", "phases", "best", "baseline"}
    assert keys | {"converged", "curve"} <= tuned.keys()
    assert {"seconds", "interval", "gflops", "percent_of_peak", "config", "sketch"} <= tuned["best"].keys()
    assert 1 <= tuned["trials"] <= 12
    assert (tuned["search"], tuned["seed"], tuned["reused"]) == ("storm", 0, 0)
    best = tuned["best"]
    assert best["gflops"] == pytest.approx(2 * 32**3 / best["seconds"] / 1e9)
    assert best["interval"][0] <= best["seconds"] <= best["interval"][1]
    assert best["sketch"] in tuned["schedule"]
    assert "def main(" in tuned["tir"]
    _call_undisturbed(path)
    return path


def _call_undisturbed(path: Path) -> None:
    """Lets records answer that were made on a busy machine. There a race may be disturbed, and is no answer."""
    with closing(sqlite3.connect(path)) as connection, connection:
        quiet = "json_set(outcome, '$.extra.disturbed', json('false'))"
        connection.execute(f"UPDATE stormdrop_session SET outcome = {quiet}")


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tuned model: a convolution with bias and ReLU, then a global average."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    folder = tmp_path_factory.mktemp("model")
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal((16, 8, 3, 3)).astype("float32"), "w")
    bias = numpy_helper.from_array(rng.standard_normal(16).astype("float32"), "b")
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 12, 12])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 1, 1])
    graph = helper.make_graph(nodes, "small", [x], [y], [weight, bias])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), folder / "small.onnx"
    )
    out, records = folder / "small.sd", folder / "records.db"
    tuned = document_of_process("tune", folder / "small.onnx", "--trials", 8, "--out", out, "--db", records)
    keys = {
        "model",
        "target",
        "search",
        "seed",
        "trials",
        "failed",
        "reused",
        "seconds",
        "phases",
        "artifact",
        "latency",
    }
    assert keys | {"untuned", "verified", "tasks", "fallbacks", "curve"} <= tuned.keys()
    assert tuned["verified"]["max_error"] < 1e-4
    assert tuned["artifact"] == str(out)
    assert {"name", "weight", "sketch", "seconds", "gflops", "trials", "converged"} <= tuned["tasks"][0].keys()
    _call_undisturbed(records)
    return out
