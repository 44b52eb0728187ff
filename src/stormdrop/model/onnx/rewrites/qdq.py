"""Layers of a model in the QDQ form, which are written in floats, become layers of bytes.

A quantiser that writes this form leaves each layer as it is, puts `DequantizeLinear` before its inputs and
`QuantizeLinear` behind its output. Sums of products of the bytes, which are exact, say the same:

    y = Conv(DequantizeLinear(x, xs, xz), DequantizeLinear(w, ws, wz), b)
    y = Cast(ConvInteger(x, w - wz, xz)) * (xs ws) + b

The scale of a QuantizeLinear that alone reads `y`, behind nothing or a Relu, joins these factors. Without a Relu its
zero point is added before the rounding, which takes fewer instructions:

    q = QuantizeLinear(y, ys, yz)
    q = QuantizeLinear(Cast(ConvInteger(x, w - wz, xz)) * (xs ws / ys) + b / ys + yz, 1, 0)

The zero point does not join the bias: in float32 their sum is less exact than the bias, and the error is the same for
all elements of a channel. A tie between two integers goes to the even one. If the zero point is odd, the other one is
even with the zero point added. Therefore an odd zero point stays where it is if ties are common, as they are if a
factor is a fraction such as 3/8.

So it makes no difference who else reads a layer's input or output. A layer stays as it is written if its data or its
weights are not dequantised from bytes, if their scales are no constants, or if the weights less their zero points are
no int8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from ...tensors import Array
from ..contributed import ROUNDING, is_contributed
from ..nodes import attribute_of
from ..standard import is_standard
from ..weights import array_of
from .rewriting import Rewriting

_MOST = 2**31 - 1  # the largest sum of products
_BITS_OF_TIES = 16  # ties are not rare if a factor is a multiple of 2 to the power of minus this
_SPATIAL = (1, 2)  # spatial dimensions of the convolutions that are taken
_KEEPS_SIGNS = ("Relu",)  # f(s x) = s f(x) for each positive s

_ROUNDING = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul")
"""The operators of the standard that round numbers to bytes."""


def rounds_to_bytes(model: onnx.ModelProto) -> bool:
    """Whether a model rounds data to bytes, so that two right ways to compute it may differ by steps of them.

    Args:
        model: An ONNX model.
    """
    nodes = model.graph.node
    return any(is_standard(node, name) for node in nodes for name in _ROUNDING) or any(
        is_contributed(node, *ROUNDING) for node in nodes
    )


def with_byte_layers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Rewrites the layers of a model that are written in floats and whose inputs are bytes.

    Args:
        model: A cleaned model; see `simplify.clean`. It is not changed.

    Returns:
        The model with `ConvInteger` and `MatMulInteger` in place of `Conv`, `MatMul` and `Gemm` on dequantised bytes;
        `model` itself if it has none. The names of inputs and outputs, and of all values that are left, are the same.
    """
    if not any(is_standard(node, "DequantizeLinear") for node in model.graph.node):
        return model
    return _ByteLayers(model).rewritten()


@dataclass(frozen=True, eq=False)
class _Data:
    """Bytes that a DequantizeLinear makes floats of, all by one scale.

    Attributes:
        bytes: The name of the tensor.
        zero: The name of its zero point.
        scale: The scale.
    """

    bytes: str
    zero: str
    scale: float


@dataclass(frozen=True, eq=False)
class _Weights:
    """Constant weights.

    Attributes:
        values: The weights less their zero points, as int8.
        scales: A scale, or one for each output channel.
    """

    values: Array
    scales: Array


class _ByteLayers(Rewriting):
    """Writes layers in floats whose inputs are bytes as layers of bytes."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        described = (*model.graph.input, *model.graph.value_info, *model.graph.output)
        self._ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in described}
        # The outputs of QuantizeLinear whose input is divided by the scale already, and the zero point added to it.
        self._divided: dict[str, int] = {}

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The nodes in the place of a node."""
        if is_standard(node, "QuantizeLinear") and node.output[0] in self._divided:
            divided = onnx.NodeProto()
            divided.CopyFrom(node)
            divided.input[1] = self.constant(f"{node.output[0]}_one", np.float32(1.0))
            if self._divided[node.output[0]]:
                dtype = helper.tensor_dtype_to_np_dtype(self.constants[node.input[2]].data_type)
                divided.input[2] = self.constant(f"{node.output[0]}_zero", np.zeros((), dtype))
            return [divided]
        layer = _LAYERS.get(node.op_type) if is_standard(node) else None
        return (layer(self, node) if layer is not None else None) or [node]

    def conv(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Nodes in the place of a Conv; None if it stays."""
        data, weights, bias = self._data(node.input[0]), self._weights(node.input[1], 0), self._bias(node, 1.0)
        if data is None or weights is None or bias is None or weights.values.ndim - 2 not in _SPATIAL:
            return None
        column = (-1, *[1] * (weights.values.ndim - 2))
        factor, added = (data.scale * weights.scales).reshape(column), bias.reshape(column)
        return self._layer(node, "ConvInteger", data, weights.values, factor, added, node.attribute)

    def matmul(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Nodes in the place of a MatMul; None if it stays."""
        data, other = self._data(node.input[0]), self._data(node.input[1])
        if data is None:
            return None
        if other is not None:
            return self._product_of_data(node, data, other)
        weights = self._weights(node.input[1], 1)
        if weights is None or weights.values.ndim != 2:
            return None
        return self._layer(node, "MatMulInteger", data, weights.values, data.scale * weights.scales, np.zeros(1))

    def gemm(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Nodes in the place of a Gemm with constant weights; None if it stays."""
        transposed = attribute_of(node, "transB", 0)
        data, weights = self._data(node.input[0]), self._weights(node.input[1], 0 if transposed else 1)
        bias = self._bias(node, attribute_of(node, "beta", 1.0))
        if data is None or weights is None or bias is None or attribute_of(node, "transA", 0):
            return None
        factor = attribute_of(node, "alpha", 1.0) * data.scale * weights.scales
        values = weights.values.T if transposed else weights.values
        return self._layer(node, "MatMulInteger", data, values, factor, bias)

    def _product_of_data(self, node: onnx.NodeProto, left: _Data, right: _Data) -> list[onnx.NodeProto] | None:
        """A MatMul of two tensors that are no constants."""
        rank = self._ranks.get(node.input[0], 0)
        if rank < 2 or self._ranks.get(node.input[1]) != rank:
            return None
        sums = self.fresh(f"{node.output[0]}_sums")
        product = helper.make_node("MatMulInteger", [left.bytes, right.bytes, left.zero, right.zero], [sums], node.name)
        return [product, *self._scaled(node, sums, np.asarray(left.scale * right.scale), np.zeros(1))]

    def _layer(
        self,
        node: onnx.NodeProto,
        operator: str,
        data: _Data,
        weights: Array,
        factor: Array,
        bias: Array,
        attributes: Sequence[onnx.AttributeProto] = (),
    ) -> list[onnx.NodeProto] | None:
        """The nodes of `factor * operator(data, weights) + bias`; None if the sums may leave int32."""
        reduced = tuple(range(1, weights.ndim)) if operator == "ConvInteger" else (0,)
        if 255 * int(np.abs(weights.astype(np.int64)).sum(axis=reduced).max(initial=0)) > _MOST:
            return None
        sums = self.fresh(f"{node.output[0]}_sums")
        constant = self.constant(f"{node.output[0]}_weights", np.ascontiguousarray(weights))
        product = helper.make_node(operator, [data.bytes, constant, data.zero], [sums], node.name)
        product.attribute.extend(attributes)
        return [product, *self._scaled(node, sums, factor, bias)]

    def _scaled(self, node: onnx.NodeProto, sums: str, factor: Array, bias: Array) -> list[onnx.NodeProto]:
        """The nodes that make the node's output of its sums."""
        output, zero = node.output[0], 0
        quantize = self._only_quantized(output)
        if quantize is not None:
            step = self._scale_of(quantize)
            with np.errstate(all="ignore"):
                divided = (factor / step).astype(np.float32), (bias / step).astype(np.float32)
            if step > 0 and all(np.isfinite(values).all() for values in divided):
                factor, bias = divided
                zero = self._zero_behind(output, quantize)
                if zero % 2 and (np.ldexp(factor, _BITS_OF_TIES) % 1 == 0).any():
                    zero = 0
                self._divided[quantize.output[0]] = zero
        name = self.fresh(f"{output}_real")
        nodes = [helper.make_node("Cast", [sums], [name], f"{node.name}_cast", to=TensorProto.FLOAT)]
        for operator, what, operand in (
            ("Mul", "scale", factor),
            ("Add", "bias", bias),
            ("Add", "zero_point", np.asarray(zero)),
        ):
            if operator == "Add" and not operand.any():
                continue
            operands = [name, self.constant(f"{output}_{what}", operand.astype(np.float32))]
            name = self.fresh(f"{output}_with_{what}")
            nodes.append(helper.make_node(operator, operands, [name], f"{node.name}_{what}"))
        nodes[-1].output[0] = output
        return nodes

    def _only_quantized(self, name: str) -> onnx.NodeProto | None:
        """The QuantizeLinear with one constant scale that alone reads a value, behind nothing but Relu."""
        while name not in self.wiring.outputs and len(readers := self.wiring.readers[name]) == 1:
            reader = self.wiring.nodes[readers[0]]
            if list(reader.input).count(name) != 1 or reader.input[0] != name:
                return None
            if is_standard(reader, "QuantizeLinear"):
                return reader if self._scale_of(reader) > 0 else None
            if not is_standard(reader, *_KEEPS_SIGNS):
                return None
            name = reader.output[0]
        return None

    def _zero_behind(self, name: str, quantize: onnx.NodeProto) -> int:
        """The zero point of a QuantizeLinear that reads a value itself; 0 if it does not, or has no single one."""
        if quantize.input[0] != name or len(quantize.input) < 3:
            return 0
        zero = self._array(quantize.input[2], *_BYTES)
        return 0 if zero is None or zero.size != 1 else int(zero.reshape(()))

    def _scale_of(self, node: onnx.NodeProto) -> float:
        """The scale of a QuantizeLinear or DequantizeLinear for all elements; 0 if it is no constant or not one."""
        scale = self._array(node.input[1], TensorProto.FLOAT)
        if scale is None or scale.size != 1 or attribute_of(node, "block_size", 0):
            return 0.0
        return float(scale.reshape(()))

    def _dequantize(self, name: str) -> onnx.NodeProto | None:
        """The DequantizeLinear that makes a value."""
        node = self.producer(name)
        return node if node is not None and is_standard(node, "DequantizeLinear") else None

    def _data(self, name: str) -> _Data | None:
        """What a value is dequantised from, if that is bytes with one scale and one zero point."""
        node = self._dequantize(name)
        if node is None or len(node.input) < 3 or node.input[0] in self.constants or not self._scale_of(node):
            return None
        zero = self._array(node.input[2], *_BYTES)
        if zero is None or zero.size != 1:
            return None
        return _Data(node.input[0], node.input[2], self._scale_of(node))

    def _weights(self, name: str, axis: int) -> _Weights | None:
        """Weights that are dequantised from bytes, by one scale or by one for each position on an axis."""
        node = self._dequantize(name)
        values = None if node is None else self._array(node.input[0], *_BYTES)
        known = None if node is None or values is None else self._parameters(node, values.ndim)
        if values is None or known is None or values.ndim < 2:
            return None
        scales, zeros, along = known
        if along not in (None, axis):
            return None
        shape = [1] * values.ndim
        if zeros.size > 1:
            shape[axis] = -1
        shifted = values.astype(np.int64) - zeros.astype(np.int64).reshape(shape)
        limits = np.iinfo(np.int8)
        if shifted.min(initial=0) < limits.min or shifted.max(initial=0) > limits.max:
            return None
        return _Weights(shifted.astype(np.int8), scales.reshape(-1))

    def _bias(self, node: onnx.NodeProto, times: float) -> Array | None:
        """The third input of a layer times a number, in float64; zero without one; None if it is no constant."""
        if len(node.input) < 3 or not node.input[2]:
            return np.zeros(1)
        name = node.input[2]
        value = self._array(name, TensorProto.FLOAT)
        dequantize = self._dequantize(name)
        if value is not None:
            return times * value.astype(np.float64)
        values = None if dequantize is None else self._array(dequantize.input[0], *_INTEGERS)
        if dequantize is None or values is None:
            return None
        known = self._parameters(dequantize, values.ndim)
        if known is None or (known[2] is not None and values.ndim != 1):
            return None
        scales, zeros, _ = known
        return times * (values.astype(np.float64) - zeros.astype(np.float64).reshape(-1)) * scales.reshape(-1)

    def _parameters(self, node: onnx.NodeProto, rank: int) -> tuple[Array, Array, int | None] | None:
        """The scales in float64, the zero points and the axis of a DequantizeLinear of a constant.

        The axis is None if there is one scale; the result is None if something is no constant, or goes by blocks.
        """
        scales = self._array(node.input[1], TensorProto.FLOAT)
        named = len(node.input) > 2 and node.input[2]
        zeros = self._array(node.input[2], *_INTEGERS) if named else np.zeros(1, np.int64)
        if scales is None or zeros is None or attribute_of(node, "block_size", 0):
            return None
        if scales.size == 1 and zeros.size == 1:
            return scales.astype(np.float64), zeros, None
        if scales.ndim != 1 or zeros.size not in (1, scales.size):
            return None
        axis = attribute_of(node, "axis", 1)
        return scales.astype(np.float64), zeros, axis % rank if rank > 1 else 0

    def _array(self, name: str, *types: int) -> Array | None:
        """The value of a constant of one of these types; None for any other value."""
        tensor = self.constants.get(name)
        return array_of(tensor) if tensor is not None and tensor.data_type in types else None


_BYTES = (TensorProto.INT8, TensorProto.UINT8)
_INTEGERS = (*_BYTES, TensorProto.INT16, TensorProto.UINT16, TensorProto.INT32)

_LAYERS: dict[str, Callable[[_ByteLayers, onnx.NodeProto], list[onnx.NodeProto] | None]] = {
    "Conv": _ByteLayers.conv,
    "Gemm": _ByteLayers.gemm,
    "MatMul": _ByteLayers.matmul,
}
