"""The converter of QAttention, an operator of onnxruntime's own: Attention with weights that are bytes.

    q, k, v = x W + b            one product of bytes, and one scale or a scale for each column

The rest is computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....onnx.contributed import QATTENTION
from ..node import Node
from ..quantized import scaled_product
from .self_attention import attended


def _attention(node: Node) -> Any:
    product = scaled_product(node, (node[0], node.optional(6), node[3]), (node[1], node.optional(7), node[4]), node[2])
    return attended(node, product, node.shape(1)[1] // 3, mask=5, past=8)


CONVERTERS: dict[str, Callable[[Node], Any]] = {QATTENTION: _attention}
