"""Converters of normalizations, and of reductions whose start TVM mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from .node import Node, is_float, limits, normalised, scalar, shape_of

_LEAST_DEVIATION = 1e-9
"""What the standard adds to the deviation in MeanVarianceNormalization, so that nothing is divided by zero."""


def _layer_normalization(node: Node) -> Any | None:
    """The normalized tensor, the mean, and one over the standard deviation. TVM makes the first alone."""
    if node.outputs == 1:
        return None
    x, epsilon = node[0], node.attribute("epsilon", 1e-5)
    axes = list(range(normalised(node.attribute("axis", -1), len(node.shape())), len(node.shape())))
    mean = node.emit(relax.op.mean(x, axes, keepdims=True))
    centred = node.emit(relax.op.subtract(x, mean))
    variance = node.emit(relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True))
    deviation = node.emit(relax.op.sqrt(relax.op.add(variance, scalar(epsilon, x))))
    inverse = node.emit(relax.op.divide(scalar(1, x), deviation))
    result = node.emit(relax.op.multiply(node.emit(relax.op.multiply(centred, inverse)), node[1]))
    if node.has(2):
        result = node.emit(relax.op.add(result, node[2]))
    return relax.Tuple([result, mean, inverse])


def _rms_normalization(node: Node) -> Any | None:
    """`x / sqrt(mean(x * x) + epsilon) * scale`. TVM's operator takes the last axis only."""
    x = node[0]
    axis = normalised(node.attribute("axis", -1), len(node.shape()))
    if axis == len(node.shape()) - 1:
        return None
    axes = list(range(axis, len(node.shape())))
    square = relax.op.mean(relax.op.multiply(x, x), axes, keepdims=True)
    root = relax.op.sqrt(relax.op.add(square, scalar(node.attribute("epsilon", 1e-5), x)))
    return relax.op.multiply(relax.op.divide(x, root), node[1])


def _batch_normalization(node: Node) -> Any | None:
    """With `training_mode` the statistics are those of the batch, and the running ones move towards them."""
    if not node.attribute("training_mode", 0):
        return None
    x, rank, momentum = node[0], len(node.shape()), node.attribute("momentum", 0.9)
    axes = [axis for axis in range(rank) if axis != 1]
    shape = (1, -1) + (1,) * (rank - 2)

    def channels(value: Any) -> Any:
        return node.emit(relax.op.reshape(value, shape))

    mean = node.emit(relax.op.mean(x, axes, keepdims=True))
    centred = node.emit(relax.op.subtract(x, mean))
    variance = node.emit(relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True))
    root = node.emit(relax.op.sqrt(relax.op.add(variance, scalar(node.attribute("epsilon", 1e-5), x))))
    result = node.emit(relax.op.multiply(relax.op.divide(centred, root), channels(node[1])))
    result = node.emit(relax.op.add(result, channels(node[2])))

    def moved(running: Any, batch: Any) -> Any:
        new = relax.op.reshape(batch, shape_of(running))
        kept = relax.op.multiply(running, scalar(momentum, running))
        return node.emit(relax.op.add(kept, relax.op.multiply(new, scalar(1 - momentum, running))))

    outputs = [result, moved(node[3], mean), moved(node[4], variance)][: node.outputs]
    return outputs[0] if len(outputs) == 1 else relax.Tuple(outputs)


def _lp_normalization(node: Node) -> Any:
    """`x / norm(x)`; 0 where the norm is 0."""
    x, axis = node[0], [node.attribute("axis", -1)]
    if node.attribute("p", 2) == 1:
        norm = relax.op.sum(relax.op.abs(x), axis, keepdims=True)
    else:
        norm = relax.op.sqrt(relax.op.sum(relax.op.multiply(x, x), axis, keepdims=True))
    norm = node.emit(norm)
    zero = relax.op.equal(norm, scalar(0, x))
    return relax.op.where(zero, scalar(0, x), relax.op.divide(x, relax.op.where(zero, scalar(1, x), norm)))


def _mean_variance_normalization(node: Node) -> Any:
    """(x - mean) / deviation. TVM subtracts the square of the mean from the mean of squares, which nearly cancel."""
    x, axes = node[0], list(node.attribute("axes", (0, 2, 3)))
    centred = node.emit(relax.op.subtract(x, node.emit(relax.op.mean(x, axes, keepdims=True))))
    variance = relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True)
    deviation = relax.op.add(relax.op.sqrt(variance), scalar(_LEAST_DEVIATION, x))
    return relax.op.divide(centred, node.emit(deviation))


def _mean(node: Node) -> Any | None:
    """The mean of integers, rounded towards zero: TVM makes numbers of 64 bits of them."""
    axes = _axes(node)
    if is_float(node.dtype()) or not axes:
        return None
    count = math.prod(node.shape()[axis] for axis in axes)

    def quotient(total: Any) -> Any:
        return te.compute(
            total.shape, lambda *place: tirx.truncdiv(total(*place), tirx.const(count, total.dtype)), name="mean"
        )

    total = node.emit(relax.op.sum(node[0], axes, keepdims=bool(node.attribute("keepdims", 1))))
    return node.compute(quotient, total, name="mean")


def _extremum(largest: bool) -> Callable[[Node], Any]:
    """ReduceMax, ReduceMin: TVM begins with the largest finite number, so that a row of infinities comes out wrong."""

    def convert(node: Node) -> Any | None:
        dtype = node.dtype()
        axes = _axes(node)
        if not axes:
            return node[0]
        if dtype == "bool":
            wide = relax.op.astype(node[0], "int8")
            reduce = relax.op.max if largest else relax.op.min
            return relax.op.astype(reduce(wide, axes, keepdims=bool(node.attribute("keepdims", 1))), "bool")
        if not is_float(dtype) and all(node.shape()):
            return None
        edge = -np.inf if largest else np.inf
        start = edge if is_float(dtype) else limits(dtype)[0 if largest else 1]
        combine = (lambda a, b: tirx.max(a, b)) if largest else (lambda a, b: tirx.min(a, b))  # TVM counts arguments
        reducer = te.comm_reducer(combine, lambda kind: tirx.const(start, kind), name="max" if largest else "min")
        kept = bool(node.attribute("keepdims", 1))
        name = "max" if largest else "min"
        return node.compute(lambda x: reduced(x, axes, kept, reducer, name), node[0], name=name)

    return convert


def reduced(x: Any, axes: Sequence[int], kept: bool, reducer: Callable[..., Any], name: str) -> Any:
    """A reduction of a placeholder along axes, which are kept with the extent 1, or not."""
    extents = [int(extent) for extent in x.shape]
    shape = [1 if axis in axes else extent for axis, extent in enumerate(extents) if kept or axis not in axes]
    inner = {axis: te.reduce_axis((0, extents[axis]), name=f"k{axis}") for axis in axes}

    def value(*indices: Any) -> Any:
        outer = iter(indices)
        whole = []
        for axis in range(len(extents)):
            index = next(outer) if kept or axis not in axes else None
            whole.append(inner[axis].var if axis in axes else index)
        return reducer(x(*whole), axis=list(inner.values()))

    return te.compute(shape, value, name=name)


def _axes(node: Node) -> list[int]:
    """The axes of a reduction, which are an attribute or a constant input; all of them if none are given."""
    rank = len(node.shape())
    given = node.attribute("axes")
    if given is None:
        values = node.constant(1)
        given = [] if values is None else values.reshape(-1).tolist()
    if not given:
        return [] if node.attribute("noop_with_empty_axes", 0) else list(range(rank))
    return sorted({normalised(int(axis), rank) for axis in given})


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "BatchNormalization": _batch_normalization,
    "LayerNormalization": _layer_normalization,
    "LpNormalization": _lp_normalization,
    "MeanVarianceNormalization": _mean_variance_normalization,
    "RMSNormalization": _rms_normalization,
    "ReduceMax": _extremum(largest=True),
    "ReduceMean": _mean,
    "ReduceMin": _extremum(largest=False),
}
