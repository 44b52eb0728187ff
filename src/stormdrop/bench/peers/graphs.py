"""Makes an ONNX graph of an operator, because onnxruntime and OpenVINO run graphs.

Weights are initializers, so that a runtime packs them ahead. Images are channels second, as in ONNX: the `feeds` of a
graph are views of the workload's inputs with their axes in this order, and `restored` undoes this for the output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..contender import Unavailable, require_float32

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

Array = NDArray[Any]
Arguments = Mapping[str, Any]

_OPSET, _IR_VERSION = 20, 9


@dataclass(frozen=True)
class OperatorGraph:
    """An operator as an ONNX model with one output, `y`.

    Attributes:
        model: The serialised model.
        feeds: The inputs that are not constant, by name, with axes in the graph's order. An array whose axes were
            reordered is not contiguous.
        images: Whether inputs and output are images, with channels second.
        channels_last: Whether the workload has channels last.
    """

    model: bytes
    feeds: Mapping[str, Array]
    images: bool
    channels_last: bool

    def restored(self, output: Array) -> Array:
        """The graph's output in the workload's layout, contiguous; at least one-dimensional."""
        return np.ascontiguousarray(np.moveaxis(output, 1, -1) if self.channels_last else output)


def operator_graph(operator: str, arguments: Arguments, inputs: Sequence[Array]) -> OperatorGraph:
    """Makes the graph of an operator.

    Args:
        operator: The name of the operator, such as "conv2d".
        arguments: The arguments of its workload.
        inputs: The input arrays of its workload.

    Raises:
        Unavailable: There is no graph of this operator, of its activation, or of its type.
    """
    from onnx import TensorProto, helper

    require_float32(arguments)
    if operator not in _BUILDERS:
        raise Unavailable(f"there is no ONNX graph of {operator} here")
    graph = _Draft(arguments, inputs)
    _BUILDERS[operator](graph)
    graph.nodes[-1].output[0] = "y"
    feeds = [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in graph.feeds.items()]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    body = helper.make_graph(graph.nodes, operator, feeds, [result], graph.constants)
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    return OperatorGraph(model.SerializeToString(), graph.feeds, graph.images, graph.images and graph.channels_last)


class _Draft:
    """A graph while it is built: its nodes, its constants and the inputs that are not constant."""

    def __init__(self, arguments: Arguments, inputs: Sequence[Array]) -> None:
        self.arguments, self.inputs = arguments, inputs
        layout = arguments.get("layout", "")
        self.images, self.channels_last = bool(layout), layout.endswith("C")
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.feeds: dict[str, Array] = {}

    def feed(self, array: Array) -> str:
        """Adds an input that is not constant; returns its name."""
        name = f"x{len(self.feeds)}"
        self.feeds[name] = np.moveaxis(array, -1, 1) if self.images and self.channels_last else array
        return name

    def constant(self, values: Any, dtype: str = "float32") -> str:
        """Adds an initializer; returns its name."""
        from onnx import numpy_helper

        name = f"w{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype, order="C"), name))
        return name

    def node(self, kind: str, *operands: str, **attributes: Any) -> str:
        """Adds a node; returns the name of its output."""
        from onnx import helper

        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, operands, [name], **attributes))
        return name

    def activate(self, value: str, kind: str) -> None:
        """Adds a function of each element. Raises `Unavailable` if it is not known."""
        if kind == "relu6":
            self.node("Clip", value, self.constant(0.0), self.constant(6.0))
        elif kind == "silu":
            self.node("Mul", value, self.node("Sigmoid", value))
        elif kind in _UNARY:
            self.node(_UNARY[kind], value)
        elif kind != "none":
            raise Unavailable(f"there is no ONNX graph of {kind} here")

    def epilogue(self, value: str, residuals: Sequence[Array]) -> None:
        """Adds the residual, if there is one, and then the activation."""
        for residual in residuals:
            value = self.node("Add", value, self.feed(residual))
        self.activate(value, self.arguments["act"])


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


def _attention(graph: _Draft) -> None:
    *inputs, values = graph.inputs
    graph.node("MatMul", _scores(graph, inputs), graph.feed(values))


def _attention_scores(graph: _Draft) -> None:
    _scores(graph, graph.inputs)


def _scores(graph: _Draft, inputs: Sequence[Array]) -> str:
    """Adds the softmax of the scores; returns its name."""
    query, key, *mask = map(graph.feed, inputs)
    product = graph.node("MatMul", query, graph.node("Transpose", key, perm=[0, 2, 1]))
    scores = graph.node("Mul", product, graph.constant(1 / math.sqrt(graph.arguments["k"])))
    if mask:
        scores = graph.node("Add", scores, *mask)
    return graph.node("Softmax", scores, axis=-1)


def _dense(graph: _Draft) -> None:
    x, *others = graph.inputs
    constants = 1 + graph.arguments["bias"]
    product = graph.node("Gemm", graph.feed(x), *map(graph.constant, others[:constants]), transB=1)
    graph.epilogue(product, others[constants:])


def _convolution(graph: _Draft) -> None:
    weight = graph.inputs[1]
    _add_convolution(graph, np.moveaxis(weight, -1, 1) if graph.channels_last else weight, graph.arguments["groups"])


def _depthwise(graph: _Draft) -> None:
    weight = np.moveaxis(graph.inputs[1], -1, 0) if graph.channels_last else graph.inputs[1]
    _add_convolution(graph, weight[:, np.newaxis], len(weight))


def _add_convolution(graph: _Draft, weight: Array, groups: int) -> None:
    """Adds a convolution with weights [co, ci/groups, window] and its epilogue."""
    x, _, *others = graph.inputs
    biases = graph.arguments["bias"]
    operands = [graph.feed(x), graph.constant(weight), *map(graph.constant, others[:biases])]
    placement = _stride_and_padding(graph.arguments, weight.ndim - 2)
    dilations = [graph.arguments["dilation"]] * (weight.ndim - 2)
    product = graph.node("Conv", *operands, group=groups, dilations=dilations, **placement)
    graph.epilogue(product, others[biases:])


def _stride_and_padding(arguments: Arguments, dimensions: int) -> dict[str, list[int]]:
    return {"strides": [arguments["stride"]] * dimensions, "pads": [arguments["pad"]] * 2 * dimensions}


def _pool(graph: _Draft) -> None:
    arguments = graph.arguments
    window = {"kernel_shape": [arguments["kh"], arguments["kw"]], **_stride_and_padding(arguments, 2)}
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
    """In several nodes, which both runtimes fuse, because the opset does not have this operator yet."""
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
        graph.activate(feeds[0], kind)
    else:
        graph.node(_BINARY[kind], *feeds)


_BUILDERS: dict[str, Callable[[_Draft], None]] = {
    "matmul": _matmul,
    "batch_matmul": _batch_matmul,
    "attention": _attention,
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
