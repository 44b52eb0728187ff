"""Fully connected layers whose weights are codes of 4 or 8 bits, and whose data are floats.

Groups of weights along a row share a scale, and a zero point. The codes are decoded where they are multiplied, so that
a kernel reads an eighth or a quarter of the bytes. With few rows of data nothing else counts.
"""

from __future__ import annotations

from typing import Any

from tvm import te

from ..errors import OperatorError
from .declare import Definition, operator
from .epilogue import ACTIVATIONS, with_epilogue

BITS = (4, 8)
"""How many bits a code may have."""


@operator(
    "a fully connected layer with weights of 4 or 8 bits",
    "m=4 n=64 k=96 bits=4 group=32 zero_points=1 bias=1",
    act=tuple(ACTIVATIONS),
)
def weight_only_dense(
    m: int,
    n: int,
    k: int,
    bits: int = 4,
    group: int = 32,
    zero_points: int = 0,
    bias: int = 0,
    act: str = "none",
    residual: int = 0,
    dtype: str = "float32",
) -> Definition:
    """A fully connected layer with quantised weights: C[m, n] = act(A[m, k] W[n, k]^T + bias[n] + residual[m, n]).

    W[n, k] = scale[n, g] (code[n, k] - zero[n, g]), where g = k // group. It is what ONNX Runtime's `MatMulNBits`
    computes. Two codes of 4 bits share a byte, the one with even k in its lower half.

    The inputs are A, code, zero if there are zero points, scale, and then bias and residual if there are any. Codes are
    uint8 of shape [n, k * bits / 8], zero points uint8 and scales float32 of shape [n, k / group]. All but A and the
    residual are constant.

    Args:
        m: Rows of A and C.
        n: Rows of W and columns of C.
        k: Columns of A and of W, which the sum runs over.
        bits: The bits of a code, 4 or 8.
        group: How many weights of a row share a scale. It divides k, and it is even if there are 4 bits.
        zero_points: 1 if each group has a zero point; 0 if the zero point is 8 for 4 bits, and 128 for 8 bits.
        bias: 1 adds a bias of shape [n], 0 does not.
        act: The activation, one of `ACTIVATIONS`.
        residual: 1 adds an input of shape [m, n] before the activation, 0 does not.
        dtype: "float32", the type of A, C, bias and residual.

    Raises:
        OperatorError: An argument is not as described above, or the tensors take more than 8 GiB together.

    Example:
        >>> import stormdrop as sd
        >>> workload = sd.operators.weight_only_dense(1, 64, 128, bits=4, group=32)
        >>> [(spec.shape, spec.dtype) for spec in workload.inputs]
        [((1, 128), 'float32'), ((64, 64), 'uint8'), ((64, 4), 'float32')]
    """
    if bits not in BITS:
        raise OperatorError(f"bits={bits} must be 4 or 8")
    per_byte = 8 // bits
    if k % group or group % per_byte:
        raise OperatorError(f"group={group} must divide k={k}" + (" and be even for bits=4" if per_byte > 1 else ""))
    a = te.placeholder((m, k), dtype, name="a")
    code = te.placeholder((n, k // per_byte), "uint8", name="code")
    zero = te.placeholder((n, k // group), "uint8", name="zero")
    scale = te.placeholder((n, k // group), dtype, name="scale")
    inputs = [a, code, *([zero] if zero_points else []), scale]
    c = te.compute((m, n), product_with_codes(a, code, zero if zero_points else None, scale, bits), name="dense")
    definition = with_epilogue(inputs, c, 1, bias, act, residual)
    return definition._replace(constants=tuple(range(1, len(inputs) + bias)))


def product_with_codes(a: Any, code: Any, zero: Any | None, scale: Any, bits: int) -> Any:
    """The element of A W^T at some indices, for codes as `weight_only_dense` takes them.

    Args:
        a: The data, of shape [..., k].
        code: The codes, uint8 of shape [n, k * bits / 8].
        zero: The zero points, uint8 of shape [n, groups]; None if they are 2 ** (bits - 1).
        scale: The scales, of shape [n, groups].
        bits: The bits of a code, 4 or 8.

    Returns:
        A function of the indices of an element of the product, [..., n].
    """
    groups, per_byte = int(scale.shape[1]), 8 // bits
    size = int(code.shape[1]) // groups
    # A reduction for each of them makes all indices affine.
    g, byte = te.reduce_axis((0, groups), name="g"), te.reduce_axis((0, size), name="byte")
    half = te.reduce_axis((0, per_byte), name="half")
    reductions = [g, byte, half][: 2 if bits == 8 else 3]

    def element(*i: Any) -> Any:
        *row, j = i
        wide = code[j, g * size + byte].astype("int32")
        if bits == 8:
            position = g * size + byte
        else:
            position = g * (size * 2) + byte * 2 + half
            wide = (wide >> (half * 4)) & 15
        shifted = wide - (2 ** (bits - 1) if zero is None else zero[j, g].astype("int32"))
        weight = shifted.astype("float32") * scale[j, g]
        return te.sum(a(*row, position) * weight, axis=reductions)

    return element
