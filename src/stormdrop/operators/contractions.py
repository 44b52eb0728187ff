"""Operators that are products of matrices: matmul, dense, batch_matmul, attention_scores, attention."""

from __future__ import annotations

import math
from typing import Any

from tvm import te

from ..ir.dtypes import BFLOAT16, FLOAT16
from .declare import Definition, operator
from .epilogue import ACTIVATIONS, with_epilogue
from .quantized import BYTES, check_quantized, factor, is_bytes, second_dtype, with_quantized_epilogue
from .rows import softmax_of

_DTYPES = ("float32", FLOAT16, BFLOAT16, *BYTES)


@operator("a product of two matrices, neither of them constant", "m=48 n=64 k=32", dtype=_DTYPES)
def matmul(m: int, n: int, k: int, dtype: str = "float32") -> Definition:
    """Product of two matrices, of which neither is constant: C[m, n] = A[m, k] B[k, n].

    Products of float16 and bfloat16 are summed up in float32, those of bytes in int32, which is then the type of C.

    Args:
        m: Rows of A and C.
        n: Columns of B and C.
        k: Columns of A and rows of B, which the sum runs over.
        dtype: "float32", "float16" or "bfloat16", the type of A, B and C; or "int8" or "uint8", the type of A, with a B
            of int8.

    Raises:
        OperatorError: An argument is not as described above, or the tensors take more than 8 GiB together.

    Example:
        >>> import stormdrop as sd
        >>> workload = sd.operators.matmul(64, 32, 16)
        >>> [spec.shape for spec in workload.inputs], [spec.shape for spec in workload.outputs]
        ([(64, 16), (16, 32)], [(64, 32)])
    """
    a, b = te.placeholder((m, k), dtype, name="a"), te.placeholder((k, n), second_dtype(dtype), name="b")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute((m, n), lambda i, j: te.sum(factor(a[i, r], dtype) * factor(b[r, j], dtype), axis=r), name="matmul")
    return Definition([a, b], _narrow(c, dtype))


@operator(
    "a product with constant weights: a fully connected layer",
    "m=8 n=64 k=96 bias=1 act=relu",
    act=tuple(ACTIVATIONS),
    dtype=("float32", BFLOAT16, *BYTES),
)
def dense(
    m: int,
    n: int,
    k: int,
    bias: int = 0,
    act: str = "none",
    residual: int = 0,
    zero_point: int = 0,
    requantize: int = 0,
    dtype: str = "float32",
) -> Definition:
    """A fully connected layer: C[m, n] = act(A[m, k] W[n, k]^T + bias[n] + residual[m, n]).

    The weights W and the bias are constant. The inputs are A, W, and then bias and residual if there are any. Products
    of bytes are summed up in int32, in which the bias is, too. The sums are C, or with `requantize=1` C[m, n] =
    clip(round(scale[n] act(...))) with one more constant input, scale.

    Args:
        m: Rows of A and C.
        n: Rows of W and columns of C.
        k: Columns of A and of W, which the sum runs over.
        bias: 1 adds a bias of shape [n], 0 does not.
        act: The activation, one of `ACTIVATIONS`.
        residual: 1 adds an input of shape [m, n] before the activation, 0 does not.
        zero_point: What is subtracted from each element of A; for bytes only.
        requantize: 1 makes C int8, or uint8 after relu; 0 leaves it in int32. For bytes only.
        dtype: "float32"; "bfloat16", the type of A, W, residual and C, with sums and a bias in float32; or "int8" or
            "uint8", the type of A, with W in int8. Bytes have no residual, and the activations none and relu.

    Raises:
        OperatorError: An argument is not as described above, or the tensors take more than 8 GiB together.

    Example:
        >>> import stormdrop as sd
        >>> workload = sd.operators.dense(64, 32, 16, bias=1, act="relu")
        >>> [spec.shape for spec in workload.inputs], workload.constants
        ([(64, 16), (32, 16), (32,)], (1, 2))
        >>> sd.operators.dense(64, 32, 16, act="relu", dtype="uint8", requantize=1).outputs[0].dtype
        'uint8'
    """
    check_quantized(dtype, act, residual, zero_point, requantize)
    a, w = te.placeholder((m, k), dtype, name="a"), te.placeholder((n, k), second_dtype(dtype), name="w")
    r = te.reduce_axis((0, k), name="r")

    def product(i: Any, j: Any) -> Any:
        return te.sum(factor(a[i, r], dtype, zero_point) * factor(w[j, r], dtype), axis=r)

    c = te.compute((m, n), product, name="dense")
    if is_bytes(dtype):
        return with_quantized_epilogue([a, w], c, 1, bias, act, requantize)
    return with_epilogue([a, w], c, 1, bias, act, residual, dtype)


@operator("products of pairs of matrices", "b=3 m=32 n=32 k=16", dtype=_DTYPES)
def batch_matmul(b: int, m: int, n: int, k: int, transpose_b: int = 0, dtype: str = "float32") -> Definition:
    """Products of pairs of matrices, of which neither is constant: C[b, m, n] = A[b, m, k] B[b, k, n].

    Products of float16 and bfloat16 are summed up in float32, those of bytes in int32, which is then the type of C.

    Args:
        b: The number of products.
        m: Rows of A and C.
        n: Columns of B and C.
        k: Columns of A and rows of B, which the sum runs over.
        transpose_b: 1 if B has the shape [b, n, k], 0 if it has the shape [b, k, n].
        dtype: "float32", "float16" or "bfloat16", the type of A, B and C; or "int8" or "uint8", the type of A, with a B
            of int8.

    Raises:
        OperatorError: An argument is not as described above, or the tensors take more than 8 GiB together.

    Example:
        >>> import stormdrop as sd
        >>> workload = sd.operators.batch_matmul(8, 64, 32, 16, transpose_b=1)
        >>> [spec.shape for spec in workload.inputs]
        [(8, 64, 16), (8, 32, 16)]
    """
    inputs, c = _batch_matmul(b, m, n, k, transpose_b, dtype)
    return Definition(inputs, _narrow(c, dtype))


@operator("softmax of Q K^T: attention before its product with V", "b=2 m=32 n=32 k=16")
def attention_scores(b: int, m: int, n: int, k: int, mask: int = 0, dtype: str = "float32") -> Definition:
    """Attention before its product with V: softmax(Q[b, m, k] K[b, n, k]^T / sqrt(k) + mask[m, n]) along n.

    It is equation 1 of arXiv:1706.03762 without V. The product with V is a `batch_matmul`.

    Args:
        b: Heads, of all sequences of a batch together.
        m: Queries.
        n: Keys.
        k: The length of a query and of a key.
        mask: 1 adds an input of shape [m, n] before the softmax, 0 does not. Its elements are 0, or very negative if
            the query may not attend to the key.
        dtype: "float32".

    Raises:
        OperatorError: An argument is not as described above, or the tensors take more than 8 GiB together.

    Example:
        >>> import stormdrop as sd
        >>> workload = sd.operators.attention_scores(8, 64, 32, 16, mask=1)
        >>> [spec.shape for spec in workload.inputs], [spec.shape for spec in workload.outputs]
        ([(8, 64, 16), (8, 32, 16), (64, 32)], [(8, 64, 32)])
    """
    return Definition(*_attention_weights(b, m, n, k, mask, dtype))


@operator("softmax of Q K^T, multiplied by V", "b=2 m=32 n=32 k=16 v=8", dtype=("float32", BFLOAT16, FLOAT16))
def attention(b: int, m: int, n: int, k: int, v: int, mask: int = 0, dtype: str = "float32") -> Definition:
    """Attention: softmax(Q[b, m, k] K[b, n, k]^T / sqrt(k) + mask[m, n]) V[b, n, v], the softmax along n.

    It is equation 1 of arXiv:1706.03762.

    Args:
        b: Heads, of all sequences of a batch together.
        m: Queries.
        n: Keys.
        k: The length of a query and of a key.
        v: The length of a value.
        mask: 1 adds an input of shape [m, n] before the softmax, 0 does not. Its elements are 0, or very negative if
            the query may not attend to the key.
        dtype: The type of queries, keys, values and the output: "float32"; or "bfloat16" or "float16", with scores and
            a mask in float32, and the weights rounded to this type.

    Raises:
        OperatorError: An argument is not as described above, or the tensors take more than 8 GiB together.

    Example:
        >>> import stormdrop as sd
        >>> workload = sd.operators.attention(8, 64, 32, 16, 16)
        >>> [spec.shape for spec in workload.inputs], [spec.shape for spec in workload.outputs]
        ([(8, 64, 16), (8, 32, 16), (8, 32, 16)], [(8, 64, 16)])
    """
    inputs, weights = _attention_weights(b, m, n, k, mask, dtype)
    values = te.placeholder((b, n, v), dtype, name="v")
    r = te.reduce_axis((0, n), name="r")

    def weighted(s: Any, i: Any, j: Any) -> Any:
        weight = factor(weights[s, i, r].astype(dtype), dtype)
        return te.sum(weight * factor(values[s, r, j], dtype), axis=r)

    return Definition([*inputs, values], _narrow(te.compute((b, m, v), weighted, name="attention"), dtype))


def _attention_weights(b: int, m: int, n: int, k: int, mask: int, dtype: str) -> tuple[list[Any], Any]:
    """The inputs of the scores, and the softmax of these in float32."""
    inputs, product = _batch_matmul(b, m, n, k, 1, dtype)
    mask_input = te.placeholder((m, n), name="mask") if mask else None

    def score(s: Any, i: Any, j: Any) -> Any:
        scaled = product[s, i, j] * (1 / math.sqrt(k))
        return scaled if mask_input is None else scaled + mask_input[i, j]

    scores = te.compute((b, m, n), score, name="scores")
    return [*inputs, mask_input] if mask else inputs, softmax_of(scores)


def _batch_matmul(b: int, m: int, n: int, k: int, transpose_b: int, dtype: str) -> tuple[list[Any], Any]:
    """The inputs and the product, in the type of the sums."""
    x = te.placeholder((b, m, k), dtype, name="a")
    y = te.placeholder((b, n, k) if transpose_b else (b, k, n), second_dtype(dtype), name="b")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute(
        (b, m, n),
        lambda s, i, j: te.sum(
            factor(x[s, i, r], dtype) * factor(y[s, j, r] if transpose_b else y[s, r, j], dtype), axis=r
        ),
        name="batch_matmul",
    )
    return [x, y], c


def _narrow(value: Any, dtype: str) -> Any:
    """The result in the type of the operands; sums of bytes stay in int32."""
    return value if is_bytes(dtype) else with_epilogue([], value, 0, 0, "none", dtype=dtype).output
