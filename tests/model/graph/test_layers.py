"""Each kernel of an imported model knows the nodes of the model that it computes."""

from __future__ import annotations

import pytest
from onnx import helper
from tiny_models import attention_model, make_model, residual_model

from stormdrop.machine.cpu import Cpu, parse_machine
from stormdrop.model.artifact.layers import layers_of, path_of
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer.any_model import import_model
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.importer.whole_part import run_by_onnxruntime
from stormdrop.model.passes.attention import with_attention
from stormdrop.model.precision.mixed import in_mixed_precision


def of_calls(graph: Graph) -> list[tuple[str, ...]]:
    return [graph.layers.names(position) for position in range(len(graph.layers.calls))]


def test_kernels_know_what_they_were_fused_of(residual: Graph) -> None:
    assert of_calls(residual) == [
        ("conv1", "norm1", "relu1"),
        ("conv2", "norm2", "sum", "relu2"),
        ("pool",),
        ("global",),
        ("gemm",),
    ]
    assert [task.layers for task in residual.tasks] == of_calls(residual)
    folded = {layer.name for layer in residual.layers.all} - {name for call in of_calls(residual) for name in call}
    assert folded == {"dropout", "flatten"}


def test_equal_kernels_of_different_layers_are_one_task() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"], "/first/MatMul"),
        helper.make_node("Relu", ["a"], ["b"], "/first/act/Relu"),
        helper.make_node("MatMul", ["b", "w"], ["c"], "/second/MatMul"),
        helper.make_node("Relu", ["c"], ["y"], "/second/act/Relu"),
    ]
    graph = load_graph(make_model(nodes, {"v": (8, 8), "w": (8, 8)}, {"x": (4, 8)}, {"y": (4, 8)}))
    assert of_calls(graph) == [("first.MatMul", "first.act"), ("second.MatMul", "second.act")]
    (task,) = graph.tasks
    assert task.layers == ("first.MatMul", "first.act", "second.MatMul", "second.act")


def test_layers_survive_the_way_out_of_the_child(residual: Graph) -> None:
    imported = import_model(residual_model())
    assert imported.layers == residual.layers
    assert [task.layers for task in imported.tasks] == [task.layers for task in residual.tasks]


def test_all_sizes_have_the_same_layers() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "dense")]
    model = make_model(nodes, {"w": (8, 8)}, {"x": ("n", 8)}, {"y": ("n", 8)})
    graph = import_model(model, {"x": ((1, 4), 8)})
    assert len(graph.sizes) == 2 and all(of_calls(size) == [("dense",)] for size in graph.sizes)
    assert all(task.layers == ("dense",) for task in graph.tasks)


def test_layers_survive_the_rewrites_of_kernels() -> None:
    graph = load_graph(attention_model())
    low = in_mixed_precision(graph).graph
    assert {name for call in of_calls(low) for name in call} == {name for call in of_calls(graph) for name in call}
    assert all(of_calls(low))


def test_an_attention_in_one_kernel_computes_the_layers_of_three() -> None:
    target = parse_machine("cpu/znver5")
    assert isinstance(target, Cpu)
    shape = (8, 4096, 64)
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["s"], "scores"),
        helper.make_node("Softmax", ["s"], ["p"], "softmax", axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"], "values"),
    ]
    inputs = {"q": shape, "k": (8, 64, 4096), "v": shape}
    graph = with_attention(load_graph(make_model(nodes, {}, inputs, {"y": shape})), target)
    assert of_calls(graph) == [("scores", "softmax", "values")]


def test_a_part_of_onnxruntime_computes_all_its_layers(residual: Graph) -> None:
    whole = run_by_onnxruntime(residual, "for a test")
    assert whole is not None and of_calls(whole) == [tuple(layer.name for layer in residual.layers.all)]


def test_a_node_without_a_name_is_called_after_what_it_makes() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["17"]), helper.make_node("Exp", ["17"], ["/a/b/Exp_output_0"])]
    graph = load_graph(make_model(nodes, {}, {"x": (4, 8)}, {"/a/b/Exp_output_0": (4, 8)}))
    assert [layer.name for layer in graph.layers.all] == ["Relu_17", "a.b"]
    assert [layer.node for layer in graph.layers.all] == ["17", "/a/b/Exp_output_0"]


@pytest.mark.parametrize(
    ("node", "operator", "path"),
    [
        ("/features/features.0/features.0.0/Conv", "Conv", ("features.0.0", "Conv")),
        ("/encoder/layer.0/attention/self/query/MatMul", "MatMul", ("encoder.layer.0.attention.self.query", "MatMul")),
        ("/model.22/Concat_3", "Concat", ("model.22", "Concat_3")),
        ("Conv_12", "Conv", ("Conv_12", "")),
        ("resnet/block/conv", "Conv", ("resnet.block.conv", "")),
    ],
)
def test_the_names_of_exporters_are_read(node: str, operator: str, path: tuple[str, str]) -> None:
    assert path_of(node, operator) == path


def test_readable_names_are_unique() -> None:
    nodes = [
        ("a", "Add"),
        ("a", "Add"),
        ("a.0", "Conv"),
        ("a.relu", "Relu"),
        ("a.relu", "Relu"),
        ("head", "Add"),
        ("head", "MatMul"),
        ("", "Relu"),
    ]
    layers = layers_of([(path, operator, operator, str(at)) for at, (path, operator) in enumerate(nodes)])
    assert [layer.name for layer in layers] == [
        "a.Add",
        "a.Add#2",
        "a.0.Conv",
        "a.relu",
        "a.relu#2",
        "head.Add",
        "head.MatMul",
        "Relu",
    ]
