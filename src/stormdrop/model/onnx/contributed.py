"""Operators that onnxruntime has beside the standard (domain com.microsoft), and that the importer takes.

onnx has to know the shapes of what they compute (`contributed_schemas`). It learns them for the time of an import,
because what it knows is the same for all threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import onnx
from onnx import defs

from .contributed_schemas import SCHEMAS
from .standard import is_standard

DOMAIN = "com.microsoft"
MATMUL_N_BITS = "MatMulNBits"
DYNAMIC_QUANTIZE_LSTM = "DynamicQuantizeLSTM"
DYNAMIC_QUANTIZE_MATMUL = "DynamicQuantizeMatMul"
MATMUL_INTEGER_TO_FLOAT = "MatMulIntegerToFloat"
QATTENTION = "QAttention"
SIMPLIFIED_LAYER_NORMALIZATION = "SimplifiedLayerNormalization"

ROUNDING = (DYNAMIC_QUANTIZE_LSTM, DYNAMIC_QUANTIZE_MATMUL)
"""Those that round numbers to bytes."""

OF_BYTES = (*ROUNDING, MATMUL_INTEGER_TO_FLOAT, QATTENTION)
"""Those that multiply bytes."""

PRODUCTS = (*OF_BYTES, MATMUL_N_BITS, "Attention", "FusedMatMul", "GroupQueryAttention", "MultiHeadAttention")
"""Those that multiply matrices."""

_AS_IF_STANDARD = (SIMPLIFIED_LAYER_NORMALIZATION,)
"""Those that onnxruntime has in the domain of the standard, which lacks them."""

_reading = threading.Lock()  # what onnx knows of operators is the same for all threads


def is_contributed(node: onnx.NodeProto, *operators: str) -> bool:
    """Whether a node has one of these operators.

    Args:
        node: The node.
        operators: The names of the operators in question; by default all.
    """
    in_domain = is_standard(node) if node.op_type in _AS_IF_STANDARD else node.domain == DOMAIN
    return in_domain and node.op_type in (operators or SCHEMAS)


@contextmanager
def known_shapes(model: onnx.ModelProto) -> Iterator[None]:
    """Lets onnx infer the shapes of the model's nodes that have these operators.

    Args:
        model: The model. If it has no such node, nothing happens.
    """
    used = dict.fromkeys(node.op_type for node in model.graph.node if is_contributed(node))
    if not used:
        yield
        return
    with _reading, ExitStack() as registered:
        for operator in used:
            domain = "" if operator in _AS_IF_STANDARD else DOMAIN
            if not defs.has(operator, domain):
                schema = SCHEMAS[operator].of(operator, domain)
                defs.register_schema(schema)
                registered.callback(defs.deregister_schema, operator, schema.since_version, domain)
        yield
