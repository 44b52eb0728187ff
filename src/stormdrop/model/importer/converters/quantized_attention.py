"""The converter of QAttention, an operator of onnxruntime's own: attention of a sequence of bytes to itself.

    q, k, v = x W + b                                  one product of bytes, and one scale or a scale for each column
    y = softmax(q k^T / sqrt(size) + mask) v           by heads, in float32; before k and v stand those of the past

A mask adds a large negative number, and not -infinity: a row that is masked everywhere has the softmax of its scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from .node import Node, const, scalar, shape_of
from .quantized import scaled_product

_MASKED = -10000.0  # what is added to the score of a key that a mask excludes, if the node does not say


def _attention(node: Node) -> Any:
    if node.attribute("do_rotary", 0) or node.attribute("past_present_share_buffer", 0):
        raise ValueError("rotary positions, or a past that is written in place")
    batch, length, _ = node.shape()
    heads = node.attribute("num_heads")
    size = node.shape(1)[1] // 3 // heads
    product = scaled_product(node, (node[0], node.optional(6), node[3]), (node[1], node.optional(7), node[4]), node[2])
    parts = node.emit(relax.op.split(product, 3, -1))

    def by_heads(index: int) -> Any:
        part = node.emit(relax.TupleGetItem(parts, index))
        split = node.emit(relax.op.reshape(part, (batch, length, heads, size)))
        return node.emit(relax.op.permute_dims(split, [0, 2, 1, 3]))

    query, *read = (by_heads(index) for index in range(3))
    if node.has(8):
        past = node.emit(relax.op.split(node[8], 2, 0))
        before = [node.emit(relax.op.squeeze(relax.TupleGetItem(past, index), [0])) for index in range(2)]
        read = [node.emit(relax.op.concat(pair, 2)) for pair in zip(before, read, strict=True)]
    key, value = read
    total = shape_of(key)[2]
    scores = node.emit(relax.op.matmul(query, node.emit(relax.op.permute_dims(key, [0, 1, 3, 2]))))
    scores = node.emit(relax.op.multiply(scores, scalar(node.attribute("scale", 0.0) or size**-0.5, scores)))
    if (mask := _mask(node, batch, length, total)) is not None:
        scores = node.emit(relax.op.add(scores, mask))
    mixed = node.emit(relax.op.matmul(node.emit(relax.op.nn.softmax(scores, -1)), value))
    joined = node.emit(relax.op.permute_dims(mixed, [0, 2, 1, 3]))
    result = node.emit(relax.op.reshape(joined, (batch, length, heads * size)))
    if node.outputs == 1:
        return result
    present = [node.emit(relax.op.expand_dims(each, 0)) for each in (key, value)]
    return relax.Tuple([result, node.emit(relax.op.concat(present, 0))])


def _mask(node: Node, batch: int, length: int, total: int) -> Any | None:
    """What is added to the scores, as it broadcasts with (batch, heads, length, total); None if there is no mask."""
    excluded = _excluded(node, batch, length, total)
    mask = None
    if excluded is not None:
        filler = relax.const(node.attribute("mask_filter_value", _MASKED), "float32")
        mask = node.emit(relax.op.where(excluded, filler, relax.const(0, "float32")))
    if not node.attribute("unidirectional", 0) or length == 1:
        return mask
    future = np.arange(total) > np.arange(total - length, total)[:, None]
    lowest = np.finfo("float32").min
    if mask is None:
        return const(np.where(future, lowest, np.float32(0)).reshape(1, 1, length, total))
    return node.emit(relax.op.where(const(future.reshape(1, 1, length, total)), relax.const(lowest, "float32"), mask))


def _excluded(node: Node, batch: int, length: int, total: int) -> Any | None:
    """The keys that the mask excludes, as it broadcasts with (batch, heads, length, total); None if it excludes none.

    Its shape says what it holds: the end of each sequence, all ends and then all starts, whether each key counts, or
    whether it does for each query. One number for each sequence, or for all, as a matrix says nothing.
    """
    if not node.has(5):
        return None
    mask, shape = node[5], node.shape(5)
    if shape in ((batch, total), (batch, length, total)):
        wide = relax.op.reshape(mask, (batch, 1, shape[1] if len(shape) == 3 else 1, total))
        return node.emit(relax.op.less_equal(wide, relax.const(0, "int32")))
    if shape in ((batch, 1), (1, 1)):
        return None
    if shape not in ((batch,), (2 * batch,)):
        raise ValueError(f"a mask of shape {shape}")
    positions = const(np.arange(total, dtype="int32").reshape(1, 1, 1, total))
    bounds = node.emit(relax.op.reshape(mask, (-1, batch, 1, 1, 1)))

    def bound(index: int) -> Any:
        return node.emit(relax.op.squeeze(relax.op.strided_slice(bounds, [0], [index], [index + 1]), [0]))

    behind = node.emit(relax.op.greater_equal(positions, bound(0)))
    if shape == (batch,):
        return behind
    return node.emit(relax.op.logical_or(behind, relax.op.less(positions, bound(1))))


CONVERTERS: dict[str, Callable[[Node], Any]] = {"QAttention": _attention}
