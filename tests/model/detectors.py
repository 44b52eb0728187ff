"""Small networks with the structure of detectors: several outputs, Split, Concat, Resize, outputs that share memory.

Each function makes a network with seeded weights. What the real ones have in hundreds of layers is here once or twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEIGHT, WIDTH, CHANNELS = 64, 96, 8


class Network:
    """Collects the nodes of a network."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """A node. Returns the name of its output, or a list of names."""
        names = [f"{operator}_{len(self._nodes)}_{index}" for index in range(outputs)]
        self._nodes.append(helper.make_node(operator, inputs, names, names[0], **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """A constant. Returns its name."""
        name = f"constant_{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def conv(self, x: str, inputs: int, outputs: int, size: int = 1, stride: int = 1, groups: int = 1) -> str:
        """A convolution with a bias."""
        shape = (outputs, inputs // groups, size, size)
        scale = np.sqrt(2 / np.prod(shape[1:]))
        weights = self.constant(scale * self._rng.standard_normal(shape), np.float32)
        bias = self.constant(0.1 * self._rng.standard_normal(outputs), np.float32)
        pads = [size // 2] * 4
        name: str = self.add("Conv", x, weights, bias, strides=[stride] * 2, pads=pads, group=groups)
        return name

    def upsampled(self, x: str, mode: str = "nearest") -> str:
        """Twice as high and wide."""
        scales = self.constant([1, 1, 2, 2], np.float32)
        name: str = self.add("Resize", x, "", scales, mode=mode)
        return name

    def shuffled(self, x: str, height: int, width: int) -> str:
        """One half of the channels is convolved; then the channels of both halves are mixed, as in ShuffleNet."""
        half = CHANNELS // 2
        kept, changed = self.add("Split", x, self.constant([half, half]), outputs=2, axis=1)
        changed = self.add("HardSwish", self.conv(changed, half, half, 3, groups=half))
        both = self.add("Concat", kept, changed, axis=1)
        apart = self.add("Reshape", both, self.constant([1, 2, half, height, width]))
        mixed = self.add("Transpose", apart, perm=[0, 2, 1, 3, 4])
        name: str = self.add("Reshape", mixed, self.constant([1, CHANNELS, height, width]))
        return name

    def pyramid(self, x: str = "x") -> list[str]:
        """Three levels of a backbone: an eighth of the image, a sixteenth, a thirty-second."""
        x = self.add("Relu", self.conv(x, 3, CHANNELS, 3, 4))
        levels = []
        for level in range(3):
            x = self.add("HardSwish", self.conv(x, CHANNELS, CHANNELS, 3, 2))
            x = self.shuffled(x, HEIGHT >> level + 3, WIDTH >> level + 3)
            levels.append(x)
        return levels

    def model(self, outputs: Sequence[str]) -> onnx.ModelProto:
        """The network with these outputs."""
        image = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, HEIGHT, WIDTH))
        results = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self._nodes, "detector", [image], results, self._constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def shared_head() -> onnx.ModelProto:
    """PicoDet: four levels with the scores and the boxes of each, eight outputs, from one convolution that is split."""
    net = Network(1)
    fine, middle, coarse = net.pyramid()
    middle = net.conv(net.add("Concat", middle, net.upsampled(coarse), axis=1), 2 * CHANNELS, CHANNELS)
    fine = net.conv(net.add("Concat", fine, net.upsampled(middle), axis=1), 2 * CHANNELS, CHANNELS)
    smallest = net.add("MaxPool", coarse, kernel_shape=[1, 1], strides=[2, 2])
    scores, boxes = [], []
    for level in (fine, middle, coarse, smallest):
        head = net.conv(net.add("HardSwish", net.conv(level, CHANNELS, CHANNELS, 3, groups=CHANNELS)), CHANNELS, 12)
        of_classes, of_boxes = net.add("Split", head, net.constant([4, 8]), outputs=2, axis=1)
        likely = net.add("Reshape", net.add("Sigmoid", of_classes), net.constant([1, 4, -1]))
        scores.append(net.add("Transpose", likely, perm=[0, 2, 1]))
        boxes.append(net.add("Transpose", net.add("Reshape", of_boxes, net.constant([1, 8, -1])), perm=[0, 2, 1]))
    return net.model([*scores, *boxes])


def one_tensor() -> onnx.ModelProto:
    """YOLO: pools of pools, boxes and scores of all levels in one tensor, and the levels themselves as outputs."""
    net = Network(2)
    fine, middle, coarse = net.pyramid()
    pools = [coarse]
    for _ in range(3):
        pools.append(net.add("MaxPool", pools[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2, 2, 2, 2]))
    coarse = net.conv(net.add("Concat", *pools, axis=1), 4 * CHANNELS, CHANNELS)
    middle = net.add("Concat", middle, net.upsampled(coarse), axis=1)
    levels = [net.conv(fine, CHANNELS, 7), net.conv(middle, 2 * CHANNELS, 7), net.conv(coarse, CHANNELS, 7)]
    flat = [net.add("Reshape", level, net.constant([1, 7, -1])) for level in levels]
    whole = net.add("Concat", *flat, axis=2)
    centres, sizes, scores = net.add("Split", whole, net.constant([2, 2, 3]), outputs=3, axis=1)
    corners = net.add("Sub", centres, net.add("Mul", sizes, net.constant(0.5, np.float32)))
    boxes = net.add("Concat", corners, sizes, net.add("Sigmoid", scores), axis=1)
    return net.model([boxes, *levels])


def best_places() -> onnx.ModelProto:
    """CenterNet: peaks of a heat map, the best of them, and the largest and smallest places of one tensor."""
    net = Network(3)
    fine, _, _ = net.pyramid()
    heat = net.add("Sigmoid", net.conv(fine, CHANNELS, 2))
    largest = net.add("MaxPool", heat, kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    peaks = net.add("Mul", heat, net.add("Cast", net.add("Equal", heat, largest), to=TensorProto.FLOAT))
    flat = net.add("Reshape", peaks, net.constant([1, -1]))
    values, places = net.add("TopK", flat, net.constant([5]), outputs=2, axis=1)
    rounded = net.add("Round", flat)
    first, last = (net.add(name, flat, axis=1, keepdims=0) for name in ("ArgMax", "ArgMin"))
    rows = net.add("Reshape", values, net.constant([5, 1]))
    return net.model([rows, places, rounded, first, last, heat])


def masks() -> onnx.ModelProto:
    """A segmenter: levels that are resized to one size, added and concatenated; logits and classes of each pixel."""
    net = Network(4)
    fine, middle, coarse = net.pyramid()
    size = net.constant([1, CHANNELS, HEIGHT // 8, WIDTH // 8])
    wide = [net.add("Resize", level, "", "", size, mode="linear") for level in (middle, coarse)]
    summed = net.add("Add", net.add("Add", wide[0], wide[1]), fine)
    both = net.add("Concat", fine, *wide, axis=1)
    logits = net.conv(both, 3 * CHANNELS, 4)
    large = net.upsampled(logits, "linear")
    left, right = net.add("Split", summed, net.constant([3, 5]), outputs=2, axis=1)
    classes = net.add("ArgMax", large, axis=1, keepdims=0)
    return net.model([large, classes, left, net.add("Relu", right), logits])


DETECTORS: list[Callable[[], onnx.ModelProto]] = [shared_head, one_tensor, best_places, masks]
"""What makes each of the networks."""
