"""The first convolution of a model reads its images with channels second, as ONNX has them, without a transposition."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tiny_models import make_model

from stormdrop.model.importer.graph import load_graph
from stormdrop.model.untuned import compile_model
from stormdrop.model.verify import verify

pytestmark = pytest.mark.compiles

HEIGHT, WIDTH = 13, 10


def network(channels: int, size: tuple[int, int], images: int = 1, groups: int = 1, **first: object) -> onnx.ModelProto:
    """Two convolutions: one with these attributes and a ReLU, which makes images of this size, and one of a pixel."""
    rng = np.random.default_rng(0)
    shapes = {"w": (8, channels // groups, 3, 2), "b": (8,), "v": (5, 8, 1, 1)}
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


def transposed_inputs(model: onnx.ModelProto) -> bool:
    """Whether the first kernel of a model only transposes."""
    return load_graph(model).tasks[0].name == "transpose"


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize(
    ("first", "size"),
    [
        ({}, (11, 9)),
        ({"pads": [1, 0, 2, 1]}, (14, 10)),
        ({"pads": [2, 1, 2, 1], "strides": [2, 3], "dilations": [2, 1]}, (7, 4)),
        ({"strides": [3, 2]}, (4, 5)),
    ],
)
def test_images_are_read_as_they_are(first: dict[str, list[int]], size: tuple[int, int], images: int) -> None:
    model = network(3, size, images, **first)
    assert not transposed_inputs(model)
    assert verify(compile_model(model), load_graph(model).source).max_error < 1e-5


def test_images_of_many_channels_are_transposed_once() -> None:
    model = network(5, (11, 9))
    assert transposed_inputs(model)
    assert verify(compile_model(model), load_graph(model).source).max_error < 1e-5


def test_groups_stay_as_they_are() -> None:
    model = network(4, (11, 9), groups=2)
    assert transposed_inputs(model)
    assert verify(compile_model(model), load_graph(model).source).max_error < 1e-5


def test_two_convolutions_read_an_image() -> None:
    model = network(3, (11, 9))
    model.graph.node.append(helper.make_node("Conv", ["x", "w"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, (1, 8, 11, 9)))
    assert not transposed_inputs(model)
    assert verify(compile_model(model), load_graph(model).source).max_error < 1e-5
