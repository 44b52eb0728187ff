"""The C++ program of examples/cpp runs a native model as Python does, without Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tvm.support.cc import get_cc

from stormdrop.machine.cpu import Cpu
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.artifact.program import LEAST
from stormdrop.model.building.compile import build
from stormdrop.model.graph.graph import Graph
from stormdrop.model.inputs.samples import random_feeds

SOURCE = Path(__file__).parents[2] / "examples" / "cpp"

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake"),
    pytest.mark.skipif(get_cc() is None or shutil.which("c++") is None, reason="needs a C++ compiler"),
]


@pytest.fixture(scope="module")
def model(residual: Graph, target: Cpu) -> CompiledModel:
    return build(residual, {}, target)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cpp")
    for command in (
        ["cmake", "-S", str(SOURCE), "-B", str(folder), f"-DPython_EXECUTABLE={sys.executable}"],
        ["cmake", "--build", str(folder)],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "run_model"


def run(program: Path, *arguments: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/nonexistent"}
    return subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("least", [LEAST, 64], ids=["constants inside", "constants outside"])
def test_it_computes_what_python_does(
    program: Path, residual: Graph, target: Cpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    monkeypatch.setattr("stormdrop.model.building.compile.LEAST", least)
    model = build(residual, {}, target)
    x = random_feeds(model.inputs, 3)["x"]
    folder = model.save(tmp_path / "model.sd", native=True)
    assert (folder / "weights.bin").exists() == (least < LEAST)
    x.tofile(tmp_path / "x.bin")
    done = run(program, folder, tmp_path / "x.bin", tmp_path / "y.bin")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "y: 1 10"
    output = np.fromfile(tmp_path / "y.bin", "float32").reshape(1, 10)
    assert np.array_equal(output, model(x))


def test_bad_input_is_one_line(program: Path, model: CompiledModel, tmp_path: Path) -> None:
    bitcode = model.save(tmp_path / "bitcode.sd")
    native = model.save(tmp_path / "native.sd", native=True)
    (tmp_path / "short.bin").write_bytes(b"1234")
    (tmp_path / "damaged.sd").mkdir()
    (tmp_path / "damaged.sd" / "metadata.json").write_text("{")
    for arguments, words in [
        ((tmp_path / "none.sd",), "none.sd: no such folder"),
        ((tmp_path / "damaged.sd",), "damaged.sd: no stormdrop model"),
        ((bitcode,), "bitcode.sd: is no native model; save it with native=True"),
        ((native, tmp_path / "short.bin", tmp_path / "y.bin"), "short.bin: holds less than the inputs"),
        ((native, tmp_path / "none.bin", tmp_path / "y.bin"), "none.bin: cannot be read"),
    ]:
        done = run(program, *arguments)
        assert done.returncode == 1 and done.stdout == ""
        assert done.stderr.count("\n") == 1 and words in done.stderr
