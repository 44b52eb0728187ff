"""Attention by heads, as onnxruntime's operators have it: each with its own masks.

    y = softmax(scale q k^T + bias + mask) v           by heads, in float32

Before the keys and the values stand those of the past.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te

from ..node import Node, scalar, shape_of


def by_heads(node: Node, x: Any, heads: int) -> Any:
    """(batch, rows, heads * size) as (batch, heads, rows, size)."""
    batch, rows, hidden = shape_of(x)
    split = node.emit(relax.op.reshape(x, (batch, rows, heads, hidden // heads)))
    return node.emit(relax.op.permute_dims(split, [0, 2, 1, 3]))


def joined_heads(node: Node, x: Any) -> Any:
    """(batch, heads, rows, size) as (batch, rows, heads * size)."""
    batch, heads, rows, size = shape_of(x)
    moved = node.emit(relax.op.permute_dims(x, [0, 2, 1, 3]))
    return node.emit(relax.op.reshape(moved, (batch, rows, heads * size)))


def products_with_keys(node: Node, query: Any, key: Any) -> Any:
    """`q k^T` (batch, heads, rows, keys). The keys are read as they lie: to transpose a cache is to copy it."""
    batch, heads, rows, size = shape_of(query)
    keys = shape_of(key)[2]

    def product(of_rows: Any, of_keys: Any) -> Any:
        step = te.reduce_axis((0, size), name="d")

        def value(b: Any, h: Any, row: Any, place: Any) -> Any:
            return te.sum(of_rows(b, h, row, step.var) * of_keys(b, h, place, step.var), axis=step)

        return te.compute((batch, heads, rows, keys), value, name="products_with_keys")

    return node.compute(product, query, key, name="products_with_keys")


def masked_scores(node: Node, query: Any, key: Any, added: list[Any]) -> Any:
    """`scale q k^T` and what is added to it; the scale is the node's own, or one over the root of a head's size."""
    scores = products_with_keys(node, query, key)
    factor = node.attribute("scale", 0.0) or shape_of(query)[-1] ** -0.5
    scores = node.emit(relax.op.multiply(scores, scalar(factor, scores)))
    for each in added:
        scores = node.emit(relax.op.add(scores, each))
    return scores


def mixed_values(node: Node, scores: Any, value: Any) -> Any:
    """The values (batch, heads, keys, size), weighted by the softmax of scores (batch, heads, rows, keys)."""
    return node.emit(relax.op.matmul(node.emit(relax.op.nn.softmax(scores, -1)), value))


def with_past(node: Node, past: Any | None, new: Any) -> Any:
    """Keys or values (batch, heads, rows, size) behind those of earlier calls."""
    return new if past is None or 0 in shape_of(past) else node.emit(relax.op.concat([past, new], 2))
