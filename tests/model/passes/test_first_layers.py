"""The first convolution of a model reads its images with channels second, as ONNX has them, without a transposition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tiny_models import make_model

from stand_ins.verifying import verify
from stormdrop.ir.dtypes import BFLOAT16
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu, parse_machine
from stormdrop.model.graph.tasks import Task
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.model.precision.mixed import in_mixed_precision
from stormdrop.model.untuned import compile_model
from stormdrop.model.verification.exact import ExactModel
from stormdrop.sketches.registry import cpu_sketches

pytestmark = pytest.mark.compiles

HEIGHT, WIDTH = 13, 10
V4 = parse_machine("cpu/x86-64-v4")
assert isinstance(V4, Cpu)
AMX = replace(V4, cores=2, features=("amx-bf16", "amx-int8", "amx-tile", "avx512bf16", "avx512vnni"))


def network(channels: int, size: tuple[int, int], images: int = 1, groups: int = 1, **first: object) -> onnx.ModelProto:
    """Two convolutions: one with these attributes and a ReLU, which makes images of this size, and one of a pixel."""
    rng = np.random.default_rng(0)
    shapes = {"w": (32, channels // groups, 3, 2), "b": (32,), "v": (5, 32, 1, 1)}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], group=groups, **first),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array((rng.standard_normal(shape) / 4).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    outputs = {"y": (images, 5, *size)}
    return make_model(nodes, {}, {"x": (images, channels, HEIGHT, WIDTH)}, outputs, extra=constants)


def transposes(model: onnx.ModelProto) -> int:
    """How many kernels only transpose the images that a model reads."""
    transposed = [task for task in load_graph(model).tasks if task.name == "transpose"]
    read = [Workload.create(task.name, task.function).inputs[0].shape for task in transposed]
    return sum(shape[2:] == (HEIGHT, WIDTH) for shape in read)


FIRST_LAYERS = [
    ({}, (11, 9)),
    ({"pads": [1, 0, 2, 1]}, (14, 10)),
    ({"pads": [2, 1, 2, 1], "strides": [2, 3], "dilations": [2, 1]}, (7, 4)),
    ({"strides": [3, 2]}, (4, 5)),
]


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize(("first", "size"), FIRST_LAYERS)
def test_images_are_read_as_they_are(first: dict[str, Any], size: tuple[int, int], images: int) -> None:
    model = network(3, size, images, **first)
    assert transposes(model) == 0
    assert verify(compile_model(model), load_graph(model).source).max_error < 1e-5


def test_images_of_many_channels_are_transposed_once() -> None:
    model = network(5, (11, 9))
    assert transposes(model) == 1
    assert verify(compile_model(model), load_graph(model).source).max_error < 1e-5


def test_groups_stay_as_they_are() -> None:
    model = network(4, (11, 9), groups=2)
    assert transposes(model) == 1
    assert verify(compile_model(model), load_graph(model).source).max_error < 1e-5


def test_two_convolutions_read_an_image() -> None:
    model = network(3, (11, 9))
    model.graph.node.append(helper.make_node("Conv", ["x", "w"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, (1, 32, 11, 9)))
    assert transposes(model) == 0
    assert verify(compile_model(model), load_graph(model).source).max_error < 1e-5


def test_an_image_of_four_channels_and_weights_that_are_an_input() -> None:
    model = network(4, (11, 9))
    weights = next(tensor for tensor in model.graph.initializer if tensor.name == "w")
    model.graph.input.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, weights.dims))
    model.graph.initializer.remove(weights)
    found = load_graph(model)
    assert [input.shape for input in found.inputs] == [(1, 4, HEIGHT, WIDTH), (32, 4, 3, 2)]
    assert verify(compile_model(model), found.source).max_error < 1e-5


@pytest.mark.parametrize(("first", "size"), FIRST_LAYERS)
def test_tiles_and_registers_take_such_convolutions(first: dict[str, Any], size: tuple[int, int]) -> None:
    graph = load_graph(network(3, size, **first))
    assert names_of_sketches(graph.tasks[0], AMX) >= {"register_blocked", "tiles_of_parts"}


@pytest.mark.parametrize(("first", "size"), FIRST_LAYERS)
def test_in_bfloat16_a_kernel_rounds_the_image(first: dict[str, Any], size: tuple[int, int]) -> None:
    graph = load_graph(network(3, size, **first))
    low = in_mixed_precision(graph)
    assert list(low.low) == list(low.layers[:1])
    image, task = low.graph.tasks[:2]
    assert image.name == f"{graph.tasks[0].name}_input"
    assert types_of_inputs(image) == ["float32"] and types_of_inputs(task)[:2] == [BFLOAT16, BFLOAT16]
    assert names_of_sketches(task, AMX) >= {"register_blocked", "tiles"}
    feeds = random_feeds(graph.inputs, 0)
    (exact, _), (rounded, _) = ExactModel(graph).run(feeds), ExactModel(low.graph).run(feeds, rounded=True)
    difference = np.abs(rounded["y"] - exact["y"]).max() / np.abs(exact["y"]).max()
    assert 1e-4 < difference < 2e-2


def types_of_inputs(task: Task) -> list[str]:
    """The types of what the kernel of a task reads."""
    return [spec.dtype for spec in Workload.create(task.name, task.function, task.constants).inputs]


def names_of_sketches(task: Task, target: Cpu) -> set[str]:
    """The sketches of a CPU that have a space for a task."""
    workload = Workload.create(task.name, task.function, task.constants)
    return {sketch.name for sketch in cpu_sketches() if sketch.space(workload, target) is not None}
