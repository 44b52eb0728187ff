"""The benchmark of deployment: its processes, and its tables."""

from __future__ import annotations

import importlib
import shutil
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest

import stormdrop
from stormdrop.errors import MeasureError
from stormdrop.machine.cpu import Cpu
from stormdrop.model.building.compile import build
from stormdrop.model.importer.import_onnx import load_graph

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script. Its processes use this interpreter and this very stormdrop, in the place of what is installed."""
    for folder in (FOLDER, FOLDER / "models"):
        monkeypatch.syspath_prepend(str(folder))
    module = importlib.import_module("deployment")
    source = Path(stormdrop.__file__).parents[1]
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift  # -I\nPYTHONPATH="{source}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(module, "python_of", lambda environment: python)
    return module


@pytest.fixture
def model(script: ModuleType, tmp_path: Path) -> Any:
    """A ReLU as "model.onnx", with an input."""
    infos = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (2, 3)) for name in ("x=1", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x=1"], ["y"])], "relu", infos[:1], infos[1:])
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, tmp_path / "model.onnx")
    feeds = {"x=1": np.array([[-1, 2, -3], [4, -5, 6]], np.float32)}
    return script.Deployed(tmp_path, script.write_inputs(tmp_path, feeds), 1e-3, 1)


@pytest.mark.compiles
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_ways_in_turns(script: ModuleType, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    build(load_graph(onnx.load(model.folder / "model.onnx")), {}, Cpu.detect()).save(model.folder / "native.sd", True)
    script.optimise_ahead(model.folder / "model.onnx", 1)
    monkeypatch.setattr(script, "SECONDS", 0.0)
    ways = [
        script.Way("native", "", "stormdrop.runtime", "native.sd"),
        script.Way("onnxruntime", "", "onnxruntime", "model.onnx"),
        script.Way("ahead", "", "onnxruntime", "ahead.onnx"),
        script.Way("none", "", "stormdrop.runtime", "none.sd"),
    ]
    entry = script.in_turns(model, ways, 2)
    assert list(entry["failed"]) == ["none"] and "no such folder" in entry["failed"]["none"]
    assert list(entry["ways"]) == list(entry["together"]) == ["native", "onnxruntime", "ahead"]
    for way, samples in entry["ways"].items():
        assert {len(values) for values in samples.values()} == {2}
        for index in range(2):
            whole, *parts = (samples[part][index] for part in ("answer", "python", "numpy", "import", "load", "first"))
            assert sum(parts) <= whole and min(parts) > 0
        assert max(samples["PSS"]) <= max(samples["RSS"])
        assert min(samples["PSS"]) < entry["together"][way] < script.PROCESSES * max(samples["RSS"])


@pytest.mark.long
def test_a_way_that_is_wrong_has_no_figures(script: ModuleType, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    way = script.Way("onnxruntime", "", "onnxruntime", "model.onnx")
    with script.Process(way, model, 0.0) as process:
        process.report()
        (output,) = process.outputs()
    np.testing.assert_array_equal(output, [[0, 2, 0], [4, 0, 6]])
    right = iter([[output], [output + 1]])
    monkeypatch.setattr(script.Process, "outputs", lambda self: next(right))
    assert script.rehearse(model, [way, script.Way("wrong", "", "onnxruntime", "model.onnx")]) == {
        "wrong": "its outputs differ by 1.7e-01"
    }


@pytest.mark.long
def test_a_process_that_ends_says_why(script: ModuleType, model: Any) -> None:
    way = script.Way("none", "", "no_such_package", "")
    with script.Process(way, model, 0.0) as process, pytest.raises(MeasureError, match="named 'no_such_package'"):
        process.report()


def test_the_tables_fit_into_80_columns(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "OUT", tmp_path)
    options = Namespace(file=tmp_path / "kept.jsonl", show=True, fresh=False)
    campaign = script.Campaign(options.file, {"cpu": "A CPU", "cores": 2}, options)
    for name in script.MODELS:
        campaign.keep({"name": name, **_entry(script)})
    script.show(campaign, campaign.collect(script.MODELS, pytest.fail))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    ours = ["stormdrop-runtime", "1234", "(1222-1333)", "1211", "350", "50", "12.3", "(12.2-13.3)"]
    assert lines.count("of an answer 100 ms are Python's and NumPy's") == len(script.MODELS)
    rows = [line.split() for line in lines]
    assert rows.count(ours) == len(script.MODELS)
    assert ["stormdrop-runtime", *["123", "234", "345"] * len(script.MODELS)] in rows
    assert "OpenVINO cached: its outputs differ by 1.0e-01" in lines
    row = "| silero | stormdrop-runtime | 1234 (1222-1333) | 1211 | 350 | 50 | 12.3 (12.2-13.3) | 123 | 234 | 345 |"
    assert row in (tmp_path / "deployment.md").read_text().splitlines()


def _entry(script: ModuleType) -> dict[str, Any]:
    spread = [1.222, 1.234, 1.333] * 3
    samples = {
        "answer": spread,
        "python": [0.02] * 9,
        "numpy": [0.08] * 9,
        "import": [0.05] * 9,
        "load": [0.3] * 9,
        "first": [0.05] * 9,
        "call": [seconds / 100 for seconds in spread],
        "PSS": [123e6] * 9,
        "RSS": [234e6] * 9,
    }
    running = [way.name for way in script.WAYS[:-1]]
    weight = {"bytes": 1e8, "files": 12345, "numpy": 7e7, "packages": {"numpy": "2.3"}}
    return {
        "time": 120.0,
        "repetitions": 9,
        "installed": {way.environment: weight for way in script.WAYS},
        "bytes": 1e8,
        "reading": [0.023] * 9,
        "ways": dict.fromkeys(running, samples),
        "together": dict.fromkeys(running, 345e6),
        "failed": {script.WAYS[-1].name: "its outputs differ by 1.0e-01"},
        "disturbed": 1,
    }
