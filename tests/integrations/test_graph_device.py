"""The device of a graph of torch, and the graph as one for the CPU."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="graphs are those of torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from stormdrop.integrations.graph_device import on_cpu  # noqa: E402


def places(x: Any) -> Any:
    """Names a GPU in each way that Dynamo leaves as it is."""
    y = x + torch.arange(8, device=x.device) + torch.ones(8, device="cuda") + torch.full((8,), 2.0).cuda(0)
    y = y + torch.ones(8, device=0) + torch.ones(8).to(0)
    return torch.where(y > 0, y + torch.ones(8).to("cuda:0"), torch.tensor(-1.0))


def test_a_graph_computes_on_the_cpu_what_it_computes_on_a_gpu() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    with FakeTensorMode(allow_non_fake_inputs=True):
        torch.compile(places, backend=backend)(torch.empty(2, 8, device="cuda"))
    (graph,), x = graphs, torch.linspace(-8, 8, 16).reshape(2, 8)
    y = x + torch.arange(8) + 5.0
    torch.testing.assert_close(on_cpu(graph)(x)[0], torch.where(y > 0, y + 1.0, -1.0))
    assert "cuda" in graph.code, "the graph itself stays as it is"


def test_graphs_inside_of_a_graph_come_along() -> None:
    part = torch.fx.Graph()
    ones = part.call_function(torch.ones, (3,), {"device": "cuda"})
    part.output(part.call_function(torch.add, (part.placeholder("x"), ones)))
    whole = torch.nn.Module()
    whole.part = torch.fx.GraphModule({}, part)
    graph = torch.fx.Graph()
    graph.output((graph.call_module("part", (graph.placeholder("x"),)),))
    assert on_cpu(torch.fx.GraphModule(whole, graph))(torch.zeros(3))[0].tolist() == [1.0, 1.0, 1.0]
