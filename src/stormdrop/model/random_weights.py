"""Seeded random weights for a model that was published without weights.

The graphs of the ONNX model zoo that are published without weights carry one constant in every weight. Their outputs
do not depend on their inputs, so that a kernel which permutes channels passes every comparison. `seed_weights` gives
them weights with which a comparison can fail, and with which the activations neither vanish nor overflow.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from .onnx.nodes import attribute_of

_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
_SHAPE_ONLY = ("Unsqueeze", "Reshape", "Identity", "Cast", "Squeeze", "Flatten", "Transpose")
_RECTIFIERS = ("Relu", "LeakyRelu", "PRelu", "Clip")


def seed_weights(model: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """Copies a model and replaces its floating-point weights by random values.

    Weights are initialisers and outputs of `Constant` and `ConstantOfShape` that have more than one element. The node
    that takes a weight decides its distribution. Kernels of convolutions and matrices are normal with variance
    1 / (fan-in * second moment of the input), so that outputs have a variance of about 1. After a rectifier this is
    He et al. 2015, equation 10 (variance 2 / fan-in); after poolings and residual sums, for which their equation would
    make the variance grow, it still holds. Scales and variances of batch norms are around 1; biases and means are
    small. A weight without a known role keeps its value.

    Args:
        model: The model; it is not changed.
        seed: The same seed and graph give the same values.

    Returns:
        The copy. Its graph inputs are the true inputs only, without the initialisers.
    """
    seeded = onnx.ModelProto()
    seeded.CopyFrom(model)
    graph = seeded.graph
    replaced = _WeightInitialiser(_float_weights(graph), np.random.default_rng(seed)).initialise(graph)

    dtypes = {tensor.name: tensor.data_type for tensor in graph.initializer}
    kept_nodes = [node for node in graph.node if not (len(node.output) == 1 and node.output[0] in replaced)]
    kept_initializers = [tensor for tensor in graph.initializer if tensor.name not in replaced]
    del graph.node[:]
    del graph.initializer[:]
    graph.node.extend(kept_nodes)
    graph.initializer.extend(kept_initializers)
    for name, values in replaced.items():
        dtype = helper.tensor_dtype_to_np_dtype(dtypes.get(name, TensorProto.FLOAT))
        graph.initializer.append(numpy_helper.from_array(values.astype(dtype), name))

    initializers = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in initializers]
    del graph.input[:]
    graph.input.extend(inputs)
    # Before version 4 of the format every initialiser had to be listed as an input as well.
    seeded.ir_version = max(seeded.ir_version, 4)
    return seeded


def _float_weights(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """The shapes of all floating-point constants of a graph that have more than one element."""
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer if tensor.data_type in _FLOATS}
    for node in graph.node:
        if node.op_type not in ("Constant", "ConstantOfShape"):
            continue
        value = attribute_of(node, "value")
        if value is not None and value.data_type not in _FLOATS:
            continue
        if node.op_type == "ConstantOfShape" and node.input[0] in initializers:
            shapes[node.output[0]] = tuple(int(d) for d in numpy_helper.to_array(initializers[node.input[0]]))
        elif node.op_type == "Constant" and value is not None:
            shapes[node.output[0]] = tuple(value.dims)
    return {name: shape for name, shape in shapes.items() if math.prod(shape) > 1}


class _WeightInitialiser:
    """Goes through the nodes of a graph once, and gives each weight its values at the first node that takes it."""

    def __init__(self, weights: dict[str, tuple[int, ...]], rng: np.random.Generator) -> None:
        self._shapes = weights
        self._rng = rng
        self._origin = {name: name for name in weights}  # the weight that a value is, perhaps in another shape
        self._moments: dict[str, float] = {}  # estimated mean squares of computed values
        self._sums: set[str] = set()  # values that are sums of computed values
        self._values: dict[str, NDArray[np.floating]] = {}

    def initialise(self, graph: onnx.GraphProto) -> dict[str, NDArray[np.floating]]:
        for node in graph.node:
            if node.op_type in _SHAPE_ONLY and node.input[0] in self._origin:
                self._origin[node.output[0]] = self._origin[node.input[0]]
                continue
            for position, name in enumerate(node.input):
                weight = self._origin.get(name)
                if weight is not None and weight not in self._values:
                    values = self._draw(node, position, self._shapes[weight])
                    if values is not None:
                        self._values[weight] = values
            moment = self._moment(node)
            self._moments.update(dict.fromkeys(node.output, moment))
        return self._values

    def _input_moments(self, node: onnx.NodeProto) -> list[float]:
        """The mean squares of the node's inputs that are no weights."""
        return [self._moments.get(name, 1.0) for name in node.input if name and name not in self._origin]

    def _draw(self, node: onnx.NodeProto, position: int, shape: tuple[int, ...]) -> NDArray[np.floating] | None:
        """Random values for a weight that a node takes at `position`; None if its role is not known."""
        operator, rng = node.op_type, self._rng
        normalisation = operator.endswith("Normalization")
        fan_in = _fan_in(node, position, shape)
        if fan_in is not None:
            return rng.standard_normal(shape) / math.sqrt(fan_in * max([*self._input_moments(node), 1e-3]))
        if operator == "BatchNormalization" and position == 4:  # the variance
            return rng.uniform(0.5, 1.5, shape)
        if operator in ("Mul", "Div") or (normalisation and position == 1):
            return rng.uniform(0.8, 1.2, shape)
        if operator == "PRelu":
            return rng.uniform(0.1, 0.3, shape)
        if normalisation or operator in ("Conv", "ConvTranspose", "Gemm", "Add", "Sub", "Sum"):
            return 0.1 * rng.standard_normal(shape)
        return None

    def _moment(self, node: onnx.NodeProto) -> float:
        """A rough mean square of a node's output, good enough that activations stay in range over a deep network."""
        operator, inputs = node.op_type, self._input_moments(node) or [1.0]
        if operator in ("Conv", "ConvTranspose", "Gemm", "MatMul") and len(inputs) == 1:
            return 1.0
        if operator in _RECTIFIERS:
            # A residual sum is mostly positive already, because it is a rectified value plus a smaller one.
            return inputs[0] if node.input[0] in self._sums else inputs[0] / 2
        if operator == "MaxPool":
            window = math.prod(attribute_of(node, "kernel_shape", [1]))
            # The maximum of 4 independent rectified normal values has 3 times the mean square of one, that of 9 values
            # 5 times; neighbouring values are not independent.
            return inputs[0] * (2.0 if window <= 4 else 4.0)
        if operator in ("Add", "Sum", "Sub") and len(inputs) > 1:
            self._sums.update(node.output)
            return sum(inputs)
        return sum(inputs) / len(inputs)


def _fan_in(node: onnx.NodeProto, position: int, shape: tuple[int, ...]) -> int | None:
    """How many products one element of the output sums, if the input at `position` is a kernel or a matrix."""
    if node.op_type == "Conv" and position == 1:
        return math.prod(shape[1:])
    if node.op_type == "ConvTranspose" and position == 1:
        return shape[0] * math.prod(shape[2:])
    if node.op_type == "Gemm" and position == 1:
        return shape[1] if attribute_of(node, "transB", 0) else shape[0]
    if node.op_type == "MatMul" and len(shape) >= 2:
        return shape[-2] if position == 1 else shape[-1]
    return None
