"""The constants of a model are saved in a file that is mapped, together with the program that reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tiny_models import make_model
from tvm.support.cc import get_cc

import stormdrop
from stormdrop.errors import ArtifactError
from stormdrop.machine.cpu import Cpu
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.artifact.artifact_files import checksum
from stormdrop.model.artifact.metadata import Metadata
from stormdrop.model.building.compile import build
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.importer.isolated import Importer
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.model.program.document import from_json
from stormdrop.model.random_weights import seed_weights
from stormdrop.runtime.program import ALIGNMENT

pytestmark = pytest.mark.compiles


@pytest.fixture(scope="module")
def model(residual: Graph, target: Cpu) -> CompiledModel:
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
def test_the_model_is_the_same_in_memory_and_as_it_is_saved(model: CompiledModel, tmp_path: Path, native: bool) -> None:
    loaded = stormdrop.load(model.save(tmp_path / "model.sd", native), digest=model.digest)
    assert loaded.metadata == model.metadata and same(model, loaded)
    assert "weights.bin" in json.loads((tmp_path / "model.sd" / "metadata.json").read_text())["checksums"]
    constants = loaded._program.constants
    assert constants and all(each.ctypes.data % ALIGNMENT == 0 for each in constants)
    assert all(np.array_equal(*both) for both in zip(constants, model._program.constants, strict=True))


def test_a_loaded_model_is_saved_again_in_its_place(model: CompiledModel, saved: Path) -> None:
    loaded = stormdrop.load(saved)
    loaded.save(saved)
    assert same(model, loaded) and same(model, stormdrop.load(saved, digest=loaded.digest))
    for file in saved.iterdir():
        file.unlink()
    assert same(model, loaded), "the file that is mapped is still there for who has mapped it"


def test_sizes_share_their_weights(target: Cpu, tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Gather", ["table", "x"], ["y"])]
    source = seed_weights(make_model(nodes, {"table": (500, 16)}, {}, {"y": ("N", 16)}), seed=1)
    source.graph.input.append(onnx.helper.make_tensor_value_info("x", onnx.TensorProto.INT64, ("N",)))
    with Importer() as importer:
        several = build(importer.load(source, {"x": ((2, 3, 4),)}), {}, target)
    loaded = stormdrop.load(several.save(tmp_path / "m.sd"))
    assert len(loaded._program.program.sizes) == 3
    assert (tmp_path / "m.sd" / "weights.bin").stat().st_size < 500 * 16 * 4 + 5000
    for length in (2, 3, 4):
        x = np.arange(length)
        assert np.array_equal(loaded(x), several(x)) and loaded(x).shape == (length, 16)


def test_equal_weights_are_stored_once(target: Cpu, tmp_path: Path) -> None:
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


def test_a_program_that_does_not_fit_is_refused(saved: Path) -> None:
    """Whoever changes a program, and its checksum as well, is told what is wrong with it."""
    file = saved / "program.json"
    original = json.loads(file.read_text())
    last = original["constants"][-1]
    steps = original["sizes"][0]["steps"]
    views = original["sizes"][0]["views"]
    for path, value, words in (
        (("constants", -1, "offset"), last["offset"] + 64, r"weights\.bin cannot be loaded: .*it holds \d+ bytes"),
        (("constants", -1, "offset"), -1, r"program\.json cannot be loaded"),
        (("constants", -1, "offset"), 0, r"program\.json cannot be loaded: .*inside of another one"),
        (("constants", -1, "shape"), [2**40], r"program\.json cannot be loaded"),
        (("constants", -1, "dtype"), "float9x", r"program\.json cannot be loaded"),
        (("sizes", 0, "steps"), steps[1:], r"program\.json cannot be loaded: .*nothing or something else was written"),
        (("sizes", 0, "steps"), steps[:-1], r"program\.json cannot be loaded: .*is never written"),
        (("sizes", 0, "storage"), [1] * len(original["sizes"][0]["storage"]), r"program\.json .*ends outside of"),
        (("sizes", 0, "views"), views[:-1], r"program\.json cannot be loaded: .*an argument that is no view"),
        (("sizes", 0, "inputs"), [], r"program\.json cannot be loaded"),
        (("sizes",), [], r"program\.json .*its inputs and outputs are not those of metadata\.json"),
        (("sizes", 0, "steps", 0, "name"), "other", r"cannot be made ready to run: .*no module has the function other"),
    ):
        changed = json.loads(file.read_text()) and json.loads(json.dumps(original))
        place = changed
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        file.write_text(json.dumps(changed))
        metadata, checksums, _ = Metadata.from_json((saved / "metadata.json").read_bytes())
        checksums["program.json"] = checksum(file)
        (saved / "metadata.json").write_text(metadata.to_json(checksums))
        refused(saved, words)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")
@pytest.mark.parametrize("mode", [0o644, 0o664])
def test_a_file_that_others_may_write_is_copied_before_it_is_mapped(
    model: CompiledModel, saved: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    assert not (saved / "weights.bin").stat().st_mode & 0o022
    (saved / "weights.bin").chmod(mode)

    def after_a_change(data: bytes, *rest: Any) -> object:
        if mode == 0o664:
            (saved / "weights.bin").write_bytes(b"evil")
        return from_json(data, *rest)

    monkeypatch.setattr("stormdrop.model.artifact.loading.from_json", after_a_change)
    loaded = stormdrop.load(saved)
    assert (str(saved / "weights.bin") in mapped_files()) == (mode == 0o644)
    assert same(model, loaded)


def test_the_digest_covers_the_weights(model: CompiledModel, saved: Path) -> None:
    meant = model.digest
    (saved / "weights.bin").write_bytes(bytes((saved / "weights.bin").stat().st_size))
    metadata, checksums, _ = Metadata.from_json((saved / "metadata.json").read_bytes())
    checksums["weights.bin"] = checksum(saved / "weights.bin")
    (saved / "metadata.json").write_text(metadata.to_json(checksums))
    with pytest.raises(ArtifactError, match="this is another model"):
        stormdrop.load(saved, digest=meant)
