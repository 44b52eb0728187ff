"""The large constants of a model stand outside of its program, in a file that is mapped."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from tiny_models import make_model
from tvm.support.cc import get_cc

import stormdrop
from stormdrop.errors import ArtifactError
from stormdrop.machine.cpu import Cpu
from stormdrop.model.artifact import artifact, loading
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.artifact.artifact_files import checksum
from stormdrop.model.artifact.metadata import Metadata
from stormdrop.model.building.compile import build
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.importer.isolated import Importer
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.model.random_weights import seed_weights
from stormdrop.model.tensors import ALIGNMENT

pytestmark = pytest.mark.compiles

LEAST = "stormdrop.model.building.compile.LEAST"


@pytest.fixture(scope="module")
def inside(residual: Graph, target: Cpu) -> CompiledModel:
    return build(residual, {}, target)


@pytest.fixture(scope="module")
def model(residual: Graph, target: Cpu) -> CompiledModel:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LEAST, 64)
        return build(residual, {}, target)


@pytest.fixture
def saved(model: CompiledModel, tmp_path: Path) -> Path:
    return model.save(tmp_path / "model.sd")


def same(one: CompiledModel, other: CompiledModel) -> bool:
    feeds = random_feeds(one.inputs, 5)
    return all(np.array_equal(value, other.run(feeds)[name]) for name, value in one.run(feeds).items())


def mapped_files() -> str:
    return Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=pytest.mark.skipif(get_cc() is None, reason="cc"))])
def test_the_model_is_the_same_in_memory_and_as_it_is_saved(
    model: CompiledModel, inside: CompiledModel, tmp_path: Path, native: bool
) -> None:
    assert inside.save(tmp_path / "inside.sd", native) and not (tmp_path / "inside.sd" / "weights.bin").exists()
    assert same(inside, model)
    loaded = stormdrop.load(model.save(tmp_path / "model.sd", native), digest=model.digest)
    assert loaded.metadata == model.metadata and same(inside, loaded)
    assert "weights.bin" in json.loads((tmp_path / "model.sd" / "metadata.json").read_text())["checksums"]
    sizes = [(tmp_path / name / "model.vm").stat().st_size for name in ("inside.sd", "model.sd")]
    assert sizes[1] < sizes[0] - sum(np.prod(each.shape) * 4 for each in model.metadata.weights[0]) + 2000
    for weight in loaded._program.weights_of(0):
        assert weight.data_ptr() % ALIGNMENT == 0


def test_a_loaded_model_is_saved_again_in_its_place(model: CompiledModel, inside: CompiledModel, saved: Path) -> None:
    loaded = stormdrop.load(saved)
    loaded.save(saved)
    assert same(inside, loaded) and same(inside, stormdrop.load(saved, digest=loaded.digest))
    for file in saved.iterdir():
        file.unlink()
    assert same(inside, loaded), "the file that is mapped is still there for who has mapped it"


def test_sizes_share_their_weights(target: Cpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LEAST, 1 << 10)
    nodes = [onnx.helper.make_node("Gather", ["table", "x"], ["y"])]
    source = seed_weights(make_model(nodes, {"table": (500, 16)}, {}, {"y": ("N", 16)}), seed=1)
    source.graph.input.append(onnx.helper.make_tensor_value_info("x", onnx.TensorProto.INT64, ("N",)))
    with Importer() as importer:
        several = build(importer.load(source, {"x": ((2, 3, 4),)}), {}, target)
    loaded = stormdrop.load(several.save(tmp_path / "m.sd"))
    assert len(loaded.metadata.weights) == 3
    assert (tmp_path / "m.sd" / "weights.bin").stat().st_size == 500 * 16 * 4
    first, *others = (loaded._program.weights_of(size)[0] for size in range(3))
    assert all(other.data_ptr() == first.data_ptr() for other in others)
    for length in (2, 3, 4):
        x = np.arange(length)
        assert np.array_equal(loaded(x), several(x)) and loaded(x).shape == (length, 16)


def test_equal_weights_are_stored_once(target: Cpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LEAST, 1 << 10)
    nodes = [onnx.helper.make_node("Gather", [f"table{part}", "x"], [f"y{part}"]) for part in range(3)]
    weights = {f"table{part}": (500, 16) for part in range(3)}
    source = make_model(nodes, weights, {}, {f"y{part}": (4, 16) for part in range(3)})
    for tensor, last in zip(source.graph.initializer, (1, 1, 2), strict=True):
        value = np.ones((500, 16), np.float32)
        value[250, 3] = last  # far from where it begins and ends
        tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    source.graph.input.append(onnx.helper.make_tensor_value_info("x", onnx.TensorProto.INT64, (4,)))
    loaded = stormdrop.load(build(load_graph(source), {}, target).save(tmp_path / "m.sd"))
    assert 2 * 32_000 <= (tmp_path / "m.sd" / "weights.bin").stat().st_size < 3 * 32_000
    outputs = loaded.run({"x": np.array([0, 250, 250, 1])})
    assert [float(outputs[f"y{part}"][1, 3]) for part in range(3)] == [1, 1, 2]


def refused(folder: Path, words: str) -> None:
    with pytest.raises(ArtifactError, match=words) as raised:
        stormdrop.load(folder)
    assert "\n" not in str(raised.value)


def test_damage_is_refused(saved: Path) -> None:
    file = saved / "weights.bin"
    whole = file.read_bytes()
    for content in (whole[:-1], b"", whole[:-1] + bytes([whole[-1] ^ 1])):
        file.write_bytes(content)
        refused(saved, r"weights\.bin is damaged: its checksum differs")
    file.unlink()
    refused(saved, r"weights\.bin is missing")


def test_a_table_that_does_not_fit_is_refused(model: CompiledModel, saved: Path) -> None:
    file = saved / "metadata.json"
    original = json.loads(file.read_text())
    del original["digest"]  # as version 0.1 wrote it
    (weights,) = original["weights"]
    for changed, words in (
        (
            [[{**weights[0], "offset": 10**9}, *weights[1:]]],
            r"weights\.bin cannot be loaded: .*it holds \d+ bytes",
        ),
        ([[{**weights[0], "dtype": "float9x"}, *weights[1:]]], r"weights\.bin cannot be loaded"),
        ([[{**weights[0], "offset": -1}, *weights[1:]]], r"metadata\.json cannot be read"),
        ([[{**weights[0], "shape": [2**40]}, *weights[1:]]], r"metadata\.json cannot be read"),
        ([weights, weights], r"metadata\.json cannot be read: .*weights of another number of sizes"),
        ([weights[1:]], r"the program takes 2 inputs, not 1"),
        ([], r"the program takes \d+ inputs, not 1"),
    ):
        file.write_text(json.dumps({**original, "weights": changed}))
        refused(saved, words)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")
@pytest.mark.parametrize("mode", [0o644, 0o664])
def test_a_file_that_others_may_write_is_copied_before_it_is_mapped(
    inside: CompiledModel, saved: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    assert not (saved / "weights.bin").stat().st_mode & 0o022
    (saved / "weights.bin").chmod(mode)
    loader = loading._loader

    def after_a_change(kind: str) -> object:
        if mode == 0o664 and kind == "relax.VMExecutable":
            (saved / "weights.bin").write_bytes(b"evil")
        return loader(kind)

    monkeypatch.setattr(loading, "_loader", after_a_change)
    loaded = stormdrop.load(saved)
    assert (str(saved / "weights.bin") in mapped_files()) == (mode == 0o644)
    assert same(inside, loaded)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_leaves_the_older_model(model: CompiledModel, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def onto_full(weights: object, file: Path) -> object:
        file.symlink_to("/dev/full")
        return written(weights, file)  # type: ignore[arg-type]

    written = artifact.write_weights  # type: ignore[attr-defined]
    before = {file.name: file.read_bytes() for file in saved.iterdir()}
    monkeypatch.setattr(artifact, "write_weights", onto_full)
    with pytest.raises(ArtifactError, match="No space left"):
        model.save(saved)
    assert {file.name: file.read_bytes() for file in saved.iterdir()} == before


def test_the_digest_covers_the_weights(model: CompiledModel, saved: Path) -> None:
    meant = model.digest
    (saved / "weights.bin").write_bytes(bytes((saved / "weights.bin").stat().st_size))
    metadata, checksums, _ = Metadata.from_json((saved / "metadata.json").read_bytes())
    checksums["weights.bin"] = checksum(saved / "weights.bin")
    (saved / "metadata.json").write_text(metadata.to_json(checksums))
    with pytest.raises(ArtifactError, match="this is another model"):
        stormdrop.load(saved, digest=meant)
