"""Layers whose weights are codes of 4 or 8 bits, with a scale for each group of weights.

    MatMulNBits(a, codes, scales, zero points)                     as onnxruntime's quantiser writes it
    MatMul(a, DequantizeLinear(codes, scales, zero points))        as the standard has it since opset 21
    MatMul(a, Transpose(DequantizeLinear(...)))                    with the codes transposed
    Gemm(a, DequantizeLinear(...), b, transB=1)

The last three become the first one, which the importer translates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from ...tensors import Array
from ..contributed import DOMAIN, MATMUL_N_BITS, is_contributed
from ..nodes import attribute_of, graphs_of
from ..standard import is_standard
from ..weights import array_of
from .rewriting import Rewriting

_BITS = {TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.INT8: 8, TensorProto.UINT8: 8}
_SIGNED = (TensorProto.INT4, TensorProto.INT8)
_FLOAT32 = 1  # of accuracy levels; 0 leaves it open, 2 to 4 are float16, bfloat16 and int8
_LEAST_BLOCK = 16  # weights of a group that MatMulNBits takes at least


def with_code_layers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Writes the products of a model with weights that are dequantised from constant codes as MatMulNBits.

    Args:
        model: A cleaned model; see `simplify.clean`. It is not changed.

    Returns:
        The model; `model` itself if it has none of these products. The names of inputs and outputs are the same.
    """
    if not any(is_standard(node, "DequantizeLinear") for node in model.graph.node):
        return model
    rewritten = _CodeLayers(model).rewritten()
    if rewritten is not model and all(entry.domain != DOMAIN for entry in rewritten.opset_import):
        rewritten.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return rewritten


def keep_data_in_float32(graph: onnx.GraphProto) -> None:
    """Asks for sums of float32 in each MatMulNBits that lets onnxruntime round data to fewer bits (`accuracy_level`).

    The attribute is a lower bound. onnxruntime takes it for leave to be coarse; what it computes would not tell whether
    a kernel is right.

    Args:
        graph: The graph of a model, which is changed.
    """
    for node in graph.node:
        for inner in graphs_of(node):
            keep_data_in_float32(inner)
        if is_contributed(node, MATMUL_N_BITS):
            for attribute in node.attribute:
                if attribute.name == "accuracy_level":
                    attribute.i = min(attribute.i, _FLOAT32)


@dataclass(frozen=True, eq=False)
class _Codes:
    """Weights W[n, k] = scale[n, g] (code[n, k] - zero[n, g]), where g = k // group.

    Attributes:
        codes: Unsigned codes, uint8 of shape [n, k], one in each byte.
        zeros: The zero points, uint8 of shape [n, groups].
        scales: The scales, float32 of shape [n, groups].
        bits: The bits of a code.
    """

    codes: Array
    zeros: Array
    scales: Array
    bits: int


class _CodeLayers(Rewriting):
    """Writes products with weights that are dequantised by groups as MatMulNBits."""

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The nodes in the place of a node."""
        bias: list[str] = []
        if is_standard(node, "MatMul"):
            codes = self._weights(node.input[1], transposed=False)
        elif is_standard(node, "Gemm") and _is_plain(node):
            codes = self._weights(node.input[1], transposed=bool(attribute_of(node, "transB", 0)))
            bias = [name for name in node.input[2:] if name]
        else:
            return [node]
        if codes is None:
            return [node]
        (n, k), groups = codes.codes.shape, codes.scales.shape[1]
        packed = codes.codes if codes.bits == 8 else _in_halves(codes.codes)
        constants = {
            "codes": packed.reshape(n, groups, -1),
            "scales": codes.scales.reshape(-1),
            "zeros": _packed_zeros(codes).reshape(-1),
        }
        names = [self.constant(f"{node.output[0]}_{name}", values) for name, values in constants.items()]
        sizes = {"K": k, "N": n, "bits": codes.bits, "block_size": k // groups}
        inputs = [node.input[0], *names, *(["", *bias] if bias else [])]
        return [helper.make_node(MATMUL_N_BITS, inputs, node.output, node.name, domain=DOMAIN, **sizes)]

    def _weights(self, name: str, transposed: bool) -> _Codes | None:
        """The codes of a product's right side; None if it is not dequantised from constant codes in groups.

        Args:
            name: The name of the right side.
            transposed: Whether it is [n, k], and not [k, n].
        """
        node = self.producer(name)
        if node is not None and is_standard(node, "Transpose"):
            if attribute_of(node, "perm", [1, 0]) != [1, 0]:
                return None
            node, transposed = self.producer(node.input[0]), not transposed
        if node is None or not is_standard(node, "DequantizeLinear"):
            return None
        tensors = [self.constants.get(value) for value in node.input if value]
        if any(tensor is None for tensor in tensors):
            return None
        stored, scales, *rest = [tensor for tensor in tensors if tensor is not None]
        if stored.data_type not in _BITS or scales.data_type != TensorProto.FLOAT or len(stored.dims) != 2:
            return None
        if attribute_of(node, "output_dtype", 0) not in (TensorProto.UNDEFINED, TensorProto.FLOAT):
            return None
        bits, along = _BITS[stored.data_type], 1 if transposed else 0  # the axis of the sum
        shift = 2 ** (bits - 1) if stored.data_type in _SIGNED else 0
        codes = _integers(stored) + shift
        zeros = _integers(rest[0]) + shift if rest else np.full(tuple(scales.dims), shift)
        scale = _by_group(array_of(scales).astype(np.float32), codes.shape, node, along)
        zero = _by_group(zeros, codes.shape, node, along)
        if scale is None or zero is None:
            return None
        ordered = [values if transposed else values.T for values in (codes, scale, zero)]
        k, groups = ordered[0].shape[1], ordered[1].shape[1]
        if k % groups or k // groups < _LEAST_BLOCK or (bits == 4 and k // groups % 2):  # two codes share a byte
            return None
        return _Codes(ordered[0].astype(np.uint8), ordered[2].astype(np.uint8), ordered[1], bits)


def _is_plain(gemm: onnx.NodeProto) -> bool:
    """Whether a Gemm is a product and a sum without factors."""
    factors = attribute_of(gemm, "alpha", 1.0), attribute_of(gemm, "beta", 1.0)
    return not attribute_of(gemm, "transA", 0) and factors == (1.0, 1.0)


def _integers(tensor: onnx.TensorProto) -> Array:
    values: Array = array_of(tensor).astype(np.int64)
    return values


def _by_group(values: Array, shape: tuple[int, ...], node: onnx.NodeProto, along: int) -> Array | None:
    """Scales or zero points of a DequantizeLinear, by group along this axis; None if their groups lie otherwise.

    Args:
        values: The scales or zero points.
        shape: The shape of the codes.
        node: The DequantizeLinear.
        along: The axis of the sum.
    """
    axis = attribute_of(node, "axis", 1) % 2
    if block := attribute_of(node, "block_size", 0):
        fits = axis == along and values.ndim == 2 and values.shape[1 - along] == shape[1 - along]
        return values if fits and values.shape[along] * block == shape[along] else None
    if values.size == 1:
        values = np.full(shape[1 - along], values.reshape(()))
    elif axis == along:
        return None
    return np.expand_dims(values, along)


def _packed_zeros(codes: _Codes) -> Array:
    """Zero points as MatMulNBits has them: two of 4 bits in a byte, and each row in bytes of its own."""
    if codes.bits == 8:
        return codes.zeros
    return _in_halves(np.pad(codes.zeros, [(0, 0), (0, codes.zeros.shape[1] % 2)]))


def _in_halves(values: Array) -> Array:
    """Values of 4 bits, two of a row in a byte, the first one in its lower half."""
    packed: Array = values[:, ::2] | values[:, 1::2] << 4
    return packed
