"""Models for an NVIDIA GPU that is not here: g++ compiles their CUDA source, a stand-in for the driver executes it."""

from __future__ import annotations

import gc
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import onnx
import pytest
from models_on_gpus import concatenated, drawn, expected, seeded, with_a_part, with_few_outputs
from tiny_models import attention_model, heads_model, make_model, residual_model

import stormdrop as sd
from stand_ins import onnxruntime_cuda
from stand_ins.cuda_driver import LIBRARY, CudaDriver
from stand_ins.cuda_on_host import library_of
from stormdrop.cli import run
from stormdrop.codegen import device_code
from stormdrop.errors import ArtifactError, DeviceError, InputError, ModelError, TargetError
from stormdrop.machine.gpu import for_architectures
from stormdrop.machine.nvml import visible_gpus
from stormdrop.model import untuned
from stormdrop.model.artifact import artifact
from stormdrop.runtime import model as runtime_model
from stormdrop.runtime.device.contract import Device
from stormdrop.runtime.device.cuda import CudaDevice
from stormdrop.runtime.device.opening import CUDA, open_device
from stormdrop.runtime.folder import DEVICE
from stormdrop.tuning.options import TuneOptions

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ on the PATH"),
]


class RecordingDriver(CudaDriver):
    """Also records for which architectures the code was that it has loaded."""

    def __init__(self) -> None:
        super().__init__(gpus=2)
        self.loaded: set[str] = set()

    def become(self, major: int, minor: int) -> None:
        """Makes its GPUs such of another compute capability, which have loaded nothing yet."""
        self._capability = major, minor
        self.loaded.clear()

    def cuModuleLoadData(self, code: bytes) -> Any:
        library, _, arch = code.rstrip(b"\0").rpartition(b" for ")
        self.loaded.add(arch.decode())
        return super().cuModuleLoadData(library)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RecordingDriver]:
    """A driver that executes on this machine's cores what g++ makes in the place of nvcc."""

    def compiled(source: str, arch: str) -> tuple[bytes, list[Any]]:
        return LIBRARY + f"{library_of(source, Path(mkdtemp(dir=tmp_path)))} for {arch}".encode(), []

    made = RecordingDriver()
    monkeypatch.setattr(device_code, "compile_for", compiled)
    monkeypatch.setattr(untuned, "check_nvcc", lambda machine: None)

    def opened(kind: str, name: str = "", number: int = 0) -> Device:
        return CudaDevice(number, made) if kind == CUDA else open_device(kind, name)

    for module in (artifact, runtime_model):
        monkeypatch.setattr(module, "open_device", opened)
    yield made
    gc.collect()
    assert made.leaks() == []


@pytest.mark.parametrize("make", [residual_model, attention_model, concatenated, with_a_part])
def test_it_computes_what_the_model_says(
    make: Callable[[], onnx.ModelProto], driver: CudaDriver, tmp_path: Path
) -> None:
    source = seeded(make())
    a100 = sd.parse_machine("cuda/a100")
    made = sd.compile_model(source, target=a100, fresh=True, out=tmp_path / "model.sd")
    assert "because there is no a100 here" in made.metadata.provenance["verified"]["against"]
    for load in (sd.load, runtime_model.load):
        model = load(tmp_path / "model.sd")
        for seed in (1, 2):  # what a call leaves in memory does not reach the next one
            feeds = drawn(model, seed)
            results = model.run(feeds)
            for info, right in zip(source.graph.output, expected(source, feeds), strict=True):
                np.testing.assert_allclose(results[info.name], right, rtol=2e-5, atol=1e-5)
        del model


def test_a_step_is_two_launches_if_its_reduction_is_split(driver: CudaDriver, tmp_path: Path) -> None:
    source, folder = seeded(with_few_outputs()), tmp_path / "model.sd"
    sd.compile_model(source, target=sd.parse_machine("cuda/a100"), fresh=True, out=folder)
    (kernel,) = json.loads((folder / DEVICE).read_text())["kernels"].values()
    (partial_sums,) = kernel["scratch"]
    assert len(kernel["launches"]) == 2 and partial_sums % (3 * 24 * 4) == 0 and partial_sums > 3 * 24 * 4
    model = runtime_model.load(folder)
    for seed in (1, 2):
        feeds = drawn(model, seed)
        np.testing.assert_allclose(model.run(feeds)["y"], expected(source, feeds)[0], rtol=1e-4, atol=1e-4)


def test_layers_in_float16(driver: CudaDriver, tmp_path: Path) -> None:
    source, a100 = seeded(residual_model()), sd.parse_machine("cuda/a100")
    made = sd.compile_model(source, target=a100, fresh=True, precision="fp16", out=tmp_path / "half.sd")
    assert made.metadata.provenance["precision"] == "fp16"
    model = runtime_model.load(tmp_path / "half.sd")
    feeds = drawn(model)
    for ours, right in zip(model.run(feeds).values(), expected(source, feeds), strict=True):
        error = float(np.abs(ours - right).max() / np.abs(right).max())
        assert 1e-5 < error < 4e-3, "in float16, and no worse than that"


@pytest.mark.parametrize(("precision", "error"), [("fp16", 4e-3), ("bf16", 3e-2), ("tf32", 4e-3)])
def test_layers_on_tensor_cores(precision: str, error: float, driver: RecordingDriver, tmp_path: Path) -> None:
    """Verified elsewhere with plain loops, and run by the instructions of a warp."""
    rng, tensors, nodes = np.random.default_rng(0), [], []
    for layer in range(3):
        weight = rng.standard_normal((64, 64)).astype("f4") / 8
        tensors.append(onnx.numpy_helper.from_array(weight, f"w{layer}"))
        nodes.append(onnx.helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"product{layer}"]))
        nodes.append(onnx.helper.make_node("Relu", [f"product{layer}"], [f"x{layer + 1}"]))
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [32, 64]) for name in ("x0", "x3"))
    graph = onnx.helper.make_graph(nodes, "layers", [x], [y], tensors)
    source = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    a100 = sd.parse_machine("cuda/a100")
    sd.compile_model(source, target=a100, fresh=True, precision=precision, out=tmp_path / "low.sd")
    launches = json.loads((tmp_path / "low.sd" / "device.json").read_text())["kernels"].values()
    assert any(launch[-1] for kernel in launches for launch in kernel["launches"]), "one asks for shared memory"
    model = runtime_model.load(tmp_path / "low.sd")
    feeds = drawn(model)
    (right,), (ours,) = expected(source, feeds), model.run(feeds).values()
    assert 1e-5 < float(np.abs(ours - right).max() / np.abs(right).max()) < error


@pytest.mark.parametrize(("precision", "error"), [("fp16", 4e-3), ("bf16", 3e-2)])
def test_attention_on_tensor_cores(precision: str, error: float, driver: RecordingDriver, tmp_path: Path) -> None:
    source, a100 = heads_model(rows=128, head=16, projected=True), sd.parse_machine("cuda/a100")
    made = sd.compile_model(source, target=a100, fresh=True, precision=precision, out=tmp_path / "low.sd")
    assert "gpu_mma_attention" in {step["sketch"] for step in made.metadata.provenance["schedules"]}
    model = runtime_model.load(tmp_path / "low.sd")
    feeds = drawn(model)
    (right,), (ours,) = expected(source, feeds), model.run(feeds).values()
    assert 1e-5 < float(np.abs(ours - right).max() / np.abs(right).max()) < error


def test_bytes_less_zero_points_on_tensor_cores(driver: RecordingDriver, tmp_path: Path) -> None:
    """Weights are packed with their sums, so that it is one launch; a small product of data is left to lanes."""
    rng = np.random.default_rng(0)
    weight = onnx.numpy_helper.from_array(rng.integers(-128, 128, (2, 64, 96), "i1"), "w")
    scales = [onnx.numpy_helper.from_array(np.float32(value), name) for name, value in (("s", 0.01), ("t", 2.0))]
    points = [onnx.numpy_helper.from_array(np.array(z, "u1"), name) for name, z in (("p", 119), ("q", 3))]
    none = onnx.numpy_helper.from_array(np.array(0, "i1"), "none")
    nodes = [
        onnx.helper.make_node("QuantizeLinear", ["x", "s", "p"], ["a"]),
        onnx.helper.make_node("QLinearMatMul", ["a", "s", "p", "w", "t", "none", "t", "q"], ["b"]),
        onnx.helper.make_node("Transpose", ["b"], ["c"], perm=[0, 2, 1]),
        onnx.helper.make_node("QLinearMatMul", ["b", "t", "q", "c", "s", "q", "t", "p"], ["d"]),
        onnx.helper.make_node("DequantizeLinear", ["d", "t", "p"], ["y"]),
    ]
    tensors = [weight, *scales, *points, none]
    source = make_model(nodes, {}, {"x": (2, 32, 64)}, {"y": (2, 32, 32)}, extra=tensors)
    sd.compile_model(source, target=sd.parse_machine("cuda/a100"), fresh=True, out=tmp_path / "bytes.sd")
    kernels = json.loads((tmp_path / "bytes.sd" / DEVICE).read_text())["kernels"].values()
    with_shared = [kernel for kernel in kernels if any(launch[-1] for launch in kernel["launches"])]
    assert sorted(len(kernel["launches"]) for kernel in with_shared) == [1]
    model = runtime_model.load(tmp_path / "bytes.sd")
    for seed in (1, 2):
        feeds = drawn(model, seed)
        (right,), (ours,) = expected(source, feeds), model.run(feeds).values()
        np.testing.assert_allclose(ours, right, atol=1e-5)


def test_a_model_beyond_the_range_of_float16_is_refused(driver: CudaDriver) -> None:
    source = seeded(residual_model())
    for weight in source.graph.initializer:
        weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * np.float32(1e5), weight.name))
    with pytest.raises(ModelError, match="in float16 it exceeds the largest number, 65,504; take --precision bf16"):
        sd.compile_model(source, target=sd.parse_machine("cuda/a100"), fresh=True, precision="fp16")


@pytest.mark.parametrize("target", ["cuda/t4", "cpu/znver5"])
def test_tf32_is_for_tensor_cores_that_have_it(target: str) -> None:
    with pytest.raises(InputError, match=r"precision tf32 is for NVIDIA's GPUs since sm_80, not .*; take float32"):
        sd.compile_model(seeded(residual_model()), target=sd.parse_machine(target), fresh=True, precision="tf32")


def test_onnxruntime_runs_parts_on_the_gpu(driver: CudaDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = seeded(with_a_part())
    sd.compile_model(source, target=sd.parse_machine("cuda/a100"), fresh=True, out=tmp_path / "model.sd")
    settings = onnxruntime_cuda.install(monkeypatch, driver)
    for load in (sd.load, runtime_model.load):
        model = load(tmp_path / "model.sd")
        feeds = drawn(model)
        results = model.run(feeds)
        for info, right in zip(source.graph.output, expected(source, feeds), strict=True):
            np.testing.assert_allclose(results[info.name], right, rtol=2e-5, atol=1e-5)
        assert "stormdrop.onnxruntime.0: copy to the host" not in dict(model.profile(feeds))
        del model
    assert len(settings) == 2  # no session of the CPU was made for a load


def test_a_call_of_a_model_is_one_graph(driver: CudaDriver) -> None:
    model = sd.compile_model(seeded(residual_model()), target=sd.parse_machine("cuda/a100"), fresh=True)
    feeds = drawn(model)
    model.run(feeds)
    driver.calls.clear()
    model.run(feeds)
    assert [call[0] for call in driver.calls] == ["graph", "wait"]
    del model


def test_it_goes_to_another_gpu_and_leaves_the_default_one_alone(driver: RecordingDriver) -> None:
    model = sd.compile_model(seeded(residual_model()), target=sd.parse_machine("cuda/a100"), fresh=True)
    for number in (1, 0):  # the first one is not open yet
        there = model.on_gpu(number)
        assert driver.gpus_in_use == {number} and there is not model and there.on_gpu(number) is there
        feeds = drawn(model)
        result = there.run(feeds)
        with pytest.raises(DeviceError, match=r"^there is no GPU 9: this process has 2"):
            there.on_gpu(9)
        del there
        gc.collect()
    assert model.run(feeds).keys() == result.keys() and model.on_gpu(0) is model
    del model


def test_an_observed_model_has_arrays_of_this_machine(driver: CudaDriver) -> None:
    model = sd.compile_model(seeded(residual_model()), target=sd.parse_machine("cuda/a100"), fresh=True)
    assert model.times_itself
    seen: list[list[str]] = [[], []]
    first = model.observed(lambda step, *_: seen[0].append(step.symbol))
    first.observed(lambda step, *_: seen[1].append(step.symbol)).run(drawn(model))
    assert not seen[0] and seen[1]
    with pytest.raises(ArtifactError, match="does not time its steps, which an observer sees"):
        first.profile(drawn(model))
    with pytest.raises(InputError, match="runs on arrays of this machine, and takes none in the memory of a GPU"):
        first.run_on_device(drawn(model))
    del model, first


def test_it_knows_whether_its_schedules_are_for_the_gpu(driver: CudaDriver) -> None:
    target = "cuda/sm_86:multiprocessors=84:clock=1e9:bandwidth=1e9"  # as the stand-in
    model = sd.compile_model(seeded(residual_model()), target=sd.parse_machine(target), fresh=True)
    made_for = dict(model.metadata.target)
    assert model.other_gpu == ""
    model.metadata = replace(model.metadata, target={**made_for, "multiprocessors": 83})
    assert re.match("its schedules are for cuda/sm_86.*, and it runs on Stand-in, ", model.other_gpu)
    del made_for["multiprocessors"]
    model.metadata = replace(model.metadata, target=made_for)
    assert model.other_gpu == ""
    del model


def test_one_file_for_several_gpus(driver: RecordingDriver, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, folder, a100 = seeded(residual_model()), tmp_path / "model.sd", sd.parse_machine("cuda/a100")
    gpu, options = for_architectures(a100, "sm_86+ptx"), TuneOptions(fresh=True)
    made = untuned.compile_model_with(source, gpu, options, out=folder)
    assert made.to_json()["architectures"] == ["sm_80", "sm_86", "compute_86"]
    for end in ("sm_80.cubin", "sm_86.cubin", "compute_86.ptx"):
        assert (folder / f"kernels-0.{end}").exists()
    words = ["run", str(folder), "--output", str(tmp_path / "y.npz")]
    for capability, taken in {(8, 0): "sm_80", (8, 9): "sm_86", (9, 0): "compute_86"}.items():
        driver.become(*capability)
        capfd.readouterr()
        assert (run(words), driver.loaded) == (0, {taken})
        said = " ".join(capfd.readouterr().err.split())
        assert "model.sd: its schedules are for cuda/a100, and it runs on Stand-in, " in said
    driver.become(7, 5)
    assert (run(words), driver.loaded) == (2, set())
    said = capfd.readouterr().err
    assert "and the kernels were made for sm_80, sm_86, compute_86: compile the model for sm_75 (--arch)" in said


def test_without_a_gpu_it_is_compiled_and_not_run(tmp_path: Path) -> None:
    if shutil.which("nvcc") is None or visible_gpus():
        pytest.skip("there is no nvcc on the PATH, or a GPU")
    model = sd.compile_model(seeded(residual_model()), target=sd.parse_machine("cuda/a100"), out=tmp_path / "m.sd")
    saved = tmp_path / "m.sd"
    for act in (lambda: model.run(drawn(model)), lambda: sd.load(saved), lambda: sd.bench(saved, rounds=2)):
        with pytest.raises(DeviceError) as error:
            act()
        assert "\n" not in str(error.value)
    with pytest.raises(TargetError, match="stormdrop compile makes a model for it without measuring"):
        sd.tune_model(residual_model(), target=sd.parse_machine("cuda/a100"))
