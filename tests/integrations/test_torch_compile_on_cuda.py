"""`torch.compile(..., backend="stormdrop")` for an NVIDIA GPU that is not here.

Dynamo makes the graphs of tensors without elements on "cuda". They are called with tensors in the memory of a stand-in
for the driver, which executes what g++ makes of the CUDA source.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

import pytest

from stand_ins.cuda_driver import LIBRARY, CudaDriver
from stand_ins.cuda_on_host import library_of
from stormdrop.codegen import device_code
from stormdrop.errors import DeviceError
from stormdrop.machine import gpu as gpu_module
from stormdrop.model import untuned
from stormdrop.model.kept_models import KeptModels
from stormdrop.records import open_store
from stormdrop.runtime.device import cuda

torch = pytest.importorskip("torch", reason="the backend for torch.compile needs torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from stand_ins.torch_on_cuda import TorchGpu, torch_gpus  # noqa: E402
from stormdrop.integrations import torch_compile  # noqa: E402

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ on the PATH"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[TorchGpu]]:
    """Two GPUs of torch."""

    def compiled(source: str, _: Any) -> tuple[bytes, list[Any]]:
        return LIBRARY + str(library_of(source, Path(mkdtemp(dir=tmp_path)))).encode(), []

    monkeypatch.setattr(device_code, "compile_for", compiled)
    monkeypatch.setattr(untuned, "check_nvcc", lambda machine: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    torch.compiler.reset()
    with torch.no_grad(), torch_gpus(CudaDriver(capability=(8, 0), gpus=2), monkeypatch, 2) as made:
        yield made
        torch.compiler.reset()


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The machines that graphs are compiled for, one after the other."""
    machines: list[Any] = []
    true = untuned.compile_model_with

    def noting(model: Any, machine: Any, *arguments: Any, **named: Any) -> Any:
        machines.append(machine)
        return true(model, machine, *arguments, **named)

    monkeypatch.setattr(untuned, "compile_model_with", noting)
    return machines


class Graph:
    """What the backend makes of the graph of a function, to be called with tensors by name."""

    def __init__(self, function: Callable[..., Any], **inputs: Any) -> None:
        def backend(graph: Any, examples: Any) -> Any:
            self._compiled = torch_compile.stormdrop(graph, examples)
            self._names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
            return graph.forward

        torch.compile(function, backend=backend)(**inputs)

    def __call__(self, **tensors: Any) -> Any:
        return self._compiled(*(next(tensors[each] for each in tensors if f"_{each}_" in name) for name in self._names))


def without_elements(*shape: int, device: str) -> Any:
    return torch.empty(shape, device=device)


def linear_graph(device: str = "cuda:0") -> Graph:
    """relu(W x + b) + 1 of tensors on a device."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        layer = torch.nn.Linear(8, 4, device=device).eval()
        x = without_elements(2, 8, device=device)
        return Graph(lambda x: torch.relu(layer(x)) + torch.ones(4, device=device), x=x)


WEIGHTS = {"weight": torch.linspace(-1, 1, 32).reshape(4, 8), "bias": torch.linspace(-1, 1, 4)}


def right(x: Any) -> Any:
    return torch.relu(x @ WEIGHTS["weight"].t() + WEIGHTS["bias"]) + 1.0


def weights_on(gpu: TorchGpu) -> dict[str, Any]:
    return {name: gpu.tensor(value) for name, value in WEIGHTS.items()}


def same(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours.cpu(), theirs, atol=1e-5, rtol=1e-5)


@pytest.fixture
def _no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


@pytest.mark.usefixtures("_no_warning")
def test_a_call_waits_for_nothing_and_copies_nothing_to_the_host(gpus: list[TorchGpu], imported: list[Any]) -> None:
    gpu, graph = gpus[0], linear_graph()
    weights = weights_on(gpu)
    graph(x=gpu.tensor(torch.zeros(2, 8)), **weights)
    for x in (gpu.tensor(torch.randn(2, 8)), gpu.tensor(torch.randn(8, 2)).t()):
        gpu.driver.calls.clear()
        (y,) = graph(x=x, **weights)
        assert {name for name, *_ in gpu.driver.calls} == {"after", "copy", "graph"}
        assert {call[-1] for call in gpu.driver.calls if call[0] != "after"} == {f"s{gpu.stream}"}
        same(y, right(x.cpu()))
    assert [machine.target_name for machine in imported] == ["cuda/a100"]


@pytest.mark.usefixtures("_no_warning")
def test_what_it_writes_to_is_written_on_the_gpu(gpus: list[TorchGpu]) -> None:
    def write(cache: Any, row: Any) -> Any:
        cache[1] = row
        return cache.sum(0)

    with FakeTensorMode():
        tensors = {"cache": without_elements(3, 4, device="cuda"), "row": without_elements(4, device="cuda")}
        graph = Graph(write, **tensors)
    gpu, cache, row = gpus[0], torch.randn(3, 4), torch.randn(4)
    there = gpu.tensor(cache)
    graph(cache=there, row=gpu.tensor(row))
    gpu.driver.calls.clear()
    (y,) = graph(cache=there, row=gpu.tensor(row))
    assert {name for name, *_ in gpu.driver.calls} == {"after", "copy", "graph"}
    same(y, write(cache, row))
    same(there, cache)


@pytest.mark.usefixtures("_no_warning")
def test_it_runs_on_the_gpu_of_its_tensors(gpus: list[TorchGpu]) -> None:
    x, graph = torch.randn(2, 8), linear_graph("cuda:1")
    (y,) = graph(x=gpus[1].tensor(x), **weights_on(gpus[1]))
    assert y.device == torch.device("cuda:1")
    same(y, right(x))


@pytest.mark.usefixtures("_no_warning")
def test_it_is_kept_for_its_gpu(gpus: list[TorchGpu], imported: list[Any]) -> None:
    x = torch.randn(2, 8)
    for gpu in (gpus[0], gpus[0], gpus[1]):  # the two are of one kind
        same(linear_graph(str(gpu.device))(x=gpu.tensor(x), **weights_on(gpu))[0], right(x))
    assert [machine.target_name for machine in imported] == ["cuda/a100"]
    linear_graph("cpu")(x=x, **WEIGHTS)
    models = KeptModels.of_user()
    assert len(imported) == 2 and models is not None and len(models.listed()) == 2


def test_a_graph_of_which_onnxruntime_would_run_a_part_is_not_kept(
    gpus: list[TorchGpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = SimpleNamespace(foreign=[SimpleNamespace(operators={"NonZero": 1})])
    made = SimpleNamespace(name="graph", model=SimpleNamespace(metadata=metadata))
    monkeypatch.setattr(torch_compile, "_compiled", lambda *_: made)
    monkeypatch.setattr(KeptModels, "keep", lambda *_: pytest.fail("it is kept"))
    with FakeTensorMode():
        graph = Graph(lambda x: torch.relu(x), x=without_elements(2, 8, device="cuda"))
    with pytest.warns(RuntimeWarning, match=r"onnxruntime would run a part of it \(NonZero\)"):
        graph(x=gpus[0].tensor(torch.ones(2, 8)))


@pytest.mark.usefixtures("_no_warning")
def test_another_nvcc_makes_other_code(
    gpus: list[TorchGpu], imported: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("12.9", "13.0", "13.0"):
        monkeypatch.setattr(torch_compile, "nvcc_version", lambda said=version: said)
        linear_graph()(x=gpus[0].tensor(torch.zeros(2, 8)), **weights_on(gpus[0]))
    assert len(imported) == 2


@pytest.mark.usefixtures("_no_warning")
def test_a_gpu_that_tvm_cannot_use_is_no_reason_not_to_keep(
    gpus: list[TorchGpu], imported: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_module, "_runs_cuda", lambda: False)
    for _ in range(2):
        linear_graph()(x=gpus[0].tensor(torch.zeros(2, 8)), **weights_on(gpus[0]))
    assert len(imported) == 1


def test_what_is_kept_stays_if_there_is_no_memory_for_it(gpus: list[TorchGpu], monkeypatch: pytest.MonkeyPatch) -> None:
    linear_graph()(x=gpus[0].tensor(torch.zeros(2, 8)), **weights_on(gpus[0]))
    models = KeptModels.of_user()
    assert models is not None
    (kept,) = models.listed()
    with open_store(None) as store:
        with monkeypatch.context() as patch:
            patch.setattr(gpus[0].driver, "_limit", 0)
            assert models.load(kept.key, store) is None
        assert models.load(kept.key, store) is not None


@pytest.mark.usefixtures("_no_warning")
def test_one_value_may_be_on_the_cpu(gpus: list[TorchGpu]) -> None:
    with FakeTensorMode():
        tensors = {"x": without_elements(2, 8, device="cuda"), "scale": without_elements(device="cpu")}
        graph = Graph(lambda x, scale: x * scale, **tensors)
    x, scale = torch.randn(2, 8), torch.tensor(3.0)
    (y,) = graph(x=gpus[0].tensor(x), scale=scale)
    same(y, x * scale)


@pytest.mark.usefixtures("_no_warning")
def test_the_default_device_of_torch_does_not_matter(gpus: list[TorchGpu]) -> None:
    x, graph = torch.randn(2, 8), linear_graph()
    given, weights = gpus[0].tensor(x), weights_on(gpus[0])
    with torch.device("cuda:0"):
        (y,) = graph(x=given, **weights)
    same(y, right(x))


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (("cpu", "cuda:0"), "its tensors lie on cpu and cuda:0: one device has to hold all of them"),
        (("cuda:1", "cuda:0"), "its tensors lie on cuda:0 and cuda:1"),
        (("xpu:0", "xpu:0"), "its tensors lie on xpu:0, which is neither a CPU nor an NVIDIA GPU"),
    ],
)
def test_other_devices_run_eagerly_with_one_warning(devices: tuple[str, str], message: str) -> None:
    torch.compiler.reset()
    with torch.no_grad(), FakeTensorMode(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        x, y = (without_elements(2, 8, device=device) for device in devices)
        fast = torch.compile(lambda x, y: (x + 1.0, y + 1.0), backend=torch_compile.stormdrop)
        for _ in range(2):
            assert [str(one.device) for one in fast(x, y)] == list(devices)
    (said,) = [str(each.message) for each in caught if "stormdrop" in str(each.message)]
    assert message in said


@pytest.fixture
def eagerly(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Calls a compiled function with a tensor without elements: it has to run eagerly, and to say why."""

    def call(function: Callable[..., Any], x: Any, said: str) -> Any:
        fast = torch.compile(function, backend=torch_compile.stormdrop)
        with pytest.warns(RuntimeWarning, match=f"stormdrop: a graph runs eagerly: {said}"):
            return fast(x)

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    torch.compiler.reset()
    with torch.no_grad(), FakeTensorMode():
        yield call


def test_a_graph_that_returns_tensors_elsewhere_runs_eagerly(eagerly: Callable[..., Any]) -> None:
    x = without_elements(2, 8, device="cuda")
    eagerly(lambda x: (x + 1.0).cpu(), x, "its tensors lie on cpu and cuda:0")


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_autocast_runs_eagerly(eagerly: Callable[..., Any]) -> None:
    def function(x: Any) -> Any:
        with torch.autocast("cuda", torch.float16):
            return x @ x

    eagerly(function, without_elements(8, 8, device="cuda"), "autocast chooses its types")


def test_a_capture_is_not_disturbed(
    eagerly: Callable[..., Any], imported: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    eagerly(lambda x: x + 1.0, without_elements(2, 8, device="cuda"), "a CUDA graph is being captured")
    assert not imported


def test_what_a_gpu_lacks_is_said_before_anything_is_compiled(
    eagerly: Callable[..., Any], imported: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking() -> None:
        raise DeviceError("CUDA needs the package cuda-bindings")

    monkeypatch.setattr(cuda, "_bindings", lacking)
    x = without_elements(2, 8, device="cuda")
    assert eagerly(lambda x: x + 1.0, x, "CUDA needs the package cuda-bindings").device == x.device
    assert not imported
