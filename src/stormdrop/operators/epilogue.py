"""The epilogue of a contraction, element by element: bias, residual, activation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from .declare import Definition

_ZERO = tirx.const(0, "float32")
_SIX = tirx.const(6, "float32")


def _relu6(x: Any) -> Any:
    return tirx.min(tirx.max(x, _ZERO), _SIX)


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "none": lambda x: x,
    "relu": lambda x: tirx.max(x, _ZERO),
    "relu6": _relu6,
    "silu": lambda x: x * tirx.sigmoid(x),
    "gelu": lambda x: x * 0.5 * (tirx.erf(x * math.sqrt(0.5)) + 1.0),
    "hardswish": lambda x: x * _relu6(x + 3.0) * (1 / 6),
    "sigmoid": tirx.sigmoid,
    "tanh": tirx.tanh,
}
"""Functions of one value by name.

gelu is the exact form, by the error function (arXiv:1606.08415, section 2). silu is x sigmoid(x) and hardswish is
x relu6(x + 3) / 6 (arXiv:1905.02244, section 5.2).
"""


def with_epilogue(
    inputs: list[Any], value: Any, channel: int, bias: int, act: str, residual: int = 0, dtype: str = "float32"
) -> Definition:
    """Adds an epilogue to a contraction: act(value + bias + residual).

    Args:
        inputs: The inputs of the contraction, the second of which are constant weights.
        value: The result of the contraction.
        channel: The dimension of the value that the bias goes along.
        bias: 1 adds a constant bias, which becomes the next input, 0 does not.
        act: The activation, one of `ACTIVATIONS`.
        residual: 1 adds a tensor of the value's shape, which becomes the last input, 0 does not.
        dtype: The type of the result and of the residual.
    """
    constants = (1, 2) if bias else (1,)
    narrow = dtype != value.dtype
    if not bias and not residual and act == "none" and not narrow:
        return Definition(inputs, value, constants)
    bias_input = te.placeholder((value.shape[channel],), value.dtype, name="bias") if bias else None
    residual_input = te.placeholder(value.shape, dtype, name="residual") if residual else None

    def element(*i: Any) -> Any:
        total = value[i]
        if bias_input is not None:
            total = total + bias_input[i[channel]]
        if residual_input is not None:
            total = total + (residual_input[i].astype(value.dtype) if narrow else residual_input[i])
        result = ACTIVATIONS[act](total)
        return result.astype(dtype) if narrow else result

    added = [tensor for tensor in (bias_input, residual_input) if tensor is not None]
    return Definition([*inputs, *added], te.compute(value.shape, element, name="epilogue"), constants)
