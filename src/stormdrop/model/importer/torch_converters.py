"""How operators of torch become Relax code that TVM's importer of exported programs lacks, or makes slow code of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

_MOST_PAIRS = 1 << 22
"""Of places and indices that are compared: with more of them, writing element by element is faster, and needs less."""


def _index_put(node: Any, importer: Any) -> Any:
    """Writes to slices along one axis, as a static cache of keys and values does.

        x[:, :, index] = values     ->     y[b, h, n] = values[b, h, l] if index[l] is n, else x[b, h, n]

    TVM's own kernel writes element by element, in one thread; of an index behind other axes it makes none.
    """
    x, indices, values, *others = importer.retrieve_args(node)
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    accumulates = others[0] if others else node.kwargs.get("accumulate", False)
    if len(axes) != 1 or accumulates or len(indices[axes[0]].ty.shape) != 1 or str(indices[axes[0]].ty.dtype) == "bool":
        return importer._index_put(node)
    (axis,), emit, op = axes, importer.block_builder.emit, relax.op
    shape = [int(extent) for extent in x.ty.shape]
    length, (count,) = shape[axis], (int(extent) for extent in indices[axis].ty.shape)
    if length * count > _MOST_PAIRS:
        return importer._index_put(node)
    index = emit(op.astype(indices[axis], "int32"))
    index = emit(op.where(op.less(index, _constant(0)), op.add(index, _constant(length)), index))
    values = emit(op.broadcast_to(values, [*shape[:axis], count, *shape[axis + 1 :]]))
    # The last one of equal indices counts.
    same = op.equal(_constant(np.arange(length)[:, None]), op.reshape(index, [1, count]))
    writer = emit(op.max(op.where(same, _constant(np.arange(count)[None]), _constant(-1)), axis=1))
    if count > 1:
        values = emit(op.take(values, op.maximum(writer, _constant(0)), axis=axis))
    column = [length if place == axis else 1 for place in range(len(shape))]
    return emit(op.where(op.reshape(op.greater_equal(writer, _constant(0)), column), values, x))


def _constant(value: Any) -> Any:
    return relax.const(np.asarray(value, np.int32), "int32")


CONVERTERS: dict[str, Callable[[Any, Any], Any]] = {"index_put.default": _index_put}
"""A function for the node of an operator and TVM's importer, by the operator's name and overload."""
