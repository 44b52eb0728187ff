"""`stormdrop-runtime`, the distribution of its own, runs a model with NumPy alone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from stormdrop import errors, runtime
from stormdrop.machine.cpu import Cpu
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.building.compile import build
from stormdrop.model.importer.import_onnx import load_graph

ROOT = Path(__file__).parents[2] / "runtime"
SERVING = ROOT.parent / "examples" / "serving"

pytestmark = [pytest.mark.compiles, pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")]

PROGRAM = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {"numpy", "stormdrop_runtime", *sys.stdlib_module_names}:
            raise ImportError(f"{name} is not there")

sys.meta_path.insert(0, Nothing())
import numpy as np
import stormdrop_runtime

model = stormdrop_runtime.load(sys.argv[1], digest=sys.argv[2])
np.save(sys.argv[3], model(np.load(sys.argv[3])))
try:
    stormdrop_runtime.load(sys.argv[1], digest="0" * 64)
except stormdrop_runtime.ArtifactError as error:
    print(error)
"""


SERVER = """
import sys

sys.modules["stormdrop"] = None
from fastapi.testclient import TestClient
from server import app_of, sd

with TestClient(app_of(sd.load(sys.argv[1]))) as client:
    print(client.post("/predict", json={"x": [[1] * 8] * 4}).text)
    print(client.post("/predict", json={"x": [[1] * 8] * 3}).status_code)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the wheel holds, by the project's own table."""
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(ROOT / "stormdrop_runtime", folder / "stormdrop_runtime", ignore=shutil.ignore_patterns("*.pyc"))
    table = re.findall(r'^"(\.\./\S+)" = "(\S+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert len(table) == 3
    for source, target in table:
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copyfile
        copy(ROOT / source, folder / target)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CompiledModel:
    """A model of two kernels, saved natively: `folder` says where."""
    weight = onnx.numpy_helper.from_array(np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32), "w")
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["a"]), onnx.helper.make_node("Softmax", ["a"], ["y"])]
    infos = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (4, 8)) for name in "xy"]
    graph = onnx.helper.make_graph(nodes, "small", infos[:1], infos[1:], [weight])
    source = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    made = build(load_graph(source), {}, Cpu.detect())
    made.folder = tmp_path_factory.mktemp("saved") / "model.sd"
    made.save(made.folder, native=True)
    return made


def run(code: str, *arguments: object, path: str) -> str:
    """What a program prints that finds only these folders beside what is installed."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env={"PYTHONPATH": path}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_runs_a_model_with_numpy_alone(installed: Path, model: CompiledModel, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    printed = run(PROGRAM, model.folder, model.digest, tmp_path / "x.npy", path=str(installed))
    assert printed.count("\n") == 1 and "this is another model than the one meant" in printed
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), model(x))


@pytest.mark.skipif(not SERVING.is_dir(), reason="the package is installed without its repository")
def test_the_server_runs_a_model_with_it(installed: Path, model: CompiledModel) -> None:
    pytest.importorskip("fastapi", reason="the server needs FastAPI")
    pytest.importorskip("fastapi.testclient", reason="its test client needs httpx")
    answer, status = run(SERVER, model.folder, path=f"{installed}:{SERVING}").splitlines()
    np.testing.assert_allclose(json.loads(answer)["y"], model(np.ones((4, 8), np.float32)), rtol=1e-6)
    assert status == "422"


@pytest.mark.skipif(not SERVING.is_dir(), reason="the package is installed without its repository")
def test_the_image_of_the_server_copies_what_there_is() -> None:
    lines = re.findall("^COPY (.*) /", (SERVING / "Dockerfile").read_text(), re.MULTILINE)
    files = [file for line in lines for file in line.split()]
    assert len(files) == 4 and all((ROOT.parent / file).exists() for file in files)


def test_it_has_the_version_and_the_names_of_stormdrop(installed: Path) -> None:
    text = (ROOT / "stormdrop_runtime" / "__init__.py").read_text()
    names = re.findall(r'"(\w+)"', text.partition("__all__")[2])
    assert names == sorted(names) and {*names} - {*runtime.__all__} == {name for name in names if hasattr(errors, name)}
    assert '"../src/stormdrop/_version.py"' in (ROOT / "pyproject.toml").read_text()
    size = sum(file.stat().st_size for file in installed.rglob("*.py"))
    assert size < 1 << 20
