"""What follows a contraction, element by element: bias, residual, activation."""

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
"""Functions of one value by name. gelu is the exact form, by the error function (arXiv:1606.08415, section 2);
silu and hardswish are x sigmoid(x) and x relu6(x + 3) / 6 (arXiv:1905.02244, section 5.2)."""


def with_epilogue(inputs: list[Any], value: Any, channel: int, bias: int, act: str, residual: int = 0) -> Definition:
    """act(value + bias + residual), with the weights (input 1) and the bias constant.

    The bias goes along dimension `channel` of the value; the residual, the last input, has the value's shape.
    """
    constants = (1, 2) if bias else (1,)
    if not bias and not residual and act == "none":
        return Definition(inputs, value, constants)
    b = te.placeholder((value.shape[channel],), value.dtype, name="bias") if bias else None
    rest = te.placeholder(value.shape, value.dtype, name="residual") if residual else None

    def element(*i: Any) -> Any:
        total = value[i]
        if b is not None:
            total = total + b[i[channel]]
        return ACTIVATIONS[act](total if rest is None else total + rest[i])

    added = [tensor for tensor in (b, rest) if tensor is not None]
    return Definition([*inputs, *added], te.compute(value.shape, element, name="epilogue"), constants)
