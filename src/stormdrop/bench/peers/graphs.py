"""An operator as an ONNX graph: the form in which onnxruntime and OpenVINO take one.

Weights are initializers, so that a runtime packs them ahead. Images are channels second, as ONNX has them: `feeds`
are views of the workload's inputs with the axes so ordered, and `restored` undoes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..turns import Unavailable

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

Array = NDArray[Any]
Arguments = Mapping[str, Any]

_OPSET, _IR_VERSION = 20, 9


@dataclass(frozen=True)
class OperatorGraph:
    """An operator as a serialised ONNX model with one output, `y`.

    `feeds` are the inputs that vary, by name, as the graph has them (not contiguous where axes were reordered).
    `images`: they and the output have channels second. `channels_last`: the workload has them last.
    """

    model: bytes
    feeds: Mapping[str, Array]
    images: bool
    channels_last: bool

    def restored(self, output: Array) -> Array:
        """The graph's output in the workload's layout, contiguous; at least one-dimensional."""
        return np.ascontiguousarray(np.moveaxis(output, 1, -1) if self.channels_last else output)


def operator_graph(operator: str, arguments: Arguments, inputs: Sequence[Array]) -> OperatorGraph:
    """The graph of a workload's operator, with these inputs. Raises `Unavailable` where ONNX has no form of it."""
    from onnx import TensorProto, helper

    if operator not in _BUILDERS:
        raise Unavailable(f"there is no ONNX graph of {operator} here")
    graph = _Draft(arguments, inputs)
    _BUILDERS[operator](graph)
    graph.nodes[-1].output[0] = "y"
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in graph.feeds.items()]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    body = helper.make_graph(graph.nodes, operator, given, [result], graph.constants)
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    return OperatorGraph(model.SerializeToString(), graph.feeds, graph.images, graph.images and graph.last)


class _Draft:
    """A graph while it is built; `last`: the workload has channels last."""

    def __init__(self, arguments: Arguments, inputs: Sequence[Array]) -> None:
        self.arguments, self.inputs = arguments, inputs
        layout = arguments.get("layout", "")
        self.images, self.last = bool(layout), layout.endswith("C")
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.feeds: dict[str, Array] = {}

    def feed(self, array: Array) -> str:
        """An input that varies."""
        name = f"x{len(self.feeds)}"
        self.feeds[name] = np.moveaxis(array, -1, 1) if self.images and self.last else array
        return name

    def constant(self, values: Any, dtype: str = "float32") -> str:
        """An initializer."""
        from onnx import numpy_helper

        name = f"w{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype, order="C"), name))
        return name

    def node(self, kind: str, *operands: str, **attributes: Any) -> str:
        """Another node; the name of its output."""
        from onnx import helper

        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, operands, [name], **attributes))
        return name

    def activated(self, value: str, kind: str) -> None:
        """A function of each element."""
        if kind == "relu6":
            self.node("Clip", value, self.constant(0.0), self.constant(6.0))
        elif kind == "silu":
            self.node("Mul", value, self.node("Sigmoid", value))
        elif kind in _UNARY:
            self.node(_UNARY[kind], value)
        elif kind != "none":
            raise Unavailable(f"there is no ONNX graph of {kind} here")

    def epilogue(self, value: str, further: Sequence[Array]) -> None:
        """Adds the residual, if there is one in the inputs behind the bias, and applies the activation."""
        for residual in further:
            value = self.node("Add", value, self.feed(residual))
        self.activated(value, self.arguments["act"])


_UNARY = {
    "relu": "Relu",
    "exp": "Exp",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "hardswish": "HardSwish",
    "gelu": "Gelu",
    "erf": "Erf",
    "sqrt": "Sqrt",
}
_BINARY = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "bias_add": "Add"}


def _matmul(graph: _Draft) -> None:
    graph.node("MatMul", *map(graph.feed, graph.inputs))


def _batch_matmul(graph: _Draft) -> None:
    left, right = map(graph.feed, graph.inputs)
    if graph.arguments["transpose_b"]:
        right = graph.node("Transpose", right, perm=[0, 2, 1])
    graph.node("MatMul", left, right)


def _attention_scores(graph: _Draft) -> None:
    query, key, *mask = map(graph.feed, graph.inputs)
    product = graph.node("MatMul", query, graph.node("Transpose", key, perm=[0, 2, 1]))
    scores = graph.node("Mul", product, graph.constant(1 / math.sqrt(graph.arguments["k"])))
    for each in mask:
        scores = graph.node("Add", scores, each)
    graph.node("Softmax", scores, axis=-1)


def _dense(graph: _Draft) -> None:
    x, *others = graph.inputs
    weights = 1 + graph.arguments["bias"]
    product = graph.node("Gemm", graph.feed(x), *map(graph.constant, others[:weights]), transB=1)
    graph.epilogue(product, others[weights:])


def _convolution(graph: _Draft) -> None:
    weight = graph.inputs[1]
    _convolved(graph, np.moveaxis(weight, -1, 1) if graph.last else weight, graph.arguments["groups"])


def _depthwise(graph: _Draft) -> None:
    weight = np.moveaxis(graph.inputs[1], -1, 0) if graph.last else graph.inputs[1]
    _convolved(graph, weight[:, np.newaxis], len(weight))


def _convolved(graph: _Draft, weight: Array, groups: int) -> None:
    """A convolution with weights [co, ci/groups, window]."""
    x, _, *others = graph.inputs
    biases = graph.arguments["bias"]
    operands = [graph.feed(x), graph.constant(weight), *map(graph.constant, others[:biases])]
    place = _placement(graph.arguments, weight.ndim - 2)
    dilations = [graph.arguments["dilation"]] * (weight.ndim - 2)
    product = graph.node("Conv", *operands, group=groups, dilations=dilations, **place)
    graph.epilogue(product, others[biases:])


def _placement(arguments: Arguments, dimensions: int) -> dict[str, list[int]]:
    return {"strides": [arguments["stride"]] * dimensions, "pads": [arguments["pad"]] * 2 * dimensions}


def _pool(graph: _Draft) -> None:
    arguments = graph.arguments
    window = {"kernel_shape": [arguments["kh"], arguments["kw"]], **_placement(arguments, 2)}
    if arguments["kind"] == "max":
        graph.node("MaxPool", graph.feed(graph.inputs[0]), **window)
    else:
        graph.node("AveragePool", graph.feed(graph.inputs[0]), count_include_pad=1, **window)


def _global_pool(graph: _Draft) -> None:
    kinds = {"max": "GlobalMaxPool", "avg": "GlobalAveragePool"}
    graph.node(kinds[graph.arguments["kind"]], *map(graph.feed, graph.inputs))


def _reduce(graph: _Draft) -> None:
    (x,) = graph.inputs
    axis = graph.arguments["axis"]
    axes = graph.constant(axis if isinstance(axis, tuple) else (axis,), "int64")
    graph.node(f"Reduce{graph.arguments['kind'].capitalize()}", graph.feed(x), axes, keepdims=0)


def _softmax(graph: _Draft) -> None:
    graph.node("Softmax", *map(graph.feed, graph.inputs), axis=-1)


def _layer_norm(graph: _Draft) -> None:
    x, *weights = graph.inputs
    operands = [graph.feed(x), *map(graph.constant, weights)]
    graph.node("LayerNormalization", *operands, axis=-1, epsilon=graph.arguments["eps"])


def _rms_norm(graph: _Draft) -> None:
    """In parts, which both runtimes fuse: the operator is younger than the opset."""
    x, scale = graph.feed(graph.inputs[0]), graph.constant(graph.inputs[1])
    square = graph.node("Pow", x, graph.constant(2.0))
    mean = graph.node("ReduceMean", square, graph.constant([-1], "int64"), keepdims=1)
    root = graph.node("Sqrt", graph.node("Add", mean, graph.constant(graph.arguments["eps"])))
    graph.node("Mul", graph.node("Div", x, root), scale)


def _transpose(graph: _Draft) -> None:
    graph.node("Transpose", *map(graph.feed, graph.inputs), perm=graph.arguments["perm"])


def _concatenate(graph: _Draft) -> None:
    graph.node("Concat", *map(graph.feed, graph.inputs), axis=graph.arguments["axis"])


def _elementwise(graph: _Draft) -> None:
    kind, feeds = graph.arguments["kind"], list(map(graph.feed, graph.inputs))
    if len(feeds) == 1:
        graph.activated(feeds[0], kind)
    else:
        graph.node(_BINARY[kind], *feeds)


_BUILDERS: dict[str, Callable[[_Draft], None]] = {
    "matmul": _matmul,
    "batch_matmul": _batch_matmul,
    "attention_scores": _attention_scores,
    "dense": _dense,
    "conv1d": _convolution,
    "conv2d": _convolution,
    "depthwise_conv2d": _depthwise,
    "pool2d": _pool,
    "global_pool2d": _global_pool,
    "reduce": _reduce,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "transpose": _transpose,
    "concatenate": _concatenate,
    "elementwise": _elementwise,
}
