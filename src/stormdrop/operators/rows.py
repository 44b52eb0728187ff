"""Operators on whole rows: reduce, softmax, layer_norm, rms_norm."""

from __future__ import annotations

import math
from typing import Any

from tvm import te, tirx

from ..errors import OperatorError
from .declare import Definition, operator


@operator("sum, maximum, minimum or mean over axes", "shape=64x96 axis=1", kind=("sum", "max", "min", "mean"))
def reduce(
    shape: tuple[int, ...], axis: int | tuple[int, ...], kind: str = "sum", dtype: str = "float32"
) -> Definition:
    """Sum, maximum, minimum or mean over one axis or several.

    Args:
        shape: The shape of the input. The output has its other axes, or the shape [1] if there are none.
        axis: The axis or the axes to reduce (`1x2` in text); a negative one is counted from the last.
        kind: "sum", "max", "min" or "mean".
        dtype: "float32".

    Raises:
        OperatorError: An argument is not as described above, or the tensors take more than 8 GiB together.

    Example:
        >>> import stormdrop as sd
        >>> workload = sd.operators.reduce((8, 16, 32), (1, 2), kind="mean")
        >>> [spec.shape for spec in workload.outputs]
        [(8,)]
    """
    axes = axis if isinstance(axis, tuple) else (axis,)
    rank = len(shape)
    for dimension in axes:
        if not -rank <= dimension < rank:
            raise OperatorError(f"axis={dimension} is outside a shape of {rank} dimensions")
    reduced = {
        dimension % rank: te.reduce_axis((0, shape[dimension]), name=f"r{dimension % rank}") for dimension in axes
    }
    if len(reduced) < len(axes):
        raise OperatorError(f"axis={'x'.join(map(str, axes))} names an axis twice")
    x = te.placeholder(shape, dtype, name="x")
    combine = {"sum": te.sum, "mean": te.sum, "max": te.max, "min": te.min}[kind]
    kept = [extent for dimension, extent in enumerate(shape) if dimension not in reduced] or [1]

    def element(*i: Any) -> Any:
        position = iter(i)
        index = [reduced[dimension] if dimension in reduced else next(position) for dimension in range(rank)]
        return combine(x[tuple(index)], axis=[reduced[dimension] for dimension in sorted(reduced)])

    y = te.compute(kept, element, name="reduce")
    return Definition([x], averaged(y, math.prod(shape[dimension] for dimension in reduced)) if kind == "mean" else y)


@operator("softmax of each row", "m=32 n=50")
def softmax(m: int, n: int, dtype: str = "float32") -> Definition:
    """exp(x - max) / sum(exp(x - max)) along each row of x[m, n].

    Args:
        m: Rows.
        n: Elements of a row.
        dtype: "float32".

    Raises:
        OperatorError: An argument is not as described above, or the tensors take more than 8 GiB together.

    Example:
        >>> import stormdrop as sd
        >>> sd.operators.softmax(64, 32).name
        'softmax m=64 n=32'
    """
    x = te.placeholder((m, n), dtype, name="x")
    return Definition([x], softmax_of(x))


@operator("layer normalisation of each row", "m=32 n=50")
def layer_norm(m: int, n: int, eps: float = 1e-5, dtype: str = "float32") -> Definition:
    """(x - mean) / sqrt(variance + eps) * scale[n] + shift[n] along each row of x[m, n].

    Scale and shift are constant. Mean and variance take two passes: in one pass, by the mean of the squares, digits
    cancel if the mean is large.

    Args:
        m: Rows.
        n: Elements of a row.
        eps: What is added to the variance, a positive number.
        dtype: "float32".

    Raises:
        OperatorError: An argument is not as described above, or the tensors take more than 8 GiB together.

    Example:
        >>> import stormdrop as sd
        >>> workload = sd.operators.layer_norm(64, 32)
        >>> [spec.shape for spec in workload.inputs], workload.constants
        ([(64, 32), (32,), (32,)], (1, 2))
    """
    x = te.placeholder((m, n), dtype, name="x")
    scale, shift = (te.placeholder((n,), dtype, name=name) for name in ("scale", "shift"))
    r = te.reduce_axis((0, n), name="r")
    mean = averaged(te.compute((m,), lambda i: te.sum(x[i, r], axis=r), name="total"), n)
    inverse = _inverse_root(te.compute((m, n), lambda i, j: x[i, j] - mean[i], name="centred"), eps)
    y = te.compute((m, n), lambda i, j: (x[i, j] - mean[i]) * inverse[i] * scale[j] + shift[j], name="layer_norm")
    return Definition([x, scale, shift], y, constants=(1, 2))


@operator("root mean square normalisation of each row", "m=32 n=50")
def rms_norm(m: int, n: int, eps: float = 1e-5, dtype: str = "float32") -> Definition:
    """`x / sqrt(mean(x^2) + eps) * scale[n]` along each row of x[m, n], with a constant scale (arXiv:1910.07467).

    Args:
        m: Rows.
        n: Elements of a row.
        eps: What is added to the mean of the squares, a positive number.
        dtype: "float32".

    Raises:
        OperatorError: An argument is not as described above, or the tensors take more than 8 GiB together.

    Example:
        >>> import stormdrop as sd
        >>> workload = sd.operators.rms_norm(64, 32)
        >>> [spec.shape for spec in workload.inputs], workload.constants
        ([(64, 32), (32,)], (1,))
    """
    x, scale = te.placeholder((m, n), dtype, name="x"), te.placeholder((n,), dtype, name="scale")
    inverse = _inverse_root(x, eps)
    y = te.compute((m, n), lambda i, j: x[i, j] * inverse[i] * scale[j], name="rms_norm")
    return Definition([x, scale], y, constants=(1,))


def softmax_of(x: Any) -> Any:
    """The softmax of a tensor along its last axis.

    It divides once per row and then multiplies, because one division per element took a twelfth of the time.
    """
    *leading, n = x.shape
    r, s = te.reduce_axis((0, n), name="r"), te.reduce_axis((0, n), name="s")
    top = te.compute(leading, lambda *i: te.max(x(*i, r), axis=r), name="top")
    exp = te.compute(x.shape, lambda *i: te.exp(x[i] - top[i[:-1]]), name="exp")
    total = te.compute(leading, lambda *i: te.sum(exp(*i, s), axis=s), name="total")
    inverse = te.compute(leading, lambda *i: 1.0 / total(*i), name="inverse")
    return te.compute(x.shape, lambda *i: exp[i] * inverse(*i[:-1]), name="softmax")


def averaged(total: Any, count: int) -> Any:
    """A tensor of sums of `count` terms, divided by their number."""
    scale = tirx.const(1.0 / count, total.dtype)
    return te.compute(total.shape, lambda *i: total[i] * scale, name="average")


def _inverse_root(x: Any, eps: float) -> Any:
    """1 / sqrt(mean(x^2) + eps) of each row."""
    m, n = x.shape
    r = te.reduce_axis((0, n), name="r")
    square = te.compute((m,), lambda i: te.sum(x[i, r] * x[i, r], axis=r), name="square")
    return te.compute((m,), lambda i: tirx.rsqrt(square[i] * (1.0 / int(n)) + eps), name="inverse")
