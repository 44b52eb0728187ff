"""Decodes constants whose types no kernel knows: codes of 4 bits, floats of 8 bits.

    DequantizeLinear(w of int4, scale, zero point)  ->  a constant of float32

The scale may be one number, one for each channel, or one for each block of a channel. Weights that kernels read as
codes are products with codes before (`code_layers`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from ..nodes import attribute_of, constants_of
from ..standard import is_standard
from ..weights import KERNEL_TYPES, array_of
from .rewriting import Rewriting


def decode_narrow(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replaces each DequantizeLinear of constants, if the type of these is none that kernels compute with.

    Args:
        model: The model; it is not changed.

    Returns:
        The new model; the same one if it has no such node.
    """
    if not any(is_standard(node, "DequantizeLinear") for node in model.graph.node):
        return model
    return _Decoding(model).rewritten()


class _Decoding(Rewriting):
    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        self.constants = constants_of(model.graph)

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        names = [name for name in node.input if name]
        if not is_standard(node, "DequantizeLinear") or not self.constants.keys() >= set(names):
            return [node]
        if self.constants[node.input[0]].data_type in KERNEL_TYPES:
            return [node]
        value = _decoded(node, [array_of(self.constants[name]) for name in names])
        return [helper.make_node("Identity", [self.constant(f"{node.output[0]}_decoded", value)], node.output)]


def _decoded(node: onnx.NodeProto, constants: list[NDArray[Any]]) -> NDArray[Any]:
    """(codes - zero point) * scale."""
    codes, scale, *zero = constants
    asked, block = attribute_of(node, "output_dtype", 0), attribute_of(node, "block_size", 0)
    dtype = helper.tensor_dtype_to_np_dtype(asked) if asked else scale.dtype

    def each(value: NDArray[Any]) -> NDArray[Any]:
        """A value for each code of a value for all, for each channel or for each block."""
        if value.size == 1:
            return value.reshape(())
        axis = attribute_of(node, "axis", 1) % codes.ndim
        if not block:
            return value.reshape(-1, *[1] * (codes.ndim - axis - 1))
        return value.repeat(block, axis).take(range(codes.shape[axis]), axis)

    moved = codes.astype(np.float32)
    if zero:
        moved = moved - each(zero[0].astype(np.float32))
    return np.asarray(moved * each(scale.astype(np.float32)), dtype)
