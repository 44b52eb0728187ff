"""Converters of normalizations along the last axis: of a tensor, of a sum, and of a sum of embeddings.

    SimplifiedLayerNormalization       y = x / sqrt(mean(x x) + epsilon) scale
    SkipSimplifiedLayerNormalization   the same of x + skip + bias, which is an output, too
    SkipLayerNormalization             y = (s - mean(s)) / deviation(s) gamma + beta of s = x + skip + bias
    EmbedLayerNormalization            the same of the embeddings of words, positions and segments

Further outputs are the sum, and what the training of a model needs: the mean, and one over the deviation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ....onnx.contributed import SIMPLIFIED_LAYER_NORMALIZATION
from ..node import Node, const, normalised, scalar, shape_of, tuple_of

_EPSILON = 1e-5  # of SimplifiedLayerNormalization, if the node does not say
_EPSILON_OF_SUMS = 1e-12  # of the others


def _simplified(node: Node) -> Any:
    x, epsilon = node[0], node.attribute("epsilon", _EPSILON)
    rank = len(node.shape())
    axes = list(range(normalised(node.attribute("axis", -1), rank), rank))
    scale = node.emit(relax.op.reshape(node[1], [node.shape()[axis] for axis in axes]))
    results = [_root_mean_square(node, x, scale, axes, epsilon)]
    if node.outputs > 1:
        results.append(_inverse_root(node, x, axes, epsilon))
    return tuple_of(*results)


def _skip_simplified(node: Node) -> Any:
    total, epsilon = _sum(node, 3), node.attribute("epsilon", _EPSILON_OF_SUMS)
    axes = [len(shape_of(total)) - 1]
    result = _root_mean_square(node, total, node[2], axes, epsilon)
    return _with_statistics(node, result, total, lambda: _inverse_root(node, total, axes, epsilon))


def _skip(node: Node) -> Any:
    total, epsilon = _sum(node, 4), node.attribute("epsilon", _EPSILON_OF_SUMS)
    axes = [len(shape_of(total)) - 1]
    result = _normalized(node, total, node[2], node.optional(3), epsilon)

    def inverse() -> Any:
        centred = node.emit(relax.op.subtract(total, node.emit(relax.op.mean(total, axes, keepdims=True))))
        return _inverse_root(node, centred, axes, epsilon)

    return _with_statistics(node, result, total, inverse)


def _embedding(node: Node) -> Any:
    """The words of each sequence that its mask counts are the second output."""
    batch, length = node.shape()
    positions = node[8] if node.has(8) else const(np.arange(length, dtype="int32").reshape(1, length))
    total = node.emit(relax.op.add(_rows(node, node[2], node[0]), _rows(node, node[3], positions)))
    if node.has(1) and node.has(4):
        total = node.emit(relax.op.add(total, _rows(node, node[4], node[1])))
    result = _normalized(node, total, node[5], node[6], node.attribute("epsilon", _EPSILON_OF_SUMS))
    words = const(np.zeros(batch, "int32"))
    if node.has(7):
        counted = relax.op.astype(node.emit(relax.op.equal(node[7], relax.const(1, "int32"))), "int32")
        words = node.emit(relax.op.sum(node.emit(counted), [1]))
    return tuple_of(*(result, words, total)[: node.outputs])


def _rows(node: Node, table: Any, places: Any) -> Any:
    return node.emit(relax.op.take(table, places, axis=0))


def _sum(node: Node, bias: int) -> Any:
    """What is normalized: the first two inputs, and perhaps a bias."""
    total = node.emit(relax.op.add(node[0], node[1]))
    return node.emit(relax.op.add(total, node[bias])) if node.has(bias) else total


def _with_statistics(node: Node, result: Any, total: Any, inverse: Callable[[], Any]) -> Any:
    """The outputs of a normalization of a sum: the result, the mean, one over the deviation, and the sum.

    Most nodes leave out the second and the third one. What nothing reads is dropped later.
    """
    if node.outputs == 1:
        return result
    mean = node.emit(relax.op.mean(total, [len(shape_of(total)) - 1], keepdims=True))
    return tuple_of(*(result, mean, inverse(), total)[: node.outputs])


def _root_mean_square(node: Node, x: Any, scale: Any, axes: Sequence[int], epsilon: float) -> Any:
    return node.emit(relax.op.nn.rms_norm(x, scale, list(axes), epsilon))


def _normalized(node: Node, x: Any, gamma: Any, beta: Any | None, epsilon: float) -> Any:
    shift = const(np.zeros(shape_of(gamma), "float32")) if beta is None else beta
    return node.emit(relax.op.nn.layer_norm(x, gamma, shift, [-1], epsilon))


def _inverse_root(node: Node, x: Any, axes: Sequence[int], epsilon: float) -> Any:
    """`1 / sqrt(mean(x x) + epsilon)`."""
    square = node.emit(relax.op.mean(relax.op.multiply(x, x), list(axes), keepdims=True))
    root = node.emit(relax.op.sqrt(relax.op.add(square, scalar(epsilon, x))))
    return node.emit(relax.op.divide(scalar(1, x), root))


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "EmbedLayerNormalization": _embedding,
    "SkipLayerNormalization": _skip,
    "SkipSimplifiedLayerNormalization": _skip_simplified,
}

IN_STANDARD: dict[str, Callable[[Node], Any]] = {SIMPLIFIED_LAYER_NORMALIZATION: _simplified}
"""Those in the domain of the standard."""
