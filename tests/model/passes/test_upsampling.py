"""Transposed convolutions whose windows do not overlap multiply each pixel once, and others stay as they are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tiny_models import make_model

from stand_ins.verifying import verify
from stormdrop.ir.workload import Workload
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.untuned import compile_model

pytestmark = pytest.mark.compiles

HEIGHT, WIDTH = 5, 7
DOUBLE = {"kernel_shape": [2, 2], "strides": [2, 2]}
OVERLAPPING = {"kernel_shape": [4, 4], "strides": [2, 2], "pads": [1, 1, 1, 1]}


def head(first: dict[str, list[int]], filters: int = 1, images: int = 1) -> onnx.ModelProto:
    """The end of a text detector: a convolution, two transposed ones with a bias, ReLU and sigmoid."""
    rng = np.random.default_rng(0)
    shapes = {
        "w0": (20, 12, 3, 3),
        "w1": (20, 24, *first["kernel_shape"]),
        "b1": (24,),
        "w2": (24, filters, 2, 2),
        "b2": (filters,),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("ConvTranspose", ["a", "w1", "b1"], ["b"], **first),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("ConvTranspose", ["c", "w2", "b2"], ["d"], **DOUBLE),
        helper.make_node("Sigmoid", ["d"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array((rng.standard_normal(shape) / 4).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    inputs, outputs = {"x": (images, 12, HEIGHT, WIDTH)}, {"y": (images, filters, 4 * HEIGHT, 4 * WIDTH)}
    return make_model(nodes, {}, inputs, outputs, extra=constants)


def products(model: onnx.ModelProto) -> list[int]:
    """The multiplications of each kernel with a transposed convolution, if they are all that it does many times."""
    tasks = [task for task in load_graph(model).tasks if "conv2d_transpose" in task.name]
    return [int(Workload.create(task.name, task.function, task.constants).flops) // 2 for task in tasks]


@pytest.mark.parametrize("filters", [1, 3, 20])
def test_each_pixel_is_multiplied_once(filters: int) -> None:
    model = head(DOUBLE, filters)
    wide, narrow = products(model)
    pixels = HEIGHT * WIDTH
    assert 4 * pixels * 20 * 24 <= wide < 1.1 * 4 * pixels * 20 * 24
    assert 16 * pixels * 24 * filters <= narrow < 1.6 * 16 * pixels * 24 * filters
    assert verify(compile_model(model), load_graph(model).source).max_error < 1e-5


def test_several_images_and_a_window_of_three_by_two() -> None:
    model = head({"kernel_shape": [3, 2], "strides": [3, 2]}, 2, images=2)
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 6 * HEIGHT
    assert verify(compile_model(model), load_graph(model).source).max_error < 1e-5


def test_everything_that_follows_is_in_their_kernels() -> None:
    names = [task.name for task in load_graph(head(DOUBLE)).tasks]
    assert names[:2] == ["transpose", "conv2d"]
    assert [name.split("_")[-1] for name in names[2:4]] == ["relu", "sigmoid"]
    assert names[4:] == ["reshape"]  # of the output


def test_windows_that_overlap_are_computed_as_before() -> None:
    model = head(OVERLAPPING)
    assert products(model)[0] > 4 * HEIGHT * WIDTH * 20 * 24 * 4
    assert verify(compile_model(model), load_graph(model).source).max_error < 1e-5
