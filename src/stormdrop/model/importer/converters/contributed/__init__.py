"""Converters of what decoders and encoders consist of: Attention, and operators that onnxruntime has of its own.

heads.py                attention by heads, which all of these share
masks.py                which keys a mask excludes
self_attention.py       Attention: a sequence attends to itself
quantized_attention.py  QAttention: the same with weights that are bytes
multi_head.py           MultiHeadAttention: queries, keys and values are given
group_query.py          GroupQueryAttention: a decoder's attention to its cache
standard_attention.py   Attention of the standard
rotary.py               RotaryEmbedding: positions as rotations
norms.py                normalizations, also of sums and of embeddings
activations.py          Gelu and its kin
products.py             FusedMatMul
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....onnx.contributed import DOMAIN
from ..node import Node
from . import (
    activations,
    group_query,
    multi_head,
    norms,
    products,
    quantized_attention,
    rotary,
    self_attention,
    standard_attention,
)

_IN_DOMAIN: dict[str, Callable[[Node], Any]] = {
    **activations.CONVERTERS,
    **group_query.CONVERTERS,
    **multi_head.CONVERTERS,
    **norms.CONVERTERS,
    **products.CONVERTERS,
    **quantized_attention.CONVERTERS,
    **rotary.CONVERTERS,
    **self_attention.CONVERTERS,
}

CONVERTERS: dict[str, Callable[[Node], Any]] = {
    **{f"{DOMAIN}.{operator}": converter for operator, converter in _IN_DOMAIN.items()},
    **norms.IN_STANDARD,
    **standard_attention.IN_STANDARD,
}
"""The converters by operator, with the domain if it is not that of the standard."""
