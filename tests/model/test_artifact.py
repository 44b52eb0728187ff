from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi
from tvm.support.cc import get_cc

import stormdrop
from stormdrop.errors import ArtifactError, InputError
from stormdrop.machine.cpu import Target
from stormdrop.machine.threads import usable_cores
from stormdrop.model import artifact
from stormdrop.model.artifact import CompiledModel
from stormdrop.model.compile import build
from stormdrop.model.files import KERNELS, METADATA, PROGRAM, check_free
from stormdrop.model.importer.graph import Graph
from stormdrop.model.verify import random_feeds

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


def test_where_inputs_are_makes_no_difference(model: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    x = random_feeds(model.inputs, 5)["x"]
    expected = model(x).copy()
    read: list[int] = []
    from_dlpack = tvm_ffi.from_dlpack
    monkeypatch.setattr(tvm_ffi, "from_dlpack", lambda value: read.append(1) or from_dlpack(value))
    there = artifact.aligned(x)
    output = model(there)
    assert np.array_equal(output, expected) and len(read) == 1
    there[...] = 0
    assert np.array_equal(output, expected)
    read.clear()
    fixed = artifact.aligned(x)
    fixed.flags.writeable = False
    beside = artifact.aligned(np.zeros(x.size + 1, x.dtype))[1:].reshape(x.shape)
    beside[...] = x
    assert model.metadata.anywhere == ("x",)
    assert np.array_equal(model(beside), expected) and len(read) == 1
    for other in [fixed, np.asfortranarray(x)]:
        assert np.array_equal(model(other), expected)
    assert len(read) == 1
    assert np.array_equal(model(Exported(x)), expected)
    # Where more than kernels reads it, it has to begin at a multiple of 64 bytes.
    read.clear()
    monkeypatch.setattr(model, "metadata", replace(model.metadata, anywhere=()))
    for other, where in [(beside, 0), (artifact.aligned(x), 1)]:
        assert np.array_equal(model(other), expected) and len(read) == where


class Exported:
    """Not NumPy's, but exported; one on a GPU would raise as this does where it is `far`."""

    def __init__(self, value: np.ndarray, far: bool = False) -> None:
        self.value, self.far = value, far

    def __dlpack__(self, **settings: object) -> object:
        if self.far:
            raise BufferError("unsupported device")
        return self.value.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_other_devices_are_refused(model: CompiledModel) -> None:
    x = random_feeds(model.inputs, 5)["x"]
    with pytest.raises(InputError, match="'x' is no array in the memory of the CPU"):
        model(Exported(x, far=True))


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


@pytest.mark.skipif(get_cc() is None, reason="needs a linker")
def test_a_native_model_needs_the_runtime_only(model: CompiledModel, saved: Path, tmp_path: Path) -> None:
    x = random_feeds(model.inputs, 5)["x"]
    np.save(tmp_path / "x.npy", x)
    native = model.save(tmp_path / "native.sd", native=True)
    source = Path(stormdrop.__file__).parents[1]
    environment = {**os.environ, "TVM_USE_RUNTIME_LIB": "1", "PATH": "/nonexistent", "PYTHONPATH": str(source)}

    def run(folder: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", RUN, str(folder), str(tmp_path / "x.npy"), str(tmp_path / "y.npz")]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)

    done = run(native)
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.load(tmp_path / "y.npz")["y"], model(x))
    bitcode = run(saved)
    assert bitcode.returncode != 0
    assert "TVM is here without LLVM; save it with native=True" in bitcode.stderr


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
    def full(self: CompiledModel, folder: Path, *_: object) -> None:
        (folder / "model.vm").write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CompiledModel, "_write", full)
    with pytest.raises(ArtifactError, match="No space left"):
        model.save(tmp_path / "model.sd")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("name", ["model.vm", "kernels.bc"])
def test_a_full_disk_is_noticed(
    model: CompiledModel, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write = artifact._write

    def onto_full(module: object, kind: str, file: Path) -> None:
        if file.name == name:
            file.symlink_to("/dev/full")
        write(module, kind, file)

    before = {each.name: each.read_bytes() for each in saved.iterdir()}
    monkeypatch.setattr(artifact, "_write", onto_full)
    with pytest.raises(ArtifactError, match="No space left"):
        model.save(saved)
    assert {each.name: each.read_bytes() for each in saved.iterdir()} == before
    assert [each.name for each in tmp_path.iterdir()] == [saved.name]


@pytest.mark.skipif(get_cc() is None, reason="needs a linker")
def test_a_native_model_is_the_same(model: CompiledModel, tmp_path: Path) -> None:
    feeds = random_feeds(model.inputs, 5)
    native = model.save(tmp_path / "native.sd", native=True)
    assert sorted(each.name for each in native.iterdir()) == ["kernels.so", "metadata.json", "model.vm"]
    loaded = CompiledModel.load(native)
    assert np.array_equal(loaded.run(feeds)["y"], model.run(feeds)["y"])
    for again in (True, False):
        with pytest.raises(ArtifactError, match="copy its folder"):
            loaded.save(tmp_path / "again.sd", native=again)


def test_a_native_model_needs_a_linker(model: CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "get_cc", lambda: None)
    with pytest.raises(ArtifactError, match="no cc on the PATH"):
        model.save(tmp_path / "model.sd", native=True)
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


def test_files_of_others_are_no_part_of_a_model(tmp_path: Path) -> None:
    check_free(tmp_path / "new.sd")
    check_free(tmp_path)
    for name in (METADATA, PROGRAM, KERNELS):
        (tmp_path / name).touch()
    check_free(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ArtifactError, match=r"is a stormdrop model, and holds notes.txt, too; it is left as it is"):
        check_free(tmp_path)
    (tmp_path / METADATA).unlink()
    with pytest.raises(ArtifactError, match="exists and is no stormdrop model"):
        check_free(tmp_path)
