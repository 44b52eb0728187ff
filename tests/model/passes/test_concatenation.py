"""Concatenations written in place: the copy is gone, and the outputs are the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from stand_ins.verifying import verify
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.building.compile import apply_variants, build
from stormdrop.model.graph.graph import Graph
from stormdrop.model.graph.place import Place
from stormdrop.model.graph.tasks import kernel_calls
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.sketches.contract import Variant
from stormdrop.sketches.registry import sketches_for

pytestmark = pytest.mark.compiles

TARGET = Cpu.detect()


def fire(kind: str) -> onnx.ModelProto:
    """Two convolutions whose outputs are concatenated, and a third one that reads the result.

    "alone": nothing else. "shared": another convolution reads one of the two outputs, too. "relu": one ReLU after the
    concatenation, instead of one after each of the two convolutions.
    """
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((rng.standard_normal(shape) / 4).astype("float32"), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"]),
        helper.make_node("Relu", ["a"], ["ra"]),
        helper.make_node("Conv", ["x", "w3"], ["b"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["b"], ["rb"]),
        helper.make_node("Concat", ["ra", "rb"], ["c"], axis=1),
        helper.make_node("Conv", ["c", "w2"], ["d"]),
        helper.make_node("Conv", ["ra", "w4"], ["e"]),
        helper.make_node("Add", ["d", "e"], ["y"]),
    ]
    if kind == "alone":
        nodes = [*nodes[:5], helper.make_node("Conv", ["c", "w2"], ["y"])]
    elif kind == "relu":
        relu = [helper.make_node("Concat", ["a", "b"], ["s"], axis=1), helper.make_node("Relu", ["s"], ["c"])]
        nodes = [nodes[0], nodes[2], *relu, helper.make_node("Conv", ["c", "w2"], ["y"])]
    weights = [
        weight("w1", 24, 8, 1, 1),
        weight("w3", 20, 8, 3, 3),
        weight("w2", 12, 44, 1, 1),
        weight("w4", 12, 24, 1, 1),
    ]
    graph = helper.make_graph(
        nodes,
        "fire",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 13, 13])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 12, 13, 13])],
        weights if kind == "shared" else weights[:3],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def default(workload: Workload, placed: Workload) -> Variant:
    sketch, space = sketches_for(workload, TARGET)[0]
    return sketch.apply(placed, TARGET, space.config(space.origin))


def built(graph: Graph) -> tuple[CompiledModel, list[str]]:
    """The model with concatenations in place, and the names of the kernels that it calls."""
    workloads = {task.index: Workload.create(task.name, task.function, task.constants) for task in graph.tasks}
    variants = {index: default(workload, workload) for index, workload in workloads.items()}

    def place(index: int, destination: Place) -> Variant:
        return default(workloads[index], workloads[index].placed(destination.offset, destination.total))

    names = [call.args[0].name_hint for call in kernel_calls(apply_variants(graph, variants, place=place)[0])]
    return build(graph, variants, TARGET, place=place), names


@pytest.mark.parametrize("kind", ["alone", "shared", "relu"])
def test_inputs_are_written_in_place_if_nothing_else_reads_them(kind: str) -> None:
    graph = load_graph(fire(kind))
    model, names = built(graph)
    assert any("concat" in name for name in names) is (kind != "alone")
    assert verify(model, graph.source).max_error < 1e-5
    feeds = random_feeds(model.inputs, 3)
    first = model.run(feeds)["y"]
    model.run(random_feeds(model.inputs, 4))
    assert np.array_equal(model.run(feeds)["y"], first)  # no buffer is reused too early
