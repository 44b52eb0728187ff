"""Native models from Python with NumPy alone: what a call takes and gives, what loading refuses."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import native_models
from native_models import chain, kernels_object, write_model
from stormdrop.errors import ArtifactError, InputError
from stormdrop.runtime import CompiledModel, load

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(native_models.compiler() is None, reason="there is no C compiler"),
]

X = np.arange(16, dtype=np.float32).reshape(1, 16)
C = np.arange(16, dtype=np.float32)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kernels_object(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, kernels: Path) -> Path:
    """y = 2 x + c"""
    program = chain(["twice", "add"], constant=True)
    return write_model(tmp_path_factory.mktemp("models") / "m.sd", program, [kernels], C)


@pytest.fixture(scope="module")
def sized(tmp_path_factory: pytest.TempPathFactory, kernels: Path) -> CompiledModel:
    """y = 2 x with 1, 2 or 4 rows, or 3."""
    program = chain(["twice"], rows=(1, 2, 4))
    return load(
        write_model(tmp_path_factory.mktemp("models") / "s.sd", program, [kernels], name="sized", batched=["x"])
    )


def test_a_call_gives_arrays_of_the_callers_own(folder: Path) -> None:
    model = load(folder)
    first = model(X)
    second = model(x=2 * X)
    np.testing.assert_array_equal(first, 2 * X + C)
    np.testing.assert_array_equal(second, 4 * X + C)
    outputs = model.run({"x": X})
    assert list(outputs) == ["y"]
    np.testing.assert_array_equal(outputs["y"], first)
    assert not np.shares_memory(outputs["y"], first)
    assert repr(model) == "CompiledModel by hand:\n  inputs   x float32[1, 16]\n  outputs  y float32[1, 16]"


@pytest.mark.parametrize("width", [16, 10_000])
def test_arrays_may_lie_anywhere(tmp_path: Path, kernels: Path, width: int) -> None:
    constants = np.arange(width, dtype=np.float32)
    model = load(write_model(tmp_path / "m", chain(["add"], width=width, constant=True), [kernels], constants))
    memory = np.arange(4 * width + 80, dtype=np.float32)
    for begin in range(17):
        x = memory[begin : begin + width].reshape(1, width)
        np.testing.assert_array_equal(model(x), x + constants)
    scattered = memory[: 2 * width : 2].reshape(1, width)
    np.testing.assert_array_equal(model(scattered), scattered + constants)
    fixed = x.copy()
    fixed.flags.writeable = False
    np.testing.assert_array_equal(model(fixed), fixed + constants)
    swapped = x.astype(">f4")
    np.testing.assert_array_equal(model(swapped), x + constants)


class Exporting:
    """A tensor of something else than NumPy."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_what_exports_dlpack_is_taken(folder: Path) -> None:
    np.testing.assert_array_equal(load(folder)(Exporting(X)), 2 * X + C)


def test_sizes_and_fewer_rows(sized: CompiledModel) -> None:
    for rows in (1, 2, 3, 4):
        x = np.random.default_rng(rows).random((rows, 16), np.float32)
        np.testing.assert_array_equal(sized(x), 2 * x)
    assert len(sized.sizes) == 3
    message = r"^sized has no size x=5x16; its sizes are x=1x16; x=2x16; x=4x16, and fewer rows of x$"
    with pytest.raises(InputError, match=message):
        sized(np.zeros((5, 16), np.float32))


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        ([], {}, "by hand: input 'x' is missing"),
        ([X, X], {}, "by hand takes 1 input, not 2"),
        ([X], {"x": X}, "by hand: input 'x' is given twice"),
        ([X], {"z": X}, "by hand has no input 'z'; its inputs are 'x'"),
        ([X.astype(np.float64)], {}, "by hand: input 'x' is float64, not float32"),
        ([X[:, :3]], {}, r"by hand: input 'x' has shape \(1, 3\), not \(1, 16\)"),
        ([np.ma.masked_equal(X, 3)], {}, "by hand: input 'x' has masked elements"),
        (["abc"], {}, "by hand: input 'x' is str96, not float32"),
    ],
)
def test_wrong_inputs_are_refused(folder: Path, arguments: list[Any], named: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        load(folder)(*arguments, **named)


def test_run_wants_names(folder: Path) -> None:
    with pytest.raises(InputError, match=r"^by hand: run takes its inputs by name, as \{'x': x\}, not a ndarray"):
        load(folder).run(X)  # type: ignore[arg-type]


def test_a_kernel_that_fails_is_an_error(tmp_path: Path, kernels: Path) -> None:
    model = load(write_model(tmp_path / "m", chain(["fail"]), [kernels]))
    with pytest.raises(ArtifactError, match=r"^by hand: fail fails: ValueError: this kernel fails always$"):
        model(X)


def test_a_profile_names_the_steps(folder: Path) -> None:
    profile = load(folder).profile({"x": X})
    assert [name for name, _ in profile] == ["twice", "add"]
    assert all(seconds >= 0 for _, seconds in profile)


def test_threads_are_from_one_on(folder: Path) -> None:
    assert load(folder, threads=1).threads == 1
    for wrong in (0, True, 1.5, 10**6):
        with pytest.raises(InputError, match=r"^threads="):
            load(folder, threads=wrong)  # type: ignore[arg-type]


def test_the_digest_says_which_model_is_meant(folder: Path) -> None:
    digest = load(folder).digest
    assert load(folder, digest.upper()).digest == digest
    with pytest.raises(ArtifactError, match=f"has the digest {digest}, not {'0' * 64}"):
        load(folder, "0" * 64)
    with pytest.raises(InputError, match="must be 64 hexadecimal digits"):
        load(folder, "abc")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("model.so", "altered", "model.so is damaged: its checksum differs"),
        ("model.so", "missing", "model.so is missing"),
        ("model.so", "shorter", "model.so is damaged: its checksum differs"),
        ("weights.bin", "altered", "weights.bin: is damaged: its checksum differs"),
        ("weights.bin", "shorter", "weights.bin: is damaged: it has 63 bytes, not 64"),
        ("weights.bin", "missing", "weights.bin is missing"),
        ("weights.bin", "shared", ""),
        ("metadata.json", "altered", "metadata.json cannot be read: "),
        ("metadata.json", "shorter", "metadata.json cannot be read: "),
        ("metadata.json", "missing", "no stormdrop model"),
    ],
)
def test_damaged_files_are_refused_in_one_line(
    folder: Path, tmp_path: Path, name: str, change: str, message: str
) -> None:
    copy = tmp_path / "copy.sd"
    shutil.copytree(folder, copy)
    data = bytearray((copy / name).read_bytes())
    if change == "missing":
        (copy / name).unlink()
    elif change == "shared":
        (copy / name).chmod(0o666)  # so that a private copy is used
        np.testing.assert_array_equal(load(copy)(X), 2 * X + C)
        return
    else:
        data[len(data) // 2] ^= 1
        (copy / name).write_bytes(data[:-1] if change == "shorter" else data)
    with pytest.raises(ArtifactError) as caught:
        load(copy)
    assert str(caught.value).startswith(str(copy))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.any_cpu
def test_whatever_is_changed_is_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    rng, copy, refused = np.random.default_rng(1), tmp_path / "copy.sd", list[str]()
    files = {name: (folder / name).read_bytes() for name in ("model.so", "weights.bin", "metadata.json")}
    copy.mkdir()
    for turn in range(300):
        name = list(files)[turn % 3]
        data, at = bytearray(files[name]), int(rng.integers(len(files[name])))
        if turn % 4 == 0:
            del data[at:]
        elif turn % 4 == 1:
            data[at] ^= 1 << int(rng.integers(8))
        elif turn % 4 == 2:
            data[at:at] = rng.bytes(5)
        else:
            data[at : at + 4] = [b"null", b"-1.5", b"[[[[", b"1e99"][int(rng.integers(4))]
        for file in files:
            (copy / file).write_bytes(data if file == name else files[file])
        if name == "metadata.json" and turn % 2:  # whoever changed it removed the digest, too
            text = re.sub(rb'"digest": "[0-9a-f]{64}"', b'"digest": "' + b"0" * 64 + b'"', bytes(data))
            (copy / name).write_bytes(text)
        try:
            np.testing.assert_array_equal(load(copy)(X), 2 * X + C)
        except InputError as error:
            refused.append(str(error))
    assert len(refused) > 250
    assert [text for text in refused if "\n" in text] == []


def test_what_is_no_native_model_is_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ArtifactError, match="no such folder"):
        load(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ArtifactError, match="no stormdrop model"):
        load(tmp_path / "file")
    shutil.copytree(folder, tmp_path / "m")
    document = json.loads((tmp_path / "m" / "metadata.json").read_text())
    del document["checksums"]["model.so"]
    document["digest"] = "0" * 64
    (tmp_path / "m" / "metadata.json").write_text(json.dumps(document))
    with pytest.raises(ArtifactError, match="is no native model"):
        load(tmp_path / "m")


@pytest.mark.parametrize("seed", range(3))
def test_metadata_that_do_not_agree_with_the_library_are_refused(folder: Path, tmp_path: Path, seed: int) -> None:
    shutil.copytree(folder, tmp_path / "m")
    document = json.loads((tmp_path / "m" / "metadata.json").read_text())
    document["digest"] = "0" * 64
    changed = [("shape", [1, 17]), ("dtype", "float64"), ("name", "z")][seed]
    document["inputs"][0][changed[0]] = changed[1]
    (tmp_path / "m" / "metadata.json").write_text(json.dumps(document))
    with pytest.raises(ArtifactError, match="its library is that of another model"):
        load(tmp_path / "m")


def test_a_library_without_the_interface_is_refused_and_spoils_nothing(folder: Path, tmp_path: Path) -> None:
    """The system's loader keeps it, by its descriptor, which no other library may get."""
    source = tmp_path / "other.c"
    source.write_text("unsigned stormdrop_interface(void) { return 1; }\n")
    shutil.copytree(folder, tmp_path / "m")
    subprocess.run(
        [str(native_models.compiler()), "-shared", "-fPIC", "-o", tmp_path / "m" / "model.so", source], check=True
    )
    document = json.loads((tmp_path / "m" / "metadata.json").read_text())
    document["digest"] = "0" * 64
    document["checksums"]["model.so"] = hashlib.sha256((tmp_path / "m" / "model.so").read_bytes()).hexdigest()
    (tmp_path / "m" / "metadata.json").write_text(json.dumps(document))
    with pytest.raises(ArtifactError, match="its library is not one of stormdrop"):
        load(tmp_path / "m")
    x = np.ones((1, 16), np.float32)
    np.testing.assert_array_equal(load(folder)(x), 2 * x + C)


def test_eight_threads_call_two_models(folder: Path, sized: CompiledModel) -> None:
    model, wrong = load(folder), []

    def call(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for turn in range(500):
            x = rng.random((turn % 4 + 1, 16), np.float32)
            if not np.array_equal(sized(x), 2 * x) or not np.array_equal(model(x[:1]), 2 * x[:1] + C):
                wrong.append(seed)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []


def test_all_models_share_the_threads(folder: Path, sized: CompiledModel) -> None:
    load(folder)(X)
    sized(X)
    before = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    models = [load(folder) for _ in range(10)]
    for model in models:
        model(X)
    assert len(os.listdir("/proc/self/task")) <= before  # noqa: PTH208


def _in_child(model: CompiledModel, folder: Path, queue: Any) -> None:
    try:
        model(X)
        queue.put("it runs")
    except ArtifactError as error:
        queue.put(str(error))
    queue.put(load(folder)(X).tolist())


def test_after_a_fork_a_model_is_loaded_again(folder: Path) -> None:
    model = load(folder)
    model(X)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(model, folder, queue))
    child.start()
    assert queue.get(timeout=60) == "by hand: was opened before this process was forked: open it after the fork"
    assert queue.get(timeout=60) == (2 * X + C).tolist()
    child.join()
    np.testing.assert_array_equal(model(X), 2 * X + C)


def test_loading_again_and_again_keeps_memory_and_files(folder: Path) -> None:
    for _ in range(50):
        load(folder)(X)
    before, files = _resident(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(500):
        load(folder)(X)
    assert _resident() - before < 1000
    assert len(os.listdir("/proc/self/fd")) == files  # noqa: PTH208


def _resident() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
