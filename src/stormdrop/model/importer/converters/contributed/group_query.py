"""The converter of GroupQueryAttention, an operator of onnxruntime's own: the attention of a decoder to its cache.

    present[place + s] = rotated(key)[s]               the new rows stand behind those that the cache has
    y = softmax(scale q present^T) v                   row s sees the keys up to its own place

Several heads of queries share a head of keys and values. These heads are the rows of one product, so that the cache is
read once for all of them. How many rows the cache has is known when the model runs (`seqlens_k`): places, positions and
masks follow from it. The cache is as long as the model is imported with: either it has room for more rows than it has
(past and present have the same length), or it grows. Nobody sees what is behind the rows that it has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from ..node import Node, const, shape_of, tuple_of
from .heads import joined_heads, products_with_keys
from .rotary import Positions, rotated, turns_at

_REFUSED = {
    12: "a cache of codes (k_scale)",
    13: "a cache of codes (v_scale)",
    14: "queries that are normalized (q_norm_weight)",
    15: "keys that are normalized (k_norm_weight)",
    16: "chunks that are padded (query_seqlens)",
}
"""Inputs that are not taken, by their positions."""

_LOWEST = float(np.finfo("float32").min)
"""The score of a key that a row does not see."""


@dataclass(frozen=True)
class _Rows:
    """The new rows of a call.

    Attributes:
        count: How many there are of each sequence.
        seen: For each sequence the place of its last row, int32; None if the first row of each stands at 0.
        total: The keys that any row may see.
    """

    count: int
    seen: Any | None
    total: int

    @property
    def arguments(self) -> list[Any]:
        """What a TensorIR function needs to know the places."""
        return [] if self.seen is None else [self.seen]

    def first(self, seen: tuple[Any, ...], batch: Any) -> Any:
        """The place of the first row of a sequence, read from the placeholders of `arguments`."""
        return seen[0](batch) + (1 - self.count) if seen else tirx.const(0, "int32")


def _attention(node: Node) -> Any:
    for position, what in _REFUSED.items():
        if node.has(position):
            raise ValueError(what)
    for name in ("sliding_window_cache", "qk_output"):
        if node.attribute(name, 0):
            raise ValueError(f"the attribute {name}")
    query, key, value = _projected(node)
    batch, count, heads, size = shape_of(query)
    rows = _rows_of(node, batch, count)
    if node.attribute("do_rotary", 0):
        if not (node.has(7) and node.has(8)):
            raise ValueError("do_rotary without cos_cache and sin_cache")
        if node.shape(7)[0] < rows.total:
            raise ValueError(f"total_sequence_length is {rows.total}, and cos_cache has {node.shape(7)[0]} positions")
        turns = turns_at(node, _positions(node, rows), node[7], node[8], batch, count)
        interleaved = bool(node.attribute("rotary_interleaved", 0))
        query, key = (rotated(node, x, turns, interleaved) for x in (query, key))
    groups = shape_of(key)[2]
    key, value = (node.emit(relax.op.permute_dims(x, [0, 2, 1, 3])) for x in (key, value))
    present = [_cached(node, new, past, rows) for new, past in ((key, 3), (value, 4))]
    read = [key, value] if rows.seen is None else [_until(node, each, rows.total) for each in present]
    shared = heads // groups
    query = node.emit(relax.op.reshape(query, (batch, count, groups, shared, size)))
    query = node.emit(relax.op.permute_dims(query, [0, 2, 3, 1, 4]))
    query = node.emit(relax.op.reshape(query, (batch, groups, shared * count, size)))
    scores = _scores(node, query, read[0], rows)
    weights = _weights(node, scores, count)
    result = node.emit(relax.op.matmul(weights, read[1]))
    result = joined_heads(node, node.emit(relax.op.reshape(result, (batch, heads, count, size))))
    return tuple_of(*(result, *present)[: node.outputs])


def _projected(node: Node) -> tuple[Any, ...]:
    """Queries, keys and values (batch, rows, heads, size), which may be given in one tensor."""
    heads, groups = node.attribute("num_heads"), node.attribute("kv_num_heads")
    batch, count, hidden = node.shape()
    if heads % groups:
        raise ValueError(f"{heads} heads of queries for {groups} of keys")
    if node.has(1):
        parts, size = [node[0], node[1], node[2]], hidden // heads
    else:
        size = hidden // (heads + 2 * groups)
        bounds = [0, heads * size, (heads + groups) * size, hidden]
        parts = [node.emit(relax.op.strided_slice(node[0], [2], [low], [high])) for low, high in pairwise(bounds)]
    if any(shape_of(each)[1] != count for each in parts):
        raise ValueError("keys of another sequence than the queries")
    numbers = zip(parts, (heads, groups, groups), strict=True)
    return tuple(node.emit(relax.op.reshape(each, (batch, count, number, size))) for each, number in numbers)


def _rows_of(node: Node, batch: int, count: int) -> _Rows:
    """Where the new rows stand. As many as there are keys are a first prompt, whatever the cache holds."""
    try:
        known = node.constant(6)
    except ValueError as error:
        raise ValueError("total_sequence_length must be a constant, or follow from shapes") from error
    assert known is not None, "the operator requires it"
    total = int(known.reshape(-1)[0])
    if total < count:
        raise ValueError(f"total_sequence_length is {total}, but there are {count} new rows")
    seen = None if total == count else node.emit(relax.op.reshape(node[5], (batch,)))
    return _Rows(count, seen, total)


def _positions(node: Node, rows: _Rows) -> Positions:
    """The positions of the new rows. Those of a first prompt count from the first one that is given."""
    if rows.seen is not None:
        return Positions(node[9]) if node.has(9) else Positions(rows.seen, 1 - rows.count)
    if not node.has(9):
        return Positions(const(np.zeros(1, "int32")))
    given = node.emit(relax.op.reshape(node[9], (-1,)))
    return Positions(node.emit(relax.op.strided_slice(given, [0], [0], [1])))


def _cached(node: Node, new: Any, position: int, rows: _Rows) -> Any:
    """The cache (batch, heads, keys, size): the rows before the new ones, these, and zeros."""
    past = node.optional(position)
    (batch, heads, count, size), before = shape_of(new), 0 if past is None else shape_of(past)[2]
    extent = max(before, rows.total)
    if extent == count:
        return new
    if rows.seen is None:
        return node.emit(relax.op.nn.pad(new, [0, 0, 0, 0, 0, extent - count, 0, 0]))
    if not before:
        raise ValueError(f"total_sequence_length is {rows.total}, but there are {count} new rows and no past")

    def written(fresh: Any, kept: Any, seen: Any) -> Any:
        def value(b: Any, h: Any, place: Any, d: Any) -> Any:
            row = place - rows.first((seen,), b)
            inside = tirx.max(tirx.min(row, count - 1), 0) if count > 1 else 0  # of a step it is known
            later = tirx.Select(row < count, fresh(b, h, inside, d), tirx.const(0, "float32"))
            return tirx.Select(row < 0, kept(b, h, tirx.min(place, before - 1), d), later)

        return te.compute((batch, heads, extent, size), value, name="cache")

    return node.compute(written, new, past, rows.seen, name="cache")


def _until(node: Node, cache: Any, total: int) -> Any:
    """The rows of a cache that may be seen."""
    if shape_of(cache)[2] == total:
        return cache
    return node.emit(relax.op.strided_slice(cache, [2], [0], [total]))


def _scores(node: Node, query: Any, key: Any, rows: _Rows) -> Any:
    """The scores (batch, heads of keys, queries of all heads that share them, keys); what is not seen is the lowest."""
    batch, groups, all_rows, size = shape_of(query)
    keys, count = shape_of(key)[2], rows.count
    scale = node.attribute("scale", 0.0) or size**-0.5
    cap, window = node.attribute("softcap", 0.0), node.attribute("local_window_size", -1)
    is_causal = node.attribute("causal", 1)
    bias = node.optional(10)

    def masked(scores: Any, *others: Any) -> Any:
        biases, seen = (others[:1], others[1:]) if bias is not None else ((), others)

        def value(b: Any, g: Any, row: Any, place: Any) -> Any:
            step = tirx.floormod(row, count)
            score = scores(b, g, row, place) * tirx.const(scale, "float32")
            if cap > 0:
                score = tirx.tanh(score / tirx.const(cap, "float32")) * tirx.const(cap, "float32")
            if biases:
                head = g * (all_rows // count) + tirx.floordiv(row, count)
                first, second, _, last = shape_of(bias)
                score = score + biases[0](
                    0 if first == 1 else b, 0 if second == 1 else head, step, tirx.min(place, last - 1)
                )
            own = rows.first(seen, b) + (step if is_causal else count - 1)
            visible = place <= own
            if window > 0:
                visible = tirx.all(visible, place > own - window)
            return tirx.Select(visible, score, tirx.const(_LOWEST, "float32"))

        return te.compute((batch, groups, all_rows, keys), value, name="masked_scores")

    products = products_with_keys(node, query, key)
    biases = [] if bias is None else [bias]
    return node.compute(masked, products, *biases, *rows.arguments, name="masked_scores")


def _weights(node: Node, scores: Any, count: int) -> Any:
    """The softmax of the scores. With sinks, each head has one more score, whose weight nobody gets."""
    if not node.has(11) and not node.attribute("smooth_softmax", 0):
        return node.emit(relax.op.nn.softmax(scores, -1))
    _, groups, rows, _ = shape_of(scores)
    sinks = relax.const(0.0, "float32")
    if node.has(11):
        by_group = node.emit(relax.op.reshape(node[11], (1, groups, rows // count, 1)))
        sinks = node.emit(relax.op.reshape(node.emit(relax.op.repeat(by_group, count, 3)), (1, groups, rows, 1)))
    largest = node.emit(relax.op.maximum(node.emit(relax.op.max(scores, [-1], keepdims=True)), sinks))
    powers = node.emit(relax.op.exp(node.emit(relax.op.subtract(scores, largest))))
    of_sinks = relax.op.exp(node.emit(relax.op.subtract(sinks, largest)))
    total = node.emit(relax.op.add(node.emit(relax.op.sum(powers, [-1], keepdims=True)), node.emit(of_sinks)))
    return node.emit(relax.op.divide(powers, total))


CONVERTERS: dict[str, Callable[[Node], Any]] = {"GroupQueryAttention": _attention}
