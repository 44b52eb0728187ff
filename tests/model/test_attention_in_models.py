"""The three kernels of an attention as one: where it pays, and where others need what stands between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper
from tiny_models import make_model

from stormdrop.machine.cpu import Cpu
from stormdrop.model.building.fallback import schedule_fallback
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer.any_model import import_model
from stormdrop.model.passes.attention import with_attention
from stormdrop.model.untuned import compile_model_with
from stormdrop.tuning.options import TuneOptions

TARGET = Cpu.detect()
SMALL = replace(TARGET, l1=256, l2=256, cores=2)
"""A machine whose caches hold the scores of none of these models."""


def heads_model(outputs: Sequence[str] = ("y",), rows: int | str = 24, mask: bool = False) -> onnx.ModelProto:
    """Self-attention with 2 heads of 8 values, which are a dimension of their own between two transposes."""
    split = onnx.numpy_helper.from_array(np.array([1, -1, 2, 8], np.int64), "split")
    joined = onnx.numpy_helper.from_array(np.array([1, -1, 16], np.int64), "joined")
    nodes = [
        *(helper.make_node("MatMul", ["x", f"w{part}"], [f"{part}1"]) for part in "qkv"),
        *(helper.make_node("Reshape", [f"{part}1", "split"], [f"{part}2"]) for part in "qkv"),
        helper.make_node("Transpose", ["q2"], ["q"], perm=[0, 2, 1, 3]),
        helper.make_node("Transpose", ["k2"], ["k"], perm=[0, 2, 3, 1]),
        helper.make_node("Transpose", ["v2"], ["v"], perm=[0, 2, 1, 3]),
        helper.make_node("MatMul", ["q", "k"], ["s0" if mask else "s"]),
        *([helper.make_node("Add", ["s0", "mask"], ["s"])] if mask else []),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["a"]),
        helper.make_node("Transpose", ["a"], ["t"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["t", "joined"], ["y"]),
    ]
    shapes: dict[str, tuple[int | str, ...]] = {"y": (1, rows, 16), "p": (1, 2, rows, rows), "s": (1, 2, rows, rows)}
    inputs: dict[str, tuple[int | str, ...]] = {"x": (1, rows, 16)}
    if mask:
        inputs["mask"] = (1, 1, rows, rows)
    made = {name: shapes[name] for name in outputs}
    model = make_model(nodes, {f"w{part}": (16, 16) for part in "qkv"}, inputs, made, 17, [split, joined])
    rng = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        if tensor.name.startswith("w"):
            array = rng.standard_normal((16, 16)).astype(np.float32) / 4
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return model


def names(graph: Graph) -> list[str]:
    return [task.name for task in graph.tasks]


def has_attention(graph: Graph) -> bool:
    return any(name.startswith("attention") for name in names(graph))


def test_heads_are_moved_inside() -> None:
    """Projections, one kernel for the whole attention, and one that brings the heads back."""
    graph = with_attention(import_model(heads_model()), SMALL)
    assert sorted(task.weight for task in graph.tasks) == [1, 1, 3]
    assert sum(name.startswith("attention") for name in names(graph)) == 1
    assert not any("softmax" in name for name in names(graph))
    (attention,) = (task for task in graph.tasks if task.name.startswith("attention"))
    assert [tuple(int(extent) for extent in parameter.ty.shape) for parameter in attention.function.params] == [
        (1, 24, 16),
        (1, 24, 16),
        (1, 24, 16),
        (1, 2, 24, 8),
    ]


def test_a_plain_schedule_takes_it() -> None:
    graph = with_attention(import_model(heads_model()), SMALL)
    (attention,) = (task for task in graph.tasks if task.name.startswith("attention"))
    assert schedule_fallback(attention.function).reached == "parallel, vectorised"


@pytest.mark.compiles
def test_two_attentions_of_the_same_tensors() -> None:
    """They call the same functions. In the second one queries and values change their places."""
    model = heads_model()
    places = {"q": "v", "v": "q", "s": "s_2", "p": "p_2", "a": "a_2", "t": "t_2", "y": "y_2"}
    for node in list(model.graph.node)[-5:]:
        second = onnx.NodeProto()
        second.CopyFrom(node)
        second.input[:] = [places.get(name, name) for name in node.input]
        second.output[:] = [places[name] for name in node.output]
        model.graph.node.append(second)
    model.graph.output.append(helper.make_tensor_value_info("y_2", onnx.TensorProto.FLOAT, (1, 24, 16)))
    result = compile_model_with(model, replace(TARGET, l1=256, l2=256), TuneOptions(fresh=True))
    assert [task.task.weight for task in result.tasks if task.task.name.startswith("attention")] == [2]
    assert result.verified.max_error < 1e-5


def test_unknown_caches_merge_nothing() -> None:
    graph = import_model(heads_model())
    assert with_attention(graph, replace(SMALL, l1=0, l2=0)) is graph


@pytest.mark.compiles
def test_other_sources_of_sketches_have_three_kernels() -> None:
    machine, options = replace(TARGET, l1=256, l2=256), TuneOptions(fresh=True, sketches="rules")
    result = compile_model_with(heads_model(), machine, options)
    assert not any(task.task.name.startswith("attention") for task in result.tasks)


def test_a_mask_belongs_to_the_scores() -> None:
    assert has_attention(with_attention(import_model(heads_model(mask=True)), SMALL))


@pytest.mark.parametrize("outputs", [("y", "p"), ("y", "s")], ids=["weights", "scores"])
def test_what_others_read_stays(outputs: Sequence[str]) -> None:
    graph = import_model(heads_model(outputs))
    assert with_attention(graph, SMALL) is graph


def test_scores_that_fit_the_caches_stay_as_they_are() -> None:
    graph = import_model(heads_model())
    assert with_attention(graph, TARGET) is graph
    assert with_attention(graph, replace(SMALL, l1=4096)) is graph, "those of a head fit the first cache"
    assert with_attention(graph, replace(SMALL, l2=1024)) is graph, "those of all heads fit the second ones"


def test_sizes_share_tasks() -> None:
    model = heads_model(rows="rows")
    graph = with_attention(import_model(model, {"x": (1, (24, 32), 16)}), SMALL)
    assert [has_attention(each) for each in graph.sizes] == [True, True]
    assert sum(name.startswith("attention") for name in names(graph)) == 2
    assert all(each.tasks is graph.tasks for each in graph.sizes)
    mixed = with_attention(import_model(model, {"x": (1, (4, 32), 16)}), SMALL)
    small, large = ([mixed.tasks[index].name for index in each.called] for each in mixed.sizes)
    assert any("softmax" in name for name in small) and not any("softmax" in name for name in large)


@pytest.mark.compiles
@pytest.mark.parametrize("mask", [False, True], ids=["plain", "mask"])
def test_a_compiled_model_is_right(mask: bool) -> None:
    """Compiling verifies it against the model that was imported; here it has the one kernel."""
    model, options = heads_model(mask=mask), TuneOptions(fresh=True)
    fused = compile_model_with(model, replace(TARGET, l1=256, l2=256), options)
    plain = compile_model_with(model, TARGET, options)
    rng = np.random.default_rng(1)
    feeds = [rng.standard_normal((1, 24, 16)).astype(np.float32)]
    if mask:
        feeds.append(np.triu(np.full((24, 24), -1e9, np.float32), 1)[np.newaxis, np.newaxis])
    assert any(task.task.name.startswith("attention") for task in fused.tasks)
    assert not any(task.task.name.startswith("attention") for task in plain.tasks)
    np.testing.assert_allclose(fused.model(*feeds), plain.model(*feeds), rtol=1e-4, atol=1e-5)


@pytest.mark.compiles
def test_layers_in_bfloat16_stay_apart() -> None:
    """Each of them is in mixed precision for itself."""
    machine = replace(TARGET, l1=256, l2=256)
    result = compile_model_with(heads_model(), machine, TuneOptions(fresh=True, precision="bf16"))
    assert not any(task.task.name.startswith("attention") for task in result.tasks)
