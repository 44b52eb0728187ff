"""The converter of the standard's Attention, as decoders have it: its cache is read as it lies, once for all heads.

    y = softmax(softcap(scale q k^T) + mask) v           by heads; a row of which the mask excludes all keys is 0

Before the keys and the values stand those of the past. Heads of queries that share a head of keys are the rows of one
product. An Attention that `functions.is_plain` refuses is replaced by its body in the standard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from ..node import Node, dtype_of, scalar, shape_of, tuple_of
from .heads import by_heads, joined_heads, products_with_keys, with_past

_NONE = float("-inf")
"""The score of a key that a mask excludes."""


def _attention(node: Node) -> Any:
    query, key, value = (_given(node, position) for position in range(3))
    before = node.shape(4)[2] if node.has(4) else 0
    key, value = (with_past(node, node.optional(past), new) for past, new in ((4, key), (5, value)))
    (batch, heads, rows, size), groups = shape_of(query), shape_of(key)[1]
    if heads % groups:
        raise ValueError(f"{heads} heads of queries for {groups} of keys")
    shared = heads // groups
    together = node.emit(relax.op.reshape(query, (batch, groups, shared * rows, size)))
    weights = node.emit(relax.op.nn.softmax(_scores(node, together, key, rows, before), -1))
    if node.has(3):
        weights = node.emit(relax.op.where(relax.op.isnan(weights), scalar(0, weights), weights))
    mixed = node.emit(relax.op.matmul(weights, value))
    result = node.emit(relax.op.reshape(mixed, (batch, heads, rows, shape_of(value)[-1])))
    return tuple_of(*(result if len(node.shape()) == 4 else joined_heads(node, result), key, value)[: node.outputs])


def _given(node: Node, position: int) -> Any:
    """Queries, keys or values (batch, heads, rows, size)."""
    if len(node.shape(position)) == 4:
        return node[position]
    return by_heads(node, node[position], node.attribute("q_num_heads" if position == 0 else "kv_num_heads"))


def _scores(node: Node, query: Any, key: Any, rows: int, before: int) -> Any:
    """The scores (batch, heads of keys, queries of all heads that share them, keys)."""
    batch, groups, all_rows, size = shape_of(query)
    keys, dtype, causal = shape_of(key)[2], dtype_of(query), node.attribute("is_causal", 0)
    scale, cap = node.attribute("scale") or size**-0.5, node.attribute("softcap", 0.0)
    mask = _mask(node, batch, groups, all_rows // rows, rows, keys)

    def masked(scores: Any, *masks: Any) -> Any:
        def value(b: Any, g: Any, row: Any, place: Any) -> Any:
            score = scores(b, g, row, place) * tirx.const(scale, dtype)
            if cap > 0:
                score = tirx.tanh(score / tirx.const(cap, dtype)) * tirx.const(cap, dtype)
            excluded = []
            for each in masks:
                where = zip(shape_of(mask), (b, g, row, place), strict=True)
                entry = each(*(0 if extent == 1 else index for extent, index in where))
                if dtype_of(mask) == "bool":
                    excluded.append(tirx.Not(entry))
                else:
                    score = score + entry
            if causal:
                excluded.append(place > before + tirx.floormod(row, rows))
            return tirx.Select(tirx.any(*excluded), tirx.const(_NONE, dtype), score) if excluded else score

        return te.compute((batch, groups, all_rows, keys), value, name="masked_scores")

    products = products_with_keys(node, query, key)
    return node.compute(masked, products, *([] if mask is None else [mask]), name="masked_scores")


def _mask(node: Node, batch: int, groups: int, shared: int, rows: int, keys: int) -> Any | None:
    """The mask as it broadcasts with the scores; None if there is none."""
    if not node.has(3):
        return None
    mask, shape = node[3], (1,) * (4 - len(node.shape(3))) + node.shape(3)
    if shape[3] not in (1, keys):
        raise ValueError(f"a mask of shape {node.shape(3)} for {keys} keys")
    if shared == 1 or (shape[1] == 1 and shape[2] == 1):
        return node.emit(relax.op.reshape(mask, shape))
    by_group = (groups, shared) if shape[1] > 1 else (1, 1)
    split = node.emit(relax.op.reshape(mask, (shape[0], *by_group, *shape[2:])))
    whole = node.emit(relax.op.broadcast_to(split, (shape[0], by_group[0], shared, rows, shape[3])))
    return node.emit(relax.op.reshape(whole, (shape[0], by_group[0], shared * rows, shape[3])))


IN_STANDARD: dict[str, Callable[[Node], Any]] = {"Attention": _attention}
