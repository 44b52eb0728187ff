"""Products of matrices."""

from __future__ import annotations

import math
from typing import Any

from tvm import te

from .declare import Definition, operator
from .epilogue import ACTIVATIONS, with_epilogue
from .rows import softmax_of

_DTYPES = ("float32", "float16")


@operator(dtype=_DTYPES)
def matmul(m: int, n: int, k: int, dtype: str = "float32") -> Definition:
    """C[m, n] = A[m, k] B[k, n]. Products of float16 are summed up in float32."""
    a, b = te.placeholder((m, k), dtype, name="a"), te.placeholder((k, n), dtype, name="b")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute((m, n), lambda i, j: te.sum(_wide(a[i, r], dtype) * _wide(b[r, j], dtype), axis=r), name="matmul")
    return Definition([a, b], _narrow(c, dtype))


@operator(act=tuple(ACTIVATIONS))
def dense(
    m: int, n: int, k: int, bias: int = 0, act: str = "none", residual: int = 0, dtype: str = "float32"
) -> Definition:
    """C[m, n] = act(A[m, k] W[n, k]^T + bias[n] + residual[m, n]) with constant weights and bias."""
    a, w = te.placeholder((m, k), dtype, name="a"), te.placeholder((n, k), dtype, name="w")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * w[j, r], axis=r), name="dense")
    return with_epilogue([a, w], c, 1, bias, act, residual)


@operator(dtype=_DTYPES)
def batch_matmul(b: int, m: int, n: int, k: int, transpose_b: int = 0, dtype: str = "float32") -> Definition:
    """C[b, m, n] = A[b, m, k] B[b, k, n], or B[b, n, k] with `transpose_b`. Sums of float16 are float32."""
    inputs, c = _batch_matmul(b, m, n, k, transpose_b, dtype)
    return Definition(inputs, _narrow(c, dtype))


@operator()
def attention_scores(b: int, m: int, n: int, k: int, mask: int = 0, dtype: str = "float32") -> Definition:
    """softmax(Q[b, m, k] K[b, n, k]^T / sqrt(k) + mask[m, n]) along n, for b heads.

    Equation 1 of arXiv:1706.03762 before its product with V, which is a `batch_matmul`. The mask is added (0 where
    a query may look, very negative where not).
    """
    inputs, product = _batch_matmul(b, m, n, k, 1, dtype)
    added = te.placeholder((m, n), dtype, name="mask") if mask else None

    def score(s: Any, i: Any, j: Any) -> Any:
        scaled = product[s, i, j] * (1 / math.sqrt(k))
        return scaled if added is None else scaled + added[i, j]

    scores = te.compute((b, m, n), score, name="scores")
    return Definition([*inputs, added] if mask else inputs, softmax_of(scores))


def _batch_matmul(b: int, m: int, n: int, k: int, transpose_b: int, dtype: str) -> tuple[list[Any], Any]:
    x = te.placeholder((b, m, k), dtype, name="a")
    y = te.placeholder((b, n, k) if transpose_b else (b, k, n), dtype, name="b")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute(
        (b, m, n),
        lambda s, i, j: te.sum(
            _wide(x[s, i, r], dtype) * _wide(y[s, j, r] if transpose_b else y[s, r, j], dtype), axis=r
        ),
        name="batch_matmul",
    )
    return [x, y], c


def _wide(value: Any, dtype: str) -> Any:
    """A factor in the type of the sums."""
    return value if dtype == "float32" else value.astype("float32")


def _narrow(value: Any, dtype: str) -> Any:
    """The result in the type of the operands."""
    if dtype == "float32":
        return value
    return te.compute(value.shape, lambda *at: value(*at).astype(dtype), name="rounded")
