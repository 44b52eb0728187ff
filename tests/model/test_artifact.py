from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import residual_model
from tvm.support.cc import get_cc

import stormdrop
from stormdrop.errors import ArtifactError, InputError
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.threads import usable_cores
from stormdrop.model.artifact import artifact_files, call_inputs, tvm_modules
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.artifact.metadata import Metadata
from stormdrop.model.building.compile import build
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.model.program.document import from_json
from stormdrop.model.random_weights import seed_weights
from stormdrop.runtime.inputs import copy_rows

pytestmark = pytest.mark.compiles

needs_linker = pytest.mark.skipif(get_cc() is None, reason="needs a linker")

RUN = """
import os, sys
import numpy as np
import stormdrop
model = stormdrop.load(sys.argv[1])
np.savez(sys.argv[3], y=model(np.load(sys.argv[2])))
print(os.environ["TVM_NUM_THREADS"], "onnx" in sys.modules)
"""


@pytest.fixture(scope="module")
def model(residual: Graph, target: Cpu) -> CompiledModel:
    return build(residual, {}, target, provenance={"seed": 1})


@pytest.fixture
def saved(model: CompiledModel, tmp_path: Path) -> Path:
    return model.save(tmp_path / "model.sd")


def edit(folder: Path, **changes: object) -> None:
    """Changes metadata as a model of version 0.1 has them, which has no digest."""
    file = folder / "metadata.json"
    document = json.loads(file.read_text()) | changes
    del document["digest"]
    file.write_text(json.dumps(document))


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


def test_the_memory_of_an_input_makes_no_difference(model: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    x = random_feeds(model.inputs, 5)["x"]
    expected = model(x).copy()
    copied: list[tuple[int, ...]] = []

    def counted(value: np.ndarray, copy: np.ndarray) -> None:
        copied.append(copy.shape)
        copy_rows(value, copy)

    monkeypatch.setattr("stormdrop.model.artifact.call_inputs.copy_rows", counted)
    aligned = call_inputs.aligned(x)
    output = model(aligned)
    assert np.array_equal(output, expected) and not copied
    aligned[...] = 0
    assert np.array_equal(output, expected)
    read_only = call_inputs.aligned(x)
    read_only.flags.writeable = False
    unaligned = call_inputs.aligned(np.zeros(x.size + 1, x.dtype))[1:].reshape(x.shape)
    unaligned[...] = x
    assert model.metadata.anywhere == ("x",)
    assert np.array_equal(model(unaligned), expected) and not copied
    assert np.array_equal(model(read_only), expected) and not copied
    assert np.array_equal(model(np.asfortranarray(x)), expected) and len(copied) == 1
    assert np.array_equal(model(Exported(x)), expected)
    # An input that something else than a kernel reads has to begin at a multiple of 64 bytes.
    copied.clear()
    monkeypatch.setattr(model._calls, "_anywhere", ())
    for other, copies in [(unaligned, 1), (call_inputs.aligned(x), 1)]:
        assert np.array_equal(model(other), expected) and len(copied) == copies


class Exported:
    """An array of another library, which exports DLPack. If `far`, it raises as one on a GPU would."""

    def __init__(self, value: np.ndarray, far: bool = False) -> None:
        self.value, self.far = value, far

    def __dlpack__(self, **settings: object) -> object:
        if self.far:
            raise BufferError("unsupported device")
        return self.value.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class Marked:
    """A tensor as torch has them: negated or conjugated by a mark that DLPack does not carry."""

    def __init__(self, value: np.ndarray, negated: bool = False, conjugated: bool = False) -> None:
        self.value, self.negated, self.conjugated = value, negated, conjugated

    def is_neg(self) -> bool:
        return self.negated

    def is_conj(self) -> bool:
        return self.conjugated

    def resolve_neg(self) -> Marked:
        return Marked(-self.value if self.negated else self.value, conjugated=self.conjugated)

    def resolve_conj(self) -> Marked:
        return Marked(self.value.conj() if self.conjugated else self.value, negated=self.negated)

    def __dlpack__(self, **settings: object) -> object:
        if self.conjugated:
            raise BufferError("Can't export tensors with the conjugate bit set")
        return self.value.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_a_tensor_that_is_negated_by_a_mark(model: CompiledModel) -> None:
    x = random_feeds(model.inputs, 5)["x"]
    expected = model(-x)
    assert not np.array_equal(model(x), expected)
    for value in (x, np.asfortranarray(x), call_inputs.aligned(x)):  # copied or read in place
        assert np.array_equal(model(Marked(value, negated=True)), expected)
        assert np.array_equal(model(Marked(value, negated=True, conjugated=True)), expected)
        assert np.array_equal(model(Marked(-value)), expected)


def test_a_negated_view_of_torch(model: CompiledModel) -> None:
    torch = pytest.importorskip("torch")
    x = random_feeds(model.inputs, 5)["x"]
    view = torch.view_as_complex(torch.tensor(np.stack([np.zeros_like(x), x], -1))).conj().imag
    assert view.is_neg()
    assert np.array_equal(model(view), model(-x))


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
        ({"x": np.zeros((1, 3, 8, 8), ">f8")}, "float64, not float32"),
        ({"x": np.zeros((1, 3, 8, 8), object)}, "'x' is an array of Python objects, not float32"),
        ({"x": None}, "'x' is an array of Python objects, not float32"),
        ({"x": [[1.0, 2.0], [3.0]]}, "'x' is no array: ValueError: setting an array element"),
        ({"x": np.ma.masked_less(np.zeros((1, 3, 8, 8), np.float32), 1)}, r"'x' has masked .* as in x.filled\(0\)"),
        ({1: np.zeros(1), "z": np.zeros(1)}, "has no input 1;"),
        ([np.zeros(1)], r"run takes its inputs by name, as {'x': x}, not a list; call the model itself"),
        (None, "not a NoneType; call the model itself"),
    ],
)
def test_wrong_inputs(model: CompiledModel, feeds: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as raised:
        model.run(feeds)
    assert "\n" not in str(raised.value)


def test_inputs_of_another_kind_of_array(model: CompiledModel) -> None:
    x = random_feeds(model.inputs, 5)["x"]
    expected = model(x)
    for given in (x.astype(">f4"), np.ma.masked_array(x), np.asfortranarray(x).astype(">f4")):
        (output,) = model.run(types.MappingProxyType({"x": given})).values()
        assert type(output) is np.ndarray and np.array_equal(output, expected)


def test_too_many_inputs(model: CompiledModel) -> None:
    x = random_feeds(model.inputs)["x"]
    with pytest.raises(InputError, match="takes 1 input, not 2"):
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


@needs_linker
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
    assert "this TVM has no LLVM; save the model with native=True" in bitcode.stderr


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
        (folder / "program.json").write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CompiledModel, "write_files", full)
    with pytest.raises(ArtifactError, match="No space left"):
        model.save(tmp_path / "model.sd")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("name", ["program.json", "weights.bin", "kernels.bc"])
def test_a_full_disk_is_noticed(
    model: CompiledModel, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    opened = Path.open

    def onto_full(file: Path, mode: str = "r", **named: Any) -> Any:
        if file.name == name and mode == "wb":
            file.symlink_to("/dev/full")
        return opened(file, mode, **named)

    before = {file.name: file.read_bytes() for file in saved.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", onto_full)
        with pytest.raises(ArtifactError, match="No space left"):
            model.save(saved)
    assert {file.name: file.read_bytes() for file in saved.iterdir()} == before
    assert [entry.name for entry in tmp_path.iterdir()] == [saved.name]


@needs_linker
def test_a_native_model_is_the_same(model: CompiledModel, tmp_path: Path) -> None:
    feeds = random_feeds(model.inputs, 5)
    native = model.save(tmp_path / "native.sd", native=True)
    assert sorted(file.name for file in native.iterdir()) == [
        "metadata.json",
        "model.so",
        "program.json",
        "stormdrop.h",
        "weights.bin",
    ]
    loaded = CompiledModel.load(native)
    assert np.array_equal(loaded.run(feeds)["y"], model.run(feeds)["y"])
    for again in (True, False):
        with pytest.raises(ArtifactError, match="copy its folder"):
            loaded.save(tmp_path / "again.sd", native=again)


def test_a_native_model_needs_a_linker(model: CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
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
    refused(tmp_path / ("m" * 300), "no such folder")
    refused(tmp_path / "m\0", "no such folder")
    refused(saved / "metadata.json", "no stormdrop model")
    onnx_file = tmp_path / "a model.onnx"
    onnx_file.touch()
    refused(onnx_file, "an ONNX model, which is not compiled yet: `stormdrop compile '.*a model.onnx'`")
    refused(saved / "metadata.json" / "m.sd", "no such folder")
    (saved / "kernels.bc").unlink()
    refused(saved, "kernels.bc is missing")


@pytest.mark.parametrize("name", ["program.json", "kernels.bc"])
def test_damaged_file(saved: Path, name: str) -> None:
    content = bytearray((saved / name).read_bytes())
    content[len(content) // 2] ^= 1
    (saved / name).write_bytes(content)
    refused(saved, f"{name} is damaged")


def test_damaged_metadata(saved: Path) -> None:
    edit(saved, format=99)
    refused(saved, r"metadata\.json cannot be read: ValueError: it is of format 99, not 2")
    (saved / "metadata.json").write_text("{")
    refused(saved, r"metadata\.json cannot be read")


@pytest.mark.parametrize("size", [4, 16])
def test_another_shape_is_not_believed(saved: Path, size: int) -> None:
    """The kernels would read 4 times the memory of the input, or leave a part of it unread."""
    file = saved / "metadata.json"
    document = json.loads(file.read_text())
    document["inputs"][0]["shape"][2] = size
    file.write_text(json.dumps(document, indent=2))
    refused(saved, "its digest differs")


def test_a_model_of_version_0_1_is_loaded(model: CompiledModel, saved: Path) -> None:
    edit(saved)
    loaded = stormdrop.load(saved)
    assert loaded.metadata == model.metadata and loaded.digest != model.digest
    assert stormdrop.load(saved, digest=loaded.digest).digest == loaded.digest


def test_a_model_of_an_earlier_version_is_refused(saved: Path) -> None:
    edit(saved, format=1)
    refused(saved, "an earlier version of stormdrop made the model: tune or compile it again")


def test_another_number_of_inputs_is_not_believed(saved: Path) -> None:
    inputs = [{"name": name, "shape": [1, 3, 8, 8], "dtype": "float32"} for name in "xyz"]
    edit(saved, inputs=inputs)
    refused(saved, "program.json cannot be loaded: .*its inputs and outputs are not those of metadata.json")


def test_a_checksum_is_missing(saved: Path) -> None:
    edit(saved, checksums={})
    refused(saved, r"program\.json is damaged")


def test_the_digest_of_a_model(model: CompiledModel, saved: Path, tmp_path: Path) -> None:
    digest = model.digest
    assert digest is not None and json.loads((saved / "metadata.json").read_text())["digest"] == digest
    for same in (digest, digest.upper()):
        assert stormdrop.load(saved, digest=same).digest == digest
    model.save(tmp_path / "copy.sd")
    assert model.digest == digest
    assert CompiledModel.load(saved).digest == digest


def test_nothing_of_another_model_runs(
    model: CompiledModel, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever replaces a file also writes its checksum and the digest into the metadata."""
    meant = model.digest
    assert meant is not None
    monkeypatch.setattr(tvm_modules, "load_bitcode", lambda file: pytest.fail(f"{file} is loaded"))
    (saved / "kernels.bc").write_bytes(b"evil code")
    metadata, checksums, _ = Metadata.from_json((saved / "metadata.json").read_bytes())
    checksums["kernels.bc"] = artifact_files.checksum(saved / "kernels.bc")
    (saved / "metadata.json").write_text(metadata.to_json(checksums))
    with pytest.raises(ArtifactError, match=f"has the digest [0-9a-f]{{64}}, not {meant}: this is another model"):
        stormdrop.load(saved, digest=meant)
    for wrong in ("", "x" * 64, meant[:63], f"{meant}\n"):
        with pytest.raises(InputError, match="must be 64 hexadecimal digits"):
            stormdrop.load(saved, digest=wrong)


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=needs_linker)])
def test_what_was_checked_is_what_is_loaded(
    model: CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    """Another process changes the files between the check and the loading."""
    saved = model.save(tmp_path / "model.sd", native)

    def after_a_change(data: bytes, *rest: Any) -> object:
        for file in saved.iterdir():
            if file.name != "weights.bin":  # only its owner may write to it, so it is mapped where it is
                file.write_bytes(b"evil code")
        return from_json(data, *rest)

    monkeypatch.setattr("stormdrop.model.artifact.loading.from_json", after_a_change)
    loaded = stormdrop.load(saved, digest=model.digest)
    assert (saved / "program.json").read_bytes() == b"evil code"
    feeds = random_feeds(model.inputs, 5)
    assert np.array_equal(loaded.run(feeds)["y"], model.run(feeds)["y"])


@needs_linker
def test_native_models_are_not_taken_for_each_other(model: CompiledModel, target: Cpu, tmp_path: Path) -> None:
    """The system's loader knows libraries by their path, and the paths of closed copies are used again."""
    larger = seed_weights(residual_model(), seed=1)
    for axis in (2, 3):
        larger.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = 16
    wide = build(load_graph(larger), {}, target)
    for _ in range(3):
        for each in (model, wide):
            feeds = random_feeds(each.inputs, 5)
            loaded = CompiledModel.load(each.save(tmp_path / "model.sd", native=True))
            for name, value in each.run(feeds).items():
                assert np.array_equal(loaded.run(feeds)[name], value)


def test_other_version(saved: Path) -> None:
    edit(saved, tvm="0.1")
    refused(saved, "made with TVM 0.1")


def test_other_cpu(saved: Path) -> None:
    edit(saved, features=["avx2", "avx9000"], cpu="Some CPU")
    refused(saved, "made for Some CPU; this CPU lacks .*avx9000")


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=needs_linker)])
@pytest.mark.parametrize("damaged", ["nothing", "program.json", "weights.bin"])
def test_a_model_whose_saved_form_cannot_be_loaded_stays_as_it_was(
    residual: Graph, target: Cpu, tmp_path: Path, native: bool, damaged: str
) -> None:
    model = build(residual, {}, target)
    feeds = random_feeds(model.inputs)
    expected = model.run(feeds)
    if damaged != "nothing":
        model.write_files(tmp_path, native)
        (tmp_path / damaged).write_bytes((tmp_path / damaged).read_bytes()[:-1])
    with pytest.raises(ArtifactError):
        model.reloaded(tmp_path)
    assert all(np.array_equal(value, expected[name]) for name, value in model.run(feeds).items())
    model.save(tmp_path / "saved.sd")


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=needs_linker)])
def test_a_reloaded_model_has_the_weights_of_the_folder(
    residual: Graph, target: Cpu, tmp_path: Path, native: bool
) -> None:
    model = build(residual, {}, target)
    feeds = random_feeds(model.inputs)
    expected = model.run(feeds)
    model.write_files(tmp_path, native)
    loaded = model.reloaded(tmp_path)
    assert all(map(np.shares_memory, model._program.constants, loaded._program.constants))
    for each in (model, loaded):
        assert all(np.array_equal(value, expected[name]) for name, value in each.run(feeds).items())
    model.save(tmp_path / "saved.sd")
