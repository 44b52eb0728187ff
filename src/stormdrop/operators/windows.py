"""What slides a window over an image or a sequence: convolutions and pools.

Channels are the last dimension (NLC, NHWC) or the second (NCL, NCHW), of images and weights alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from ..errors import OperatorError
from .declare import Definition, operator
from .epilogue import ACTIVATIONS, with_epilogue
from .rows import averaged

_SEQUENCES, _IMAGES = ("NLC", "NCL"), ("NHWC", "NCHW")


@operator(act=tuple(ACTIVATIONS), layout=_SEQUENCES)
def conv1d(
    n: int,
    l: int,
    ci: int,
    co: int,
    k: int,
    stride: int = 1,
    pad: int = 0,
    dilation: int = 1,
    groups: int = 1,
    bias: int = 0,
    act: str = "none",
    layout: str = "NLC",
    dtype: str = "float32",
) -> Definition:
    """Convolution along a sequence; constant weights [co, k, ci/groups] for NLC, [co, ci/groups, k] for NCL."""
    inputs, c = _convolution(n, (l,), ci, co, {"k": k}, stride, pad, dilation, groups, layout, dtype)
    return with_epilogue(inputs, c, layout.index("C"), bias, act)


@operator(act=tuple(ACTIVATIONS), layout=_IMAGES)
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
    residual: int = 0,
    dtype: str = "float32",
) -> Definition:
    """Convolution; constant weights [co, kh, kw, ci/groups] for NHWC, [co, ci/groups, kh, kw] for NCHW.

    `residual` adds an input of the output's shape before the activation.
    """
    inputs, c = _convolution(n, (h, w), ci, co, {"kh": kh, "kw": kw}, stride, pad, dilation, groups, layout, dtype)
    return with_epilogue(inputs, c, layout.index("C"), bias, act, residual)


@operator(act=tuple(ACTIVATIONS), layout=_IMAGES)
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
    dilation: int = 1,
    dtype: str = "float32",
) -> Definition:
    """Convolution of each channel by itself; constant weights [kh, kw, ci] for NHWC, [ci, kh, kw] for NCHW."""
    window = {"kh": kh, "kw": kw}
    extents = _output_extents((h, w), window, stride, pad, dilation)
    x = te.placeholder(_arranged(layout, n, ci, (h, w)), dtype, name="x")
    weight = te.placeholder(_arranged(layout, 1, ci, (kh, kw))[1:], dtype, name="w")
    padded, offsets = _pad(x, pad, layout, 0.0), _offsets(window)

    def value(*i: Any) -> Any:
        s, o, at = _taken(layout, i)
        element = padded[_arranged(layout, s, o, _places(at, offsets, stride, dilation))]
        return te.sum(element * weight[_arranged(layout, s, o, offsets)[1:]], axis=offsets)

    c = te.compute(_arranged(layout, n, ci, extents), value, name="depthwise_conv2d")
    return with_epilogue([x, weight], c, layout.index("C"), bias, act)


@operator(kind=("max", "avg"), layout=_IMAGES)
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
) -> Definition:
    """Maximum or average over a window; an average counts the padding as zeros."""
    window = {"kh": kh, "kw": kw}
    extents = _output_extents((h, w), window, stride, pad, 1)
    x = te.placeholder(_arranged(layout, n, c, (h, w)), dtype, name="x")
    padded = _pad(x, pad, layout, 0.0 if kind == "avg" else float(np.finfo(dtype).min))
    offsets, combine = _offsets(window), te.max if kind == "max" else te.sum

    def value(*i: Any) -> Any:
        s, o, at = _taken(layout, i)
        return combine(padded[_arranged(layout, s, o, _places(at, offsets, stride, 1))], axis=offsets)

    pooled = te.compute(_arranged(layout, n, c, extents), value, name="pool2d")
    return Definition([x], averaged(pooled, kh * kw) if kind == "avg" else pooled)


@operator(kind=("max", "avg"), layout=_IMAGES)
def global_pool2d(
    n: int, h: int, w: int, c: int, kind: str = "avg", layout: str = "NHWC", dtype: str = "float32"
) -> Definition:
    """Average or maximum over the whole image, which becomes one pixel."""
    x = te.placeholder(_arranged(layout, n, c, (h, w)), dtype, name="x")
    offsets, combine = _offsets({"kh": h, "kw": w}), te.max if kind == "max" else te.sum

    def value(*i: Any) -> Any:
        s, o, _ = _taken(layout, i)
        return combine(x[_arranged(layout, s, o, offsets)], axis=offsets)

    pooled = te.compute(_arranged(layout, n, c, (1, 1)), value, name="global_pool2d")
    return Definition([x], averaged(pooled, h * w) if kind == "avg" else pooled)


def _convolution(
    n: int,
    extents: Sequence[int],
    ci: int,
    co: int,
    window: Mapping[str, int],
    stride: int,
    pad: int,
    dilation: int,
    groups: int,
    layout: str,
    dtype: str,
) -> tuple[list[Any], Any]:
    """The inputs and the output of a convolution over any number of dimensions."""
    if ci % groups or co % groups:
        raise OperatorError(f"groups={groups} must divide ci={ci} and co={co}")
    output = _output_extents(extents, window, stride, pad, dilation)
    per_group, out_per_group = ci // groups, co // groups
    x = te.placeholder(_arranged(layout, n, ci, extents), dtype, name="x")
    weight = te.placeholder(_arranged(layout, co, per_group, tuple(window.values())), dtype, name="w")
    padded, offsets = _pad(x, pad, layout, 0.0), _offsets(window)
    rc = te.reduce_axis((0, per_group), name="rc")

    def value(*i: Any) -> Any:
        s, o, at = _taken(layout, i)
        channel = rc if groups == 1 else o // out_per_group * per_group + rc
        element = padded[_arranged(layout, s, channel, _places(at, offsets, stride, dilation))]
        along = _arranged(layout, o, rc, offsets)
        return te.sum(element * weight[along], axis=along[1:])

    return [x, weight], te.compute(_arranged(layout, n, co, output), value, name="convolution")


def _arranged(layout: str, first: Any, channel: Any, rest: Sequence[Any]) -> tuple[Any, ...]:
    """Extents or indices in the order of a layout."""
    return (first, *rest, channel) if layout.endswith("C") else (first, channel, *rest)


def _taken(layout: str, i: Sequence[Any]) -> tuple[Any, Any, Sequence[Any]]:
    """The inverse of `_arranged`."""
    return (i[0], i[-1], i[1:-1]) if layout.endswith("C") else (i[0], i[1], i[2:])


def _offsets(window: Mapping[str, int]) -> list[Any]:
    return [te.reduce_axis((0, extent), name=f"r{name}") for name, extent in window.items()]


def _places(at: Sequence[Any], offsets: Sequence[Any], stride: int, dilation: int) -> list[Any]:
    """Where an output element's window reads."""
    return [place * stride + offset * dilation for place, offset in zip(at, offsets, strict=True)]


def _pad(x: Any, pad: int, layout: str, value: float) -> Any:
    if not pad:
        return x
    at = [dimension for dimension, letter in enumerate(layout) if letter not in "NC"]
    shape = [extent + 2 * pad if axis in at else extent for axis, extent in enumerate(x.shape)]

    def padded(*i: Any) -> Any:
        inside = [tirx.all(i[axis] >= pad, i[axis] < x.shape[axis] + pad) for axis in at]
        source = [index - pad if axis in at else index for axis, index in enumerate(i)]
        return tirx.if_then_else(tirx.all(*inside), x[tuple(source)], tirx.const(value, x.dtype))

    return te.compute(shape, padded, name="pad")


def _output_extents(
    extents: Sequence[int], window: Mapping[str, int], stride: int, pad: int, dilation: int
) -> list[int]:
    results = []
    for extent, (name, size) in zip(extents, window.items(), strict=True):
        results.append((extent + 2 * pad - dilation * (size - 1) - 1) // stride + 1)
        if results[-1] < 1:
            raise OperatorError(f"{name}={size} does not fit into {extent} with pad={pad} and dilation={dilation}")
    return results
