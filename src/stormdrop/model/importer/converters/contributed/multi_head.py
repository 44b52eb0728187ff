"""The converter of MultiHeadAttention, an operator of onnxruntime's own: queries, keys and values are given.

    y = softmax(scale (q + b) (k + b)^T + bias + mask) (v + b)           by heads

Before the keys and the values stand those of the past.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from ..node import Node, shape_of, tuple_of
from .heads import by_heads, joined_heads, masked_scores, mixed_values, with_past
from .masks import mask_of


def _attention(node: Node) -> Any:
    if len(node.shape()) != 3 or not (node.has(1) and node.has(2)):
        raise ValueError("queries, keys and values in one tensor")
    if node.has(8) or node.has(9):
        raise ValueError("a past that is written in place (past_sequence_length, cache_indirection)")
    heads, (batch, rows, hidden) = node.attribute("num_heads"), node.shape()
    query, key, value = (_by_heads(node, position, heads, position * hidden) for position in range(3))
    before = node.shape(6)[2] if node.has(6) else 0
    key, value = (with_past(node, node.optional(past), new) for past, new in ((6, key), (7, value)))
    total = shape_of(key)[2]
    added = [node.optional(5), mask_of(node, 4, batch, rows, before, total)]
    scores = masked_scores(node, query, key, [each for each in added if each is not None])
    result = joined_heads(node, mixed_values(node, scores, value))
    return tuple_of(*(result, key, value, scores)[: node.outputs])


def _by_heads(node: Node, position: int, heads: int, begin: int) -> Any:
    """An input by heads, with its part of the bias, which begins there; one of four dimensions is by heads already."""
    x, shape = node[position], node.shape(position)
    if len(shape) == 4:
        return x
    if node.has(3):
        bias = node.emit(relax.op.strided_slice(node[3], [0], [begin], [begin + shape[2]]))
        x = node.emit(relax.op.add(x, bias))
    return by_heads(node, x, heads)


CONVERTERS: dict[str, Callable[[Node], Any]] = {"MultiHeadAttention": _attention}
