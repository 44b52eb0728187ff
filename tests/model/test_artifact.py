from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import stormdrop
from stormdrop.errors import ArtifactError, InputError
from stormdrop.kernel.target import Target
from stormdrop.model.artifact import CompiledModel
from stormdrop.model.compile import build
from stormdrop.model.graph import Graph
from stormdrop.model.verify import random_feeds
from stormdrop.threads import usable_cores

RUN = """
import os, sys
import numpy as np
import stormdrop
model = stormdrop.load(sys.argv[1])
np.savez(sys.argv[3], y=model(np.load(sys.argv[2])))
print(os.environ["TVM_NUM_THREADS"], "onnx" in sys.modules)
"""


@pytest.fixture(scope="module")
def model(residual: Graph, target: Target) -> CompiledModel:
    return build(residual, {}, target, provenance={"seed": 1})


@pytest.fixture
def saved(model: CompiledModel, tmp_path: Path) -> Path:
    return model.save(tmp_path / "model.sd")


def edit(folder: Path, **changes: object) -> None:
    file = folder / "metadata.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_call_and_run_agree(model: CompiledModel) -> None:
    feeds = random_feeds(model.inputs, 5)
    outputs = model.run(feeds)
    assert list(outputs) == ["y"] and outputs["y"].shape == (1, 10) and outputs["y"].dtype == np.float32
    assert np.array_equal(model(feeds["x"]), outputs["y"]) and np.array_equal(model(x=feeds["x"]), outputs["y"])
    assert not np.array_equal(model(2 * feeds["x"]), outputs["y"])


def test_outputs_are_the_callers(model: CompiledModel) -> None:
    x = random_feeds(model.inputs, 5)["x"]
    first = model(x)
    kept = first.copy()
    model(-x)
    assert np.array_equal(first, kept)


@pytest.mark.parametrize(
    ("feeds", "words"),
    [
        ({}, "'x' is missing"),
        ({"z": np.zeros(1, np.float32)}, "no input 'z'; its inputs are 'x'"),
        ({"x": np.zeros((1, 3, 8, 9), np.float32)}, r"shape \(1, 3, 8, 9\), not \(1, 3, 8, 8\)"),
        ({"x": np.zeros((1, 3, 8, 8), np.float64)}, "float64, not float32"),
    ],
)
def test_wrong_inputs(model: CompiledModel, feeds: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(InputError, match=words):
        model.run(feeds)


def test_too_many_inputs(model: CompiledModel) -> None:
    x = random_feeds(model.inputs)["x"]
    with pytest.raises(InputError, match="takes 1 inputs, not 2"):
        model(x, x)
    with pytest.raises(InputError, match="given twice"):
        model(x, x=x)


def test_fresh_process_without_compiler(model: CompiledModel, saved: Path, tmp_path: Path) -> None:
    x = random_feeds(model.inputs, 5)["x"]
    np.save(tmp_path / "x.npy", x)
    source = Path(stormdrop.__file__).parents[1]
    environment = {key: value for key, value in os.environ.items() if key != "TVM_NUM_THREADS"}
    environment |= {"PATH": "/nonexistent", "PYTHONPATH": str(source)}
    command = [sys.executable, "-c", RUN, str(saved), str(tmp_path / "x.npy"), str(tmp_path / "y.npz")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.split() == [str(usable_cores()), "False"]
    assert np.array_equal(np.load(tmp_path / "y.npz")["y"], model(x))


def test_metadata_survives(model: CompiledModel, saved: Path) -> None:
    loaded = CompiledModel.load(saved)
    assert loaded.metadata == model.metadata
    assert loaded.metadata.provenance == {"seed": 1}


def test_saving_replaces_a_model_and_nothing_else(model: CompiledModel, saved: Path, tmp_path: Path) -> None:
    model.save(saved)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model.sd"]
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("mine")
    for other in ("file", "folder"):
        with pytest.raises(ArtifactError, match="no stormdrop model"):
            model.save(tmp_path / other)
    assert (tmp_path / "file").read_text() == (tmp_path / "folder" / "file").read_text() == "mine"


def test_failed_save_leaves_nothing(model: CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: CompiledModel, folder: Path) -> None:
        (folder / "model.vm").write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CompiledModel, "_write", full)
    with pytest.raises(ArtifactError, match="No space left"):
        model.save(tmp_path / "model.sd")
    assert not list(tmp_path.iterdir())


def refused(folder: Path, words: str) -> None:
    with pytest.raises(ArtifactError, match=words) as raised:
        CompiledModel.load(folder)
    assert "\n" not in str(raised.value)


def test_missing_parts(saved: Path, tmp_path: Path) -> None:
    refused(tmp_path / "none", "no such folder")
    refused(tmp_path, "no stormdrop model")
    (saved / "kernels.bc").unlink()
    refused(saved, "kernels.bc is missing")


@pytest.mark.parametrize("name", ["model.vm", "kernels.bc"])
def test_damaged_file(saved: Path, name: str) -> None:
    content = bytearray((saved / name).read_bytes())
    content[len(content) // 2] ^= 1
    (saved / name).write_bytes(content)
    refused(saved, f"{name} is damaged")


def test_damaged_metadata(saved: Path) -> None:
    edit(saved, format=99)
    refused(saved, "format")
    (saved / "metadata.json").write_text("{")
    refused(saved, "cannot be read")


def test_other_version(saved: Path) -> None:
    edit(saved, tvm="0.1")
    refused(saved, "made with TVM 0.1")


def test_other_cpu(saved: Path) -> None:
    edit(saved, features=["avx2", "avx9000"], cpu="Some CPU")
    refused(saved, "made for Some CPU; this CPU lacks .*avx9000")
