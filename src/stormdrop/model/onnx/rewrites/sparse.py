"""Writes the sparse constants of a model as plain tensors, which is how kernels and onnxruntime read them."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ....errors import ModelError, one_line, shown
from ..sizes import is_too_large, too_large
from .functions import all_graphs, all_nodes


def make_dense(model: onnx.ModelProto, name: str) -> None:
    """Replaces the sparse constants of a model, which is changed.

    Args:
        model: The model. Its sparse constants are initializers, and the values of `Constant` nodes.
        name: The name of the model, for messages.

    Raises:
        ModelError: The indices of a constant do not fit its shape, or the shape does not fit the memory.
    """
    for graph in all_graphs(model.graph):
        for tensor in graph.sparse_initializer:
            graph.initializer.append(_dense(tensor, tensor.values.name, name))
        del graph.sparse_initializer[:]
    for node in all_nodes([*model.graph.node, *(node for function in model.functions for node in function.node)]):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
                dense = _dense(attribute.sparse_tensor, "".join(node.output[:1]), name)
                attribute.CopyFrom(helper.make_attribute("value", dense))


def _dense(sparse: onnx.SparseTensorProto, constant: str, name: str) -> TensorProto:
    """A sparse tensor as a plain one with the name `constant`."""
    what, shape = f"{name}: sparse constant {shown(constant)!r}", tuple(sparse.dims)
    if not shape or min(shape) < 0:
        raise ModelError(f"{what} has the shape {shown(str(list(shape)))}")
    try:
        values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    except Exception as error:
        # onnx raises many types for a tensor without the data that its shape needs, or of an unknown type.
        raise ModelError(f"{what} cannot be read: {one_line(error)}") from error
    if is_too_large(shape, values.itemsize):
        raise ModelError(f"{what} has {too_large(shape)}")
    if indices.shape not in ((values.size,), (values.size, len(shape))) or values.ndim != 1:
        raise ModelError(f"{what} has {values.size} values, and indices of the shape {indices.shape}")
    bounds = math.prod(shape) if indices.ndim == 1 else np.array(shape)
    if not ((indices >= 0) & (indices < bounds)).all():
        raise ModelError(f"{what} has an index outside of its shape {'x'.join(map(str, shape))}")
    dense = np.zeros(shape, values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return numpy_helper.from_array(dense, constant)
