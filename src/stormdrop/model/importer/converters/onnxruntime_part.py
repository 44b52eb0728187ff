"""The converter of the nodes that stand for an onnxruntime part of a graph; see `partition`."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper
from tvm import relax

from ....runtime.program import FUNCTION
from .node import Node

OPERATOR, DOMAIN = "StormdropForeign", "stormdrop"
"""The name of these nodes. Their attributes are `index`, that of the part, and `types`, those of its outputs."""


def _call_of_part(node: Node) -> Any:
    """The call of the packed function of a part."""
    function = f"{FUNCTION}{node.attribute('index')}"
    types = [_type(proto) for proto in node.attribute("types")]
    arguments = [node[position] for position in range(len(node.inputs))]
    if all(kind.shape is not None for kind in types):
        return node.emit(relax.call_dps_packed(function, relax.Tuple(arguments), types))
    result = types[0] if len(types) == 1 else relax.TupleType(types)
    return node.emit(relax.op.call_pure_packed(function, *arguments, ty_args=result))


def _type(proto: onnx.TypeProto) -> relax.TensorType:
    tensor = proto.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    if not tensor.HasField("shape"):
        return relax.TensorType(dtype=dtype)
    if all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        return relax.TensorType([dim.dim_value for dim in tensor.shape.dim], dtype)
    return relax.TensorType(dtype=dtype, ndim=len(tensor.shape.dim))


CONVERTERS = {f"{DOMAIN}.{OPERATOR}": _call_of_part}
