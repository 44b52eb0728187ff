"""The program of examples/c runs a native model as Python does, without Python."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from stormdrop.machine.cpu import Cpu
from stormdrop.model.building.compile import build
from stormdrop.model.graph.graph import Graph

EXAMPLE = Path(__file__).parents[3] / "examples" / "c" / "run_model.c"

pytestmark = [pytest.mark.compiles, pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")]


def test_it_computes_what_python_does(residual: Graph, target: Cpu, tmp_path: Path) -> None:
    model = build(residual, {}, target)
    folder = model.save(tmp_path / "model.sd", native=True)
    library, program = folder / "model.so", tmp_path / "run_model"
    command = [
        "cc",
        "-O2",
        "-Wall",
        "-Werror",
        f"-I{folder}",
        str(EXAMPLE),
        str(library),
        "-Wl,-rpath,$ORIGIN/model.sd",
    ]
    subprocess.run([*command, "-o", str(program)], check=True)

    def run(path: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, path], env={}, capture_output=True, text=True, timeout=60)

    done = run(folder)
    assert done.returncode == 0, done.stderr
    value = float(model(np.zeros((1, 3, 8, 8), np.float32))[0, 0])
    assert done.stdout.splitlines()[1] == f"y begins with {value:g}"
    (folder / "weights.bin").write_bytes(b"evil")
    done = run(folder)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "weights.bin: is damaged" in done.stderr
