"""What Attention, QAttention and MultiHeadAttention add to their scores: a mask, and that no row sees later ones.

A mask adds a large negative number, and not -infinity: a row that is masked everywhere has the softmax of its scores.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..node import Node, const

_MASKED = -10000.0  # what is added to the score of a key that a mask excludes, if the node does not say


def mask_of(node: Node, position: int, batch: int, rows: int, past: int, total: int) -> Any | None:
    """What is added to the scores, as it broadcasts with (batch, heads, rows, total); None if there is no mask.

    Args:
        node: The node. Its attributes `unidirectional` and `mask_filter_value` count.
        position: The position of the mask among its inputs.
        batch: The number of sequences.
        rows: The rows of each of them that attend.
        past: The keys before the first of these rows.
        total: The number of all keys.

    Raises:
        ValueError: The mask has another shape.
    """
    excluded = _excluded(node, position, batch, rows, total)
    mask = None
    if excluded is not None:
        filler = relax.const(node.attribute("mask_filter_value", _MASKED), "float32")
        mask = node.emit(relax.op.where(excluded, filler, relax.const(0, "float32")))
    if not node.attribute("unidirectional", 0) or rows == 1:
        return mask
    future = np.arange(total) > np.arange(past, past + rows)[:, None]
    lowest = np.finfo("float32").min
    if mask is None:
        return const(np.where(future, lowest, np.float32(0)).reshape(1, 1, rows, total))
    return node.emit(relax.op.where(const(future.reshape(1, 1, rows, total)), relax.const(lowest, "float32"), mask))


def _excluded(node: Node, position: int, batch: int, rows: int, total: int) -> Any | None:
    """The keys that the mask excludes, as it broadcasts with (batch, heads, rows, total); None if it excludes none.

    Its shape says what it holds: the end of each sequence, all ends and then all starts, whether each key counts, or
    whether it does for each query. One number for each sequence, or for all, as a matrix says nothing.
    """
    if not node.has(position):
        return None
    mask, shape = node[position], node.shape(position)
    if shape in ((batch, total), (batch, rows, total)):
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
