"""A model with large weights is imported and compiled without a copy of them wherever they pass."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper

from stormdrop.errors import ModelError
from stormdrop.model.graph.constants import without_constants
from stormdrop.model.graph.onnx_origin import OnnxOrigin
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.importer.isolated import import_graph
from stormdrop.model.importer.whole_part import run_by_onnxruntime
from stormdrop.model.onnx import sizes, weights
from stormdrop.model.onnx.rewrites.narrow import decode_narrow
from stormdrop.model.onnx.source import read_source
from stormdrop.model.program.memory import release_pages
from stormdrop.model.tensors import array_of


def layers(folder: Path, width: int, count: int) -> Path:
    """Writes a model of layer norms and products, whose weights stand in another file, and returns its path."""
    rng, tensors, nodes, value = np.random.default_rng(0), list[TensorProto](), list[onnx.NodeProto](), "x"
    folder.mkdir(exist_ok=True)
    with (folder / "m.bin").open("wb") as data:
        for layer in range(count):
            for name, shape in ((f"scale{layer}", (width,)), (f"w{layer}", (width, width))):
                array = rng.standard_normal(shape, np.float32) / np.float32(width**0.5)
                tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
                tensor.data_location = TensorProto.EXTERNAL
                for key, entry in (("location", "m.bin"), ("offset", data.tell()), ("length", array.nbytes)):
                    tensor.external_data.add(key=key, value=str(entry))
                data.write(array.data)
                tensors.append(tensor)
            nodes.append(helper.make_node("LayerNormalization", [value, f"scale{layer}"], [f"n{layer}"]))
            nodes.append(helper.make_node("MatMul", [f"n{layer}", f"w{layer}"], [f"y{layer}"]))
            value = f"y{layer}"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (8, width)) for name in ("x", value)]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


def held(process: psutil.Process) -> int:
    """Bytes that a process and its children hold: without pages of files, but with files in memory."""
    total, files = 0, dict[int, int]()
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(OSError, psutil.Error):
            text = Path(f"/proc/{each.pid}/smaps_rollup").read_text()
            found = dict(re.findall(r"^(Pss\w*):\s+(\d+) kB", text, re.MULTILINE))
            total += 1024 * (int(found["Pss"]) - int(found["Pss_File"]))
            for entry in Path(f"/proc/{each.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(entry.readlink()).startswith("/memfd:"):
                        files[entry.stat().st_ino] = 512 * entry.stat().st_blocks
    return total + sum(files.values())


@contextlib.contextmanager
def highest(process: psutil.Process) -> Iterator[list[int]]:
    """The most bytes that a process holds meanwhile, beyond what it holds at the beginning: the only element."""
    before, peak, done = held(process), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], held(process) - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


COMPILE = """
import sys, stormdrop
for model in sys.argv[1:]:
    print("begin", flush=True)
    sys.stdin.readline()
    stormdrop.compile_model(model, fresh=True, out=model + ".sd")
    print("end", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.compiles
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_compilation_holds_few_copies_of_the_weights(tmp_path: Path) -> None:
    small, large = layers(tmp_path / "small", 256, 2), layers(tmp_path / "large", 2048, 4)
    size = (large.parent / "m.bin").stat().st_size
    models = (small, small, large)
    command = [sys.executable, "-c", COMPILE, *map(str, models)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        peaks = []
        for _ in models:
            assert process.stdout.readline() == "begin\n"
            with highest(psutil.Process(process.pid)) as peak:
                print(file=process.stdin, flush=True)
                assert process.stdout.readline() == "end\n"
            peaks.append(peak[0])
            print(file=process.stdin, flush=True)
    # The first one loads the libraries, and the second one shows what a compilation takes that has next to no weights.
    # Of the weights there are those that the kernels want, until they stand in the file that is mapped.
    assert peaks[2] - peaks[1] < 2 * size, [peak / size for peak in peaks]


def test_data_in_files_stays_there(tmp_path: Path) -> None:
    path = layers(tmp_path, 256, 2)
    read = read_source(path).model
    assert read.ByteSize() < 10_000
    (tensor,) = (tensor for tensor in read.graph.initializer if tensor.name == "w0")
    value = weights.array_of(tensor)
    expected = np.fromfile(path.with_name("m.bin"), np.float32)[256 : 256 + value.size].reshape(256, 256)
    np.testing.assert_array_equal(value, expected)
    value[0, 0] = 7  # a kernel that wrote to its weights would harm this process only
    assert weights.array_of(tensor)[0, 0] == expected[0, 0]


def test_the_parent_maps_what_the_child_has_written(tmp_path: Path) -> None:
    path = layers(tmp_path, 256, 2)
    graph = import_graph(path)
    assert isinstance(graph.source, OnnxOrigin) and graph.source.weights is not None
    assert set(graph.source.weights) == {"w0", "w1"}
    _, ours = without_constants(graph.mod)
    _, expected = without_constants(load_graph(path).mod)
    for value, right in zip(ours.values(), expected.values(), strict=True):
        np.testing.assert_array_equal(array_of(value), array_of(right))
    maps = Path("/proc/self/maps").read_text()
    assert "constants.bin (deleted)" in maps
    value = next(array_of(value) for value in ours.values() if value.shape == (256, 256))
    release_pages()
    np.testing.assert_array_equal(value, array_of(next(v for v in expected.values() if v.shape == (256, 256))))


def test_a_model_that_holds_its_weights_puts_them_into_files(tmp_path: Path) -> None:
    whole = onnx.load(layers(tmp_path, 256, 2))
    moved = weights.move_out(whole, tmp_path / "moved.bin")
    assert moved.ByteSize() < 10_000 and whole.ByteSize() > 500_000
    for back, tensor in zip(weights.moved_in(moved).graph.initializer, whole.graph.initializer, strict=True):
        assert (back.name, back.raw_data) == (tensor.name, tensor.raw_data)
    ours = import_graph(whole)
    assert isinstance(ours.source, OnnxOrigin)
    feeds = {"x": np.ones((8, 256), np.float32)}
    (run,), _ = ours.source.outputs([feeds], ["y1"])
    (right,), _ = OnnxOrigin(whole).outputs([feeds], ["y1"])
    np.testing.assert_array_equal(run["y1"], right["y1"])


def test_weights_that_the_import_has_made_stand_in_files(tmp_path: Path) -> None:
    values, indices = np.ones(2, np.float32), np.array([3, 70_000])
    parts = [numpy_helper.from_array(values, "s"), numpy_helper.from_array(indices, "at")]
    nodes = [helper.make_node("Add", ["x", "v"], ["z"]), helper.make_node("Mul", ["z", "s"], ["y"])]
    x, v, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (512, 256)) for name in "xvy")
    graph = helper.make_graph(nodes, "made", [x, v], [y])
    graph.sparse_initializer.append(helper.make_sparse_tensor(*parts, [512, 256]))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    fixed = np.arange(512 * 256, dtype=np.float32).reshape(512, 256)
    source = import_graph(model, values={"v": fixed}).source
    assert isinstance(source, OnnxOrigin) and source.weights is not None
    np.testing.assert_array_equal(source.weights["v"], fixed)
    np.testing.assert_array_equal(np.flatnonzero(source.weights["s"]), indices)
    (run,), _ = source.outputs([{"x": np.zeros_like(fixed)}], ["y"])
    np.testing.assert_array_equal(run["y"], fixed * source.weights["s"])


def test_narrow_weights_are_decoded_with_scales_in_a_file(tmp_path: Path) -> None:
    codes = helper.make_tensor("w", TensorProto.INT4, (128, 512), np.arange(128 * 512) % 16 - 8)
    scales = numpy_helper.from_array(np.linspace(0.1, 1, 64 * 512, dtype=np.float32).reshape(64, 512), "scales")
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scales"], ["d"], axis=0, block_size=2),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, size)) for name, size in (("x", 128), ("y", 512))
    ]
    graph = helper.make_graph(nodes, "narrow", ends[:1], ends[1:], [codes, scales])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    moved = weights.move_out(model, tmp_path / "moved.bin")
    assert any(map(weights.in_file, moved.graph.initializer))
    (ours,), (right,) = (decode_narrow(each).graph.initializer for each in (moved, model))
    assert ours == right


def test_onnxruntime_gets_the_weights_of_a_whole_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, feeds = import_graph(layers(tmp_path, 256, 2)), {"x": np.ones((8, 256), np.float32)}
    whole = run_by_onnxruntime(graph, "it is faster")
    assert whole is not None and isinstance(graph.source, OnnxOrigin)
    (run,), _ = OnnxOrigin(onnx.load_from_string(whole.foreign.models[0])).outputs([feeds], ["y1"])
    (right,), _ = graph.source.outputs([feeds], ["y1"])
    np.testing.assert_array_equal(run["y1"], right["y1"])
    monkeypatch.setattr(onnx.checker, "MAXIMUM_PROTOBUF", 500_000)
    assert run_by_onnxruntime(graph, "it is faster") is None, "one message does not hold the weights"


def test_what_does_not_fit_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = layers(tmp_path, 256, 2)
    size = path.with_name("m.bin").stat().st_size
    monkeypatch.setattr(sizes, "_memory", lambda: 2 * size)
    with pytest.raises(ModelError, match=r"m\.onnx: its weights are 0.0 GB; .* 3 times") as raised:
        read_source(path)
    assert "\n" not in str(raised.value)
    monkeypatch.setattr(sizes, "_memory", lambda: 3 * size + 10_000)  # the weights are a third of the memory
    assert read_source(path).model.graph.node


def test_a_file_that_changes_under_way_is_one_line(tmp_path: Path) -> None:
    path = layers(tmp_path, 256, 2)
    data, feeds = path.with_name("m.bin"), {"x": np.ones((8, 256), np.float32)}
    source = import_graph(path).source
    assert isinstance(source, OnnxOrigin)
    (before,), _ = source.outputs([feeds], ["y1"])
    whole = data.read_bytes()
    data.write_bytes(whole[:-4])
    with pytest.raises(ModelError, match=r"m\.bin: was changed after"):
        source.outputs([feeds], ["y1"])
    data.write_bytes(whole)
    source = import_graph(path).source
    assert isinstance(source, OnnxOrigin)
    data.unlink()  # as who replaces it does
    data.write_bytes(b"another model")
    (after,), _ = source.outputs([feeds], ["y1"])
    np.testing.assert_array_equal(after["y1"], before["y1"])


def test_data_that_ends_early_is_refused(tmp_path: Path) -> None:
    path = layers(tmp_path, 256, 2)
    data = path.with_name("m.bin")
    data.write_bytes(data.read_bytes()[:-4])
    with pytest.raises(ModelError, match=r"'w1' takes 262144 bytes, which m\.bin does not have"):
        read_source(path)
