"""The operators that can be named: each builds a `Workload` from its arguments.

    matmul(512, 512, 512)                           the Python call
    create("matmul", {"m": "512", ...})             the same from text, as the command line does

Weights (of dense and the convolutions) are constant inputs: a sketch may lay them out ahead of time.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import te, tirx

from ..errors import OperatorError, hint
from .workload import Workload

Builder = Callable[..., Workload]

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "none": lambda x: x,
    "relu": lambda x: tirx.max(x, tirx.const(0, "float32")),
}
_DTYPES = ("float32",)
_MAY_BE_ZERO = {"pad", "bias", "transpose_b"}
_FLAGS = {"bias", "transpose_b"}
_MOST_BYTES = 8 << 30  # of all inputs and outputs together

OPERATORS: dict[str, Builder] = {}
"""The operators by name."""


def _operator(builder: Builder) -> Builder:
    """Checks the arguments of a builder before, and the size of its tensors after."""
    signature = inspect.signature(builder)

    @functools.wraps(builder)
    def checked(*positional: Any, **named: Any) -> Workload:
        bound = signature.bind(*positional, **named)
        for key, value in bound.arguments.items():
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, int) and key != "axis":
                    _check_number(builder.__name__, key, number)
        workload = builder(*positional, **named)
        size = sum(spec.bytes for spec in (*workload.inputs, *workload.outputs))
        if size > _MOST_BYTES:
            raise OperatorError(
                f"{builder.__name__}: its tensors take {size / 1e9:.3g} GB; {_MOST_BYTES >> 30} GiB is the most"
            )
        return workload

    OPERATORS[builder.__name__] = checked
    return checked


@_operator
def matmul(m: int, n: int, k: int, dtype: str = "float32") -> Workload:
    """C[m, n] = A[m, k] B[k, n]."""
    a, b = te.placeholder((m, k), dtype, name="a"), te.placeholder((k, n), dtype, name="b")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="matmul")
    return _workload("matmul", [a, b], c, locals())


@_operator
def dense(m: int, n: int, k: int, bias: int = 0, act: str = "none", dtype: str = "float32") -> Workload:
    """C[m, n] = act(A[m, k] W[n, k]^T + bias[n]) with constant weights."""
    a, w = te.placeholder((m, k), dtype, name="a"), te.placeholder((n, k), dtype, name="w")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * w[j, r], axis=r), name="dense")
    inputs, c = _epilogue([a, w], c, n, -1, bias, act)
    return _workload("dense", inputs, c, locals(), constants=_weights(bias))


@_operator
def batch_matmul(b: int, m: int, n: int, k: int, transpose_b: int = 0, dtype: str = "float32") -> Workload:
    """C[b, m, n] = A[b, m, k] B[b, k, n], or B[b, n, k] with `transpose_b`."""
    x = te.placeholder((b, m, k), dtype, name="a")
    y = te.placeholder((b, n, k) if transpose_b else (b, k, n), dtype, name="b")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute(
        (b, m, n),
        lambda s, i, j: te.sum(x[s, i, r] * (y[s, j, r] if transpose_b else y[s, r, j]), axis=r),
        name="batch_matmul",
    )
    return _workload("batch_matmul", [x, y], c, locals())


@_operator
def conv2d(
    n: int,
    h: int,
    w: int,
    ci: int,
    co: int,
    kh: int,
    kw: int,
    stride: int = 1,
    pad: int = 0,
    dilation: int = 1,
    groups: int = 1,
    bias: int = 0,
    act: str = "none",
    layout: str = "NHWC",
    dtype: str = "float32",
) -> Workload:
    """Convolution with constant weights, [co, kh, kw, ci/groups] for NHWC and [co, ci/groups, kh, kw] for NCHW."""
    _check_layout(layout)
    if ci % groups or co % groups:
        raise OperatorError(f"conv2d: groups={groups} must divide ci={ci} and co={co}")
    oh, ow = (_output_extent("conv2d", *at, stride, pad, dilation) for at in ((h, kh, "kh"), (w, kw, "kw")))
    last = layout == "NHWC"
    per_group, out_per_group = ci // groups, co // groups
    x = te.placeholder((n, h, w, ci) if last else (n, ci, h, w), dtype, name="x")
    weight = te.placeholder((co, kh, kw, per_group) if last else (co, per_group, kh, kw), dtype, name="w")
    padded = _pad(x, pad, layout, 0.0)
    ry, rx, rc = (te.reduce_axis((0, e), name=f"r{s}") for e, s in ((kh, "y"), (kw, "x"), (per_group, "c")))

    def value(s: Any, y: Any, z: Any, o: Any) -> Any:
        channel = rc if groups == 1 else o // out_per_group * per_group + rc
        row, column = y * stride + ry * dilation, z * stride + rx * dilation
        if last:
            return te.sum(padded[s, row, column, channel] * weight[o, ry, rx, rc], axis=[ry, rx, rc])
        return te.sum(padded[s, channel, row, column] * weight[o, rc, ry, rx], axis=[rc, ry, rx])

    if last:
        c = te.compute((n, oh, ow, co), value, name="conv2d")
    else:
        c = te.compute((n, co, oh, ow), lambda s, o, y, z: value(s, y, z, o), name="conv2d")
    inputs, c = _epilogue([x, weight], c, co, layout.index("C"), bias, act)
    return _workload("conv2d", inputs, c, locals(), constants=_weights(bias))


@_operator
def depthwise_conv2d(
    n: int,
    h: int,
    w: int,
    ci: int,
    kh: int,
    kw: int,
    stride: int = 1,
    pad: int = 0,
    bias: int = 0,
    act: str = "none",
    layout: str = "NHWC",
    dtype: str = "float32",
) -> Workload:
    """Depthwise convolution with constant weights, [kh, kw, ci] for NHWC and [ci, kh, kw] for NCHW."""
    _check_layout(layout)
    oh, ow = (_output_extent("depthwise_conv2d", *at, stride, pad, 1) for at in ((h, kh, "kh"), (w, kw, "kw")))
    last = layout == "NHWC"
    x = te.placeholder((n, h, w, ci) if last else (n, ci, h, w), dtype, name="x")
    weight = te.placeholder((kh, kw, ci) if last else (ci, kh, kw), dtype, name="w")
    padded = _pad(x, pad, layout, 0.0)
    ry, rx = te.reduce_axis((0, kh), name="ry"), te.reduce_axis((0, kw), name="rx")
    if last:
        c = te.compute(
            (n, oh, ow, ci),
            lambda s, y, z, o: te.sum(
                padded[s, y * stride + ry, z * stride + rx, o] * weight[ry, rx, o], axis=[ry, rx]
            ),
            name="depthwise_conv2d",
        )
    else:
        c = te.compute(
            (n, ci, oh, ow),
            lambda s, o, y, z: te.sum(
                padded[s, o, y * stride + ry, z * stride + rx] * weight[o, ry, rx], axis=[ry, rx]
            ),
            name="depthwise_conv2d",
        )
    inputs, c = _epilogue([x, weight], c, ci, layout.index("C"), bias, act)
    return _workload("depthwise_conv2d", inputs, c, locals(), constants=_weights(bias))


@_operator
def pool2d(
    n: int,
    h: int,
    w: int,
    c: int,
    kh: int,
    kw: int,
    stride: int = 1,
    pad: int = 0,
    kind: str = "max",
    layout: str = "NHWC",
    dtype: str = "float32",
) -> Workload:
    """Maximum or average over a window; an average counts the padding as zeros."""
    _check_layout(layout)
    _check_choice("pool2d", "kind", kind, ("max", "avg"))
    oh, ow = (_output_extent("pool2d", *at, stride, pad, 1) for at in ((h, kh, "kh"), (w, kw, "kw")))
    last = layout == "NHWC"
    x = te.placeholder((n, h, w, c) if last else (n, c, h, w), dtype, name="x")
    padded = _pad(x, pad, layout, 0.0 if kind == "avg" else float(np.finfo(dtype).min))
    ry, rx = te.reduce_axis((0, kh), name="ry"), te.reduce_axis((0, kw), name="rx")
    combine = te.max if kind == "max" else te.sum

    def value(s: Any, y: Any, z: Any, o: Any) -> Any:
        at = (s, y * stride + ry, z * stride + rx, o) if last else (s, o, y * stride + ry, z * stride + rx)
        return combine(padded[at], axis=[ry, rx])

    shape = (n, oh, ow, c) if last else (n, c, oh, ow)
    pooled = te.compute(shape, value if last else lambda s, o, y, z: value(s, y, z, o), name="pool2d")
    if kind == "avg":
        scale = tirx.const(1.0 / (kh * kw), dtype)
        pooled = te.compute(shape, lambda *at: pooled[at] * scale, name="average")
    return _workload("pool2d", [x], pooled, locals())


@_operator
def reduce(shape: tuple[int, ...], axis: int, kind: str = "sum", dtype: str = "float32") -> Workload:
    """Sum, maximum or minimum over one axis."""
    _check_choice("reduce", "kind", kind, ("sum", "max", "min"))
    if not -len(shape) <= axis < len(shape):
        raise OperatorError(f"reduce: axis={axis} is outside a shape of {len(shape)} dimensions")
    at = axis % len(shape)
    x = te.placeholder(shape, dtype, name="x")
    r = te.reduce_axis((0, shape[at]), name="r")
    combine = {"sum": te.sum, "max": te.max, "min": te.min}[kind]
    rest = shape[:at] + shape[at + 1 :]

    def element(*i: Any) -> Any:
        index = (*i[:at], r, *i[at:]) if rest else (r,)
        return combine(x[index], axis=r)

    y = te.compute(rest or (1,), element, name="reduce")
    return _workload("reduce", [x], y, locals())


@_operator
def softmax(m: int, n: int, dtype: str = "float32") -> Workload:
    """exp(x - max) / sum(exp(x - max)) along the rows of x[m, n]."""
    x = te.placeholder((m, n), dtype, name="x")
    r, s = te.reduce_axis((0, n), name="r"), te.reduce_axis((0, n), name="s")
    top = te.compute((m,), lambda i: te.max(x[i, r], axis=r), name="top")
    exp = te.compute((m, n), lambda i, j: te.exp(x[i, j] - top[i]), name="exp")
    total = te.compute((m,), lambda i: te.sum(exp[i, s], axis=s), name="total")
    y = te.compute((m, n), lambda i, j: exp[i, j] / total[i], name="softmax")
    return _workload("softmax", [x], y, locals())


@_operator
def elementwise(shape: tuple[int, ...], kind: str = "relu", dtype: str = "float32") -> Workload:
    """One function of each element, or of the elements of two inputs (add, mul)."""
    unary: dict[str, Callable[[Any], Any]] = {
        "relu": lambda x: tirx.max(x, tirx.const(0, dtype)),
        "exp": te.exp,
        "tanh": te.tanh,
        "sigmoid": te.sigmoid,
    }
    binary: dict[str, Callable[[Any, Any], Any]] = {"add": lambda x, y: x + y, "mul": lambda x, y: x * y}
    _check_choice("elementwise", "kind", kind, (*unary, *binary))
    inputs = [te.placeholder(shape, dtype, name=name) for name in (("x",) if kind in unary else ("x", "z"))]
    if kind in unary:
        y = te.compute(shape, lambda *i: unary[kind](inputs[0][i]), name="elementwise")
    else:
        y = te.compute(shape, lambda *i: binary[kind](inputs[0][i], inputs[1][i]), name="elementwise")
    return _workload("elementwise", inputs, y, locals())


def names() -> list[str]:
    """The operators that `create` knows."""
    return sorted(OPERATORS)


def usage(name: str) -> str:
    """The arguments of an operator on one line, optional ones with their defaults in brackets."""
    parts = []
    for parameter in inspect.signature(OPERATORS[name]).parameters.values():
        required = parameter.default is inspect.Parameter.empty
        parts.append(parameter.name if required else f"[{parameter.name}={parameter.default}]")
    return " ".join(parts)


def create(name: str, arguments: Mapping[str, str]) -> Workload:
    """An operator from text arguments, as in `matmul m=512 n=512 k=512`.

    Raises `OperatorError`, with one line that says what would be right, for an unknown operator and for an
    argument that is unknown, missing, no number, zero or negative.
    """
    if name not in OPERATORS:
        raise OperatorError(f"unknown operator {name!r}; {hint(name, names())}")
    parameters = inspect.signature(OPERATORS[name]).parameters
    unknown = [key for key in arguments if key not in parameters]
    if unknown:
        raise OperatorError(f"{name} has no argument {unknown[0]!r}: its arguments are {usage(name)}")
    missing = [
        key for key, item in parameters.items() if item.default is inspect.Parameter.empty and key not in arguments
    ]
    if missing:
        raise OperatorError(f"{name} needs {', '.join(missing)}: its arguments are {usage(name)}")
    values = {key: _read(name, key, str(parameters[key].annotation), text) for key, text in arguments.items()}
    return OPERATORS[name](**values)


def _read(operator: str, key: str, annotation: str, text: str) -> Any:
    if annotation == "str":
        return text
    if annotation.startswith("tuple"):
        return tuple(_integer(operator, key, part, "a shape such as 128x512") for part in text.split("x"))
    return _integer(operator, key, text, "a whole number")


def _integer(operator: str, key: str, text: str, wanted: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise OperatorError(f"{operator}: {key}={text!r} is not {wanted}") from None
    if key != "axis":
        _check_number(operator, key, value)
    return value


def _check_number(operator: str, key: str, value: int) -> None:
    if value < 0 or (value == 0 and key not in _MAY_BE_ZERO):
        least = "0 or more" if key in _MAY_BE_ZERO else "positive"
        raise OperatorError(f"{operator}: {key}={value} must be {least}")
    if key in _FLAGS and value > 1:
        raise OperatorError(f"{operator}: {key}={value} must be 0 or 1")
    if value >= 2**31:
        raise OperatorError(f"{operator}: {key}={value} must be less than 2147483648")


def _workload(
    name: str, inputs: list[Any], output: Any, scope: Mapping[str, Any], constants: tuple[int, ...] = ()
) -> Workload:
    parameters = inspect.signature(OPERATORS[name]).parameters
    arguments = {key: scope[key] for key in parameters}
    dtype = arguments["dtype"]
    if dtype not in _DTYPES:
        raise OperatorError(f"{name}: dtype={dtype} is not supported yet: use {' or '.join(_DTYPES)}")
    text = " ".join(
        f"{key}={'x'.join(map(str, value)) if isinstance(value, tuple) else value}"
        for key, value in arguments.items()
        if value != parameters[key].default
    )
    return Workload.create(f"{name} {text}", te.create_prim_func([*inputs, output]), constants, arguments)


def _epilogue(inputs: list[Any], value: Any, channels: int, at: int, bias: int, act: str) -> tuple[list[Any], Any]:
    _check_choice("the operator", "act", act, tuple(_ACTIVATIONS))
    if not bias and act == "none":
        return inputs, value
    activate = _ACTIVATIONS[act]
    if not bias:
        return inputs, te.compute(value.shape, lambda *i: activate(value[i]), name="epilogue")
    b = te.placeholder((channels,), value.dtype, name="bias")
    return [*inputs, b], te.compute(value.shape, lambda *i: activate(value[i] + b[i[at]]), name="epilogue")


def _weights(bias: int) -> tuple[int, ...]:
    return (1, 2) if bias else (1,)


def _pad(x: Any, pad: int, layout: str, value: float) -> Any:
    if not pad:
        return x
    at = (layout.index("H"), layout.index("W"))
    shape = [extent + 2 * pad if axis in at else extent for axis, extent in enumerate(x.shape)]

    def padded(*i: Any) -> Any:
        inside = [tirx.all(i[axis] >= pad, i[axis] < x.shape[axis] + pad) for axis in at]
        source = [index - pad if axis in at else index for axis, index in enumerate(i)]
        return tirx.if_then_else(tirx.all(*inside), x[tuple(source)], tirx.const(value, x.dtype))

    return te.compute(shape, padded, name="pad")


def _output_extent(name: str, extent: int, window: int, label: str, stride: int, pad: int, dilation: int) -> int:
    result = (extent + 2 * pad - dilation * (window - 1) - 1) // stride + 1
    if result < 1:
        raise OperatorError(f"{name}: {label}={window} does not fit into {extent} with pad={pad}")
    return result


def _check_layout(layout: str) -> None:
    _check_choice("the operator", "layout", layout, ("NHWC", "NCHW"))


def _check_choice(name: str, key: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise OperatorError(f"{name}: {key}={value} must be {' or '.join(choices)}")
