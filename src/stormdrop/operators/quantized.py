"""Operators on bytes: their types, and the epilogue of their sums of 32 bits.

A product of bytes is summed up in int32, which is exact. The data are uint8 or int8; constant weights, and the second
operand of a matmul, are int8. Data stand for `element - zero_point`, the second operand for itself. The sums are the
result, or they are requantised:

    y = clip(round(scale[channel] * act(sum + bias[channel])))        to uint8 after relu, else to int8

`round` takes halves to even numbers, as the machine does.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from ..errors import OperatorError
from .declare import Definition

BYTES = ("int8", "uint8")
"""The types of data. They are the values of the argument `dtype`."""

_ACTIVATIONS = ("none", "relu")
_RANGES = {"int8": (-128, 127), "uint8": (0, 255)}


def is_bytes(dtype: str) -> bool:
    """Whether an operator of this type sums up products of bytes."""
    return dtype in BYTES


def second_dtype(dtype: str) -> str:
    """The type of weights, or of the second operand, if the data are of type `dtype`."""
    return "int8" if is_bytes(dtype) else dtype


def factor(value: Any, dtype: str, zero_point: int = 0) -> Any:
    """An element of type `dtype` as a factor of a product: in the type of the sums, less its zero point."""
    if dtype == "float32":
        return value
    wide = value.astype("int32" if is_bytes(dtype) else "float32")
    return wide - zero_point if zero_point else wide


def check_quantized(dtype: str, act: str, residual: int, zero_point: int, requantize: int) -> None:
    """Checks the arguments of an operator that depend on its type.

    Args:
        dtype: The type of the data.
        act: The activation.
        residual: 1 if there is a residual.
        zero_point: What stands for zero among the data.
        requantize: 1 if the sums are requantised.

    Raises:
        OperatorError: Bytes have another activation than none and relu or a residual, the zero point is no value of
            the type, or floats have a zero point or are requantised.
    """
    if not is_bytes(dtype):
        if zero_point or requantize:
            raise OperatorError(f"zero_point and requantize are for dtype=int8 and uint8, not for {dtype}")
        return
    if act not in _ACTIVATIONS:
        raise OperatorError(f"act={act} is for floats: bytes have {' or '.join(_ACTIVATIONS)}")
    if residual:
        raise OperatorError("residual=1 is for floats")
    low, high = _RANGES[dtype]
    if not low <= zero_point <= high:
        raise OperatorError(f"zero_point={zero_point} must be between {low} and {high} for dtype={dtype}")


def with_quantized_epilogue(
    inputs: list[Any], sums: Any, channel: int, bias: int, act: str, requantize: int
) -> Definition:
    """Adds an epilogue to sums of products of bytes.

    Args:
        inputs: The inputs of the contraction, the second of which are constant weights.
        sums: Its result, in int32.
        channel: The dimension of the sums that bias and scale go along.
        bias: 1 adds a constant bias in int32, which becomes the next input, 0 does not.
        act: The activation: "none" or "relu".
        requantize: 1 adds a constant scale in float32, which becomes the last input, and makes bytes of the result; 0
            leaves it in int32.
    """
    added = [te.placeholder((sums.shape[channel],), "int32", name="bias")] if bias else []
    scale = te.placeholder((sums.shape[channel],), "float32", name="scale") if requantize else None
    result = "uint8" if act == "relu" else "int8"

    def element(*i: Any) -> Any:
        total = sums[i]
        if bias:
            total = total + added[0][i[channel]]
        if act == "relu":
            total = tirx.max(total, tirx.const(0, "int32"))
        if scale is None:
            return total
        low, high = (tirx.const(float(bound), "float32") for bound in _RANGES[result])
        scaled = tirx.nearbyint(total.astype("float32") * scale[i[channel]])
        return tirx.max(tirx.min(scaled, high), low).astype("int32").astype(result)

    inputs = [*inputs, *added, *([] if scale is None else [scale])]
    constants = tuple(range(1, len(inputs)))
    if not bias and not requantize and act == "none":
        return Definition(inputs, sums, constants)
    return Definition(inputs, te.compute(sums.shape, element, name="epilogue"), constants)
