"""Models that an OpenCL device executes: PoCL on this machine's cores will do."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from models_on_gpus import Array, concatenated, drawn, expected, seeded, with_a_part, with_few_outputs
from onnx import helper
from tiny_models import attention_model, make_model, residual_model

import stormdrop as sd
from stormdrop import runtime
from stormdrop.errors import ArtifactError, DeviceError, InputError
from stormdrop.machine.opencl import opencl_devices
from stormdrop.model.artifact.artifact_files import METADATA, WEIGHTS
from stormdrop.model.building import builder
from stormdrop.model.profile import part_times, profile
from stormdrop.runtime.device.code import OPENCL_SOURCE, DeviceCode, DeviceKernel, Image, Launch
from stormdrop.runtime.device.execution import DeviceExecution, DeviceProgram
from stormdrop.runtime.device.opencl import OpenClDevice
from stormdrop.runtime.folder import DEVICE
from stormdrop.runtime.program import Program, SizeProgram, Step, View
from stormdrop.runtime.sizes import TensorInfo
from stormdrop.sketches.gpu.contraction import GpuContraction

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(
        not opencl_devices(), reason="OpenCL finds no device here (it needs pyopencl and a driver such as PoCL)"
    ),
]


@pytest.fixture(scope="module")
def target() -> Any:
    return sd.parse_machine("opencl")


@pytest.fixture(scope="module")
def residual(target: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[onnx.ModelProto, Path]:
    source, folder = seeded(residual_model()), tmp_path_factory.mktemp("models") / "residual.sd"
    sd.compile_model(source, target=target, out=folder, fresh=True)
    return source, folder


def test_a_default_schedule_that_tvm_cannot_lower_gives_way_to_a_plain_one(
    target: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(builder, "_problem_of", lambda *_: "Cannot insert syncs inside condition")
    source = seeded(residual_model())
    model = sd.compile_model(source, target=target, fresh=True)
    assert model.metadata.fallbacks and {step["sketch"] for step in model.metadata.provenance["schedules"]} == set()
    assert "its default schedule cannot be lowered: Cannot insert syncs inside condition" in caplog.text
    feeds = drawn(model, 1)
    for info, right in zip(source.graph.output, expected(source, feeds), strict=True):
        np.testing.assert_allclose(model.run(feeds)[info.name], right, rtol=2e-5, atol=1e-5)


def test_layers_in_bfloat16_run_without_tvm(
    residual: tuple[onnx.ModelProto, Path], target: Any, tmp_path: Path
) -> None:
    source, whole = residual
    result = sd.compile_model(source, target=target, precision="bf16", out=tmp_path / "half.sd", fresh=True)
    model = runtime.load(tmp_path / "half.sd")
    assert result.metadata.provenance["precision"] == "bf16"
    weights = [(folder / WEIGHTS).stat().st_size for folder in (tmp_path / "half.sd", whole)]
    assert weights[0] < weights[1]
    feeds = drawn(result, 1)
    for info, right in zip(source.graph.output, expected(source, feeds), strict=True):
        error = np.abs(model.run(feeds)[info.name] - right).max() / np.abs(right).max()
        assert 1e-5 < error < 3e-2, "in bfloat16, and no worse than that"


@pytest.mark.parametrize("make", [residual_model, attention_model, concatenated, with_a_part, with_few_outputs])
def test_it_computes_what_the_model_says(make: Callable[[], onnx.ModelProto], target: Any) -> None:
    source = seeded(make())
    model = sd.compile_model(source, target=target, fresh=True)
    for seed in (1, 2):  # what a call leaves in memory does not reach the next one
        feeds = drawn(model, seed)
        results = model.run(feeds)
        for info, right in zip(source.graph.output, expected(source, feeds), strict=True):
            np.testing.assert_allclose(results[info.name], right, rtol=2e-5, atol=1e-5)


def test_weights_of_a_winograd_convolution_are_transformed_when_the_model_is_compiled(
    target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GpuContraction, "space", lambda *_: None)
    source = seeded(residual_model())
    model = sd.compile_model(source, target=target, fresh=True)
    sketches = [step["sketch"] for step in model.metadata.provenance["schedules"]]
    assert "gpu_winograd_4" in sketches
    feeds = drawn(model, 1)
    for info, right in zip(source.graph.output, expected(source, feeds), strict=True):
        np.testing.assert_allclose(model.run(feeds)[info.name], right, rtol=2e-5, atol=1e-5)


def test_inputs_of_a_concatenation_are_written_in_place(target: Any) -> None:
    model = sd.compile_model(seeded(concatenated()), target=target, fresh=True)
    names = [step.name for step in model.program.sizes[0].steps]
    assert [name for name in names if "_of32" in name] and not [name for name in names if "concatenate" in name]


def test_tuned_saved_and_run_in_a_process_without_tvm(target: Any, tmp_path: Path) -> None:
    source, folder = seeded(residual_model()), tmp_path / "tuned.sd"
    result = sd.tune_model(source, target=target, trials=6, search="random", fresh=True, out=folder)
    document = result.to_json()
    assert document["trials"] == 6 and document["latency"]["seconds"] > 0
    assert document["verified"]["max_error"] < 1e-4 and document["target"] == target.machine
    feeds = drawn(result.model)
    np.savez(tmp_path / "x.npz", **feeds)  # type: ignore[arg-type]
    script = (
        "import sys, numpy as np; from stormdrop import runtime\n"
        f"model = runtime.load({str(folder)!r})\n"
        f"y = model.run(dict(np.load({str(tmp_path / 'x.npz')!r})))\n"
        f"np.savez({str(tmp_path / 'y.npz')!r}, **y); print('tvm' in sys.modules, 'msgspec' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "False False"
    (right,) = expected(source, feeds)
    np.testing.assert_allclose(np.load(tmp_path / "y.npz")["y"], right, rtol=2e-5, atol=1e-5)


def test_several_threads_call_one_model(residual: tuple[onnx.ModelProto, Path]) -> None:
    source, folder = residual
    model = sd.load(folder)
    feeds = [drawn(model, seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda each: model.run(each)["y"], feeds))
    for each, result in zip(feeds, results, strict=True):
        np.testing.assert_allclose(result, expected(source, each)[0], rtol=2e-5, atol=1e-5)


def test_each_size_and_fewer_rows(target: Any) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    source = seeded(make_model(nodes, {"w": (6, 10)}, {"x": ("n", 6)}, {"y": ("n", 10)}))
    model = sd.compile_model(source, target=target, shapes={"x": ((2, 5), 6)}, fresh=True)
    for rows in (2, 5, 3):
        x = np.random.default_rng(rows).uniform(-1, 1, (rows, 6)).astype(np.float32)
        np.testing.assert_allclose(model(x), expected(source, {"x": x})[0], rtol=2e-5, atol=1e-5)
    with pytest.raises(InputError, match="has no size x=6x6"):
        model(np.zeros((6, 6), np.float32))


def test_steps_are_timed_by_the_device(residual: tuple[onnx.ModelProto, Path]) -> None:
    model = sd.load(residual[1])
    feeds = drawn(model)
    times = model.profile(feeds)
    assert [name for name, _ in times] == [step.symbol for step in model.program.sizes[0].steps]
    assert all(seconds > 0 for _, seconds in times) and model.seconds(feeds) > 0
    profiled = profile(model, feeds, rounds=3)
    assert {kernel.name for kernel in profiled.kernels} == {name for name, _ in times}
    assert any(kernel.layers for kernel in profiled.kernels)


def test_a_part_is_timed_with_the_copies_for_it(target: Any) -> None:
    model = sd.compile_model(seeded(with_a_part()), target=target, fresh=True)
    feeds = drawn(model)
    listed = {each["name"]: each for each in profile(model, feeds, rounds=3).to_json()["kernels"]}
    part = "stormdrop.onnxruntime.0"
    copies = [listed[f"{part}: copy to the {place}"] for place in ("host", "GPU")]
    assert [each["bytes"] for each in copies] == [4 * 8 * 4, 0]  # the places of what is not 0 stay on the host
    assert listed[part]["bytes"] is None and all(each["flops"] is None for each in copies)
    (timed,) = part_times(model, feeds)
    pieces = timed.to_json()["pieces"]
    assert [(each["name"], each["bytes"]) for each in pieces] == [
        ("copy to the host", 128),
        ("onnxruntime", 0),
        ("copy to the GPU", 0),
    ]
    assert timed.seconds == sum(each["seconds"] for each in pieces)
    assert "pieces" not in replace(timed, pieces=()).to_json()  # of a part that is not run by the CPU for a GPU


def test_an_observer_sees_what_kernels_read_and_write(residual: tuple[onnx.ModelProto, Path]) -> None:
    model = sd.load(residual[1])
    feeds, seen = drawn(model), []

    def look(step: Any, before: bool, arguments: Callable[[], list[Array]]) -> None:
        if not before:
            seen.append(arguments()[-1].copy())

    results = model.observed(look).run(feeds)
    np.testing.assert_array_equal(seen[-1].reshape(-1), results["y"].reshape(-1))
    np.testing.assert_array_equal(results["y"], model.run(feeds)["y"])


def damaged(folder: Path, name: str, text: str, copy: Path) -> Path:
    """A copy of a model whose file has another content, and a checksum that fits."""
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / name).write_text(text)
    metadata = json.loads((copy / METADATA).read_text())
    metadata["checksums"][name] = sd.model.artifact.artifact_files.checksum(copy / name)
    metadata["digest"] = "0" * 64
    (copy / METADATA).write_text(json.dumps(metadata))
    return copy


@pytest.mark.parametrize("load", [sd.load, runtime.load])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "device.json cannot be"),
        ('{"kernels": {}, "images": []}', "a kernel fused_.* of . parameters is not there"),
        ('{"kernels": {"k": {"launches": [["e", [0], [0, 1, 1], [1, 1, 1], 0]], "parameters": 1, "scratch": []}}, '
         '"images": []}', "no number of blocks or threads"),
        ('{"kernels": {"k": {"launches": [["e", [1], [1, 1, 1], [1, 1, 1], 0]], "parameters": 1, "scratch": []}}, '
         '"images": []}', "kernel k: e takes an argument that there is not"),
    ],
)  # fmt: skip
def test_what_is_damaged_is_refused_in_one_line(
    residual: tuple[onnx.ModelProto, Path], load: Any, text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ArtifactError, match=message) as error:
        load(damaged(residual[1], DEVICE, text, tmp_path / "bad.sd"))
    assert "\n" not in str(error.value)


def test_code_that_the_driver_refuses(residual: tuple[onnx.ModelProto, Path], tmp_path: Path) -> None:
    for load in (sd.load, runtime.load):
        folder = damaged(residual[1], "kernels-0.cl", "no OpenCL", tmp_path / load.__module__)
        with pytest.raises(DeviceError, match="its compiler refuses the kernels") as error:
            load(folder)
        assert "\n" not in str(error.value)


def test_what_launches_hand_on_lives_as_long_as_they_do(target: Any) -> None:
    source = """
    __kernel void first(__global float* x, __global float* t) { t[get_global_id(0)] = 2 * x[get_global_id(0)]; }
    __kernel void second(__global float* t, __global float* y) { y[get_global_id(0)] = t[get_global_id(0)] + 1; }"""
    launches = (Launch("first", (0, 2), (1, 1, 1), (4, 1, 1)), Launch("second", (2, 1), (1, 1, 1), (4, 1, 1)))
    info = TensorInfo("x", (4,), "float32"), TensorInfo("y", (4,), "float32")
    views = (View("input", 0, 0, (4,), "float32", 0), View("output", 0, 0, (4,), "float32", 1))
    size = SizeProgram(info[:1], info[1:], (), views, (Step("kernel", "k", (0,), (1,)),))
    code = DeviceCode({"k": DeviceKernel(launches, 2, (16,))}, [Image(OPENCL_SOURCE, "", source.encode())])
    execution = DeviceExecution(DeviceProgram(OpenClDevice(target.local_device()), Program((), (size,)), code, []), 0)
    kept = [argument.whole for prepared in execution._prepared[0] for argument in prepared[-1]]
    assert len(kept) == 4 and all(whole is not None for whole in kept)
    gc.collect()
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(execution.run([x])[0], 2 * x + 1)


def test_native_is_refused(target: Any, tmp_path: Path) -> None:
    with pytest.raises((ArtifactError, InputError), match="needs no TVM to run as it is: leave native out"):
        sd.tune_model(residual_model(), target=target, native=True, out=tmp_path / "m.sd")
