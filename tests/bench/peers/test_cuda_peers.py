"""Peers of models on NVIDIA GPUs, with stand-ins for `torch.cuda`, onnxruntime's sessions and CUDA's runtime."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from stormdrop import operators
from stormdrop.bench import plan
from stormdrop.bench.contender import ContenderSpec, Unavailable
from stormdrop.bench.contender_process import environment_of
from stormdrop.bench.peers import model_peers, onnxruntime_cuda, torch_cuda

X = np.arange(6, dtype="float32").reshape(2, 3)


@pytest.fixture
def model() -> bytes:
    """y = x + x."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()


def test_peers_on_gpus_are_others() -> None:
    on_gpus = model_peers("cuda")
    assert plan.select_peers(None, on_gpus) == (["torch", "torch-compiled", "onnxruntime", "tensorrt"], {})
    assert plan.select_peers(["torch"], on_gpus) == (["torch", "torch-compiled"], {})
    assert plan.select_peers(["openvino", "jax", "tensorflow"], on_gpus)[1] == {
        "openvino": "does not run ONNX models on NVIDIA GPUs",
        "jax": "does not run ONNX models",
        "tensorflow": "does not run ONNX models",
    }
    assert plan.select_peers(["tensorrt"], model_peers())[1] == {"tensorrt": "does not run ONNX models on CPUs"}
    assert model_peers("opencl") == {}


class Log(list[str]):
    """What was called, in order; it makes functions that write into it."""

    def writes(self, text: str, result: Any = None) -> Callable[..., Any]:
        def write(*_: object, **__: object) -> Any:
            self.append(text)
            return result

        return write

    @contextmanager
    def around(self, text: str) -> Iterator[None]:
        self.append(f"{text} begins")
        yield
        self.append(f"{text} ends")


@pytest.fixture
def torch_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """torch whose GPU is the CPU."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnx2torch")
    log = Log()
    stream = SimpleNamespace(wait_stream=log.writes("wait"))
    event = SimpleNamespace(
        record=log.writes("record"), synchronize=log.writes("synchronize"), elapsed_time=lambda _: 6.0
    )
    stand_in = {
        "is_available": lambda: True,
        "get_device_name": lambda: "a GPU",
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda _: log.around("side stream"),
        "CUDAGraph": lambda: SimpleNamespace(replay=log.writes("replay")),
        "graph": lambda _: log.around("capture"),
        "Event": lambda **_: event,
    }
    for name, value in stand_in.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self.clone())
    monkeypatch.setattr(torch, "set_default_device", lambda _: None)
    monkeypatch.setattr(torch.nn.Module, "cuda", lambda self: self)
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    matmul.allow_tf32 = cudnn.allow_tf32 = True
    yield log
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


def test_torch_is_captured_after_a_warm_up_and_timed_by_events(model: bytes, torch_log: Log) -> None:
    import torch

    contender = torch_cuda.CapturedModel(model, {"x": X}, 1)
    assert torch_log[:7] == [
        *("wait", "side stream begins", "side stream ends", "wait"),
        *("capture begins", "capture ends", "replay"),
    ]
    assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.benchmark
    torch_log.clear()
    assert contender.seconds(3) == pytest.approx(2e-3)
    assert torch_log == ["replay", "record", *["replay"] * 3, "record", "synchronize"]
    (output,) = contender.outputs()
    np.testing.assert_array_equal(output, 2 * X)


def test_torch_in_float16(model: bytes, torch_log: Log) -> None:
    contender = torch_cuda.CapturedModel(model, {"x": X + 1e-4}, 1, "fp16")
    assert contender.settings["precision"] == "fp16"
    np.testing.assert_array_equal(contender.outputs()[0], 2 * (X + 1e-4).astype("float16"))


def test_an_operator_of_torch_is_timed_by_events(torch_log: Log) -> None:
    workload = operators.conv2d(n=1, h=5, w=4, ci=3, co=2, kh=3, kw=3, pad=1)
    inputs = workload.random_inputs(0)
    contender = torch_cuda.CapturedOperator("conv2d", workload.arguments, inputs, 1)
    assert torch_log[-2:] == ["capture begins", "capture ends"] and contender.settings["cuda_graph"]
    (output,), (right,) = contender.outputs(), workload.reference(inputs)
    np.testing.assert_allclose(output, right, atol=1e-5)
    torch_log.clear()
    assert contender.seconds(3) == pytest.approx(2e-3)
    assert torch_log == ["replay", "record", *["replay"] * 3, "record", "synchronize"]


def test_torch_in_tf32(model: bytes, torch_log: Log) -> None:
    import torch

    contender = torch_cuda.CapturedModel(model, {"x": X + 1e-4}, 1, "tf32")
    assert torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32
    assert contender.settings["tf32"] is True
    np.testing.assert_array_equal(contender.outputs()[0], 2 * (X + 1e-4))


def test_torch_without_a_gpu_takes_no_part(model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Unavailable, match="torch finds no GPU"):
        torch_cuda.CapturedInductorModel(model, {"x": X}, 1)


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], Log]:
    """onnxruntime whose GPU is the CPU. Returns the providers of each session, and what CUDA was asked for."""
    onnxruntime = pytest.importorskip("onnxruntime")
    opened: list[Any] = []
    log = Log()
    session, value = onnxruntime.InferenceSession, onnxruntime.OrtValue.ortvalue_from_numpy

    class OnCpu:
        def __init__(self, model: bytes, options: Any, providers: list[Any]) -> None:
            opened.append(providers)
            self._session = session(model, options, providers=["CPUExecutionProvider"])
            self._names = [each if isinstance(each, str) else each[0] for each in providers]

        def get_providers(self) -> list[str]:
            return self._names

        def run_with_iobinding(self, binding: Any, options: Any) -> None:
            log.append("run")
            self._session.run_with_iobinding(binding, options)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._session, name)

    names = [onnxruntime_cuda.CudaModel.provider, onnxruntime_cuda.TensorrtModel.provider]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    monkeypatch.setattr(onnxruntime, "InferenceSession", OnCpu)
    monkeypatch.setattr(onnxruntime, "OrtValue", SimpleNamespace(ortvalue_from_numpy=lambda array, *_: value(array)))
    runtime: Any = ModuleType("cuda.bindings.runtime")
    runtime.cudaStreamCreate = lambda: (0, 77)
    runtime.cudaEventCreate = lambda: (0, object())
    runtime.cudaEventRecord = log.writes("record", (0,))
    runtime.cudaEventSynchronize = log.writes("synchronize", (0,))
    runtime.cudaEventElapsedTime = lambda *_: (0, 6.0)
    runtime.cudaEventDestroy = lambda _: (0,)
    bindings: Any = ModuleType("cuda.bindings")
    bindings.runtime = runtime
    for name, module in (("cuda", ModuleType("cuda")), ("cuda.bindings", bindings), (runtime.__name__, runtime)):
        monkeypatch.setitem(sys.modules, name, module)
    return opened, log


def test_onnxruntime_computes_on_bound_memory_in_a_stream_that_is_timed(
    model: bytes, sessions: tuple[list[Any], Log]
) -> None:
    opened, log = sessions
    contender = onnxruntime_cuda.CudaModel(model, {"x": X}, 1)
    with_graph = {"use_tf32": "0", "user_compute_stream": "77", "enable_cuda_graph": "1"}
    assert [providers[0][1] for providers in opened] == [{"use_tf32": "0"}, with_graph]
    assert contender.settings["cuda_graph"] is True
    log.clear()
    assert contender.seconds(3) == pytest.approx(2e-3)
    assert log == ["run", "record", *["run"] * 3, "record", "synchronize"]
    np.testing.assert_array_equal(contender.outputs()[0], 2 * X)


def test_tensorrt_in_16_bits(model: bytes, sessions: tuple[list[Any], Log]) -> None:
    opened, _ = sessions
    onnxruntime_cuda.TensorrtModel(model, {"x": X}, 1, "fp16")
    onnxruntime_cuda.TensorrtModel(model, {"x": X}, 1, "bf16")
    assert [opened[0][0][1], opened[2][0][1]] == [{"trt_fp16_enable": "1"}, {"trt_bf16_enable": "1"}]


@pytest.mark.parametrize(
    ("precision", "overridden"), [({}, True), ({"precision": "fp16"}, True), ({"precision": "tf32"}, False)]
)
def test_libraries_take_tf32_only_if_asked(precision: dict[str, str], overridden: bool) -> None:
    environment = environment_of(ContenderSpec("tensorrt", "a:b", precision), threads=2)
    assert environment.get("NVIDIA_TF32_OVERRIDE") == ("0" if overridden else None)


def test_a_model_that_cannot_be_captured_is_launched(
    model: bytes, sessions: tuple[list[Any], Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, _ = sessions
    bind = onnxruntime_cuda.CudaModel._bind

    def cannot(self: Any, *arguments: Any) -> None:
        if "trt_cuda_graph_enable" in opened[-1][0][1]:
            raise RuntimeError("the CPU computes a part")
        bind(self, *arguments)

    monkeypatch.setattr(onnxruntime_cuda.CudaModel, "_bind", cannot)
    contender = onnxruntime_cuda.TensorrtModel(model, {"x": X}, 1)
    assert contender.settings["cuda_graph"] == "no: RuntimeError: the CPU computes a part"
    fallbacks = [providers[1] for providers in opened]
    assert fallbacks[0] == ("CUDAExecutionProvider", {"use_tf32": "0"})
    assert (
        [fallback[1]["user_compute_stream"] for fallback in fallbacks[1:]]
        == [  # what is timed is all in one stream
            providers[0][1]["user_compute_stream"] for providers in opened[1:]
        ]
    )
    assert contender.seconds(1) > 0


def test_onnxruntime_for_cpus_takes_no_part(model: bytes) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime is one for GPUs")
    with pytest.raises(Unavailable, match="has no CUDAExecutionProvider: pip install onnxruntime-gpu"):
        onnxruntime_cuda.CudaModel(model, {"x": X}, 1)
