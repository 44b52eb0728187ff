"""Real kernels on a cluster of one node: what a fleet measures is recorded and found as if it were measured here."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import stormdrop as sd
from stand_ins.simulated_fleet import simulated_cluster
from stormdrop import operators
from stormdrop.cli import run
from stormdrop.errors import InputError
from stormdrop.machine.cpu import Cpu
from stormdrop.measure.fleet.fleet import Fleet
from stormdrop.measure.fleet.identity import identify
from stormdrop.records import open_store

pytestmark = pytest.mark.compiles


def small_model(path: Path) -> Path:
    """A dense layer with an activation."""
    weights = np.random.default_rng(0).normal(size=(32, 32)).astype("float32")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (4, 32)) for name in "xy"]
    graph = helper.make_graph(nodes, "small", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_a_fleet_of_one_node_is_this_machine(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'stormdrop[ray]'")
    path, here = tmp_path / "records.db", Cpu.detect()
    with simulated_cluster(nodes=1) as cluster, open_store(path) as store:
        with Fleet.connect(cluster.address, like=identify()) as fleet:
            given: dict[str, Any] = {"search": "random", "store": store, "fresh": True, "fleet": fleet}
            result = sd.tune(operators.matmul(32, 32, 32), trials=3, **given)
            assert (result.trials, result.failed, result.target) == (3, 0, here)
            assert result.best is not None and result.best.kernel is not None
            model = sd.tune_model(small_model(tmp_path / "small.onnx"), trials=3, **given)
            document = model.to_json()
            assert document["trials"] == 3 and document["failed"] == 0
            assert document["verified"]["max_error"] < 1e-4
            assert {session.machine for session in store.sessions()} == {here.machine}
        words = ["matmul", "m=48", "n=32", "k=32", "--trials", "4", "--db", path, "--fleet", cluster.address, "--json"]
        capfd.readouterr()
        assert run(["tune-op", *map(str, words)]) == 0
        out, err = capfd.readouterr()
        assert json.loads(out)["trials"] == 4 and json.loads(out)["failed"] == 0
        assert "is left out" not in err


def test_what_a_fleet_does_not_go_together_with(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fleet measures in place of this machine: leave target, measurer and pool"):
        sd.tune(operators.matmul(8, 8, 8), fleet="auto", target=Cpu.detect())
    with pytest.raises(InputError, match="fleet 'nonsense': write auto"):
        sd.tune_model(small_model(tmp_path / "small.onnx"), fleet="nonsense")
    other = dataclasses.replace(identify(), features="another")
    with pytest.raises(InputError, match="a model is built and timed on this machine, which is of another kind than"):
        sd.tune_model(tmp_path / "small.onnx", fleet=SimpleNamespace(identity=other))  # type: ignore[arg-type]
