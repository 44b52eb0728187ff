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
from typing import Any

import pytest

from stand_ins.cuda_driver import LIBRARY, CudaDriver
from stand_ins.cuda_on_host import library_of
from stormdrop.codegen import device_code
from stormdrop.model import untuned
from stormdrop.model.kept_models import KeptModels

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

    monkeypatch.setattr(device_code, "compile_cubin", compiled)
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


def graph_of(function: Callable[..., Any], *inputs: Any) -> Any:
    """What the backend makes of the graph that Dynamo makes of a function."""
    made: list[Any] = []

    def backend(graph: Any, examples: Any) -> Any:
        made.append(torch_compile.stormdrop(graph, examples))
        return graph.forward

    torch.compile(function, backend=backend)(*inputs)
    return made[0]


def fake(device: str = "cuda:0") -> Any:
    return torch.empty_strided((2, 8), (8, 1), device=device)


def module_and_graph(device: str = "cuda:0") -> tuple[Any, Any]:
    """A module on the CPU, and the graph of it on a device, which takes x and the two weights in their order."""
    module = torch.nn.Linear(8, 4).eval()
    with FakeTensorMode(allow_non_fake_inputs=True):
        there = torch.nn.Linear(8, 4, device=device).eval()
        graph = graph_of(lambda x: torch.relu(there(x)) + torch.ones(4, device=x.device), fake(device))
    return lambda x: torch.relu(module(x)) + 1.0, in_order(graph, module.weight.detach(), module.bias.detach())


def in_order(graph: Any, *weights: Any) -> Any:
    """A function of x and of the weights as the graph has them."""
    names = [node.name for node in graph._graph.graph.nodes if node.op == "placeholder"]
    return names, graph, weights


def call(graph: Any, gpu: TorchGpu, x: Any) -> Any:
    names, function, (weight, bias) = graph
    given = {"weight": weight, "bias": bias}
    return function(*(given[kind] if (kind := next((k for k in given if k in name), "")) else x for name in names))


def test_a_graph_runs_on_its_gpu_without_a_wait_or_a_copy_to_the_host(
    gpus: list[TorchGpu], imported: list[Any]
) -> None:
    right, (names, graph, weights) = module_and_graph()
    there = names, graph, tuple(map(gpus[0].tensor, weights))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        call(there, gpus[0], gpus[0].tensor(torch.zeros(2, 8)))
        for x in (torch.randn(2, 8), torch.randn(8, 2).t()):
            given = gpus[0].tensor(x)
            gpus[0].driver.calls.clear()
            (y,) = call(there, gpus[0], given)
            assert {name for name, *_ in gpus[0].driver.calls} == {"after", "copy", "graph"}
            torch.testing.assert_close(y.cpu(), right(x), atol=1e-5, rtol=1e-5)
    assert [machine.target_name for machine in imported] == ["cuda/a100"]
