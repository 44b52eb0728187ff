"""Functions of whole rows: reductions, softmax, normalisations."""

from __future__ import annotations

import math
from typing import Any

from tvm import te, tirx

from ..errors import OperatorError
from .declare import Definition, operator


@operator(kind=("sum", "max", "min", "mean"))
def reduce(
    shape: tuple[int, ...], axis: int | tuple[int, ...], kind: str = "sum", dtype: str = "float32"
) -> Definition:
    """Sum, maximum, minimum or mean over one axis or several (`1x2` in text), which the output lacks.

    An axis may be negative, counted from the last. The output has one element where all axes are reduced.
    """
    axes = axis if isinstance(axis, tuple) else (axis,)
    for each in axes:
        if not -len(shape) <= each < len(shape):
            raise OperatorError(f"axis={each} is outside a shape of {len(shape)} dimensions")
    reduced = {at % len(shape): te.reduce_axis((0, shape[at]), name=f"r{at % len(shape)}") for at in axes}
    if len(reduced) < len(axes):
        raise OperatorError(f"axis={'x'.join(map(str, axes))} names an axis twice")
    x = te.placeholder(shape, dtype, name="x")
    combine = {"sum": te.sum, "mean": te.sum, "max": te.max, "min": te.min}[kind]
    rest = [extent for at, extent in enumerate(shape) if at not in reduced] or [1]

    def element(*i: Any) -> Any:
        kept = iter(i)
        index = [reduced[at] if at in reduced else next(kept) for at in range(len(shape))]
        return combine(x[tuple(index)], axis=[reduced[at] for at in sorted(reduced)])

    y = te.compute(rest, element, name="reduce")
    return Definition([x], averaged(y, math.prod(shape[at] for at in reduced)) if kind == "mean" else y)


@operator()
def softmax(m: int, n: int, dtype: str = "float32") -> Definition:
    """exp(x - max) / sum(exp(x - max)) along the rows of x[m, n]."""
    x = te.placeholder((m, n), dtype, name="x")
    return Definition([x], softmax_of(x))


@operator()
def layer_norm(m: int, n: int, eps: float = 1e-5, dtype: str = "float32") -> Definition:
    """(x - mean) / sqrt(variance + eps) * scale[n] + shift[n] along the rows of x[m, n]; scale and shift constant.

    Mean and variance in two passes: one pass by the mean of squares cancels where the mean is large.
    """
    x, scale, shift = (te.placeholder(s, dtype, name=t) for s, t in (((m, n), "x"), ((n,), "scale"), ((n,), "shift")))
    r = te.reduce_axis((0, n), name="r")
    mean = averaged(te.compute((m,), lambda i: te.sum(x[i, r], axis=r), name="total"), n)
    inverse = _inverse_root(te.compute((m, n), lambda i, j: x[i, j] - mean[i], name="centred"), eps)
    y = te.compute((m, n), lambda i, j: (x[i, j] - mean[i]) * inverse[i] * scale[j] + shift[j], name="layer_norm")
    return Definition([x, scale, shift], y, constants=(1, 2))


@operator()
def rms_norm(m: int, n: int, eps: float = 1e-5, dtype: str = "float32") -> Definition:
    """x / sqrt(mean(x^2) + eps) * scale[n] along the rows of x[m, n], with constant scale (arXiv:1910.07467)."""
    x, scale = te.placeholder((m, n), dtype, name="x"), te.placeholder((n,), dtype, name="scale")
    inverse = _inverse_root(x, eps)
    y = te.compute((m, n), lambda i, j: x[i, j] * inverse[i] * scale[j], name="rms_norm")
    return Definition([x, scale], y, constants=(1,))


def softmax_of(x: Any) -> Any:
    """The softmax of a tensor along its last axis. One division a row: one per element took a twelfth of the time."""
    *leading, n = x.shape
    r, s = te.reduce_axis((0, n), name="r"), te.reduce_axis((0, n), name="s")
    top = te.compute(leading, lambda *i: te.max(x(*i, r), axis=r), name="top")
    exp = te.compute(x.shape, lambda *i: te.exp(x[i] - top[i[:-1]]), name="exp")
    total = te.compute(leading, lambda *i: te.sum(exp(*i, s), axis=s), name="total")
    inverse = te.compute(leading, lambda *i: 1.0 / total(*i), name="inverse")
    return te.compute(x.shape, lambda *i: exp[i] * inverse(*i[:-1]), name="softmax")


def averaged(total: Any, count: int) -> Any:
    """A sum of `count` terms, divided by their number."""
    scale = tirx.const(1.0 / count, total.dtype)
    return te.compute(total.shape, lambda *i: total[i] * scale, name="average")


def _inverse_root(x: Any, eps: float) -> Any:
    """1 / sqrt(mean(x^2) + eps) of each row."""
    m, n = x.shape
    r = te.reduce_axis((0, n), name="r")
    square = te.compute((m,), lambda i: te.sum(x[i, r] * x[i, r], axis=r), name="square")
    return te.compute((m,), lambda i: tirx.rsqrt(square[i] * (1.0 / int(n)) + eps), name="inverse")
