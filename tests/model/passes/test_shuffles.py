"""Shuffles of channels before convolutions are no kernels, and the outputs are the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tiny_models import make_model

from stand_ins.verifying import verify
from stormdrop.model.graph.graph import Graph
from stormdrop.model.graph.tasks import kernel_calls
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.untuned import compile_model

CHANNELS, GROUPS, SIZE = 12, 3, (5, 7)
SHAPE = (1, CHANNELS, *SIZE)
DEPTHWISE = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "group": CHANNELS}
POINTWISE = {"kernel_shape": [1, 1]}


def model_of(
    *nodes: onnx.NodeProto, channels: int = CHANNELS, size: tuple[int, int] = SIZE, images: int = 1
) -> onnx.ModelProto:
    """A model: a convolution, these nodes that read its result `a`, and a softmax of their result `b`."""
    rng = np.random.default_rng(0)
    shapes = {
        "first": (CHANNELS, CHANNELS, 1, 1),
        "depthwise": (CHANNELS, 1, 3, 3),
        "bias": (CHANNELS,),
        "scale": (1, CHANNELS, 1, 1),
        "grouped": (channels, CHANNELS // GROUPS, 1, 1),
        "whole": (channels, CHANNELS, 3, 3),
        "wide": (channels, CHANNELS // GROUPS, 1, 3),
        "doubled": (2 * CHANNELS, 1, 3, 3),
        "image_of_one_channel": (1, 1, *SIZE),
        "whole_image": (CHANNELS, *SIZE),
        "number": (),
    }
    constants = {name: rng.uniform(0.5, 1.5, shape).astype(np.float32) for name, shape in shapes.items()}
    integers = {"parts": (images, GROUPS, CHANNELS // GROUPS, *SIZE), "image": (images, *SHAPE[1:])}
    constants |= {name: np.array(shape, np.int64) for name, shape in integers.items()}
    first, last = (
        helper.make_node("Conv", ["x", "first"], ["a"], **POINTWISE),
        helper.make_node("Softmax", ["b"], ["y"]),
    )
    used = {name for node in (first, *nodes) for name in node.input}
    extra = [numpy_helper.from_array(value, name) for name, value in constants.items() if name in used]
    output = (images, channels, *size)
    return make_model([first, *nodes, last], {}, {"x": (images, *SHAPE[1:])}, {"y": output}, extra=extra)


def shuffle(name: str, output: str) -> list[onnx.NodeProto]:
    """A shuffle of channels as torch exports it."""
    return [
        helper.make_node("Reshape", [name, "parts"], [f"{output}_parts"]),
        helper.make_node("Transpose", [f"{output}_parts"], [f"{output}_moved"], perm=[0, 2, 1, 3, 4]),
        helper.make_node("Reshape", [f"{output}_moved", "image"], [output]),
    ]


def moves(graph: Graph) -> list[str]:
    """The kernels that only move data, but for those that change the layout of the input and of the output."""
    names = [call.args[0].name_hint for call in kernel_calls(graph.mod)]
    return [name for name in names[1:-2] if "transpose" in name or "reshape" in name]


def unit(stride: int) -> list[onnx.NodeProto]:
    """The end of a unit of ShuffleNet; the activations are not in the original."""
    return [
        *shuffle("a", "s"),
        helper.make_node("Conv", ["s", "depthwise", "bias"], ["d"], strides=[stride, stride], **DEPTHWISE),
        helper.make_node("Mul", ["scale", "d"], ["m"]),
        helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("Conv", ["r", "grouped"], ["b"], group=GROUPS, **POINTWISE),
    ]


@pytest.mark.compiles
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [12, 51])
def test_a_grouped_convolution_reads_other_channels(stride: int, channels: int) -> None:
    size = SIZE if stride == 1 else (3, 4)
    model = model_of(*unit(stride), channels=channels, size=size)
    graph = load_graph(model)
    assert moves(graph) == []
    assert verify(compile_model(model), graph.source).max_error < 1e-5


@pytest.mark.compiles
def test_a_convolution_of_one_group_has_other_weights() -> None:
    model = model_of(
        *shuffle("a", "s"), helper.make_node("Conv", ["s", "whole"], ["b"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    )
    graph = load_graph(model)
    assert moves(graph) == []
    assert verify(compile_model(model), graph.source).max_error < 1e-5


@pytest.mark.compiles
@pytest.mark.parametrize("operand", ["scale", "image_of_one_channel", "whole_image", "number"])
def test_operators_with_constants_may_stand_between(operand: str) -> None:
    """All five in a row: what one of them reads at the wrong channel is wrong at the end."""
    operators = ["Max", "Sub", "Div", "Add", "Mul"]
    nodes = [*shuffle("a", "s"), helper.make_node("Conv", ["s", "depthwise"], ["m0"], **DEPTHWISE)]
    for place, operator in enumerate(operators):
        nodes.append(helper.make_node(operator, [f"m{place}", operand], [f"m{place + 1}"]))
    nodes.append(helper.make_node("Conv", ["m5", "grouped"], ["b"], group=GROUPS, **POINTWISE))
    model = model_of(*nodes)
    graph = load_graph(model)
    assert moves(graph) == []
    assert verify(compile_model(model), graph.source).max_error < 1e-5


@pytest.mark.compiles
def test_several_images_and_several_convolutions_behind_one_shuffle() -> None:
    nodes = [
        *shuffle("a", "s"),
        helper.make_node("Conv", ["s", "grouped"], ["g"], group=GROUPS, **POINTWISE),
        helper.make_node("Conv", ["s", "whole"], ["h"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["g", "h"], ["b"]),
    ]
    model = model_of(*nodes, images=3)
    graph = load_graph(model)
    assert moves(graph) == []
    assert verify(compile_model(model), graph.source).max_error < 1e-5


@pytest.mark.compiles
def test_two_shuffles_in_a_row_are_one() -> None:
    nodes = [*shuffle("a", "s"), *shuffle("s", "t")]
    model = model_of(*nodes, helper.make_node("Conv", ["t", "whole"], ["b"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
    graph = load_graph(model)
    assert moves(graph) == []
    assert verify(compile_model(model), graph.source).max_error < 1e-5


@pytest.mark.compiles
@pytest.mark.parametrize(
    "nodes",
    [
        # The depthwise convolution would be computed twice.
        [
            *shuffle("a", "s"),
            helper.make_node("Conv", ["s", "depthwise"], ["d"], **DEPTHWISE),
            helper.make_node("Conv", ["d", "grouped"], ["g"], group=GROUPS, **POINTWISE),
            helper.make_node("Add", ["g", "d"], ["b"]),
        ],
        # Rows and columns of an image change places as well.
        [
            helper.make_node("Reshape", ["a", "parts"], ["s_parts"]),
            helper.make_node("Transpose", ["s_parts"], ["s_moved"], perm=[0, 2, 1, 4, 3]),
            helper.make_node("Reshape", ["s_moved", "image"], ["s"]),
            helper.make_node("Conv", ["s", "grouped"], ["b"], group=GROUPS, **POINTWISE),
        ],
        # A constant is the first operand.
        [
            *shuffle("a", "s"),
            helper.make_node("Div", ["scale", "s"], ["d"]),
            helper.make_node("Conv", ["d", "grouped"], ["b"], group=GROUPS, **POINTWISE),
        ],
        # A window of several pixels and several groups.
        [
            *shuffle("a", "s"),
            helper.make_node("Conv", ["s", "wide"], ["b"], group=GROUPS, kernel_shape=[1, 3], pads=[0, 1, 0, 1]),
        ],
        # Zeros around the image.
        [
            *shuffle("a", "s"),
            helper.make_node("Conv", ["s", "grouped"], ["p"], group=GROUPS, kernel_shape=[1, 1], pads=[1, 1, 1, 1]),
            helper.make_node("MaxPool", ["p"], ["b"], kernel_shape=[3, 3]),
        ],
        # Two channels for each channel.
        [
            *shuffle("a", "s"),
            helper.make_node("Conv", ["s", "doubled"], ["d"], group=CHANNELS, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            helper.make_node("MaxPool", ["d"], ["m"], kernel_shape=[1, 1]),
            helper.make_node("Abs", ["m"], ["b"]),
        ],
    ],
    ids=["another reader", "rows and columns", "first operand", "window", "padding", "multiplier"],
)
def test_other_moves_stay(nodes: list[onnx.NodeProto]) -> None:
    model = model_of(*nodes, channels=2 * CHANNELS if "doubled" in nodes[3].input else CHANNELS)
    graph = load_graph(model)
    assert moves(graph) != []
    assert verify(compile_model(model), graph.source).max_error < 1e-5
